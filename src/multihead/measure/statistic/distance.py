"""How far back a row looks on the mean, and how far in either direction."""

from multihead.measure.part import Part
from multihead.measure.statistic.contract import Contribution, OfTile, nothing, with_aside
from multihead.record import Quantity


def take(part: Part, facts: None) -> tuple[Contribution, ...]:
    """Weighted means of query - key and |query - key|; what a learned sink takes counts as 0."""
    signed, size = part.gaps()
    of_sunk = part.sunk_distances()[:, None]
    left = part.total(part.known.left)
    return (
        Contribution(signed + part.total(part.on_sunk(of_sunk))),
        Contribution(signed, left),
        Contribution(size + part.total(part.on_sunk(of_sunk.abs()))),
        Contribution(size, left),
    )


DISTANCE = OfTile(
    quantities=(
        *with_aside(
            Quantity(
                name="distance",
                title="mean distance back",
                unit="tokens",
                formula="mean over rows of sum_j A_ij (i - j): positive looks back, negative ahead",
            ),
            "sum over rows of A_ij (i - j) over keys outside of the sink / sum of all A_ij there",
        ),
        *with_aside(
            Quantity(
                name="distance_absolute",
                title="mean distance",
                unit="tokens",
                formula="mean over rows of sum_j A_ij |i - j|",
            ),
            "sum over rows of A_ij |i - j| over keys outside of the sink / sum of all A_ij there",
        ),
    ),
    prepare=nothing,
    take=take,
    of_weights=False,
)
