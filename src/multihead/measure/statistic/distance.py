"""How far back a row looks on the mean."""

from multihead.measure.statistic.contract import Contribution, OfTile, nothing
from multihead.measure.tile import Tile
from multihead.record import Quantity


def take(tile: Tile, facts: None) -> tuple[Contribution]:
    """Weighted mean of query - key; what a sink takes counts as 0."""
    # Distances from the first row of the tile keep the two large parts of the difference small.
    start = tile.rows.start
    keys = (tile.places - start).to(tile.weights)[None, :, None]
    return (
        Contribution(tile.total((tile.centers() - start)[:, None] * tile.prefix[..., -1] - tile.mass(keys)[..., 0])),
    )


DISTANCE = OfTile(
    quantities=(
        Quantity(
            name="distance",
            title="mean distance back",
            unit="tokens",
            formula="mean over rows of sum_j A_ij (i - j): positive looks back, negative ahead",
        ),
    ),
    prepare=nothing,
    take=take,
)
