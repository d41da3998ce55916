"""Patterns of listed positions: global tokens, columns of keys, single pairs."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int, Int8
from torch import Tensor

from multihead.error import MultiheadError
from multihead.pattern.algebra import Pattern
from multihead.pattern.check import entries, is_whole, plain, whole, wholes
from multihead.pattern.formed import Formed
from multihead.pattern.held import Held
from multihead.pattern.law import Bounds, Facts, grade

_ASKED = "pairs(...): (query, key) positions from 0, for every batch row or one list for each row"
_REMEDY = "pass [(3, 1), (5, 2)], [[(3, 1)], [(5, 2)]] or a tensor (n, 2) or (batch, n, 2)"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Places(Formed):
    """Rows and columns, or only columns, of listed positions."""

    listed: Held
    rows_too: bool

    def _facts(self) -> Facts:
        return Facts(positional=self.rows_too)

    def _contains(self, q: Int[Tensor, "_ 1 rows 1"], k: Int[Tensor, "_ 1 1 cols"]) -> Bool[Tensor, "_ _ _ _"]:
        listed = self.listed.on(q.device)
        columns = torch.isin(k, listed)
        return columns | torch.isin(q, listed) if self.rows_too else columns

    def _classify(self, rows: Int[Tensor, " rows"], cols: Int[Tensor, " cols"]) -> Int8[Tensor, "_ _ _ _"]:
        listed = self.listed.on("cpu")
        by_col = torch.bucketize(cols, listed).diff()[None]
        none, every = by_col == 0, by_col == cols.diff()
        if self.rows_too:
            by_row = torch.bucketize(rows, listed).diff()[:, None]
            none, every = none & (by_row == 0), every | (by_row == rows.diff()[:, None])
        return grade(none, every)[None, None]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Pairs(Pattern):
    """Listed pairs: rows (query, key) of the table, or (row, query, key) where they differ by batch row."""

    table: Held
    rows: int | None
    bounds: Bounds

    def _facts(self) -> Facts:
        return Facts(batch=self.rows, reach=self.bounds)

    def _contains(self, q: Int[Tensor, "_ 1 rows 1"], k: Int[Tensor, "_ 1 1 cols"]) -> Bool[Tensor, "_ _ _ _"]:
        if q.is_meta:  # positions without values: only the shape can be told
            return torch.empty(self.rows or 1, 1, q.shape[2], k.shape[3], dtype=torch.bool, device=q.device)
        table = self.table.on(q.device)
        # A small table over the positions that occur, read out at each of them: they may repeat and differ by row.
        queries, at_q = q.unique(return_inverse=True)
        keys, at_k = k.unique(return_inverse=True)
        s, known_q = _find(queries, table[:, -2])
        t, known_k = _find(keys, table[:, -1])
        there = torch.zeros(self.rows or 1, queries.numel(), keys.numel(), dtype=torch.bool, device=q.device)
        known = known_q & known_k
        there[_row(table)[known], s[known], t[known]] = True
        return there[torch.arange(self.rows or 1, device=q.device).view(-1, 1, 1, 1), at_q, at_k]

    def _classify(self, rows: Int[Tensor, " rows"], cols: Int[Tensor, " cols"]) -> Int8[Tensor, "_ _ _ _"]:
        table = self.table.on("cpu")
        queries, keys = table[:, -2].contiguous(), table[:, -1].contiguous()
        s, t = torch.bucketize(queries, rows, right=True) - 1, torch.bucketize(keys, cols, right=True) - 1
        shape = (self.rows or 1, rows.numel() - 1, cols.numel() - 1)
        real = (s >= 0) & (s < shape[1]) & (t >= 0) & (t < shape[2])
        count = torch.zeros(shape, dtype=torch.int64)
        count.index_put_((_row(table)[real], s[real], t[real]), torch.tensor(1), accumulate=True)
        return grade(count == 0, count == rows.diff()[:, None] * cols.diff())[:, None]

    def _held(self) -> tuple[Held, ...]:
        return (self.table,)

    def _identity(self) -> object:
        return (self.table.digest, self.rows)

    def _text(self) -> str:
        return f"pairs(#{self.table.name})" if self.rows is None else f"pairs(#{self.table.name}, {self.rows})"


def global_tokens(positions: Sequence[int]) -> Pattern:
    """Tokens that everyone sees and that see everyone: query in positions or key in positions.

    The global attention of Longformer (Beltagy et al. 2020, arXiv 2004.05150) and BigBird (Zaheer et al. 2020, arXiv
    2007.14062), usually written `band(w, w) | global_tokens(...)`; under `causal() &` a global token sees what is
    before it. For the columns alone, such as an attention sink, use `keys_at`.

    Args:
        positions: Absolute positions, from 0.

    Raises:
        MultiheadError: A position is negative or not whole.

    Example:
        >>> global_tokens([0]).mask(3, 3).int().tolist()
        [[[[1, 1, 1], [1, 0, 0], [1, 0, 0]]]]
    """
    return _places("global_tokens", positions, rows_too=True)


def keys_at(positions: Sequence[int]) -> Pattern:
    """The keys at these positions, for every query: the first token is `keys_at([0])`.

    Args:
        positions: Absolute positions, from 0.

    Raises:
        MultiheadError: A position is negative or not whole.

    Example:
        >>> keys_at([0]).mask(3, 3).int().tolist()
        [[[[1, 0, 0], [1, 0, 0], [1, 0, 0]]]]
    """
    return _places("keys_at", positions, rows_too=False)


def pairs(
    listed: Int[Tensor, "*batch n 2"] | Sequence[Sequence[int]] | Sequence[Sequence[Sequence[int]]],
) -> Pattern:
    """Single pairs: (query, key) is in the list. Dependency arcs, alignments, a needle.

    Args:
        listed: Pairs for every batch row: a tensor (n, 2) or a list of (query, key). Or pairs per batch row: a tensor
            (batch, n, 2), or one list of pairs for each row. Pairs may be repeated. An empty list is no pair.

    Raises:
        MultiheadError: A position is negative or not whole, or the list has another form.

    Example:
        >>> pairs([(2, 0), (1, 1)]).mask(3, 3).int().tolist()
        [[[[0, 0, 0], [0, 1, 0], [1, 0, 0]]]]
        >>> pairs([[(1, 0)], []]).batch
        2
    """
    told, per_row = _listed(listed)
    if per_row:
        found = [(row, *_pair(pair)) for row, some in enumerate(told) for pair in _sequence(some)]
        return pairs_table(torch.tensor(found, dtype=torch.int64).view(-1, 3), rows=len(told))
    return pairs_table(torch.tensor([_pair(pair) for pair in told], dtype=torch.int64).view(-1, 2), rows=None)


def pairs_table(table: Int[Tensor, "n columns"], *, rows: int | None) -> Pattern:
    """The pattern of a table as `Pattern.data` gives it: (query, key), or (row, query, key) with a number of rows.

    Raises:
        MultiheadError: The table has another width, a position is negative, or a row is not among the rows.
    """
    size = None if rows is None else whole(rows, asked="pairs(...): the number of batch rows, at least 1", least=1)
    if not is_whole(table) or table.is_meta or table.ndim != 2 or table.shape[1] != (2 if size is None else 3):
        raise _not_pairs(f"a table {table.dtype} of shape {tuple(table.shape)}")
    ordered = table.long().unique(dim=0)
    if ordered.numel() and (int(ordered.min()) < 0 or (size is not None and int(ordered[-1, 0]) >= size)):
        raise _not_pairs(f"a table of numbers from {int(ordered.min())}, its last line {tuple(ordered[-1].tolist())}")
    distance = ordered[:, -2] - ordered[:, -1]
    reach = (int(distance.max()), -int(distance.min())) if len(distance) else (0, 0)
    return Pairs(Held(ordered, what="pairs(...)"), size, reach)


def _places(name: str, listed: Sequence[int], *, rows_too: bool) -> Pattern:
    asked = f"{name}(positions): absolute positions, counted from 0"
    found = wholes(listed, asked=asked)
    return Places(f"{name}({found})", Held(torch.tensor(found, dtype=torch.int64), what=name), rows_too)


def _find(among: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """The place of each wanted number among sorted ones, and whether it is there."""
    if not among.numel():
        return torch.zeros_like(wanted), torch.zeros_like(wanted, dtype=torch.bool)
    place = torch.searchsorted(among, wanted.contiguous()).clamp(max=among.numel() - 1)
    return place, among[place] == wanted


def _row(table: Tensor) -> Tensor:
    return table[:, 0] if table.shape[1] == 3 else torch.zeros_like(table[:, 0])


def _listed(given: object) -> tuple[list[object], bool]:
    """Entries, and whether each is the pairs of one batch row."""
    if isinstance(given, Tensor):
        # Of which numbers cannot be read off there is no list.
        table = plain(given, asked=_ASKED, remedy=_REMEDY)
        if table.ndim not in (2, 3) or table.is_meta:
            raise _not_pairs(f"a tensor {table.dtype} of shape {tuple(table.shape)} on {table.device}")
        return table.tolist(), table.ndim == 3
    told = entries(given, asked=_ASKED, remedy=_REMEDY)
    return told, bool(told) and not _is_pair(told[0])


def _is_pair(entry: object) -> bool:
    return isinstance(entry, Sequence) and len(entry) == 2 and not any(isinstance(side, Sequence) for side in entry)


def _sequence(entry: object) -> Sequence[object]:
    if not isinstance(entry, Sequence) or isinstance(entry, str):
        raise _not_pairs(f"{entry!r} among the rows")
    return entry


def _pair(entry: object) -> tuple[int, int]:
    if not isinstance(entry, Sequence) or not _is_pair(entry):
        raise _not_pairs(f"{entry!r} among the pairs")
    asked = "pairs(...): absolute positions, counted from 0"
    return whole(entry[0], asked=asked, least=0), whole(entry[1], asked=asked, least=0)


def _not_pairs(arrived: str) -> MultiheadError:
    return MultiheadError(asked=_ASKED, arrived=arrived, remedy=_REMEDY)
