"""Largest weight of a row (the confidence of Voita et al. 2019, arXiv 1905.09418)."""

from multihead.measure.part import Whole
from multihead.measure.statistic.contract import Contribution, OfWhole
from multihead.record import Quantity


def take(whole: Whole) -> tuple[Contribution]:
    """The largest weight of every row that counts."""
    return (Contribution(whole.total(whole.rows.top)),)


MAX_WEIGHT = OfWhole(
    quantities=(
        Quantity(
            name="max_weight",
            title="largest weight",
            unit="share",
            formula="mean over rows of max_j A_ij",
        ),
    ),
    take=take,
)
