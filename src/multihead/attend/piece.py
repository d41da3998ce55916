"""How a problem of chosen blocks is cut into pieces: a block of keys, and some of the queries that attend to it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import count
from operator import and_
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from multihead.attend.problem import Problem
from multihead.pattern import Pattern, Tile
from multihead.pattern.algebra import And
from multihead.pattern.chosen import Chosen, unpacked

LEAST = 16
"""Keys in a block: with fewer the products are too small to be worth a call each."""

_WORD = 64
_AT_ONCE = 2**18  # weights that exist at once
_EDGE = 64  # queries that the rest of a mask is asked about together


class Piece(NamedTuple):
    """A block of keys, and some of the queries that attend to it.

    Args:
        cols: Its keys.
        rows: The queries, as places in (batch, heads, q_len) counted through, rising.
        spans: Which of them belong to which key/value head, counted through (batch, kv_heads): (head, begin, end).
        cut: Of some of the queries, by their places among `rows`, which keys the rest of the mask hides; or None.
        number: Its place among all.
    """

    cols: slice
    rows: Int[Tensor, " rows"]
    spans: tuple[tuple[int, int, int], ...]
    cut: tuple[Int[Tensor, " some"], Bool[Tensor, "some cols"]] | None
    number: int

    def times(self, left: Tensor, right: Tensor, *, transposed: bool = False) -> Tensor:
        """Each row times its head's part of `right` (heads, keys, dim)."""
        size = self.cols.stop - self.cols.start if transposed else right.shape[2]
        made = left.new_empty(left.shape[0], size)
        for head, begin, end in self.spans:
            part = right[head, self.cols]
            torch.mm(left[begin:end], part.T if transposed else part, out=made[begin:end])
        return made

    def add_keys(self, to: Tensor, left: Tensor, right: Tensor) -> None:
        """Adds `left.T @ right` of the rows of each head to its keys."""
        for head, begin, end in self.spans:
            to[head, self.cols].addmm_(left[begin:end].T, right[begin:end])


def pieces(problem: Problem) -> Iterator[Piece]:
    """Every block of keys with the queries that attend to it, a bounded number of weights at once.

    Args:
        problem: One whose mask has chosen blocks.
    """
    chosen, rest = asked_of(problem), _rest_of(problem.mask)
    if not problem.q.shape[:3].numel() or not problem.kv_len:
        return
    places = problem.q_positions() - chosen.first
    row = places.div(chosen.span, rounding_mode="floor")
    words = chosen.bits.on(problem.q.device)
    words = words.expand(problem.batch, problem.heads, *words.shape[2:])
    limits = _Limits.of(problem, rest, chosen)
    number = count()
    for word in range(words.shape[3]):
        bits = words[:, :, row, word].reshape(-1, 1)
        columns = range(word * _WORD, min((word + 1) * _WORD, chosen.columns))
        # Sorted by block, then by query.
        column, query = unpacked(bits, len(columns)).T.nonzero().unbind(1)
        counts = torch.bincount(column, minlength=len(columns)).tolist()
        for block, rows in zip(columns, query.split(counts), strict=True):
            cols = _keys_of(chosen, block, problem.kv_len)
            if rows.numel() and cols.stop > cols.start:
                yield from limits.cut(rows, cols, block, number)


