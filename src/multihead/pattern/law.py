"""What a set of (query, key) pairs must answer: is this pair in it, what is in this tile, how far does it reach."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int, Int8
from torch import Tensor

from multihead.error import MultiheadError, check_kinds
from multihead.pattern.check import LIMIT, merged, positions, whole

Bounds = tuple[int | None, int | None]


class Tile(IntEnum):
    """How much of a tile is in a pattern. The order makes `&` a minimum, `|` a maximum and `~` 2 - class."""

    SKIP = 0
    PARTIAL = 1
    FULL = 2


class Facts(NamedTuple):
    """What a pattern knows of itself without looking at any pair; the properties of `Law` say what each means."""

    batch: int | None = None
    heads: int | None = None
    positional: bool = True
    reach: Bounds = (None, None)
    window: Bounds | None = None
    period: int | None = None


class Law(ABC):
    """The questions a pattern answers. A new one writes `_facts`, `_contains` and `_classify`."""

    __slots__ = ()

    @abstractmethod
    def _facts(self) -> Facts:
        """Sizes and bounds."""

    @abstractmethod
    def _contains(self, q: Int[Tensor, "_ 1 rows 1"], k: Int[Tensor, "_ 1 1 cols"]) -> Bool[Tensor, "_ _ _ _"]:
        """The law on prepared int64 positions; the result broadcasts to (batch | 1, heads | 1, rows, cols)."""

    @abstractmethod
    def _classify(self, rows: Int[Tensor, " rows"], cols: Int[Tensor, " cols"]) -> Int8[Tensor, "_ _ _ _"]:
        """Classes of the tiles between increasing edges; the result broadcasts to one class per tile."""

    @property
    def batch(self) -> int | None:
        """Number of batch rows the pattern is made for; None = any, all rows alike."""
        return self._facts().batch

    @property
    def heads(self) -> int | None:
        """Number of query heads the pattern is made for; None = any, all heads alike."""
        return self._facts().heads

    @property
    def positional(self) -> bool:
        """Whether the answer depends on the query position, so that `at(q_offset=...)` matters."""
        return self._facts().positional

    @property
    def reach(self) -> Bounds:
        """(left, right): every pair inside has -right <= query - key <= left; None = no bound. Sound, may be wide."""
        return self._facts().reach

    @property
    def window(self) -> Bounds | None:
        """(left, right) where the pattern is exactly -right <= query - key <= left (None = no bound), else None.

        Kernels that know causal masks and windows ask this. Where `left < -right` the pattern is empty.
        """
        return self._facts().window

    @property
    def period(self) -> int | None:
        """A step by which both positions can be moved without a change; None where none is known.

        1 for patterns of the distance alone, the size of a chunk for chunks. Tiles that lie whole periods apart on a
        diagonal are alike, and are looked into once.
        """
        return self._facts().period

    def allows(self, q_pos: Int[Tensor, "..."], k_pos: Int[Tensor, "..."]) -> Bool[Tensor, "batch heads q_len kv_len"]:
        """The law: which pairs of these absolute positions are in the pattern.

        Args:
            q_pos: Query positions, (q_len,) or (batch, q_len).
            k_pos: Key positions, (kv_len,) or (batch, kv_len); moved to the device of `q_pos`.

        Returns:
            True = in the pattern, (batch | 1, heads | 1, q_len, kv_len). It may be an expanded view: never write to it.

        Raises:
            MultiheadError: The positions are no integers, their batch sizes differ, or they lie outside the ids held.

        Example:
            >>> import torch
            >>> from multihead.pattern import sliding_window
            >>> sliding_window(2).allows(torch.tensor([7]), torch.arange(5, 9)).int().tolist()
            [[[[0, 1, 1, 0]]]]
        """
        q = positions(q_pos, name="q_pos")
        k = positions(k_pos, name="k_pos").to(q.device)
        stated = [self.batch, *(size for size in (q.shape[0], k.shape[0]) if size != 1)]
        batch = merged(stated, what="batch", remedy="pass positions of shape (length,), or of the pattern's batch size")
        inside = self._contains(q[:, None, :, None], k[:, None, None, :])
        return inside.expand(_ones(batch), _ones(self.heads), q.shape[1], k.shape[1])

    def mask(
        self, q_len: int, kv_len: int, *, q_offset: int = 0, device: torch.device | str | None = None
    ) -> Bool[Tensor, "batch heads q_len kv_len"]:
        """The boolean mask of queries q_offset .. q_offset + q_len - 1 over keys 0 .. kv_len - 1 (True = attend).

        Args:
            q_len: Number of queries.
            kv_len: Number of keys.
            q_offset: Absolute position of the first query.
            device: Where the mask is made; None = torch's default device.

        Returns:
            A new tensor (batch | 1, heads | 1, q_len, kv_len).

        Raises:
            MultiheadError: A length is negative, or positions lie outside the ids the pattern holds.

        Example:
            >>> from multihead.pattern import causal
            >>> causal().mask(2, 3, q_offset=1).int().tolist()
            [[[[1, 1, 0], [1, 1, 1]]]]
        """
        rows = whole(q_len, asked="q_len: the number of queries", least=0)
        cols = whole(kv_len, asked="kv_len: the number of keys", least=0)
        start = whole(q_offset, asked="q_offset: the position of the first query")
        q_pos = torch.arange(start, start + rows, device=device)
        allowed = self.allows(q_pos, torch.arange(cols, device=device))
        return allowed.clone(memory_format=torch.contiguous_format)

    def tiles(
        self, rows: Int[Tensor, " rows"], cols: Int[Tensor, " cols"]
    ) -> Int8[Tensor, "batch heads q_tiles k_tiles"]:
        """Classes of all tiles between edges: (s, t) holds rows[s] <= query < rows[s+1], cols[t] <= key < cols[t+1].

        Args:
            rows: Strictly increasing query positions on the CPU, one more than there are tiles.
            cols: The same for keys.

        Returns:
            `Tile.SKIP` (no pair is in), `Tile.FULL` (all are in) or `Tile.PARTIAL` (anything): sound, but not always
            the narrowest; (batch | 1, heads | 1, q_tiles, k_tiles).

        Raises:
            MultiheadError: Positions lie outside the ids the pattern holds.

        Example:
            >>> import torch
            >>> from multihead.pattern import causal
            >>> causal().tiles(torch.tensor([0, 4, 8]), torch.tensor([0, 4, 8])).tolist()
            [[[[1, 0], [2, 1]]]]
        """
        classes = self._classify(rows.long(), cols.long())
        return classes.expand(_ones(self.batch), _ones(self.heads), rows.numel() - 1, cols.numel() - 1)

    def tile(self, rows: range, cols: range) -> Int8[Tensor, "batch heads"]:
        """Class of one tile of positions: SKIP = no pair is in, FULL = all are in, PARTIAL = anything.

        Args:
            rows: Query positions, step 1.
            cols: Key positions, step 1.

        Returns:
            (batch | 1, heads | 1) of `Tile` values; SKIP for an empty tile.

        Raises:
            MultiheadError: A range has another step, or positions lie outside the ids the pattern holds.

        Example:
            >>> from multihead.pattern import Tile, causal
            >>> Tile(int(causal().tile(range(8, 16), range(0, 8))))
            <Tile.FULL: 2>
        """
        check_kinds({"rows": rows, "cols": cols}, (range,), "range(first, last + 1)")
        if rows.step != 1 or cols.step != 1:
            raise MultiheadError(
                asked="a tile of neighbouring positions", arrived=f"rows {rows}, cols {cols}", remedy="use step 1"
            )
        if not rows or not cols:
            return torch.zeros(_ones(self.batch), _ones(self.heads), dtype=torch.int8)
        edges = [torch.tensor([side.start, side.stop]) for side in (rows, cols)]
        return self.tiles(*edges)[:, :, 0, 0]


def _ones(size: int | None) -> int:
    return 1 if size is None else size


def grade(none: Bool[Tensor, "*shape"], every: Bool[Tensor, "*shape"]) -> Int8[Tensor, "*shape"]:
    """Tile classes from two facts about each tile: no pair is in, every pair is in."""
    return (1 + every.to(torch.int8) - none.to(torch.int8)).to(torch.int8)


def nearest(bounds: Sequence[int | None]) -> int | None:
    """The bound of what is within all bounds."""
    known = [bound for bound in bounds if bound is not None]
    return min(known) if known else None


def farthest(bounds: Sequence[int | None]) -> int | None:
    """The bound of what is within any bound."""
    known = [bound for bound in bounds if bound is not None]
    return max(known) if len(known) == len(bounds) else None


def together(periods: Sequence[int | None]) -> int | None:
    """The period of what is made of parts with these periods."""
    known = [period for period in periods if period is not None]
    shared = math.lcm(*known)
    return shared if len(known) == len(periods) and shared <= LIMIT else None


def shifted_bounds(bounds: Bounds, offset: int) -> Bounds:
    """Bounds as seen from pairs whose distance is `offset` less than that of those they are for."""
    left, right = bounds
    return (None if left is None else left - offset, None if right is None else right + offset)


def beyond(window: Bounds | None) -> Bounds | None:
    """The window of the pairs outside a window, where that is a window again."""
    match window:
        case (None, int(right)):
            return (-right - 1, None)
        case (int(left), None):
            return (None, -left - 1)
        case _:
            return None
