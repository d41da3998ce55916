"""How alike the weights of two heads of a layer are: the Bhattacharyya coefficient of their rows."""

import torch
from jaxtyping import Float
from torch import Tensor

from multihead.measure.statistic.contract import Contribution, OfTile, nothing, with_aside
from multihead.measure.tile import Tile
from multihead.record import Quantity


def take(tile: Tile, facts: None) -> tuple[Contribution, ...]:
    """One product of the square roots of all weights with themselves, for every pair of heads."""
    known, counted = tile.known, tile.counted.to(tile.content)
    roots = torch.sqrt(tile.content, out=tile.scratch)
    if not tile.all_count:
        roots = roots.mul_(counted[..., None])
    content = _gram(roots.flatten(2))
    of_sunk = tile.sunk.weights.sqrt() * counted[tile.sunk.batch]
    sunk = tile.sunk.total(of_sunk @ of_sunk.transpose(-1, -2), len(content))
    sink, left = known.sink.sqrt() * counted, torch.where(tile.counted, known.left, 0.0).sqrt()
    return (
        Contribution((content + sunk + _gram(sink)).double(), _gram(counted).double()),
        Contribution(content.double(), _gram(left).double()),
    )


def _gram(values: Float[Tensor, "batch heads length"]) -> Float[Tensor, "batch heads heads"]:
    return values @ values.transpose(-1, -2)


SIMILARITY = OfTile(
    quantities=with_aside(
        Quantity(
            name="similarity",
            title="alike in weights",
            unit="share",
            formula=(
                "of heads h, g of a layer: mean over rows of sum_j sqrt(A_hij A_gij); a learned sink is one more key"
            ),
            shape=(0,),
            pairs=True,
        ),
        (
            "of heads h, g of a layer: sum over rows and keys outside of the sink of sqrt(A_hij A_gij) / "
            "sum over rows of sqrt((1 - s_hi) (1 - s_gi)), s their weight on the sink"
        ),
    ),
    prepare=nothing,
    take=take,
)
