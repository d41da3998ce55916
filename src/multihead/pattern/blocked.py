"""Patterns of blocks of neighbouring positions: chunks, bands of blocks, blocks that everyone sees."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int, Int8
from torch import Tensor

from multihead.pattern.algebra import Pattern
from multihead.pattern.check import whole, wholes
from multihead.pattern.formed import Formed
from multihead.pattern.held import Held
from multihead.pattern.law import Facts, grade
from multihead.pattern.show import Spot


def block_of(positions: Int[Tensor, "*shape"], size: int) -> Int[Tensor, "*shape"]:
    """The block of each position; position 0 begins block 0, and blocks before it have negative numbers."""
    return positions.div(size, rounding_mode="floor")


def blocks_between(edges: Int[Tensor, " edges"], size: int) -> tuple[Int[Tensor, " tiles"], Int[Tensor, " tiles"]]:
    """First and last block that the tiles between edges touch."""
    return block_of(edges[:-1], size), block_of(edges[1:] - 1, size)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Blocked(Formed):
    """-after <= block of the query - block of the key <= before."""

    size: int
    before: int
    after: int

    def _facts(self) -> Facts:
        reach = ((self.before + 1) * self.size - 1, (self.after + 1) * self.size - 1)
        window = (self.before, self.after) if self.size == 1 else None
        return Facts(reach=reach, window=window, period=self.size)

    def _contains(self, q: Int[Tensor, "_ 1 rows 1"], k: Int[Tensor, "_ 1 1 cols"]) -> Bool[Tensor, "_ _ _ _"]:
        distance = block_of(q, self.size) - block_of(k, self.size)
        return (distance >= -self.after) & (distance <= self.before)

    def _classify(self, rows: Int[Tensor, " rows"], cols: Int[Tensor, " cols"]) -> Int8[Tensor, "_ _ _ _"]:
        (top, bottom), (first, last) = (blocks_between(edges, self.size) for edges in (rows, cols))
        least, most = top[:, None] - last, bottom[:, None] - first
        none = (most < -self.after) | (least > self.before)
        return grade(none, (least >= -self.after) & (most <= self.before))[None, None]

    def _detail(self, spot: Spot) -> str:
        return _blocks_told(spot, self.size)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class BlockPlaces(Formed):
    """Rows and columns of listed blocks."""

    size: int
    listed: Held

    def _facts(self) -> Facts:
        return Facts()

    def _contains(self, q: Int[Tensor, "_ 1 rows 1"], k: Int[Tensor, "_ 1 1 cols"]) -> Bool[Tensor, "_ _ _ _"]:
        listed = self.listed.on(q.device)
        return torch.isin(block_of(q, self.size), listed) | torch.isin(block_of(k, self.size), listed)

    def _classify(self, rows: Int[Tensor, " rows"], cols: Int[Tensor, " cols"]) -> Int8[Tensor, "_ _ _ _"]:
        (no_row, all_rows), (no_col, all_cols) = self._counted(rows), self._counted(cols)
        return grade(no_row[:, None] & no_col, all_rows[:, None] | all_cols)[None, None]

    def _counted(self, edges: Int[Tensor, " edges"]) -> tuple[Bool[Tensor, " tiles"], Bool[Tensor, " tiles"]]:
        """Whether none of the blocks between edges is listed, and whether all are."""
        first, last = blocks_between(edges, self.size)
        listed = self.listed.on("cpu")
        count = torch.bucketize(last, listed, right=True) - torch.bucketize(first, listed)
        return count == 0, count == last - first + 1

    def _detail(self, spot: Spot) -> str:
        return _blocks_told(spot, self.size)


def _blocks_told(spot: Spot, size: int) -> str:
    return f" (block {spot.query // size} at query {spot.query}, block {spot.key // size} at key {spot.key})"


def chunk(size: int) -> Pattern:
    """Keys in the chunk of the query: floor(query / size) == floor(key / size).

    With `causal() &` the chunked attention of Llama 4 (`attention_chunk_size`). Chunks begin at position 0: where texts
    are padded on the left, they begin at the first token with `document(positions // size)`, of the positions each
    token has in its own text. A row sees at most `size` keys, and tiles of other chunks are skipped.

    Args:
        size: Positions in a chunk, at least 1.

    Raises:
        MultiheadError: `size` is no whole number of at least 1.

    Example:
        >>> print(chunk(2).draw(5, 5))
        chunk(2): queries 0..4 down, keys 0..4 across
        █ inside  · outside
        0 ██···
        1 ██···
        2 ··██·
        3 ··██·
        4 ····█
    """
    positions = whole(size, asked="chunk(size): positions in a chunk, at least 1", least=1)
    return Blocked(f"chunk({positions})", positions, 0, 0)


def block_band(size: int, before: int, after: int) -> Pattern:
    """Whole blocks around that of the query: -after <= floor(query / size) - floor(key / size) <= before.

    The window of BigBird is `block_band(size, 1, 1)` (Zaheer et al. 2020, arXiv 2007.14062, appendix D). A row sees
    (before + 1 + after) size keys, and tiles beyond them are skipped. `block_band(size, 0, 0)` is `chunk(size)`.

    Args:
        size: Positions in a block, at least 1.
        before: Number of blocks before that of the query.
        after: Number of blocks after it.

    Raises:
        MultiheadError: A number is not whole or out of bounds.

    Example:
        >>> print(block_band(2, 1, 0).draw(5, 5))
        block_band(2, 1, 0): queries 0..4 down, keys 0..4 across
        █ inside  · outside
        0 ██···
        1 ██···
        2 ████·
        3 ████·
        4 ··███
    """
    positions = whole(size, asked="block_band(size, before, after): positions in a block, at least 1", least=1)
    back = whole(before, asked="block_band(size, before, after): blocks before the query's, at least 0", least=0)
    ahead = whole(after, asked="block_band(size, before, after): blocks after the query's, at least 0", least=0)
    return Blocked(f"block_band({positions}, {back}, {ahead})", positions, back, ahead)


def global_blocks(size: int, blocks: Sequence[int]) -> Pattern:
    """Blocks that everyone sees and that see everyone: the query's block in `blocks` or the key's block in `blocks`.

    The global blocks of BigBird (Zaheer et al. 2020, arXiv 2007.14062). Each costs `size` whole rows and columns.

    Args:
        size: Positions in a block, at least 1.
        blocks: Numbers of blocks, from 0; block b holds positions b size .. (b + 1) size - 1.

    Raises:
        MultiheadError: A number is not whole or out of bounds.

    Example:
        >>> print(global_blocks(2, [1]).draw(5, 5))
        global_blocks(2, [1]): queries 0..4 down, keys 0..4 across
        █ inside  · outside
        0 ··██·
        1 ··██·
        2 █████
        3 █████
        4 ··██·
    """
    positions = whole(size, asked="global_blocks(size, blocks): positions in a block, at least 1", least=1)
    asked = "global_blocks(size, blocks): numbers of blocks, counted from 0"
    found = wholes(blocks, asked=asked)
    listed = Held(torch.tensor(found, dtype=torch.int64), what="global_blocks")
    return BlockPlaces(f"global_blocks({positions}, {found})", positions, listed)
