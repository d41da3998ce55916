"""Participation ratio: over how many keys the weight is spread."""

import torch

from multihead.measure.part import Part
from multihead.measure.statistic.contract import Contribution, OfTile, nothing
from multihead.record import Quantity

_NOTHING = 1e-18
"""A row with less weight than this on all keys, whose square would vanish in float32, has no key taking part."""


def take(part: Part, facts: None) -> tuple[Contribution]:
    """Squared sum of each row's weights over the sum of their squares."""
    known = part.known
    sunk = part.sunk.total(part.sunk.weights.square(), part.batch).sqrt()
    length = torch.hypot(torch.hypot(part.length(), sunk), known.sink)
    ratio = (known.left + known.sunk + known.sink) / length.clamp(min=_NOTHING)
    return (Contribution(part.total(ratio.square() * (length > _NOTHING))),)


PARTICIPATION = OfTile(
    quantities=(
        Quantity(
            name="participation",
            title="keys taking part",
            unit="keys",
            formula="mean over rows of (sum_j A_ij)^2 / sum_j A_ij^2; a learned sink counts as one more key",
        ),
    ),
    prepare=nothing,
    take=take,
    of_weights=False,
)
