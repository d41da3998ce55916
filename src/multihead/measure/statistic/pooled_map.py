"""The mean picture of a head: weights by relative position of query and key."""

import torch
from jaxtyping import Float
from torch import Tensor

from multihead.measure.scene import BINS, Scene
from multihead.measure.statistic.contract import Contribution, OfTile, with_aside
from multihead.measure.tile import Tile
from multihead.record import Quantity


def prepare(scene: Scene) -> Float[Tensor, "_ kv_len bins"]:
    """1 where a key is in a bin."""
    place, edges = scene.k_places[:, None], scene.k_edges()[:, None]
    return ((place >= edges[..., :-1]) & (place < edges[..., 1:])).to(scene.problem.wide)


def take(tile: Tile, facts: Float[Tensor, "_ kv_len bins"]) -> tuple[Contribution, ...]:
    """The weight of every row on each bin of keys, added up by the bin of the row."""
    sunk, member = tile.sunk, facts[:, None, tile.cols]
    sums = tile.sums[:, :, :-1].clone()
    of_sunk = sums[sunk.batch, :, :, sunk.key]
    sums[sunk.batch, :, :, sunk.key] = 0.0
    content = (sums.flatten(1, 2) @ member[:, 0]).view(*sums.shape[:3], BINS).double()
    own_bin = member.expand(len(sums), -1, -1, -1)[sunk.batch, :, sunk.key]
    whole = content + sunk.total((of_sunk[..., None] * own_bin[:, :, None]).double(), len(sums))
    own = tile.scene.q_bins()[:, None, tile.rows]
    bins = torch.arange(tile.bins.start, tile.bins.stop, device=own.device)
    rows = ((own[..., None] == bins) & tile.counted[..., None]).double()
    left = torch.where(tile.counted, tile.known.left, 0.0).double()
    return (
        _placed(tile, whole, rows.sum(2)),
        _placed(tile, content, (left[:, :, None] @ rows)[:, :, 0]),
    )


def _placed(tile: Tile, sums: Tensor, count: Tensor) -> Contribution:
    """The rows of the map that the tile reaches, in a whole one."""
    whole, counts = sums.new_zeros((*sums.shape[:2], BINS, BINS)), sums.new_zeros((*sums.shape[:2], BINS, BINS))
    part = slice(tile.bins.start, tile.bins.stop)
    whole[:, :, part], counts[:, :, part] = sums, count[..., None]
    return Contribution(whole, counts)


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
)