@dataclass(frozen=True, slots=True)
class _Limits:
    """What the rest of the mask does to blocks."""

    problem: Problem
    rest: Pattern | None
    classes: Tensor | None  # (batch | 1, heads | 1, row tiles, blocks)

    @classmethod
    def of(cls, problem: Problem, rest: Pattern | None, chosen: Chosen) -> "_Limits":
        """Asks the rest of the mask about tiles of queries and blocks."""
        if rest is None:
            return cls(problem, None, None)
        first = problem.q_offset or 0
        edges = torch.tensor([*range(0, problem.q_len, _EDGE), problem.q_len]) + first
        spans = [_keys_of(chosen, block, problem.kv_len) for block in range(chosen.columns)]
        some = [place for place, cols in enumerate(spans) if cols.stop > cols.start]
        told = rest.tiles(edges, torch.tensor([spans[some[0]].start, *(spans[place].stop for place in some)]))
        classes = torch.zeros(*told.shape[:3], len(spans), dtype=told.dtype)
        classes[..., some] = told
        return cls(problem, rest, classes.to(problem.q.device))

    def cut(self, rows: Tensor, cols: slice, block: int, number: Iterator[int]) -> Iterator[Piece]:
        """The queries that see something of a block, in pieces."""
        width = cols.stop - cols.start
        partial = None
        if self.classes is not None:
            found = self._classes_at(rows, block)
            rows, found = rows[found != Tile.SKIP], found[found != Tile.SKIP]
            partial = found == Tile.PARTIAL
        per_head = self.problem.group * self.problem.q_len
        for begin in range(0, rows.numel(), max(1, _AT_ONCE // width)):
            some = rows[begin : begin + max(1, _AT_ONCE // width)]
            shut = None
            if partial is not None:
                places = partial[begin : begin + some.numel()].nonzero()[:, 0]
                shut = (places, ~self._allowed(some[places], cols)) if places.numel() else None
            yield Piece(cols, some, _spans(some, per_head), shut, next(number))

    def _classes_at(self, rows: Tensor, block: int) -> Tensor:
        assert self.classes is not None
        batch, head, query = self._split(rows)
        return self.classes[_one(batch, self.classes, 0), _one(head, self.classes, 1), query // _EDGE, block]

    def _allowed(self, rows: Tensor, cols: slice) -> Bool[Tensor, "rows cols"]:
        """Which keys some queries may see by the rest of the mask."""
        assert self.rest is not None
        batch, head, query = self._split(rows)
        # Positions are asked for once, whatever heads they are of.
        distinct, place = query.unique(return_inverse=True)
        allowed = self.rest.allows(self.problem.q_positions()[distinct], self.problem.k_positions()[cols])
        return allowed[_one(batch, allowed, 0), _one(head, allowed, 1), place]

    def _split(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        heads, q_len = self.problem.heads, self.problem.q_len
        head = rows.div(q_len, rounding_mode="floor")
        return head.div(heads, rounding_mode="floor"), head % heads, rows % q_len


def _one(index: Tensor, of: Tensor, dim: int) -> Tensor:
    """An index into a dimension that may be 1 for all."""
    return index if of.shape[dim] > 1 else torch.zeros_like(index)


def _spans(rows: Tensor, per_head: int) -> tuple[tuple[int, int, int], ...]:
    """Where the rows of each key/value head begin and end."""
    heads, counts = rows.div(per_head, rounding_mode="floor").unique_consecutive(return_counts=True)
    ends = counts.cumsum(0).tolist()
    return tuple(zip(heads.tolist(), [0, *ends[:-1]], ends, strict=True))


def _keys_of(chosen: Chosen, block: int, kv_len: int) -> slice:
    """The keys of a block, from position 0 on."""
    begin = chosen.start + block * chosen.block
    return slice(min(max(begin, 0), kv_len), min(max(begin + chosen.block, 0), kv_len))


def _parts_of(mask: Pattern | Tensor | None) -> Sequence[Pattern]:
    if not isinstance(mask, Pattern):
        return ()
    return mask.parts if isinstance(mask, And) else (mask,)


def chosen_of(mask: Pattern | Tensor | None) -> Chosen | None:
    """The chosen blocks that are gathered by; the others of a mask, if any, are asked like the rest.

    Args:
        mask: Of a problem.
    """
    return next((part for part in _parts_of(mask) if isinstance(part, Chosen) and part.block >= LEAST), None)


def _rest_of(mask: Pattern | Tensor | None) -> Pattern | None:
    chosen = chosen_of(mask)
    rest = [part for part in _parts_of(mask) if part is not chosen]
    return reduce(and_, rest) if rest else None


def asked_of(problem: Problem) -> Chosen:
    """The chosen blocks of a problem that has some, checked against its lengths.

    Args:
        problem: What is asked.

    Raises:
        MultiheadError: They were chosen for other queries or keys.
    """
    chosen = chosen_of(problem.mask)
    assert chosen is not None
    chosen.check_call(problem.q_len, problem.kv_len, problem.q_offset or 0)
    return chosen
