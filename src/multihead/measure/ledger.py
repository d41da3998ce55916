"""Sums per document and head while a run goes on, and the record they make in the end."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from multihead.attend import Softmax
from multihead.hooks import Site, addresses
from multihead.measure.remark import Lost, Remark, gather_notes
from multihead.measure.statistic import Contribution, Missing
from multihead.measure.tile import Whole
from multihead.record import Document, HeadAddress, HeadStatistics, Note, Quantity

Array = NDArray[np.float64]

SHORT = Remark(
    "rows_short", "rows that see fewer than 2 keys count in no statistic of weights; rows_short is their share"
)
LEAK = Remark("", "padded keys get weight, which counts in no statistic: the weights of a row add up to less than 1")
LOOSE = Remark("", "the weights of a row need not add up to 1 here; the statistics take them as they are")


@dataclass(slots=True)
class _Page:
    """What one document brought at one site."""

    sums: dict[str, Array] = field(default_factory=dict)
    counts: dict[str, Array] = field(default_factory=dict)
    remarks: dict[Remark, None] = field(default_factory=dict)
    lost: dict[str, Lost] = field(default_factory=dict)


@dataclass(slots=True)
class _Book:
    """All documents at one site."""

    heads: int
    group: int
    pages: dict[int, _Page] = field(default_factory=dict)


class Ledger:
    """Adds up contributions in float64, call after call, apart for every document.

    Args:
        quantities: What is measured.
    """

    def __init__(self, quantities: Sequence[Quantity]) -> None:
        self.quantities = tuple(quantities)
        self._folds = {quantity.name: quantity.fold for quantity in quantities}
        self._books: dict[Site, _Book] = {}

    def add(self, whole: Whole, taken: Mapping[str, Contribution | Missing]) -> None:
        """Enter one call.

        Args:
            whole: What was seen of it.
            taken: For each quantity what it adds, or why it adds nothing.
        """
        scene = whole.scene
        problem = scene.problem
        book = self._books.setdefault(scene.call.site, _Book(problem.heads, problem.group))
        arrays = {n: (_array(p.sum), _array(p.count)) for n, p in taken.items() if isinstance(p, Contribution)}
        remarks = [Remark(name, part.reason) for name, part in taken.items() if isinstance(part, Missing)]
        losses = _losses(whole)
        for row, document in enumerate(scene.documents):
            page = book.pages.setdefault(document, _Page())
            for name, (sums, counts) in arrays.items():
                self._enter(page, name, sums[row], counts[row])
            page.remarks |= dict.fromkeys([*remarks, *_remarks(whole, row)])
            for name, (lost, rows) in losses.items():
                page.lost[name] = page.lost.get(name, Lost()) + Lost(lost[row], rows[row])

    def record(self, name: str, documents: Sequence[Document], finished: Sequence[int]) -> HeadStatistics:
        """The record of some documents.

        Args:
            name: Name of the model.
            documents: All documents of the run.
            finished: Those that go into the record, in order.
        """
        places = addresses(tuple(self._books))
        stacks = list(dict.fromkeys(stack for stack, _ in places.values()))
        sites = sorted(places, key=lambda site: (stacks.index(places[site][0]), places[site][1]))
        kept = [(places[site], self._books[site]) for site in sites]
        return HeadStatistics(
            model=name,
            heads=tuple(HeadAddress(*place, head) for place, book in kept for head in range(book.heads)),
            kv_heads=tuple(head // book.group for _, book in kept for head in range(book.heads)),
            documents=tuple(documents[index] for index in finished),
            quantities=self.quantities,
            sums={q.name: _stack(q, [b for _, b in kept], finished, "sums") for q in self.quantities},
            counts={q.name: _stack(q, [b for _, b in kept], finished, "counts") for q in self.quantities},
            notes=self._notes(kept, documents, finished),
        )

    def _enter(self, page: _Page, name: str, sums: Array, counts: Array) -> None:
        if name not in page.sums:
            page.sums[name], page.counts[name] = sums.copy(), counts.copy()
        elif self._folds[name] == "max":
            largest = np.maximum(np.where(page.counts[name] > 0, page.sums[name], -np.inf), sums)
            page.sums[name] = np.where(counts > 0, largest, page.sums[name])
            page.counts[name] += counts
        else:
            page.sums[name] += sums
            page.counts[name] += counts

    def _notes(
        self, kept: Sequence[tuple[tuple[str, int], _Book]], documents: Sequence[Document], finished: Sequence[int]
    ) -> tuple[Note, ...]:
        """Notes of one document after another: a record of several lists says what their records say."""
        notes: dict[Note, None] = {}
        for index in finished:
            pages = {place: book.pages[index] for place, book in kept if index in book.pages}
            remarks = {place: list(page.remarks) for place, page in pages.items()}
            lost = {place: page.lost for place, page in pages.items()}
            notes |= dict.fromkeys(gather_notes(documents[index].name, remarks, lost))
        return tuple(notes)


def _array(tensor: Tensor | None) -> Array:
    assert tensor is not None, "the sweep fills in every count"
    return tensor.double().cpu().numpy()


def _stack(quantity: Quantity, books: Sequence[_Book], finished: Sequence[int], kind: str) -> Array:
    total = sum(book.heads for book in books)
    stacked = np.zeros((len(finished), total, *quantity.shape))
    start = 0
    for book in books:
        for row, index in enumerate(finished):
            page = book.pages.get(index)
            found = getattr(page, kind).get(quantity.name) if page is not None else None
            if found is not None:
                stacked[row, start : start + book.heads] = found
        start += book.heads
    return stacked


def _remarks(whole: Whole, row: int) -> list[Remark]:
    normaliser = whole.scene.problem.normaliser
    short = whole.real() & whole.rows.finite & ~whole.counted()
    return (
        [SHORT] * bool(short[row].any())
        + [LEAK] * whole.leaks
        + [LOOSE] * (not isinstance(normaliser, Softmax) and not _adds_up(whole))
    )


def _adds_up(whole: Whole) -> bool:
    """Whether all weights together are as many as rows that count."""
    counted = float(whole.counted().sum())
    return abs(float(whole.columns.sum()) - counted) <= 1e-3 * counted


def _losses(whole: Whole) -> dict[str, tuple[Array, Array]]:
    """Rows with NaN or infinity in scores and in outputs, and all real rows, each (batch, heads)."""
    real = whole.real()
    fine = whole.scene.call.output.isfinite().all(-1).transpose(1, 2)
    rows = _array(real.sum(-1))
    return {
        "scores": (_array((real & ~whole.rows.finite).sum(-1)), rows),
        "outputs": (_array((real & ~fine & (whole.rows.sees > 0)).sum(-1)), rows),
    }
