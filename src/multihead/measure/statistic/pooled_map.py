"""The mean picture of a head: weights by relative position of query and key."""

import torch
from jaxtyping import Int
from torch import Tensor

from multihead.measure.scene import BINS, Scene
from multihead.measure.statistic.contract import Contribution, OfTile
from multihead.measure.tile import Tile
from multihead.record import Quantity


def prepare(scene: Scene) -> tuple[Int[Tensor, "_ q_len"], Int[Tensor, "_ 1 edges"]]:
    """Bin of each query, and the edges of the bins among the keys."""
    return scene.q_bins(), scene.k_edges()[:, None]


def take(tile: Tile, facts: tuple[Int[Tensor, "_ q_len"], Int[Tensor, "_ 1 edges"]]) -> tuple[Contribution]:
    """The weight of every row on each bin of keys, added up by the bin of the row."""
    bins, edges = facts
    masses = tile.upto(edges).diff(dim=-1).clamp(min=0.0)
    own = torch.nn.functional.one_hot(bins[:, None, tile.rows], BINS).to(masses) * tile.counted[..., None]
    count = own.sum(2, dtype=torch.float64)[..., None].expand(-1, -1, -1, BINS)
    return (Contribution((own.transpose(-1, -2) @ masses).double(), count),)


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
