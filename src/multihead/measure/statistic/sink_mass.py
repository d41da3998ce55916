"""Weight on a learned sink: what a row gives to no key."""

from multihead.measure.part import Whole
from multihead.measure.statistic.contract import Contribution, OfWhole
from multihead.record import Quantity


def take(whole: Whole) -> tuple[Contribution]:
    """The weight of every row on the sink; 0 in models without one."""
    return (Contribution(whole.total(whole.rows.sink)),)


SINK_MASS = OfWhole(
    quantities=(
        Quantity(
            name="sink_mass",
            title="weight on a learned sink",
            unit="share",
            formula="mean over rows of exp(sink) / (exp(sink) + sum_j exp(s_ij)), 0 without a learned sink",
        ),
    ),
    take=take,
)
