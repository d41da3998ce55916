"""Statistics of heads: per-document sums that can be merged, saved and compared, and the values read from them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from multihead.error import MultiheadError
from multihead.record.address import HeadAddress
from multihead.record.example import Example
from multihead.record.quantity import Document, Note, Quantity

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sampling:
    """How uncertain the sums of one statistic are because only some rows were measured; all (documents, heads, *shape).

    Args:
        sums: Variance of the sums.
        counts: Variance of the counts.
        both: Covariance of sums and counts.
    """

    sums: Array
    counts: Array
    both: Array


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class HeadStatistics:
    """Statistics of every head over some documents.

    `value = sum over documents of sums / sum over documents of counts`, added in document order in fp64, so merging
    the records of two document lists gives, bit for bit, the record of their concatenation.

    Args:
        model: Name of the model.
        heads: Every head, in the order of the second axis of the arrays.
        kv_heads: For each head the number of its key/value head within its layer (grouped heads share one).
        documents: What was measured, in the order of the first axis.
        quantities: The statistics.
        sums: For each statistic an array (documents, heads, *shape); the per-document maximum where `fold` is "max".
        counts: For each statistic an array (documents, heads, *shape): how many rows (or pairs) stand behind the sum.
        notes: What the reader must know.
        units: Document of each unit, where documents are so few (under 8) that blocks of 512 tokens stand for them.
        unit_sums: For each statistic that is one number an array (units, heads), as `sums`; empty without units.
        unit_counts: The counts behind them.
        sampling: For each statistic how uncertain its sums are; empty where every row was measured.
        examples: Stretches of what was measured, with the strongest links of every head.
    """

    model: str
    heads: tuple[HeadAddress, ...]
    kv_heads: tuple[int, ...]
    documents: tuple[Document, ...]
    quantities: tuple[Quantity, ...]
    sums: Mapping[str, Array]
    counts: Mapping[str, Array]
    notes: tuple[Note, ...] = ()
    units: tuple[int, ...] = ()
    unit_sums: Mapping[str, Array] = field(default_factory=dict[str, Array])
    unit_counts: Mapping[str, Array] = field(default_factory=dict[str, Array])
    sampling: Mapping[str, Sampling] = field(default_factory=dict[str, Sampling])
    examples: tuple[Example, ...] = ()

    def __post_init__(self) -> None:
        for quantity in self.quantities:
            want = (len(self.documents), len(self.heads), *quantity.shape)
            for kind, arrays in (("sums", self.sums), ("counts", self.counts)):
                have = arrays[quantity.name].shape if quantity.name in arrays else None
                if have != want:
                    raise MultiheadError(
                        asked=f"{kind} of {quantity.name} for {want[0]} documents and {want[1]} heads: shape {want}",
                        arrived=f"shape {have}",
                        remedy="build the record with one row a document and one column a head",
                    )

    def quantity(self, name: str) -> Quantity:
        """The definition of a statistic.

        Raises:
            MultiheadError: No statistic has this name.
        """
        for quantity in self.quantities:
            if quantity.name == name:
                return quantity
        names = ", ".join(q.name for q in self.quantities)
        raise MultiheadError(
            asked=f"the statistic {name!r}",
            arrived=f"the record holds {names}",
            remedy="use one of them",
        )

    def value(self, name: str) -> Array:
        """Values over all documents, shape (heads, *shape); NaN where no row stands behind a value."""
        quantity = self.quantity(name)
        sums, counts = self.sums[name], self.counts[name]
        if quantity.fold == "max":
            filled = np.where(counts > 0, sums, -np.inf)
            top = filled.max(axis=0, initial=-np.inf)
            return np.where(counts.any(axis=0), top, np.nan)
        return _ratio(_in_order(sums), _in_order(counts))

    def interval(self, name: str, *, level: float = 0.95) -> tuple[Array, Array]:
        """Where the value would lie on other documents of the same kind: lower and upper end, each (heads, *shape).

        Not there yet: both ends are the value.
        """
        return self.value(name), self.value(name)

    def sampling_interval(self, name: str, *, level: float = 0.95) -> tuple[Array, Array]:
        """Where the value over all rows lies if only some were measured: lower and upper end, each (heads, *shape).

        Not there yet: both ends are the value.
        """
        return self.value(name), self.value(name)

    def per_document(self, name: str) -> Array:
        """Values of each document, shape (documents, heads, *shape); NaN where no row stands behind a value."""
        quantity = self.quantity(name)
        if quantity.fold == "max":
            return np.where(self.counts[name] > 0, self.sums[name], np.nan)
        return _ratio(self.sums[name], self.counts[name])

    def __getitem__(self, address: HeadAddress | str) -> "HeadView":
        """One head: `statistics["L3.H7"].entropy`.

        Raises:
            MultiheadError: The model has no such head.
        """
        wanted = HeadAddress.parse(address) if isinstance(address, str) else address
        if wanted not in self.heads:
            raise MultiheadError(
                asked=f"head {wanted}",
                arrived=f"{len(self.heads)} heads, {self.heads[0]} to {self.heads[-1]}" if self.heads else "no heads",
                remedy="layers and heads are counted from 0; `statistics.heads` lists them",
            )
        return HeadView(wanted, self)

    def __iter__(self) -> Iterator["HeadView"]:
        """Every head in order."""
        return (HeadView(address, self) for address in self.heads)

    def __len__(self) -> int:
        """Number of heads."""
        return len(self.heads)

    def __eq__(self, other: object) -> bool:
        """Equal in every field, arrays bit for bit."""
        if not isinstance(other, HeadStatistics):
            return NotImplemented
        same = all(
            getattr(self, field) == getattr(other, field)
            for field in ("model", "heads", "kv_heads", "documents", "quantities", "notes")
        )
        return same and all(
            mine.keys() == theirs.keys() and all(np.array_equal(mine[k], theirs[k], equal_nan=True) for k in mine)
            for mine, theirs in ((self.sums, other.sums), (self.counts, other.counts))
        )

    __hash__ = None  # pyright: ignore[reportAssignmentType]  # holds arrays

    def __repr__(self) -> str:
        """Its size; the numbers are in `table()`."""
        size = f"{len(self.heads)} heads, {len(self.documents)} documents, {len(self.quantities)} statistics"
        return f"HeadStatistics({self.model!r}, {size})"

    def merge(self, other: "HeadStatistics") -> "HeadStatistics":
        """The record of both document lists, this one's first.

        Raises:
            MultiheadError: The records are of different models, heads or statistics.
        """
        for name in ("model", "heads", "kv_heads", "quantities"):
            if getattr(self, name) != getattr(other, name):
                raise MultiheadError(
                    asked="to merge two records of one model with the same heads and statistics",
                    arrived=f"they differ in `{name}`",
                    remedy="measure both with the same model and the same list of statistics",
                )
        return replace(
            self,
            documents=self.documents + other.documents,
            sums={k: np.concatenate([v, other.sums[k]]) for k, v in self.sums.items()},
            counts={k: np.concatenate([v, other.counts[k]]) for k, v in self.counts.items()},
            notes=self.notes + tuple(n for n in other.notes if n not in self.notes),
        )

    def scalars(self) -> tuple[Quantity, ...]:
        """The statistics that are one number a head."""
        return tuple(q for q in self.quantities if q.shape == ())

    def table(self) -> list[dict[str, str | int | float | None]]:
        """One row a head: its address and every statistic that is one number (None where there is none)."""
        columns = {q.name: self.value(q.name) for q in self.scalars()}
        return [
            {
                "head": str(address),
                "stack": address.stack,
                "layer": address.layer,
                "index": address.head,
            }
            | {name: _number(values[i]) for name, values in columns.items()}
            for i, address in enumerate(self.heads)
        ]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class HeadView:
    """One head of a record; every statistic is an attribute: a float, or an array for those with a shape.

    Example:
        `statistics["L18.H6"].induction`
    """

    address: HeadAddress
    statistics: HeadStatistics

    def __getattr__(self, name: str) -> "float | Array":
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            quantity = self.statistics.quantity(name)
        except MultiheadError as unknown:
            raise AttributeError(str(unknown)) from None
        value = self.statistics.value(name)[self.statistics.heads.index(self.address)]
        return float(value) if quantity.shape == () else value

    def __repr__(self) -> str:
        """Its address."""
        return f"HeadView({self.address})"

    def __dir__(self) -> Sequence[str]:
        """The statistics, for completion at a prompt."""
        return [*object.__dir__(self), *(q.name for q in self.statistics.quantities)]


def _in_order(arrays: Array) -> Array:
    """Sum over documents one after another: numpy's pairwise sum would depend on how many there are."""
    total = np.zeros(arrays.shape[1:])
    for one in arrays:
        total = total + one
    return total


def _ratio(sums: Array, counts: Array) -> Array:
    return np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0)


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
