"""How a pattern tells what it is: its text form, why a pair is in it or not, its map in characters."""

from abc import abstractmethod
from dataclasses import dataclass

import torch

from multihead.pattern.check import member, whole
from multihead.pattern.law import Law, Tile
from multihead.pattern.tilemap import lower

_WIDEST = 64
_MARKS = {Tile.FULL: "█", Tile.PARTIAL: "▒", Tile.SKIP: "·"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """One pair in one batch row and head, as `why` looks at it."""

    query: int
    key: int
    batch: int = 0
    head: int = 0


class Shown(Law):
    """A law that can be printed, asked for its reasons and drawn. A new one writes `_text`."""

    __slots__ = ()

    @abstractmethod
    def _text(self) -> str:
        """The text form."""

    def _has(self, spot: Spot) -> bool:
        q, k = (torch.tensor(pos).view(1, 1, 1, 1) for pos in (spot.query, spot.key))
        found = self._contains(q, k)
        return bool(found[min(spot.batch, found.shape[0] - 1), min(spot.head, found.shape[1] - 1), 0, 0])

    def _side(self, spot: Spot) -> str:
        return "inside" if self._has(spot) else "outside"

    def _detail(self, spot: Spot) -> str:
        """What the text form leaves out and `why` should tell about this pair: empty, or " (...)"."""
        return ""

    def _words(self, spot: Spot) -> str:
        """Why the pair is inside or outside, without naming the pair."""
        return f"{self._side(spot)} {self._text()}{self._detail(spot)}"

    def why(self, i: int, j: int, *, batch: int = 0, head: int = 0) -> str:
        """Say in words why query i sees key j or does not; of a compound pattern, the parts that decided.

        Args:
            i: Query position, from 0.
            j: Key position, from 0.
            batch: Batch row, for patterns that differ by row.
            head: Query head, for patterns that differ by head.

        Raises:
            MultiheadError: A position is negative or outside the ids held, or there is no such row or head.

        Example:
            >>> from multihead.pattern import causal, sliding_window
            >>> (causal() & sliding_window(4)).why(9, 2)
            'query 9 -> key 2: outside sliding_window(4)'
        """
        spot = Spot(
            query=whole(i, asked="why(i, j): a query position, counted from 0", least=0),
            key=whole(j, asked="why(i, j): a key position, counted from 0", least=0),
            batch=member(batch, self.batch, what="batch row"),
            head=member(head, self.heads, what="head"),
        )
        row = f"row {spot.batch}, " if self.batch is not None else ""
        one = f"head {spot.head}, " if self.heads is not None else ""
        return f"{row}{one}query {spot.query} -> key {spot.key}: {self._words(spot)}"

    def draw(
        self, q_len: int, kv_len: int, *, q_offset: int = 0, block: int | None = None, batch: int = 0, head: int = 0
    ) -> str:
        """Draw the pattern as a map in characters: queries down, each line with the position of its first; keys across.

        Args:
            q_len: Number of queries, at least 1.
            kv_len: Number of keys, at least 1.
            q_offset: Absolute position of the first query.
            block: Side of the tile that a character stands for; None = 1 up to 64 tokens, beyond that the smallest
                power of 2 that needs at most 64 characters.
            batch: Batch row to draw.
            head: Head to draw.

        Raises:
            MultiheadError: A number is out of bounds, there is no such row or head, or positions lie outside the ids.

        Example:
            >>> from multihead.pattern import sliding_window
            >>> print(sliding_window(2).draw(3, 3))
            sliding_window(2): queries 0..2 down, keys 0..2 across
            █ inside  · outside
            0 █··
            1 ██·
            2 ·██
            >>> print(sliding_window(2).draw(6, 6, block=2))
            sliding_window(2): queries 0..5 down, keys 0..5 across, a character is 2 x 2
            █ all inside  ▒ some  · none
            0 ▒··
            2 ▒▒·
            4 ·▒▒
        """
        row, one = member(batch, self.batch, what="batch row"), member(head, self.heads, what="head")
        rows = whole(q_len, asked="draw(q_len, kv_len): the number of queries, at least 1", least=1)
        cols = whole(kv_len, asked="draw(q_len, kv_len): the number of keys, at least 1", least=1)
        side = _fitting(max(rows, cols)) if block is None else block
        drawn = lower(self, rows, cols, block=side, q_offset=q_offset).classes
        tiles = drawn[min(row, drawn.shape[0] - 1), min(one, drawn.shape[1] - 1)].tolist()
        first = [q_offset + side * s for s in range(len(tiles))]
        width = max(len(str(position)) for position in first)
        scale, legend = ("", "█ inside  · outside")
        if side > 1:
            scale, legend = (f", a character is {side} x {side}", "█ all inside  ▒ some  · none")
        title = f"{self}: queries {q_offset}..{q_offset + rows - 1} down, keys 0..{cols - 1} across{scale}"
        lines = [
            f"{position:>{width}} {''.join(_MARKS[kind] for kind in line)}"
            for position, line in zip(first, tiles, strict=True)
        ]
        return "\n".join([title, legend, *lines])


def _fitting(longest: int) -> int:
    side = 1
    while longest > _WIDEST * side:
        side *= 2
    return side
