"""What documents brought at one attention layer: sums that are added up, units of few rows, and what is to be said."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from multihead.hooks import Call, Site
from multihead.measure.block import BLOCK
from multihead.measure.example import Seen
from multihead.measure.remark import Lost, Remark

Array = NDArray[np.float64]


@dataclass(slots=True)
class Sums:
    """Sums and counts of some quantities, each (heads, *shape).

    Args:
        sums: By the name of the quantity.
        counts: The same.
    """

    sums: dict[str, Array] = field(default_factory=dict)
    counts: dict[str, Array] = field(default_factory=dict)

    def enter(self, name: str, sums: Array, counts: Array, fold: str) -> None:
        """Add to a quantity, or take the larger where it is a largest value."""
        if name not in self.sums:
            self.sums[name], self.counts[name] = sums.copy(), counts.copy()
        elif fold == "max":
            largest = np.maximum(np.where(self.counts[name] > 0, self.sums[name], -np.inf), sums)
            self.sums[name] = np.where(counts > 0, largest, self.sums[name])
            self.counts[name] += counts
        else:
            self.sums[name] += sums
            self.counts[name] += counts

    def absorb(self, other: "Sums", folds: Mapping[str, str]) -> None:
        """Add everything of another."""
        for name, sums in other.sums.items():
            self.enter(name, sums, other.counts[name], folds[name])


@dataclass(slots=True)
class Unit(Sums):
    """One block of rows of a document: its quantities that are one number a head.

    Args:
        rows: Rows of the block.
    """

    rows: int = 0


@dataclass(slots=True)
class Page(Sums):
    """What one document brought at one layer.

    Args:
        spread: For quantities of which only some rows were seen how uncertain sum and count are, stacked in the order
            of the fields of `Sampling`.
        units: Its blocks in order.
        remarks: What is to be said of it.
        lost: Rows left out for NaN or infinity, by what held it.
    """

    spread: dict[str, Array] = field(default_factory=dict)
    units: list[Unit] = field(default_factory=list)
    remarks: dict[Remark, None] = field(default_factory=dict)
    lost: dict[str, Lost] = field(default_factory=dict)

    def add_spread(self, name: str, spread: Array, fold: str) -> None:
        """Add variances: what was drawn for two calls was drawn apart. Of a largest value the bound is the larger."""
        have = self.spread.get(name)
        added = spread.copy() if have is None else have + spread
        if have is not None and fold == "max":
            added[0] = np.maximum(have[0], spread[0])
        self.spread[name] = added

    def lose(self, kind: str, lost: Lost) -> None:
        """Add rows that were left out."""
        self.lost[kind] = self.lost.get(kind, Lost()) + lost

    def add_unit(self, unit: Unit, folds: Mapping[str, str], *, step: bool) -> None:
        """Another block; where a sequence is read step by step a block goes on until it is full."""
        last = self.units[-1] if step and self.units else None
        if last is None or last.rows + unit.rows > BLOCK:
            self.units.append(unit)
        else:
            last.absorb(unit, folds)
            last.rows += unit.rows

    def append(self, later: "Page", folds: Mapping[str, str], *, step: bool) -> None:
        """Add what the same document brought later.

        Args:
            later: What it brought.
            folds: How each quantity is added up.
            step: Whether it goes on where the last block of this page ends.
        """
        self.absorb(later, folds)
        for name, spread in later.spread.items():
            self.add_spread(name, spread, folds[name])
        for unit in later.units:
            self.add_unit(unit, folds, step=step)
        self.remarks |= later.remarks
        for kind, lost in later.lost.items():
            self.lose(kind, lost)


@dataclass(slots=True)
class Book:
    """All documents at one layer, or at its heads of one kind.

    Args:
        heads: Its query heads.
        group: Query heads that share a key/value head.
        pages: By document.
        seen: What its heads make of the stretches that are kept for the reader.
    """

    heads: int
    group: int
    pages: dict[int, Page] = field(default_factory=dict)
    seen: list[Seen] = field(default_factory=list)

    def page(self, document: int) -> Page:
        """The page of a document, new where there is none."""
        return self.pages.setdefault(document, Page())


Slot = tuple[Site, int]
"""An attention layer, and the first of those heads of it that are measured together: all, or those of one kind."""

Sheet = dict[Slot, Book]
"""What one batch brought, before it is added to the books."""


def slot_of(call: Call) -> Slot:
    """Where a call is entered."""
    return call.site, call.first_head
