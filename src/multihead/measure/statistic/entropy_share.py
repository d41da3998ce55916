"""Entropy of a row as a share of what an even spread over its visible keys would have."""

from multihead.measure.part import LEAST, Whole, total
from multihead.measure.statistic.contract import Contribution, OfWhole, with_aside
from multihead.record import Quantity


def take(whole: Whole) -> tuple[Contribution, ...]:
    """Each row's entropy over the logarithm of the number of keys it sees."""
    rows = whole.rows
    others = rows.sees - rows.sees_sunk
    left = whole.counted() & (others >= LEAST)
    share = rows.left_entropy / others.clamp(min=LEAST).log()
    return (
        Contribution(whole.total(rows.entropy / (rows.sees + whole.scene.learned_sink).log())),
        Contribution(total(share, left), total(rows.left, left)),
    )


ENTROPY_SHARE = OfWhole(
    quantities=with_aside(
        Quantity(
            name="entropy_share",
            title="entropy, of an even spread's",
            unit="share",
            formula=(
                "mean over rows of (-sum_j A_ij ln A_ij) / ln(visible keys); a learned sink counts as one more key"
            ),
        ),
        (
            "the same with B_ij = A_ij / (1 - s_i) over keys outside of the sink, of rows that see 2 such keys, "
            "row i counting 1 - s_i times, s_i its weight on the sink"
        ),
    ),
    take=take,
)
