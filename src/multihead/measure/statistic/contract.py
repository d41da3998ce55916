"""What a statistic is: its definition, and a pure function from weights to sums."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from jaxtyping import Float64
from torch import Tensor

from multihead.measure.part import Whole
from multihead.measure.scene import Scene
from multihead.measure.tile import Tile
from multihead.record import Quantity

Facts = TypeVar("Facts")


@dataclass(frozen=True, slots=True, eq=False)
class Contribution:
    """What some rows add to a statistic.

    Args:
        sum: Sums (the largest value where the quantity's fold is "max").
        count: How much stands behind them, or None for the number of rows that count in the statistics of weights.
        fixed: Whether the count is no number of rows but the same however many rows of the call are seen: of its keys.
    """

    sum: Float64[Tensor, "batch heads *shape"]
    count: Float64[Tensor, "batch heads *shape"] | None = None
    fixed: bool = field(default=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Missing:
    """A statistic that cannot be taken here, with the reason in one sentence."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OfTile(Generic[Facts]):
    """A statistic of weights: it is taken of some rows at a time and added up.

    Args:
        quantities: What it measures.
        prepare: What the tiles need of the call, worked out once.
        take: The contributions of some rows, one for each quantity.
        of_weights: Whether it looks at single weights: it is then given a `Tile`. One that asks only for what every
            `Part` tells can be taken by the compiled kernel, which keeps no weights.
    """

    quantities: tuple[Quantity, ...]
    prepare: Callable[[Scene], Facts | Missing]
    take: Callable[[Tile, Facts], tuple[Contribution, ...]]
    of_weights: bool = True


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OfWhole:
    """A statistic of what is known of each row and key of a block of rows once all of them were seen.

    Args:
        quantities: What it measures.
        take: The contributions of a block, one for each quantity.
        outputs: Whether it asks only for the outputs and for how many keys a row sees: it is then taken of every row,
            also where only some rows are weighed.
        of_all: Names of its quantities that some of the rows do not tell.
    """

    quantities: tuple[Quantity, ...]
    take: Callable[[Whole], tuple[Contribution | Missing, ...]]
    outputs: bool = False
    of_all: tuple[str, ...] = ()


Statistic = OfTile[Any] | OfWhole


def nothing(scene: Scene) -> None:
    """For statistics that need nothing of the call but its weights."""


def set_aside(quantity: Quantity, formula: str) -> Quantity:
    """A quantity once more, with the sink set aside: its name, its title and what it repeats follow from it."""
    return replace(
        quantity,
        name=f"{quantity.name}_content",
        title=f"{quantity.title}, sink set aside",
        formula=formula,
        even="",
        content_of=quantity.name,
    )


def with_aside(quantity: Quantity, formula: str) -> tuple[Quantity, Quantity]:
    """A quantity, and the same with the sink set aside.

    Args:
        quantity: The quantity.
        formula: How the second is worked out.
    """
    return quantity, set_aside(quantity, formula)
