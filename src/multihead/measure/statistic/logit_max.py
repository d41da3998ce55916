"""Largest score, whose growth announces trouble in training."""

import torch

from multihead.measure.part import Whole
from multihead.measure.statistic.contract import Contribution, OfWhole
from multihead.record import Quantity


def take(whole: Whole) -> tuple[Contribution]:
    """The largest score of any row that sees a key."""
    rows = whole.seeing(least=1)
    count = rows.sum(-1, dtype=torch.float64)
    peak = torch.where(rows, whole.rows.peak, -torch.inf).amax(-1).double()
    return (Contribution(torch.where(count > 0, peak, 0.0), count),)


LOGIT_MAX = OfWhole(
    quantities=(
        Quantity(
            name="logit_max",
            title="largest score",
            unit="logit",
            formula="max over rows and visible keys of softcap(scale q_i k_j) + bias_ij",
            fold="max",
        ),
    ),
    take=take,
)
