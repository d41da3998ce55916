"""Entropy of the weights of a row."""

from multihead.measure.part import Whole
from multihead.measure.statistic.contract import Contribution, OfWhole, with_aside
from multihead.record import Quantity


def take(whole: Whole) -> tuple[Contribution, ...]:
    """The entropy of every row that counts, from its log-sum-exp and its mean score."""
    rows = whole.rows
    return (
        Contribution(whole.total(rows.entropy)),
        Contribution(whole.total(rows.left_entropy), whole.total(rows.left)),
    )


ENTROPY = OfWhole(
    quantities=with_aside(
        Quantity(
            name="entropy",
            title="entropy",
            unit="nats",
            formula="mean over rows of -sum_j A_ij ln A_ij; a learned sink counts as one more key",
        ),
        (
            "mean over rows of -sum_j B_ij ln B_ij, B_ij = A_ij / (1 - s_i) over keys outside of the sink, "
            "row i counting 1 - s_i times, s_i its weight on the sink"
        ),
    ),
    take=take,
)
