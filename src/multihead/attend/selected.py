"""Chosen blocks and keys as the compiled kernel takes them: a map of tiles made of their bits, with no pair asked."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int, Int8, Int32, Int64
from torch import Tensor

from multihead.pattern.chosen import Chosen, packed, unpacked

TILE = 64
_AT_ONCE = 2**24  # truth values made at once


@dataclass(frozen=True, slots=True, eq=False)
class Tiles:
    """Classes of tiles of 64 x 64, for class 1 the place among the bits, and the bits."""

    classes: Int8[Tensor, "_ _ q_tiles k_tiles"]
    index: Int32[Tensor, "_ _ q_tiles k_tiles"]
    bits: Int64[Tensor, "distinct rows"]


def tiles_of(chosen: Chosen, q_len: int, kv_len: int, q_offset: int) -> Tiles:
    """The tiles of a call: what was chosen costs a bit for each row of a partial tile.

    Args:
        chosen: What was chosen.
        q_len: Number of queries.
        kv_len: Number of keys, from position 0 on.
        q_offset: Position of the first query.

    Raises:
        MultiheadError: It was not made for these positions.
    """
    chosen.check_call(q_len, kv_len, q_offset)
    row = (torch.arange(q_len) + (q_offset - chosen.first)).div(chosen.span, rounding_mode="floor")
    column = (torch.arange(kv_len) - chosen.start).div(chosen.block, rounding_mode="floor")
    words = chosen.bits.on("cpu")
    if not q_len or not kv_len:
        empty = torch.zeros(*words.shape[:2], -(-q_len // TILE), -(-kv_len // TILE), dtype=torch.int8)
        return Tiles(empty, empty.int(), torch.zeros(0, TILE, dtype=torch.int64))
    # Tiles within one block are alike: one of them is looked at, and stands for all.
    whole = chosen.block % TILE == 0 and chosen.start % TILE == 0
    width = chosen.columns if whole else kv_len
    height = max(TILE, _AT_ONCE // max(words.shape[0] * words.shape[1] * width * TILE, 1) * TILE)
    pieces: list[Tiles] = []
    for some in row.split(height):
        if whole:
            pieces.append(_of_blocks(_in_tiles(unpacked(words[:, :, some], chosen.columns))))
        elif chosen.block == 1 and chosen.start == 0:
            pieces.append(_of_words(_in_tiles(words[:, :, some]), kv_len))
        else:
            inside = unpacked(words[:, :, some], chosen.columns)[..., column]
            pieces.append(_of_words(_in_tiles(packed(inside)), kv_len))
    joined = _stacked(pieces)
    if not whole:
        return joined
    tile = column[::TILE]
    return Tiles(joined.classes[..., tile].contiguous(), joined.index[..., tile].contiguous(), joined.bits)


def both(one: Tiles, other: Tiles) -> Tiles:
    """What is in two maps of one call.

    Args:
        one: A map.
        other: Another one; their batch and heads may be 1.
    """
    classes = torch.minimum(one.classes, other.classes)
    partial = classes == 1
    words = _words_at(one, partial) & _words_at(other, partial)
    index = torch.full(classes.shape, -1, dtype=torch.int32)
    index[partial] = torch.arange(words.shape[0], dtype=torch.int32)
    return Tiles(classes.contiguous(), index, words)


def _words_at(tiles: Tiles, where: Bool[Tensor, "_ _ q_tiles k_tiles"]) -> Int64[Tensor, "some rows"]:
    """The words of some tiles, of whole ones too."""
    classes, index = (part.expand(where.shape)[where] for part in (tiles.classes, tiles.index))
    every = torch.full((1, TILE), -1, dtype=torch.int64)
    return torch.cat([tiles.bits, every])[torch.where(classes == 1, index.long(), tiles.bits.shape[0])]


def _in_tiles(rows: Tensor) -> tuple[Tensor, int]:
    """Rows (batch, heads, rows, columns) as (batch, heads, tiles, 64, columns), and how many of the last are real."""
    length = rows.shape[2]
    filled = torch.nn.functional.pad(rows, (0, 0, 0, -length % TILE))
    return filled.unflatten(2, (-1, TILE)), (length - 1) % TILE + 1


def _of_blocks(rows: tuple[Bool[Tensor, "_ _ tiles rows columns"], int]) -> Tiles:
    inside, last = rows
    count = inside.sum(3, dtype=torch.int8)
    most = torch.full((count.shape[2], 1), TILE, dtype=torch.int8)
    most[-1] = last
    classes = (count > 0).to(torch.int8) + (count == most).to(torch.int8)
    b, h, t, c = (classes == 1).nonzero(as_tuple=True)
    return _indexed(classes, -inside[b, h, t, :, c].long())


def _of_words(rows: tuple[Int[Tensor, "_ _ tiles rows words"], int], kv_len: int) -> Tiles:
    words, last = rows
    beyond = torch.zeros(words.shape[4], dtype=torch.int64)
    if kv_len % TILE:
        beyond[-1] = -1 << kv_len % TILE
    full = (words | beyond) == -1
    full[:, :, -1, last:] = True
    classes = (words != 0).any(3).to(torch.int8) + full.all(3).to(torch.int8)
    b, h, t, c = (classes == 1).nonzero(as_tuple=True)
    return _indexed(classes, words[b, h, t, :, c])


def _indexed(classes: Int8[Tensor, "_ _ tiles columns"], bits: Int64[Tensor, "some rows"]) -> Tiles:
    index = torch.full(classes.shape, -1, dtype=torch.int32)
    index[classes == 1] = torch.arange(bits.shape[0], dtype=torch.int32)
    return Tiles(classes, index, bits)


def _stacked(pieces: list[Tiles]) -> Tiles:
    """Maps of neighbouring queries as one."""
    begin = 0
    moved: list[Tensor] = []
    for piece in pieces:
        moved.append(torch.where(piece.classes == 1, piece.index + begin, -1))
        begin += piece.bits.shape[0]
    classes = torch.cat([piece.classes for piece in pieces], 2)
    return Tiles(classes, torch.cat(moved, 2).int(), torch.cat([piece.bits for piece in pieces]))
