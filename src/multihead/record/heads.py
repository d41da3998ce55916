"""Statistics of heads: per-document sums that can be merged, saved and compared, and the values read from them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from multihead.error import MultiheadError
from multihead.record.address import HeadAddress

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One document that was measured: the unit over which intervals are taken.

    Args:
        name: File name or title.
        digest: First 16 hex digits of the SHA-256 of its content.
        tokens: Tokens measured, special tokens included.
    """

    name: str
    digest: str
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """What one statistic is: its name, unit and formula.

    Args:
        name: Identifier, e.g. `"entropy"`.
        title: Words for people, e.g. `"entropy"`.
        unit: `"nats"`, `"share"`, `"tokens"`, `"logit"` or another unit.
        formula: The definition in one line.
        shape: `()` for a number a head; else the shape of its array.
        labels: Names of the entries of the last axis, where they have names.
        fold: `"mean"`: value = sum / count over documents; `"max"`: the largest over documents.
    """

    name: str
    title: str
    unit: str
    formula: str
    shape: tuple[int, ...] = ()
    labels: tuple[str, ...] = ()
    fold: Literal["mean", "max"] = "mean"


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Something the reader must know: a statistic that could not be taken, rows left out, NaN met.

    Args:
        about: A head address, a layer such as `"L3"`, or `""` for the whole run.
        quantity: Name of the statistic, or `""`.
        text: The reason, in one sentence.
    """

    about: str
    quantity: str
    text: str


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
    """

    model: str
    heads: tuple[HeadAddress, ...]
    kv_heads: tuple[int, ...]
    documents: tuple[Document, ...]
    quantities: tuple[Quantity, ...]
    sums: Mapping[str, Array]
    counts: Mapping[str, Array]
    notes: tuple[Note, ...] = ()

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
        for field in ("model", "heads", "kv_heads", "quantities"):
            if getattr(self, field) != getattr(other, field):
                raise MultiheadError(
                    asked="to merge two records of one model with the same heads and statistics",
                    arrived=f"they differ in `{field}`",
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
