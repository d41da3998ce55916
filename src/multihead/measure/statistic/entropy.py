"""Entropy of the weights of a row."""

from multihead.measure.statistic.contract import Contribution, OfWhole
from multihead.measure.tile import Whole
from multihead.record import Quantity


def take(whole: Whole) -> tuple[Contribution]:
    """The entropy of every row that counts, from its log-sum-exp and its mean score."""
    return (Contribution(whole.total(whole.rows.entropy)),)


ENTROPY = OfWhole(
    quantities=(
        Quantity(
            name="entropy",
            title="entropy",
            unit="nats",
            formula="mean over rows of -sum_j A_ij ln A_ij; a learned sink counts as one more key",
        ),
    ),
    take=take,
)
