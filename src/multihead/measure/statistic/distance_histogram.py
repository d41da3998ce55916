"""Weight by distance in bins of doubling width, ahead and back."""

import torch
from jaxtyping import Int
from torch import Tensor

from multihead.measure.scene import Scene
from multihead.measure.statistic.contract import Contribution, OfTile
from multihead.measure.tile import Tile
from multihead.record import Quantity

OCTAVES = 15
"""Bins on each side: distances 1, 2-3, 4-7, ..., 2^k to 2^(k+1) - 1, ..., and all from 2^14 on."""


def _labels(word: str) -> list[str]:
    spans = [(2**k, 2 ** (k + 1) - 1) for k in range(OCTAVES - 1)]
    named = [f"{word} {low}" if low == high else f"{word} {low}-{high}" for low, high in spans]
    return [*named, f"{word} {2 ** (OCTAVES - 1)}+"]


LABELS = (*reversed(_labels("ahead")), "self", *_labels("back"))


def prepare(scene: Scene) -> Int[Tensor, " edges"]:
    """Edges of the bins as key - query, rising: bin b holds the keys from edge b to edge b + 1 - 1."""
    near = torch.tensor([2**k for k in range(OCTAVES)], device=scene.problem.q.device)
    far = near.new_tensor([2**60])
    back = 1 - near.flip(0)
    return torch.cat([-far, back, near, far])


def take(tile: Tile, facts: Int[Tensor, " edges"]) -> tuple[Contribution]:
    """The weight of every row on each bin."""
    masses = tile.upto(tile.centers()[..., None] + facts).diff(dim=-1)
    # Keys rise from far back to far ahead, query - key falls.
    return (Contribution(tile.total(masses.flip(-1).clamp(min=0.0))),)


DISTANCE_HISTOGRAM = OfTile(
    quantities=(
        Quantity(
            name="distance_histogram",
            title="weight by distance",
            unit="share",
            formula="mean over rows of the weight on keys at distance 1, 2-3, 4-7, ..., 2^14 and more, either way",
            shape=(len(LABELS),),
            labels=LABELS,
        ),
    ),
    prepare=prepare,
    take=take,
)
