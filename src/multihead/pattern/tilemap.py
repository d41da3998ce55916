"""Lowering: a pattern at given lengths as a map of tiles, with one bit tile per distinct partial tile."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy
import torch
from jaxtyping import Bool, Int, Int8, Int32, UInt8
from torch import Tensor

from multihead.error import check_kinds
from multihead.pattern.check import whole
from multihead.pattern.law import Law, Tile, grade

# Pairs evaluated at once: bounds the memory of lowering whatever the lengths. Positions that fit into the cache of a
# core are evaluated several times faster than those that do not; heads are truth values, an eighth of their size.
_AT_ONCE = 2**18


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TileMap:
    """A pattern lowered for block-sparse kernels: a class per tile, and the bits of partial tiles, equal ones once.

    Args:
        q_len: Number of queries.
        kv_len: Number of keys.
        block: Side of a tile; the last tile of a row or column may hold fewer positions.
        classes: `Tile` of every tile, exact: a PARTIAL tile has pairs inside and pairs outside.
        index: For a PARTIAL tile its place in `bits`, else -1.
        bits: Distinct partial tiles; pair (r, c) of a tile is bit c % 8 of byte c // 8 of row r, 0 beyond the lengths.
    """

    q_len: int
    kv_len: int
    block: int
    classes: Int8[Tensor, "batch heads q_tiles k_tiles"]
    index: Int32[Tensor, "batch heads q_tiles k_tiles"]
    bits: UInt8[Tensor, "distinct rows bytes"]

    @property
    def nbytes(self) -> int:
        """Memory of the map in bytes."""
        return self.classes.nbytes + self.index.nbytes + self.bits.nbytes

    @property
    def counts(self) -> dict[Tile, int]:
        """Number of tiles of each class, over all batch rows and heads."""
        return {kind: int((self.classes == kind).sum()) for kind in Tile}

    def mask(self) -> Bool[Tensor, "batch heads q_len kv_len"]:
        """The boolean mask the map stands for, exactly `pattern.mask(q_len, kv_len, q_offset=...)`."""
        places = torch.arange(8, dtype=torch.uint8)
        stored = (self.bits[..., None] >> places & 1).bool().flatten(-2)[..., : self.block]
        constant = torch.zeros(2, self.block, self.block, dtype=torch.bool)
        constant[1] = True
        # Whole tiles sit behind the stored ones: SKIP at -2, FULL at -1.
        kinds = torch.cat([stored, constant])
        where = torch.where(self.classes == Tile.PARTIAL, self.index.long(), self.classes.long() // 2 + stored.shape[0])
        grid = kinds[where].movedim(-2, 3).flatten(-2).flatten(2, 3)
        return grid[:, :, : self.q_len, : self.kv_len]


def lower(pattern: Law, q_len: int, kv_len: int, *, block: int = 128, q_offset: int = 0) -> TileMap:
    """Lower a pattern to a tile map.

    Tiles that the pattern can class by itself are never looked into; of those that are alike by its period one is; the
    others are evaluated, a bounded number at a time. The map costs 5 bytes a tile and block * block / 8 bytes per
    distinct partial tile: causal and windowed patterns have a handful of those whatever the length, a pattern without
    structure up to q_len * kv_len / 8 bytes.

    Args:
        pattern: What to lower.
        q_len: Number of queries.
        kv_len: Number of keys.
        block: Side of a tile, at least 1.
        q_offset: Absolute position of the first query.

    Raises:
        MultiheadError: A number is out of bounds, or positions lie outside the ids the pattern holds.

    Example:
        >>> from multihead.pattern import causal, lower
        >>> tiles = lower(causal(), 1024, 1024, block=128)
        >>> {kind.name: count for kind, count in tiles.counts.items()}, tiles.bits.shape[0]
        ({'SKIP': 28, 'PARTIAL': 8, 'FULL': 28}, 1)
    """
    check_kinds({"pattern": pattern}, (Law,), "a pattern, such as causal()")
    rows = whole(q_len, asked="q_len: the number of queries", least=0)
    cols = whole(kv_len, asked="kv_len: the number of keys", least=0)
    side = whole(block, asked="block: the side of a tile", least=1)
    start = whole(q_offset, asked="q_offset: the position of the first query")
    row_edges, col_edges = _edges(rows, side) + start, _edges(cols, side)
    classes = pattern.tiles(row_edges, col_edges).clone(memory_format=torch.contiguous_format)
    index = torch.full(classes.shape, -1, dtype=torch.int32)
    store: dict[bytes, int] = {}
    tiles = (classes == Tile.PARTIAL).flatten(0, 1).any(0).nonzero()
    kinds, kind_of = _kinds(pattern, tiles, row_edges, col_edges)
    for s, t, inside in _looked_into(pattern, tiles[kinds], row_edges, col_edges, side):
        # Indexing with a tensor copies, so the narrowed classes are written back.
        narrowed = _narrow(classes[:, :, s, t], inside, row_edges.diff()[s] * col_edges.diff()[t])
        classes[:, :, s, t] = narrowed
        b, h, n = (narrowed == Tile.PARTIAL).nonzero(as_tuple=True)
        places = [store.setdefault(tile, len(store)) for tile in _packed(inside[b, h, n])]
        index[b, h, s[n], t[n]] = torch.tensor(places, dtype=torch.int32)
    for found in (classes, index):
        found[:, :, tiles[:, 0], tiles[:, 1]] = found[:, :, tiles[kinds, 0], tiles[kinds, 1]][:, :, kind_of]
    shape = (len(store), side, -(-side // 8))
    packed = torch.frombuffer(bytearray(b"".join(store)), dtype=torch.uint8) if store else torch.empty(0).byte()
    return TileMap(q_len=rows, kv_len=cols, block=side, classes=classes, index=index, bits=packed.view(shape))


def _edges(length: int, block: int) -> Int[Tensor, " edges"]:
    return torch.tensor([*range(0, length, block), length])


def _kinds(
    pattern: Law,
    tiles: Int[Tensor, "tiles 2"],
    row_edges: Int[Tensor, " edges"],
    col_edges: Int[Tensor, " other_edges"],
) -> tuple[Int[Tensor, " kinds"], Int[Tensor, " tiles"]]:
    """The first tile of each kind, and the kind of every tile: tiles whole periods apart on a diagonal are alike."""
    every = torch.arange(len(tiles))
    if pattern.period is None or not len(tiles):
        return every, every
    s, t = tiles.unbind(1)
    rows, cols = row_edges[s], col_edges[t]
    told = [rows % pattern.period, rows - cols, row_edges[s + 1] - rows, col_edges[t + 1] - cols]
    kind = torch.zeros_like(s)
    for part in told:
        values, place = part.unique(return_inverse=True)
        # Numbered anew each time, so that it stays far inside int64.
        kind = (kind * len(values) + place).unique(return_inverse=True)[1]
    first = torch.full((int(kind.max()) + 1,), len(tiles)).scatter_reduce(0, kind, every, "amin")
    return first, kind


def _looked_into(
    pattern: Law, tiles: Int[Tensor, "tiles 2"], row_edges: Tensor, col_edges: Tensor, block: int
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Looks into some tiles at a time.

    Yields:
        Row of each tile, its column, and its pairs (batch, heads, tiles, block, block).
    """
    copies = (pattern.batch or 1) * -(-(pattern.heads or 1) // 8)
    at_once = max(1, _AT_ONCE // (copies * block * block))
    if pattern.batch is None:
        # Alike for every batch row: the tiles take their place, all of them at once wherever they lie.
        for some in tiles.split(at_once):
            s, t = some.unbind(1)
            q, k = row_edges[s][:, None] + torch.arange(block), col_edges[t][:, None] + torch.arange(block)
            allowed = pattern.allows(q.clamp(max=int(row_edges[-1]) - 1), k.clamp(max=int(col_edges[-1]) - 1))
            real = (q < row_edges[-1])[:, :, None] & (k < col_edges[-1])[:, None]
            yield s, t, (allowed & real[:, None]).transpose(0, 1)[None]
        return
    for s in tiles[:, 0].unique():
        for t in tiles[tiles[:, 0] == s, 1].split(at_once):
            yield s.expand(t.numel()), t, _evaluate(pattern, row_edges[s : s + 2], col_edges, t, block)


def _evaluate(
    pattern: Law, row: Int[Tensor, "2"], col_edges: Int[Tensor, " edges"], some: Int[Tensor, " tiles"], block: int
) -> Bool[Tensor, "batch heads tiles block block"]:
    """The pairs of some tiles of one row of tiles; False where a tile sticks out."""
    q = torch.arange(int(row[0]), int(row[1]))
    k = col_edges[some][:, None] + torch.arange(block)
    real = k < col_edges[-1]
    allowed = pattern.allows(q, k.clamp(max=int(col_edges[-1]) - 1).flatten())
    by_tile = allowed.unflatten(-1, k.shape).movedim(-2, 2) & real[:, None]
    return torch.nn.functional.pad(by_tile, (0, 0, 0, block - q.numel()))


def _narrow(
    classes: Int8[Tensor, "batch heads tiles"],
    inside: Bool[Tensor, "batch heads tiles block block"],
    area: Int[Tensor, " tiles"],
) -> Int8[Tensor, "batch heads tiles"]:
    """Exact classes: a tile that was only thought to be partial becomes SKIP or FULL."""
    count = inside.sum((-1, -2))
    return torch.where(classes == Tile.PARTIAL, grade(count == 0, count == area), classes)


def _packed(tiles: Bool[Tensor, "tiles block block"]) -> list[bytes]:
    """Each tile as bytes, eight pairs a byte, lowest bit first."""
    packed = numpy.packbits(tiles.numpy(), axis=-1, bitorder="little")
    return [tile.tobytes() for tile in packed]
