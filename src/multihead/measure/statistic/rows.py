"""How many rows stand behind the statistics, and how many were left out and why."""

import torch
from jaxtyping import Bool
from torch import Tensor

from multihead.measure.part import Whole
from multihead.measure.statistic.contract import Contribution, OfWhole
from multihead.record import Quantity


def take(whole: Whole) -> tuple[Contribution, ...]:
    """Rows that count, short rows and rows with NaN among the real ones; padded rows among all."""
    real = whole.real()
    every = torch.ones_like(real)
    return (
        _share(whole.counted(), real),
        _share(real & whole.rows.finite & ~whole.counted(), real),
        _share(real & ~whole.rows.finite, real),
        _share(~real, every),
    )


def _share(part: Bool[Tensor, "batch heads q_len"], of: Bool[Tensor, "batch heads q_len"]) -> Contribution:
    return Contribution(part.sum(-1, dtype=torch.float64), of.sum(-1, dtype=torch.float64))


ROWS = OfWhole(
    quantities=(
        Quantity(
            name="rows_counted",
            title="rows that count",
            unit="share",
            formula="rows with finite scores that see 2 keys or more / rows that are real tokens",
        ),
        Quantity(
            name="rows_short",
            title="rows with nothing to choose",
            unit="share",
            formula="rows that see fewer than 2 keys / rows that are real tokens",
        ),
        Quantity(
            name="rows_nonfinite",
            title="rows with NaN or infinity",
            unit="share",
            formula="rows with a score that is NaN or infinite / rows that are real tokens",
        ),
        Quantity(
            name="rows_padded",
            title="padded rows",
            unit="share",
            formula="rows that are padding / all rows",
        ),
    ),
    take=take,
)
