"""What may stand in a text of patterns: each name with its arguments, and what it builds."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from multihead.pattern.algebra import Pattern
from multihead.pattern.blocked import block_band, chunk, global_blocks
from multihead.pattern.chosen import chosen_bits
from multihead.pattern.drawn import random_blocks, random_pairs
from multihead.pattern.grid import grid_window, neighbourhood
from multihead.pattern.heads import per_head
from multihead.pattern.held import HeldRule
from multihead.pattern.opaque import from_callable
from multihead.pattern.places import global_tokens, keys_at, pairs_table
from multihead.pattern.preset import bigbird, fixed, longformer, strided
from multihead.pattern.relative import band, causal, distance, everything, nothing, prefix, sliding_window
from multihead.pattern.spaced import dilated, every, keys_every
from multihead.pattern.tokens import after_same_token, document, padding, same_token


@dataclass(frozen=True, slots=True)
class Form:
    """What stands in the parentheses of one pattern: kinds that must, kinds that may, one kind that may repeat.

    Args:
        build: Makes the pattern.
        must: Kinds of arguments that must be there.
        may: Kinds of those that may follow; those before one that is there are there too.
        repeat: The one kind of any number of arguments, instead.
    """

    build: Callable[..., Pattern]
    must: tuple[str, ...] = ()
    may: tuple[str, ...] = ()
    repeat: str | None = None

    def fits(self, kinds: list[str]) -> bool:
        """Whether arguments of these kinds are what it takes."""
        if self.repeat is not None:
            return bool(kinds) and set(kinds) == {self.repeat}
        return len(kinds) >= len(self.must) and tuple(kinds) == (*self.must, *self.may)[: len(kinds)]

    def __str__(self) -> str:
        if self.repeat is not None:
            return f"{self.repeat}, ..."
        return ", ".join((*self.must, *(f"[{kind}]" for kind in self.may))) or "no arguments"


def _document(ids: Tensor, keys: Tensor | None = None) -> Pattern:
    return document(ids, keys=keys)


def _same_token(ids: Tensor, keys: Tensor | None = None) -> Pattern:
    return same_token(ids, keys=keys)


def _after_same_token(ids: Tensor, keys: Tensor | None = None) -> Pattern:
    return after_same_token(ids, keys=keys)


def _pairs(table: Tensor, rows: int | None = None) -> Pattern:
    return pairs_table(table, rows=rows)


def _neighbourhood(height: int, width: int, kernel: int, dilation: int = 1) -> Pattern:
    return neighbourhood(height, width, kernel, dilation=dilation)


def _grid_window(height: int, width: int, kernel: int, dilation: int = 1) -> Pattern:
    return grid_window(height, width, kernel, dilation=dilation)


def _random_blocks(
    size: int, per_row: int, seed: int, near: int = 0, ends: int = 0, length: int | None = None
) -> Pattern:
    return random_blocks(size, per_row, seed=seed, length=length, near=near, ends=ends)


def _random_pairs(share: float, seed: int) -> Pattern:
    return random_pairs(share, seed=seed)


def _bigbird(size: int, random: int, length: int, seed: int) -> Pattern:
    return bigbird(size, random, length=length, seed=seed)


def _chosen(
    bits: Tensor, kv_len: int, block: int = 1, span: int = 1, q_len: int | None = None, first: int = 0, start: int = 0
) -> Pattern:
    return chosen_bits(bits, kv_len=kv_len, block=block, span=span, q_len=q_len, first=first, start=start)


def _callable(held: HeldRule, batch: int = 0, heads: int = 0) -> Pattern:
    return from_callable(held.rule, name=held.name, batch=batch or None, heads=heads or None)


_ONE, _TWO, _THREE = ("number",), ("number", "number"), ("number", "number", "number")

FORMS = {
    "causal": Form(causal),
    "everything": Form(everything),
    "nothing": Form(nothing),
    "sliding_window": Form(sliding_window, _ONE),
    "band": Form(band, _TWO),
    "prefix": Form(prefix, _ONE),
    "distance": Form(distance, _ONE),
    "every": Form(every, _ONE),
    "dilated": Form(dilated, _TWO),
    "keys_every": Form(keys_every, _THREE),
    "chunk": Form(chunk, _ONE),
    "block_band": Form(block_band, _THREE),
    "global_blocks": Form(global_blocks, ("number", "list")),
    "neighbourhood": Form(_neighbourhood, _THREE, _ONE),
    "grid_window": Form(_grid_window, _THREE, _ONE),
    "random_blocks": Form(_random_blocks, _THREE, _THREE),
    "random_pairs": Form(_random_pairs, ("decimal", "number")),
    "global_tokens": Form(global_tokens, ("list",)),
    "keys_at": Form(keys_at, ("list",)),
    "document": Form(_document, ("#data",), ("#data",)),
    "same_token": Form(_same_token, ("#data",), ("#data",)),
    "after_same_token": Form(_after_same_token, ("#data",), ("#data",)),
    "padding": Form(padding, ("#data",)),
    "pairs": Form(_pairs, ("#data",), _ONE),
    "chosen": Form(_chosen, ("#data", "number"), ("number",) * 5),
    "callable": Form(_callable, ("#function",), _TWO),
    "strided": Form(strided, _ONE),
    "fixed": Form(fixed, _TWO),
    "longformer": Form(longformer, _ONE, ("list",)),
    "bigbird": Form(_bigbird, ("number", "number", "number", "number")),
    "per_head": Form(lambda *parts: per_head(parts), repeat="pattern"),
}
