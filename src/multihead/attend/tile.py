"""How a problem is cut into bands of queries, each with the keys it can see: the tiles a pattern skips are left out."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from multihead.attend.problem import Index, Problem
from multihead.pattern import Pattern, Tile

_WIDTH = 128  # keys that are kept or left out together
_AT_ONCE = 2**16  # tiles classed by one question to a pattern: bounds the memory of asking


class Band(NamedTuple):
    """Some neighbouring queries and every key any of them may attend to.

    Args:
        rows: The queries.
        cols: The keys: a slice where they are neighbours, else their indices.
        masked: False where every query of the band may attend to every key of it.
    """

    rows: slice
    cols: Index
    masked: bool


def bands(problem: Problem, height: int) -> Iterator[Band]:
    """Cuts the queries into bands of `height`, the last one shorter.

    Args:
        problem: What is cut.
        height: Queries in a band, at least 1.

    Yields:
        The bands from the first query to the last.
    """
    if isinstance(problem.mask, Pattern) and 0 not in (*problem.q.shape[:3], problem.kv_len):
        yield from _seen(problem, problem.mask, height)
        return
    for start in range(0, problem.q_len, height):
        rows = slice(start, min(start + height, problem.q_len))
        yield Band(rows, slice(0, problem.kv_len), problem.mask is not None)


def add_at(target: Tensor, cols: Index, piece: Tensor) -> None:
    """Adds to some keys (dimension 2) of a tensor of our own."""
    if isinstance(cols, Tensor):
        target.index_add_(2, cols, piece.to(target.dtype))
    else:
        target[:, :, cols] += piece


def _seen(problem: Problem, pattern: Pattern, height: int) -> Iterator[Band]:
    row_edges, col_edges = _edges(problem.q_len, height), _edges(problem.kv_len, _WIDTH)
    together = max(1, _AT_ONCE // (col_edges.numel() - 1))
    first = problem.q_offset or 0
    for start in range(0, row_edges.numel() - 1, together):
        edges = row_edges[start : start + together + 1]
        classes = pattern.tiles(edges + first, col_edges).flatten(0, 1)
        some, whole = classes.amax(0) != Tile.SKIP, classes.amin(0) == Tile.FULL
        for here, (top, bottom) in enumerate(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)):
            kept = some[here].nonzero().flatten()
            cols = _columns(kept, problem)
            yield Band(slice(top, bottom), cols, not bool(whole[here][kept].all()))


def _columns(kept: Tensor, problem: Problem) -> Index:
    if kept.numel() == 0:
        return slice(0, 0)
    first, last = int(kept[0]), int(kept[-1])
    if last - first + 1 == kept.numel():
        return slice(first * _WIDTH, min((last + 1) * _WIDTH, problem.kv_len))
    every = (kept[:, None] * _WIDTH + torch.arange(_WIDTH)).flatten()
    return every[every < problem.kv_len].to(problem.q.device)


def _edges(length: int, step: int) -> Tensor:
    return torch.tensor([*range(0, length, step), length])
