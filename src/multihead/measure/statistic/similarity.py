"""How alike the weights of two heads of a layer are: the Bhattacharyya coefficient of their rows."""

import torch
from jaxtyping import Float
from torch import Tensor

from multihead.measure.part import Part
from multihead.measure.statistic.contract import Contribution, OfTile, nothing, with_aside
from multihead.record import Quantity


def take(part: Part, facts: None) -> tuple[Contribution, ...]:
    """One product of the square roots of all weights with themselves, for every pair of heads."""
    known, counted, content = part.known, part.counted.to(part.known.top), part.alike()
    of_sunk = part.sunk.weights.sqrt() * counted[part.sunk.batch]
    sunk = part.sunk.total(of_sunk @ of_sunk.transpose(-1, -2), part.batch)
    sink, left = known.sink.sqrt() * counted, torch.where(part.counted, known.left, 0.0).sqrt()
    return (
        Contribution(content + (sunk + _gram(sink)).double(), _gram(counted).double()),
        Contribution(content, _gram(left).double()),
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
    of_weights=False,
)
