"""The mean picture of a head: weights by relative position of query and key."""

import torch
from jaxtyping import Float
from torch import Tensor

from multihead.measure.part import Part
from multihead.measure.scene import BINS, Scene
from multihead.measure.statistic.contract import Contribution, OfTile, with_aside
from multihead.record import Quantity


def prepare(scene: Scene) -> Float[Tensor, "_ kv_len bins"]:
    """1 where a key is in a bin."""
    place, edges = scene.k_places[:, None], scene.k_edges()[:, None]
    return ((place >= edges[..., :-1]) & (place < edges[..., 1:])).to(scene.problem.wide)


def take(part: Part, facts: Float[Tensor, "_ kv_len bins"]) -> tuple[Contribution, ...]:
    """The weight of every row on each bin of keys, added up by the bin of the row."""
    whole, content = part.pooled(facts)
    own = part.scene.q_bins()[:, None, part.rows]
    inside = own[..., None] == torch.arange(BINS, device=own.device)
    rows = (inside & part.counted[..., None]).double()
    left = torch.where(part.counted, part.known.left, 0.0).double()
    return _mean(whole, rows.sum(2)), _mean(content, (left[:, :, None] @ rows)[:, :, 0])


def _mean(sums: Tensor, count: Tensor) -> Contribution:
    return Contribution(sums, count[..., None].expand_as(sums))


POOLED_MAP = OfTile(
    quantities=with_aside(
        Quantity(
            name="pooled_map",
            title="mean map",
            unit="share",
            formula=("mean over a bin of rows of the weight on a bin of keys; i in bin floor(32 (i - first) / length)"),
            shape=(BINS, BINS),
        ),
        "the same over keys outside of the sink / sum of all A_ij there, over the rows of the bin",
    ),
    prepare=prepare,
    take=take,
    of_weights=False,
)
