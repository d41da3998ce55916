"""Entropy of a row as a share of what an even spread over its visible keys would have."""

from multihead.attend import Softmax
from multihead.measure.statistic.contract import Contribution, OfWhole
from multihead.measure.tile import Whole
from multihead.record import Quantity


def take(whole: Whole) -> tuple[Contribution]:
    """Each row's entropy over the logarithm of the number of keys it sees."""
    normaliser = whole.scene.problem.normaliser
    sink = isinstance(normaliser, Softmax) and not normaliser.plain
    return (Contribution(whole.total(whole.rows.entropy / (whole.rows.sees + int(sink)).log())),)


ENTROPY_SHARE = OfWhole(
    quantities=(
        Quantity(
            name="entropy_share",
            title="entropy, of an even spread's",
            unit="share",
            formula="mean over rows of (-sum_j A_ij ln A_ij) / ln(visible keys); a learned sink counts as one more key",
        ),
    ),
    take=take,
)
