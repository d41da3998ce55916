"""The mean picture of a head: weights by relative position of query and key."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from multihead.measure.scene import BINS, Scene
from multihead.measure.statistic.contract import Contribution, OfTile
from multihead.measure.tile import Tile
from multihead.record import Quantity


def prepare(scene: Scene) -> tuple[Float[Tensor, "_ 1 bins q_len"], Int[Tensor, "_ 1 edges"]]:
    """Which queries are in each bin, and the edges of the bins among the keys."""
    bins = torch.arange(BINS, device=scene.problem.q.device)
    members = scene.q_bins()[:, None, None] == bins[:, None]
    return members.to(scene.problem.wide), scene.k_edges()[:, None]


def take(tile: Tile, facts: tuple[Float[Tensor, "_ 1 bins q_len"], Int[Tensor, "_ 1 edges"]]) -> tuple[Contribution]:
    """The weight of every row on each bin of keys, added up by the bin of the row."""
    members, edges = facts
    members = members[..., tile.rows] * tile.counted[:, :, None]
    masses = tile.upto(edges).diff(dim=-1).clamp_(min=0.0)
    count = members.sum(-1, dtype=torch.float64)[..., None].expand(-1, -1, -1, BINS)
    return (Contribution((members @ masses).double(), count),)


POOLED_MAP = OfTile(
    quantities=(
        Quantity(
            name="pooled_map",
            title="mean map",
            unit="share",
            formula="mean over a bin of rows of the weight on a bin of keys; i in bin floor(32 (i - first) / length)",
            shape=(BINS, BINS),
        ),
    ),
    prepare=prepare,
    take=take,
)
