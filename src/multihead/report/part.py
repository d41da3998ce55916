"""The parts of a record (texts, repeats) with their heads in one common order."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from multihead.error import MultiheadError
from multihead.record import CheckupRecord, HeadStatistics
from multihead.record.heads import Array


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Part:
    """One part of a record; every array of it has the heads of the page as its first axis.

    Args:
        name: `"texts"` or `"repeats"`.
        statistics: What was measured on it.
        rows: For each head of the page its place in `statistics`, -1 where the part lacks it.
    """

    name: str
    statistics: HeadStatistics
    rows: NDArray[np.int64]

    def has(self, name: str, *, axes: int | None = None) -> bool:
        """Whether the part holds this statistic, with so many axes."""
        return any(q.name == name and axes in (None, len(q.shape)) for q in self.statistics.quantities)

    def value(self, name: str) -> Array:
        """Values over all documents, (heads, *shape); NaN where there are none."""
        return self._in_page_order(self.statistics.value(name))

    def interval(self, name: str) -> tuple[Array, Array]:
        """Ends of the 95 % interval over documents, each (heads, *shape)."""
        low, high = self.statistics.interval(name)
        return self._in_page_order(low), self._in_page_order(high)

    def sampling_interval(self, name: str) -> tuple[Array, Array] | None:
        """Ends of the interval that comes of measuring some rows only; None where every row was measured."""
        if name not in self.statistics.sampling:
            return None
        low, high = self.statistics.sampling_interval(name)
        return self._in_page_order(low), self._in_page_order(high)

    def _in_page_order(self, values: Array) -> Array:
        padded = np.concatenate([values, np.full((1, *values.shape[1:]), np.nan)])
        return padded[self.rows]


def parts_of(record: CheckupRecord) -> tuple[Part, ...]:
    """The parts that were run, the texts first; the heads of the texts set the order.

    Raises:
        MultiheadError: The record has no heads.
    """
    heads = record.texts.heads
    if not heads:
        raise MultiheadError(
            asked="a page of at least one head",
            arrived=f"a record of {record.model.name!r} with 0 heads",
            remedy="run the checkup on a model in which attention was found",
        )
    found: list[Part] = []
    for name, statistics in (("texts", record.texts), ("repeats", record.repeats)):
        if statistics is not None:
            place = {address: i for i, address in enumerate(statistics.heads)}
            rows = np.array([place.get(address, -1) for address in heads], dtype=np.int64)
            found.append(Part(name=name, statistics=statistics, rows=rows))
    return tuple(found)
