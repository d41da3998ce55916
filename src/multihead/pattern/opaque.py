"""Patterns that only a function of your own knows."""

import re
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int, Int8
from torch import Tensor

from multihead.error import MultiheadError, kind_and_text
from multihead.pattern.algebra import Pattern
from multihead.pattern.check import whole
from multihead.pattern.held import HeldRule, PairRule
from multihead.pattern.law import Facts, Tile

_NAME = re.compile(r"(?![0-9a-f]{8}$)\w+", re.ASCII)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Opaque(Pattern):
    """The pairs a function says yes to."""

    held: HeldRule
    rows: int | None
    columns: int | None

    def _facts(self) -> Facts:
        return Facts(batch=self.rows, heads=self.columns)

    def _contains(self, q: Int[Tensor, "_ 1 rows 1"], k: Int[Tensor, "_ 1 1 cols"]) -> Bool[Tensor, "_ _ _ _"]:
        told = self.held.rule(q, k)
        sizes = torch.broadcast_shapes(q.shape, k.shape, (self.rows or 1, self.columns or 1, 1, 1))
        if not _fits(told, sizes):
            raise MultiheadError(
                asked=f"callable(#{self.held.name}): truth values that broadcast to {tuple(sizes)}",
                arrived=f"{_described(told)} for q_pos {tuple(q.shape)} and k_pos {tuple(k.shape)}",
                remedy="compare the two tensors it is given, elementwise, and state batch= and heads= where it differs",
            )
        return told.to(q.device)[(None,) * (4 - told.ndim)]

    def _classify(self, rows: Int[Tensor, " rows"], cols: Int[Tensor, " cols"]) -> Int8[Tensor, "_ _ _ _"]:
        return torch.full((1, 1, 1, 1), int(Tile.PARTIAL), dtype=torch.int8, device=rows.device)

    def _held(self) -> tuple[HeldRule, ...]:
        return (self.held,)

    def _text(self) -> str:
        sizes = "" if self.rows is self.columns is None else f", {self.rows or 0}, {self.columns or 0}"
        return f"callable(#{self.held.name}{sizes})"

    def _identity(self) -> object:
        return (id(self.held.rule), self.held.name, self.rows, self.columns)


def from_callable(
    rule: PairRule, *, name: str | None = None, batch: int | None = None, heads: int | None = None
) -> Pattern:
    """The pairs a function says yes to: `rule(q_pos, k_pos)`, for what no pattern here says.

    The function gets query positions (batch | 1, 1, rows, 1) and key positions (batch | 1, 1, 1, cols) as int64, any
    of them in any order, and returns truth values that broadcast to (batch | 1, heads | 1, rows, cols). It must say the
    same of the same pair each time, since its answers are remembered.

    Nobody can see into it: every pair is asked about, no tile is skipped before, and a kernel keeps one bit for each
    pair of tiles that are neither empty nor full, at most n * n / 8 bytes for a head and a batch row (`explain_backend`
    says how many). Two such patterns are equal where the function is the same object. In text it stands under its
    name, and `parse_pattern` needs it back: `data={name: rule}`. A compiled or exported graph cannot hold it.

    Args:
        rule: The function.
        name: What it is called in text: letters, digits and _. None takes its own name.
        batch: Number of batch rows where it differs by row.
        heads: Number of query heads where it differs by head.

    Raises:
        MultiheadError: The name is none, or looks like the hash of a tensor; a size is less than 1. When the pattern is
            used: the function returns something else.

    Example:
        >>> def knight(q, k):
        ...     return ((q - k).abs() == 2) | (q == k)
        >>> print(from_callable(knight).draw(4, 4))
        callable(#knight): queries 0..3 down, keys 0..3 across
        █ inside  · outside
        0 █·█·
        1 ·█·█
        2 █·█·
        3 ·█·█
        >>> halves = torch.tensor([4, 8]).view(1, 2, 1, 1)
        >>> from_callable(lambda q, k: q - k < halves, name="halves", heads=2).heads
        2
    """
    if not callable(rule):
        raise MultiheadError(
            asked="from_callable(rule): a function of query positions and key positions",
            arrived=kind_and_text(rule),
            remedy="pass one that compares them, such as lambda q, k: q - k == 2",
        )
    told = name if name is not None else _own_name(rule)
    if not _is_name(told):
        raise MultiheadError(
            asked="from_callable(rule, name=...): letters, digits and _, and no 8 hexadecimal digits, which are a hash",
            arrived=repr(told),
            remedy='pass a word, such as name="every_other"',
        )
    rows = None if batch is None else whole(batch, asked="from_callable(rule, batch=...): at least 1", least=1)
    columns = None if heads is None else whole(heads, asked="from_callable(rule, heads=...): at least 1", least=1)
    return Opaque(HeldRule(rule, told), rows, columns)


def _is_name(told: object) -> bool:
    return isinstance(told, str) and _NAME.fullmatch(told) is not None


def _own_name(rule: PairRule) -> str:
    own = getattr(rule, "__qualname__", type(rule).__qualname__)
    return re.sub(r"\W+", "_", own, flags=re.ASCII).strip("_") or "rule"


def _fits(told: object, sizes: torch.Size) -> bool:
    if not isinstance(told, Tensor) or told.dtype is not torch.bool or told.ndim > len(sizes):
        return False
    return all(size in (1, most) for size, most in zip(told.shape[::-1], sizes[::-1], strict=False))


def _described(told: object) -> str:
    return f"{told.dtype} of shape {tuple(told.shape)}" if isinstance(told, Tensor) else repr(told)
