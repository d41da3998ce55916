"""Participation ratio: over how many keys the weight is spread."""

import torch

from multihead.measure.statistic.contract import Contribution, OfTile, nothing
from multihead.measure.tile import Tile
from multihead.record import Quantity


def take(tile: Tile, facts: None) -> tuple[Contribution]:
    """One over the sum of squared weights of each row."""
    squares = torch.linalg.vector_norm(tile.weights, dim=-1).square() + tile.known.sink.square()
    return (Contribution(tile.total(1 / squares)),)


PARTICIPATION = OfTile(
    quantities=(
        Quantity(
            name="participation",
            title="keys taking part",
            unit="keys",
            formula="mean over rows of 1 / sum_j A_ij^2; a learned sink counts as one more key",
        ),
    ),
    prepare=nothing,
    take=take,
)
