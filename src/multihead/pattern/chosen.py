"""Pairs that were chosen from the content of one call: a bit for each query, or group of queries, and block of keys."""

from dataclasses import dataclass, replace

import numpy
import torch
from jaxtyping import Bool, Int, Int8
from torch import Tensor

from multihead.error import MultiheadError, check_kinds
from multihead.pattern.algebra import Pattern
from multihead.pattern.check import whole
from multihead.pattern.held import Held
from multihead.pattern.law import Facts, grade
from multihead.pattern.show import Spot

_WORD = 64
_AT_ONCE = 2**24  # truth values made at once: bounds the memory of packing and of asking for tiles


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Chosen(Pattern):
    """Blocks of keys, or single keys, that were chosen for each batch row, head and query of one call.

    Build it with `from_keys` or `from_blocks`. It knows the queries `first` to `first + q_len - 1` and the keys `start`
    to `start + kv_len - 1` and is asked about no others: a longer call needs a new choice. A pair that was chosen twice
    is in it once. Of text it has `chosen(#bits, kv_len, ...)`, its bits in `data`.

    Args:
        bits: Words of 64 bits (batch | 1, heads | 1, rows, words): bit c % 64 of word c // 64 of row r says that the
            queries of row r see the keys of column c.
        kv_len: Number of keys.
        block: Keys in a column; the last one may hold fewer.
        span: Queries in a row; the last one may hold fewer.
        q_len: Number of queries.
        first: Position of the first query.
        start: Position of the first key.
    """

    bits: Held
    kv_len: int
    block: int
    span: int
    q_len: int
    first: int
    start: int

    @staticmethod
    def from_keys(index: Int[Tensor, "batch heads q_len chosen"], *, kv_len: int, q_offset: int = 0) -> "Chosen":
        """The pattern of listed keys.

        Args:
            index: Keys of each query, from 0 in any order, -1 = none; a key that is listed twice is in once. A batch or
                number of heads of 1 holds for all.
            kv_len: Number of keys.
            q_offset: Position of the first query.

        Raises:
            MultiheadError: The index is no such tensor, or names a key that there is not.

        Example:
            >>> chosen = Chosen.from_keys(torch.tensor([[[[0, -1], [1, 0]]]]), kv_len=3)
            >>> chosen.mask(2, 3).int().tolist()
            [[[[1, 0, 0], [1, 1, 0]]]]
        """
        check_kinds({"index": index}, (Tensor,), "a tensor of keys (batch, heads, q_len, chosen)")
        keys = whole(kv_len, asked="Chosen.from_keys(kv_len=...): the number of keys", least=0)
        if index.ndim != 4 or index.is_floating_point() or index.is_complex() or index.dtype is torch.bool:
            raise _not_chosen("whole numbers (batch, heads, q_len, chosen)", f"{index.dtype} {tuple(index.shape)}")
        if index.numel() and not (int(index.min()) >= -1 and int(index.max()) < keys):
            raise _not_chosen(f"keys from 0 to {keys - 1}, or -1", f"{int(index.min())} to {int(index.max())}")
        rows: list[Tensor] = []
        for some in index.split(_together(index, keys), 2):
            # One column more takes up what is none.
            inside = torch.zeros(*some.shape[:3], keys + 1, dtype=torch.bool, device=index.device)
            places = torch.where(some < 0, keys, some.long())
            rows.append(packed(inside.scatter_(3, places, value=True)[..., :keys]))
        words = torch.cat(rows, 2) if rows else torch.zeros(*index.shape[:3], -(-keys // _WORD), dtype=torch.int64)
        return chosen_bits(words, kv_len=keys, first=q_offset)

    @staticmethod
    def from_blocks(
        chosen: Bool[Tensor, "batch heads rows k_blocks"],
        *,
        block: int,
        kv_len: int | None = None,
        span: int = 1,
        q_len: int | None = None,
        q_offset: int = 0,
    ) -> "Chosen":
        """The pattern of chosen blocks.

        Args:
            chosen: True where the queries of a row see the keys of a block. A batch or number of heads of 1 holds for
                all.
            block: Keys in a block; block b holds keys b block .. (b + 1) block - 1. Multiples of 64 are the cheapest.
            kv_len: Number of keys, where the last block is not full; None: it is.
            span: Queries in a row.
            q_len: Number of queries, where the last row is not full; None: it is.
            q_offset: Position of the first query.

        Raises:
            MultiheadError: They are no truth values (batch, heads, rows, k_blocks), or do not cover the lengths.

        Example:
            >>> chosen = Chosen.from_blocks(torch.tensor([[[[True, False], [False, True]]]]), block=2, kv_len=3)
            >>> chosen.mask(2, 3).int().tolist()
            [[[[1, 1, 0], [0, 0, 1]]]]
        """
        check_kinds({"chosen": chosen}, (Tensor,), "a boolean tensor (batch, heads, rows, k_blocks)")
        if chosen.ndim != 4 or chosen.dtype is not torch.bool:
            raise _not_chosen("truth values (batch, heads, rows, k_blocks)", f"{chosen.dtype} {tuple(chosen.shape)}")
        size = whole(block, asked="Chosen.from_blocks(block=...): keys in a block, at least 1", least=1)
        keys = whole(
            chosen.shape[3] * size if kv_len is None else kv_len,
            asked="Chosen.from_blocks(kv_len=...): the number of keys",
            least=0,
        )
        words = packed(chosen)
        if chosen.shape[3] != -(-keys // size):
            raise _not_chosen(f"{-(-keys // size)} blocks of {size} for {keys} keys", f"{chosen.shape[3]} blocks")
        return chosen_bits(words, kv_len=keys, block=size, first=q_offset, span=span, q_len=q_len)

    @property
    def columns(self) -> int:
        """Number of blocks of keys."""
        return -(-self.kv_len // self.block)

    def rows_of(self, rows: slice, device: torch.device | str) -> Bool[Tensor, "_ _ rows columns"]:
        """What some rows chose, as truth values (batch | 1, heads | 1, rows, columns)."""
        return unpacked(self.bits.on(device)[:, :, rows], self.columns)

    def _facts(self) -> Facts:
        batch, heads = self.bits.shape[:2]
        last = self.first + self.q_len - 1, self.start + self.kv_len - 1
        reach = (last[0] - self.start, last[1] - self.first)
        return Facts(batch=None if batch == 1 else batch, heads=None if heads == 1 else heads, reach=reach)

    def _contains(self, q: Int[Tensor, "_ 1 rows 1"], k: Int[Tensor, "_ 1 1 cols"]) -> Bool[Tensor, "_ _ _ _"]:
        self._check(q - self.first, self.q_len, side="query", offset=self.first)
        self._check(k - self.start, self.kv_len, side="key", offset=self.start)
        words = self.bits.on(q.device)
        row = (q - self.first).div(self.span, rounding_mode="floor")
        column = (k - self.start).div(self.block, rounding_mode="floor")
        if q.shape[0] == k.shape[0] == 1 and q.numel() and k.numel():
            return self._unpacked_at(words, row.flatten(), column.flatten())
        b, h = (torch.arange(size, device=q.device) for size in words.shape[:2])
        found = words[b.view(-1, 1, 1, 1), h.view(1, -1, 1, 1), row, column // _WORD]
        return (found >> column % _WORD & 1).bool()

    @staticmethod
    def _unpacked_at(words: Tensor, row: Tensor, column: Tensor) -> Bool[Tensor, "_ _ rows cols"]:
        """What rows and columns say that are those of every batch row: words are unpacked whole, 64 columns at once."""
        low, high = int(column.min()) // _WORD, int(column.max()) // _WORD + 1
        some = unpacked(words[..., low:high].index_select(2, row), (high - low) * _WORD)
        column = column - low * _WORD
        begin, count = int(column[0]), column.numel()
        if torch.equal(column, torch.arange(begin, begin + count, device=column.device)):
            return some[..., begin : begin + count]
        return some.index_select(3, column)

    def _classify(self, rows: Int[Tensor, " rows"], cols: Int[Tensor, " cols"]) -> Int8[Tensor, "_ _ _ _"]:
        self._check(torch.stack([rows[0], rows[-1] - 1]) - self.first, self.q_len, side="query", offset=self.first)
        self._check(torch.stack([cols[0], cols[-1] - 1]) - self.start, self.kv_len, side="key", offset=self.start)
        low, high = _touched(cols - self.start, self.block)
        top, bottom = _touched(rows - self.first, self.span)
        words = self.bits.on("cpu")
        # Tiles of whole words are judged by words: 64 columns at once.
        by_word = not (low % _WORD).any() and bool(((high % _WORD == 0) | (high == self.columns)).all())
        low, high = (low // _WORD, -(-high // _WORD)) if by_word else (low, high)
        together = max(1, _AT_ONCE // max(words.shape[0] * words.shape[1] * self.columns, 1))
        # A tile of queries needs all of its rows at once: as many tiles as fit, one at least.
        pieces: list[Tensor] = []
        begin = 0
        while begin < top.numel():
            end = max(int(torch.searchsorted(bottom, int(top[begin]) + together, right=True)), begin + 1)
            within = slice(int(top[begin]), int(bottom[end - 1]))
            some, whole = self._judged(words[:, :, within], low, high, by_word=by_word)
            seen = _over(some, top[begin:end] - within.start, bottom[begin:end] - within.start, 2)
            full = _over(whole, top[begin:end] - within.start, bottom[begin:end] - within.start, 2)
            pieces.append(grade(seen == 0, full == (bottom - top)[begin:end, None]))
            begin = end
        return torch.cat(pieces, 2)

    def _judged(self, words: Tensor, low: Tensor, high: Tensor, *, by_word: bool) -> tuple[Tensor, Tensor]:
        """Whether rows see anything, and all, between columns (or words) `low` and `high`."""
        if not by_word:
            count = _over(unpacked(words, self.columns), low, high, 3)
            return count > 0, count == high - low
        every = packed(torch.ones(self.columns, dtype=torch.bool))
        return _over(words != 0, low, high, 3) > 0, _over(words == every, low, high, 3) == high - low

    def check_call(self, q_len: int, kv_len: int, q_offset: int) -> None:
        """Refuses the queries and keys of a call that nothing was chosen for.

        Args:
            q_len: Number of queries.
            kv_len: Number of keys, from position 0 on.
            q_offset: Position of the first query.

        Raises:
            MultiheadError: Some of them are not those of the call it was chosen in.
        """
        for length, begin, own, first, side in (
            (q_len, q_offset, self.q_len, self.first, "query"),
            (kv_len, 0, self.kv_len, self.start, "key"),
        ):
            if length:
                self._check(torch.tensor([begin, begin + length - 1]) - first, own, side=side, offset=first)

    def _check(self, places: Tensor, length: int, *, side: str, offset: int) -> None:
        """Refuses positions that nothing was chosen for."""
        if places.numel() and not (int(places.min()) >= 0 and int(places.max()) < length):
            raise MultiheadError(
                asked=f"{self} at {side} positions {int(places.min()) + offset} to {int(places.max()) + offset}",
                arrived=f"a choice made for {side} positions {offset} to {offset + length - 1}",
                remedy="select for the queries and keys of this very call, and pass the same q_offset to both",
            )

    def _shifted(self, q_offset: int, k_offset: int) -> Pattern:
        return replace(self, first=self.first - q_offset, start=self.start - k_offset)

    def _held(self) -> tuple[Held, ...]:
        return (self.bits,)

    def _identity(self) -> object:
        return (self.bits.digest, *self._numbers())

    def _text(self) -> str:
        return f"chosen(#{self.bits.name}, {', '.join(map(str, self._numbers()))})"

    def _numbers(self) -> tuple[int, ...]:
        return (self.kv_len, self.block, self.span, self.q_len, self.first, self.start)

    def _detail(self, spot: Spot) -> str:
        return f" (block {(spot.key - self.start) // self.block} of {self.block} keys)" if self.block > 1 else ""


def chosen_bits(
    bits: Int[Tensor, "batch heads rows words"],
    *,
    kv_len: int,
    block: int = 1,
    span: int = 1,
    q_len: int | None = None,
    first: int = 0,
    start: int = 0,
) -> Chosen:
    """The pattern of packed bits, as `Pattern.data` gives them.

    Raises:
        MultiheadError: The bits are no words of the sizes that the lengths need.
    """
    asked = "chosen(#bits, kv_len, block, span, q_len, first, start)"
    keys = whole(kv_len, asked=f"{asked}: kv_len, the number of keys", least=0)
    size = whole(block, asked=f"{asked}: block, keys in a block, at least 1", least=1)
    rows = whole(span, asked=f"{asked}: span, queries in a row, at least 1", least=1)
    places = [whole(place, asked=f"{asked}: the position of the first query and key") for place in (first, start)]
    if bits.ndim != 4 or bits.dtype is not torch.int64:
        raise _not_chosen("words of 64 bits (batch, heads, rows, words)", f"{bits.dtype} {tuple(bits.shape)}")
    queries = bits.shape[2] * rows if q_len is None else whole(q_len, asked=f"{asked}: q_len", least=0)
    columns = -(-keys // size)
    needed = (-(-queries // rows), -(-columns // _WORD))
    if tuple(bits.shape[2:]) != needed:
        raise _not_chosen(
            f"{needed[0]} rows of {needed[1]} words, for {queries} queries and {keys} keys", f"{tuple(bits.shape)}"
        )
    return Chosen(Held(bits, what="chosen(...)"), keys, size, rows, queries, *places)


def packed(inside: Bool[Tensor, "*rows columns"]) -> Int[Tensor, "*rows words"]:
    """Truth values as words of 64 bits, the first one in the lowest bit; 0 beyond the columns."""
    columns = inside.shape[-1]
    padded = torch.nn.functional.pad(inside, (0, -columns % _WORD))
    if not padded.numel():
        return torch.zeros(*padded.shape[:-1], padded.shape[-1] // _WORD, dtype=torch.int64, device=inside.device)
    if padded.device.type == "cpu":
        # numpy keeps the order in memory, and the bytes of a word lie next to each other.
        found = numpy.packbits(padded.contiguous().numpy(), axis=-1, bitorder="little")
        return torch.from_numpy(found).view(torch.int64)
    bits = padded.unflatten(-1, (-1, 8)).to(torch.uint8) << torch.arange(8, dtype=torch.uint8, device=inside.device)
    return bits.sum(-1, dtype=torch.uint8).view(torch.int64)


def unpacked(words: Int[Tensor, "*rows words"], columns: int) -> Bool[Tensor, "*rows columns"]:
    """The truth values that were packed."""
    found = words.contiguous().view(torch.uint8)
    if not found.numel():
        return torch.zeros(*words.shape[:-1], columns, dtype=torch.bool, device=words.device)
    if found.device.type == "cpu":
        return torch.from_numpy(numpy.unpackbits(found.numpy(), axis=-1, bitorder="little")).bool()[..., :columns]
    bits = found[..., None] >> torch.arange(8, dtype=torch.uint8, device=words.device) & 1
    return bits.flatten(-2).bool()[..., :columns]


def _touched(edges: Int[Tensor, " edges"], size: int) -> tuple[Int[Tensor, " tiles"], Int[Tensor, " tiles"]]:
    """First of the pieces of a size that each tile touches, and the one after the last."""
    return edges[:-1].div(size, rounding_mode="floor"), (edges[1:] - 1).div(size, rounding_mode="floor") + 1


def _over(inside: Tensor, begin: Tensor, end: Tensor, dim: int) -> Tensor:
    """How many are true between two places of a dimension, for each pair of places."""
    count = inside.cumsum(dim, dtype=torch.int32)
    zero = torch.zeros_like(count.narrow(dim, 0, 1)) if count.shape[dim] else count.new_zeros(())
    count = torch.cat([zero, count], dim)
    return count.index_select(dim, end) - count.index_select(dim, begin)


def _together(index: Tensor, keys: int) -> int:
    """Queries whose keys are packed at once."""
    return max(1, _AT_ONCE // max(index.shape[0] * index.shape[1] * (keys + 1), 1))


def _not_chosen(asked: str, arrived: str) -> MultiheadError:
    return MultiheadError(
        asked=f"a choice of keys or blocks: {asked}",
        arrived=arrived,
        remedy="build it with Chosen.from_keys(index, kv_len=...) or Chosen.from_blocks(chosen, block=...)",
    )
