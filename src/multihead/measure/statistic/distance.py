"""How far back a row looks on the mean, and how far in either direction."""

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from multihead.measure.statistic.contract import Contribution, OfTile, nothing, with_aside
from multihead.measure.tile import Tile
from multihead.record import Quantity


def take(tile: Tile, facts: None) -> tuple[Contribution, ...]:
    """Weighted means of query - key and |query - key|; what a learned sink takes counts as 0."""
    low, high = tile.nearest
    # For each key the sum over rows of weight * (query - key). Places are counted from the queries: so it is exact
    # for the keys near them, and relative to the distance for the others.
    signed = tile.sums[:, :, -1] - (tile.places - low).to(tile.sums) * tile.sums[:, :, :-1].sum(2)
    # Keys before or after all queries of the tile have one sign; those between are asked pair by pair.
    sign = (tile.places < low).to(signed) - (tile.places > high).to(signed)
    near, near_sunk = _near(tile)
    left = tile.total(tile.known.left)
    whole, far = _sum(signed), _sum(signed * sign)
    signed[tile.sunk.batch, :, tile.sunk.key] = 0.0
    return (
        Contribution(whole),
        Contribution(_sum(signed), left),
        Contribution(far + near + near_sunk),
        Contribution(_sum(signed.mul_(sign)) + near, left),
    )


def _sum(values: Float[Tensor, "batch heads cols"]) -> Float64[Tensor, "batch heads"]:
    return values.sum(-1, dtype=torch.float64)


def _near(tile: Tile) -> tuple[Tensor, Tensor]:
    """The same over the keys between, asked pair by pair: outside of the sink and in it."""
    low, high = tile.nearest
    start = max(low - tile.cols.start, 0)
    places = tile.places[start : max(high + 1 - tile.cols.start, start)]
    centers = tile.centers()
    gaps = (centers[:, None, :, None] - places).abs_()
    content = (tile.content[..., start : start + len(places)] * gaps).sum(-1)
    key = tile.sunk.key + tile.cols.start
    of_sunk = (centers.expand(len(tile.content), -1)[tile.sunk.batch] - key[:, None]).abs_()
    of_sunk = of_sunk * ((key >= low) & (key <= high))[:, None]
    return tile.total(content), tile.total(tile.on_sunk(of_sunk[:, None]))


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
)
