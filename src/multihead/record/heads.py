"""Statistics of heads: per-document sums that can be merged, saved and compared, and the values read from them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from multihead.error import MultiheadError
from multihead.record.address import HeadAddress
from multihead.record.example import Example
from multihead.record.fold import in_order, largest, value_of
from multihead.record.interval import from_sample, resample
from multihead.record.quantity import Document, Note, Quantity
from multihead.record.sampling import Sampling

Array = NDArray[np.float64]

_ARRAYS = ("sums", "counts", "unit_sums", "unit_counts")

FEW = 8
"""With fewer documents than this, blocks of their tokens stand for them in intervals."""


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
        rows, heads = len(self.documents), len(self.heads)
        for quantity in self.quantities:
            for kind in ("sums", "counts"):
                _check_shape(f"{kind} of {quantity.name}", getattr(self, kind), quantity, (rows, heads))
            for kind in ("unit_sums", "unit_counts"):
                if quantity.shape == () and self.units:
                    _check_shape(
                        f"{kind} of {quantity.name}", getattr(self, kind), quantity, (len(self.units), heads), "units"
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
            return largest(sums, counts)
        return value_of(quantity, self.heads, in_order(sums), in_order(counts))

    def interval(self, name: str, *, level: float = 0.95) -> tuple[Array, Array]:
        """Where the value would lie on other documents of the same kind, by a percentile bootstrap of 1000 resamples.

        Documents are drawn; where they are fewer than 8, blocks of 512 tokens of them (`interval_units` says which) for
        what is one number a head. The draws follow from the digests of the documents. An interval of a largest value is
        a lower bound: other documents may well hold a larger one.

        Args:
            name: The statistic.
            level: Share of the resampled values between the ends.

        Returns:
            Lower and upper end, each (heads, *shape); NaN where fewer than 2 documents or blocks stand behind a value.

        Raises:
            MultiheadError: No statistic has this name, or the level is no share.
        """
        _check_level(level)
        quantity = self.quantity(name)
        of_units = bool(self.units) and name in self.unit_sums
        sums, counts = (self.unit_sums, self.unit_counts) if of_units else (self.sums, self.counts)
        with np.errstate(invalid="ignore"):  # an infinite sum makes NaN of the resamples that leave it out
            return resample(quantity, self.heads, sums[name], counts[name], documents=self.documents, level=level)

    @property
    def interval_units(self) -> str:
        """What is drawn for intervals, in words: `"12 documents"`, `"23 blocks of 512 tokens of 3 documents"`."""
        documents = _some(len(self.documents), "document")
        if not self.units:
            return documents
        # Sampled rows are spread over a chunk, which then is the unit.
        units = _some(len(self.units), "chunk") if self.sampling else f"{_some(len(self.units), 'block')} of 512 tokens"
        return f"{units} of {documents}"

    @property
    def drawn(self) -> int:
        """How many documents, or pieces of documents, are drawn for intervals; fewer than 2 give none."""
        return len(self.units) if self.units else len(self.documents)

    def sampling_interval(self, name: str, *, level: float = 0.95) -> tuple[Array, Array]:
        """Where the value over all rows lies if only some were measured; both ends are the value where all were.

        The upper end of a largest value is what no row can exceed. Other intervals rest on the differences between 16
        groups of rows: of many values about so many lie in theirs as the level says. A value that one unseen row in
        hundreds makes up for the most part may lie outside of its own much more often.

        Args:
            name: The statistic.
            level: How often the interval holds the value, at least.

        Returns:
            Lower and upper end, each (heads, *shape).

        Raises:
            MultiheadError: No statistic has this name, or the level is no share.
        """
        _check_level(level)
        quantity, sampling = self.quantity(name), self.sampling.get(name)
        if sampling is None:
            return self.value(name), self.value(name)
        return from_sample(quantity, self.sums[name], self.counts[name], sampling, level=level)

    def per_document(self, name: str) -> Array:
        """Values of each document, shape (documents, heads, *shape); NaN where no row stands behind a value."""
        quantity = self.quantity(name)
        if quantity.fold == "max":
            return np.where(self.counts[name] > 0, self.sums[name], np.nan)
        return value_of(quantity, self.heads, self.sums[name], self.counts[name])

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
        plain = ("model", "heads", "kv_heads", "documents", "quantities", "notes", "units", "sampling", "examples")
        return all(getattr(self, name) == getattr(other, name) for name in plain) and all(
            _same(getattr(self, name), getattr(other, name)) for name in _ARRAYS
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
        documents = self.documents + other.documents
        # The record of all these documents in one run would have units only where they are few.
        parted = len(documents) < FEW and all(bool(one.units) or not one.documents for one in (self, other))
        shift = len(self.documents)
        return replace(
            self,
            documents=documents,
            sums=_appended(self.sums, other.sums),
            counts=_appended(self.counts, other.counts),
            notes=self.notes + tuple(n for n in other.notes if n not in self.notes),
            units=self.units + tuple(unit + shift for unit in other.units) if parted else (),
            unit_sums=_appended(self.unit_sums, other.unit_sums) if parted else {},
            unit_counts=_appended(self.unit_counts, other.unit_counts) if parted else {},
            sampling={
                name: self._sampled(name).append(other._sampled(name))
                for name in dict.fromkeys((*self.sampling, *other.sampling))
            },
            examples=self.examples + tuple(replace(e, document=e.document + shift) for e in other.examples),
        )

    def _sampled(self, name: str) -> Sampling:
        """How uncertain a statistic is, also where every row was measured."""
        exact = Sampling.exact(self.sums[name], self.counts[name], fold=self.quantity(name).fold)
        return self.sampling.get(name, exact)

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


def _check_shape(
    what: str, arrays: Mapping[str, Array], quantity: Quantity, size: tuple[int, int], rows: str = "documents"
) -> None:
    want = (*size, *quantity.shape)
    have = arrays[quantity.name].shape if quantity.name in arrays else None
    if have != want:
        raise MultiheadError(
            asked=f"{what} for {want[0]} {rows} and {want[1]} heads: shape {want}",
            arrived=f"shape {have}",
            remedy=f"build the record with one row for each of the {rows} and one column a head",
        )


def _appended(one: Mapping[str, Array], other: Mapping[str, Array]) -> dict[str, Array]:
    """Arrays of both; a record of no documents may lack them."""
    return {name: np.concatenate([arrays[name] for arrays in (one, other) if name in arrays]) for name in one or other}


def _same(mine: Mapping[str, Array], theirs: Mapping[str, Array]) -> bool:
    """Whether all arrays are equal bit for bit."""
    return mine.keys() == theirs.keys() and all(np.array_equal(mine[k], theirs[k], equal_nan=True) for k in mine)


def _some(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _check_level(level: float) -> None:
    if not 0.0 < level < 1.0:
        raise MultiheadError(
            asked="the level of an interval as a share between 0 and 1",
            arrived=f"level={level}",
            remedy="pass for example level=0.95",
        )


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
