"""Sums per document and head while a run goes on, and the record they make in the end."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from multihead.attend import Softmax
from multihead.measure.batch import Batch
from multihead.measure.block import SPREAD, Block
from multihead.measure.example import Seen, examples_of
from multihead.measure.page import Array, Book, Page, Sheet, Sums, Unit, slot_of
from multihead.measure.part import Whole
from multihead.measure.place import Place, Placed, place_books
from multihead.measure.remark import Lost, Remark, gather_notes, joined_losses
from multihead.measure.scene import Scene
from multihead.measure.statistic import Contribution, Missing
from multihead.measure.sweep import combined
from multihead.record import FEW, Document, HeadAddress, HeadStatistics, Note, Quantity, Sampling

SHORT = Remark(
    "rows_short", "rows that see fewer than 2 keys count in no statistic of weights; rows_short is their share"
)
LEAK = Remark("", "padded keys get weight, which counts in no statistic: the weights of a row add up to less than 1")
LOOSE = Remark("", "the weights of a row need not add up to 1 here; the statistics take them as they are")

APART = (
    "heads of several kinds are measured kind by kind: where heads of a layer are compared (alike in weights, alike in "
    "outputs, output of the layer's mean), each is with those of its own kind"
)


class Ledger:
    """Adds up contributions in float64, batch after batch, apart for every document.

    What a batch brings is first added up on a sheet of its own, and the sheet to the books when it is posted: so a run
    that reads sheets back from a file adds the very same numbers.

    Args:
        quantities: What is measured.
        samples: Whether rows may be left out.
    """

    def __init__(self, quantities: Sequence[Quantity], *, samples: bool = False) -> None:
        self.quantities = tuple(quantities)
        self.sheet: Sheet = {}
        self.keeps_units = True
        self._samples = samples
        self._folds = {quantity.name: quantity.fold for quantity in quantities}
        self._scalars = [quantity.name for quantity in quantities if quantity.shape == ()]
        self._books: Sheet = {}
        self._left_out: dict[int, dict[str, Remark]] = {}

    def add(self, scene: Scene, blocks: Iterable[Block], *, as_one: bool = False) -> None:
        """Enter one call on the sheet.

        Args:
            scene: The call.
            blocks: What its blocks bring, in order.
            as_one: Whether all of them together are one unit.
        """
        problem = scene.problem
        book = self.sheet.setdefault(slot_of(scene.call), Book(problem.heads, problem.group))
        pages = [book.page(document) for document in scene.documents]
        taken: Mapping[str, Contribution | Missing] = {}
        units: list[Unit] = []
        spread: dict[str, Tensor] = {}
        for block in blocks:
            taken = combined(taken, block.taken, self._folds)
            self._note(pages, block)
            units = self._keep_units(pages, block, units if as_one else [])
            spread |= block.spread
        for name, part in taken.items():
            if isinstance(part, Contribution):
                _enter(pages, name, part, self._folds[name])
                if self._samples:
                    told = spread[name] if name in spread else _exact(part, self._folds[name])
                    for page, one in zip(pages, _array(told), strict=True):
                        page.add_spread(name, one, self._folds[name])

    def add_seen(self, scene: Scene, seen: Sequence[Seen]) -> None:
        """Enter on the sheet what a call makes of the stretches that are kept for the reader."""
        problem = scene.problem
        self.sheet.setdefault(slot_of(scene.call), Book(problem.heads, problem.group)).seen.extend(seen)

    def post(self, sheet: Sheet | None = None, *, step: bool = False) -> None:
        """Add a sheet to the books.

        Args:
            sheet: One that was kept; None for the one at hand, after which a new one begins.
            step: Whether its rows go on where those of the same documents ended.
        """
        if sheet is None:
            sheet, self.sheet = self.sheet, {}
        for slot, book in sheet.items():
            kept = self._books.setdefault(slot, Book(book.heads, book.group))
            for document, page in book.pages.items():
                kept.page(document).append(page, self._folds, step=step)
            kept.seen.extend(book.seen)

    def remark(self, text: str) -> None:
        """Say something of all that is on the sheet at hand."""
        for book in self.sheet.values():
            for page in book.pages.values():
                page.remarks[Remark("", text)] = None

    def drop_units(self) -> None:
        """Keep no units any more: there are documents enough."""
        self.keeps_units = False
        for book in (*self.sheet.values(), *self._books.values()):
            for page in book.pages.values():
                page.units.clear()

    def leave_out(self, document: int, names: Iterable[str], reason: str) -> None:
        """Let some quantities of a document count for nothing, whatever was or will be added to them.

        Args:
            document: Which.
            names: The quantities; those that are not measured are passed over.
            reason: What the reader is told.
        """
        self._left_out[document] = {name: Remark(name, reason) for name in names if name in self._folds}

    def record(
        self, name: str, documents: Sequence[Document], finished: Sequence[int], batches: Sequence[Batch] = ()
    ) -> HeadStatistics:
        """The record of some documents, from the sheets that were posted.

        Args:
            name: Name of the model.
            documents: All documents of the run.
            finished: Those that go into the record, in order.
            batches: All batches of the run, whose spans become examples.
        """
        kept = place_books(self._books)
        quantities = _with_widths(self.quantities, kept)
        arrays = _Arrays([(one.first_head, one.book) for one in kept], finished, self._left_out)
        units = arrays.units() if self.keeps_units and len(finished) < FEW else []
        scalars = self._scalars if units else []
        first = np.cumsum([0, *(one.book.heads for one in kept)]).tolist()
        firsts = {one.slot: start for one, start in zip(kept, first, strict=False)}
        return HeadStatistics(
            model=name,
            heads=tuple(HeadAddress(*one.place, head) for one in kept for head in one.heads),
            kv_heads=tuple(kv_head for one in kept for kv_head in one.kv_heads),
            documents=tuple(documents[index] for index in finished),
            quantities=quantities,
            sums={q.name: arrays.of(q, "sums") for q in quantities},
            counts={q.name: arrays.of(q, "counts") for q in quantities},
            notes=self._notes(kept, documents, finished),
            units=tuple(row for row, _ in units),
            unit_sums={name: arrays.of_units(name, "sums", units) for name in scalars},
            unit_counts={name: arrays.of_units(name, "counts", units) for name in scalars},
            sampling=arrays.sampling(quantities),
            examples=examples_of({one.slot: one.book.seen for one in kept}, firsts, batches, finished),
        )

    def _note(self, pages: Sequence[Page], block: Block) -> None:
        """Enter what is to be said of a block, and its losses."""
        reasons = {name: part.reason for name, part in block.taken.items() if isinstance(part, Missing)}
        missing = [Remark(name, reason) for name, reason in reasons.items() if reasons.get(_base(name)) != reason]
        for whole in block.wholes:
            losses = _losses(whole)
            for row, page in enumerate(pages):
                page.remarks |= dict.fromkeys([*missing, *_remarks(whole, row), Remark("", block.told)])
                for kind, (lost, rows) in losses.items():
                    page.lose(kind, Lost(lost[row], rows[row]))

    def _keep_units(self, pages: Sequence[Page], block: Block, before: list[Unit]) -> list[Unit]:
        """Keep a block as a unit of every document, or add it to the units before."""
        if not self.keeps_units:
            return []
        rows = sum(whole.scene.problem.q_len for whole in block.wholes)
        units = [Unit(rows=rows) for _ in pages]
        for name in self._scalars:
            part = block.taken[name]
            if isinstance(part, Contribution):
                _enter(units, name, part, self._folds[name])
        for unit, old in zip(units, before, strict=False):
            old.absorb(unit, self._folds)
            old.rows += rows
        for page, unit in zip(pages, () if before else units, strict=bool(not before)):
            page.add_unit(unit, self._folds, step=False)
        return before or units

    def _notes(
        self, kept: Sequence[Placed], documents: Sequence[Document], finished: Sequence[int]
    ) -> tuple[Note, ...]:
        """Notes of one document after another: a record of several lists says what their records say."""
        notes: dict[Note, None] = {}
        for index in finished:
            left_out = self._left_out.get(index, {})
            remarks: dict[Place, list[Remark]] = {}
            lost: dict[Place, list[Mapping[str, Lost]]] = {}
            for one in kept:
                page = one.book.pages.get(index)
                if page is not None:
                    said = [*(r for r in page.remarks if r.quantity not in left_out), *left_out.values()]
                    said += [Remark("", APART)] * bool(one.first_head)
                    remarks[one.place] = list(dict.fromkeys([*remarks.get(one.place, []), *said]))
                    lost.setdefault(one.place, []).append(page.lost)
            joined = {place: joined_losses(parts) for place, parts in lost.items()}
            notes |= dict.fromkeys(gather_notes(documents[index].name, remarks, joined))
        return tuple(notes)


class _Arrays:
    """The arrays of a record: all layers side by side, for some documents.

    Args:
        books: The layers in order, or their heads of one kind: the number of the first head in the layer, and the book.
        finished: The documents in order.
        left_out: Quantities of documents that count for nothing.
    """

    def __init__(
        self, books: Sequence[tuple[int, Book]], finished: Sequence[int], left_out: Mapping[int, Mapping[str, Remark]]
    ) -> None:
        self._books, self._first = [book for _, book in books], [first for first, _ in books]
        self._finished, self._left_out = finished, left_out
        self._heads = sum(book.heads for book in self._books)

    def of(self, quantity: Quantity, kind: str) -> Array:
        """Sums or counts, (documents, heads, *shape).

        Arrays are rounded to float32: it is what their parts were computed in, and they are most of a record.
        """
        found: list[Array | None] = []
        for index in self._finished:
            for book in self._books:
                page = None if self._lacks(index, quantity.name) else book.pages.get(index)
                found.append(None if page is None else getattr(page, kind).get(quantity.name))
        stacked = self._stacked(found, len(self._finished), quantity.shape, pairs=quantity.pairs)
        return stacked if quantity.shape == () else _rounded(stacked)

    def sampling(self, quantities: Sequence[Quantity]) -> dict[str, Sampling]:
        """How uncertain those are of which not every row was seen."""
        spread = {name for book in self._books for page in book.pages.values() for name in page.spread}
        found = {q.name: Sampling(**self.of_spread(q)) for q in quantities if q.name in spread}
        return {q.name: found[q.name] for q in quantities if q.name in found and found[q.name].coins.any()}

    def of_spread(self, quantity: Quantity) -> dict[str, Array]:
        """Each field of what is told of the uncertainty."""
        found: dict[str, Array] = {}
        for place, field in enumerate(SPREAD):
            parts = [
                None if page is None or quantity.name not in page.spread else page.spread[quantity.name][place]
                for index in self._finished
                for page in (book.pages.get(index) for book in self._books)
            ]
            stacked = self._stacked(parts, len(self._finished), quantity.shape, pairs=quantity.pairs)
            found[field] = stacked if quantity.shape == () else _rounded(stacked)
        return found

    def units(self) -> list[tuple[int, int]]:
        """All units: the place of the document, and that of the unit in it. Layers may have cut it differently."""
        found: list[tuple[int, int]] = []
        for row, index in enumerate(self._finished):
            longest = max((len(book.pages[index].units) for book in self._books if index in book.pages), default=0)
            found += [(row, unit) for unit in range(longest)]
        return found

    def of_units(self, name: str, kind: str, units: Sequence[tuple[int, int]]) -> Array:
        """Sums or counts of units, (units, heads)."""
        parts: list[Array | None] = []
        for row, unit in units:
            index = self._finished[row]
            for book in self._books:
                page = book.pages.get(index)
                inside = page is not None and unit < len(page.units) and not self._lacks(index, name)
                parts.append(getattr(page.units[unit], kind).get(name) if page is not None and inside else None)
        return _rounded(self._stacked(parts, len(units), ()))

    def _lacks(self, index: int, name: str) -> bool:
        return name in self._left_out.get(index, {})

    def _stacked(
        self, parts: Sequence[Array | None], rows: int, shape: tuple[int, ...], *, pairs: bool = False
    ) -> Array:
        """Parts of the layers of one row after another; pairs of heads may be fewer than the last axis has room for."""
        stacked = np.zeros((rows, self._heads, *shape))
        each = iter(parts)
        for row in range(rows):
            start = 0
            for first, book in zip(self._first, self._books, strict=True):
                part = next(each)
                if part is not None:
                    place = [slice(start, start + book.heads), *(slice(0, size) for size in part.shape[1:])]
                    if pairs:
                        place[-1] = slice(first, first + part.shape[-1])
                    stacked[(row, *place)] = part
                start += book.heads
        return stacked


def _exact(part: Contribution, fold: str) -> Tensor:
    """The spread of a call whose every row was measured, in a run that leaves rows out elsewhere."""
    assert part.count is not None, "the sweep fills in every count"
    none = torch.zeros_like(part.sum)
    bound, known = (part.sum, none) if fold == "max" else (none, part.sum)
    return torch.stack([bound, none, none, none, none, known, part.count], 1)


def _enter(rows: Sequence[Sums], name: str, part: Contribution, fold: str) -> None:
    """Enter the rows of a batch, each where it belongs."""
    for row, sums, counts in zip(rows, _array(part.sum), _array(part.count), strict=True):
        row.enter(name, sums, counts, fold)


def _base(name: str) -> str:
    """The statistic that one belongs to; where neither could be taken the reader is told of the first alone."""
    base, _, end = name.rpartition("_")
    return base if end in ("argmax", "even", "content") else ""


def _array(tensor: Tensor | None) -> Array:
    assert tensor is not None, "the sweep fills in every count"
    return tensor.double().cpu().numpy()


def _rounded(arrays: Array) -> Array:
    return arrays.astype(np.float32).astype(np.float64)


def _with_widths(quantities: Sequence[Quantity], kept: Sequence[Placed]) -> tuple[Quantity, ...]:
    """Pairs of heads: the last axis is as wide as the widest layer."""
    width = max((one.heads.stop for one in kept), default=0)
    return tuple(replace(q, shape=(*q.shape[:-1], width)) if q.pairs else q for q in quantities)


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
