"""How far from itself a row looks on the mean, in either direction."""

from multihead.measure.statistic.contract import Contribution, OfTile, nothing
from multihead.measure.tile import Tile
from multihead.record import Quantity


def take(tile: Tile, facts: None) -> tuple[Contribution]:
    """Weighted mean of |query - key|; what a sink takes counts as 0."""
    rows, keys = tile.centers()[:, None, :, None].to(tile.weights), tile.places.to(tile.weights)
    return (Contribution(tile.total(tile.weighted((rows - keys).abs_()))),)


DISTANCE_ABSOLUTE = OfTile(
    quantities=(
        Quantity(
            name="distance_absolute",
            title="mean distance",
            unit="tokens",
            formula="mean over rows of sum_j A_ij |i - j|",
        ),
    ),
    prepare=nothing,
    take=take,
)
