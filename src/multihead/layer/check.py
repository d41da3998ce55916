"""Sizes a module is built of, with the messages for those that do not fit."""

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import TypeGuard, cast

import torch
from torch import Tensor

from multihead.error import MultiheadError, kind_and_text
from multihead.pattern.check import LIMIT

LARGEST = 2**28
"""Of a module's sizes: bytes of a few squares of it can still be counted in 64 bits, which torch does."""


def check_counts(sizes: Mapping[str, object]) -> None:
    """Refuses a module's sizes that are no whole numbers of at least 1, or too large for any memory, by their names."""
    wrong = [f"{name}={size!r}" for name, size in sizes.items() if not _is_count(size)]
    large = [f"{name}={size}" for name, size in sizes.items() if _is_count(size) and size > LARGEST]
    if wrong or large:
        raise MultiheadError(
            asked="sizes that are whole numbers of at least 1"
            if wrong
            else f"sizes of at most 2**28 = {LARGEST:,}: larger ones fit into no memory",
            arrived=", ".join(wrong or large)[:200],
            remedy="for example embed_dim=512, heads=8",
        )


def check_count(name: str, size: object, *, example: int) -> None:
    """Refuses a number of sequences or of tokens that is no whole number from 1 to 2**40."""
    if not _is_count(size) or size > LIMIT:
        raise MultiheadError(
            asked=f"{name}: a whole number from 1 to 2**40",
            arrived=f"{name}={size!r}"[:200],
            remedy=f"for example {name}={example}",
        )


def check_product(sizes: Mapping[str, int]) -> None:
    """Refuses sizes that are too large together for any memory, by their names."""
    if math.prod(sizes.values()) > LARGEST:
        raise MultiheadError(
            asked=f"{' * '.join(sizes)} of at most 2**28 = {LARGEST:,}: larger ones fit into no memory",
            arrived=", ".join(f"{name}={size}" for name, size in sizes.items()),
            remedy="for example embed_dim=512, heads=8",
        )


def check_whole(sizes: Mapping[str, object]) -> None:
    """Refuses what is no whole number from 0 to 2**40, by its name."""
    for name, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= LIMIT:
            raise MultiheadError(
                asked=f"{name}: a whole number from 0 to 2**40"
                if _is_count(size)
                else f"{name}: a whole number of at least 0",
                arrived=f"{name}={size!r}"[:200],
                remedy=f"pass a number such as {name}=2, of Python's own kind: `int({name})`",
            )


def check_dropout(dropout: object) -> None:
    """Refuses what is no share below 1."""
    if not is_number(dropout) or not 0.0 <= dropout < 1.0:
        raise MultiheadError(
            asked="dropout: a share p with 0 <= p < 1",
            arrived=f"dropout={dropout}"[:200],
            remedy="for example dropout=0.1",
        )


def check_eps(what: str, eps: object) -> None:
    """Refuses an eps that does not keep a division finite."""
    if not is_number(eps) or not 0.0 < eps < math.inf:
        raise MultiheadError(asked=f"{what} with eps above 0", arrived=f"eps={eps}"[:200], remedy="pass 1e-6")


def is_number(value: object) -> TypeGuard[float]:
    """Whether it is one number; a truth value is none."""
    return isinstance(value, Real) and value is not True and value is not False


def key_widths(given: object, embed_dim: int) -> tuple[int, int]:
    """Widths of keys and values, of one number for both, of two, or of None for that of the queries."""
    one = embed_dim if given is None else given
    widths = cast(Sequence[int], given if isinstance(given, tuple | list) else (one, one))
    if len(widths) != 2 or not all(_is_count(width) for width in (embed_dim, *widths)):
        raise MultiheadError(
            asked="sizes that are whole numbers of at least 1",
            arrived=f"embed_dim={embed_dim!r}, kv_embed_dim={given!r}"[:200],
            remedy="for example embed_dim=512, heads=8; kv_embed_dim is one width, or (width of keys, width of values)",
        )
    check_counts({"embed_dim": embed_dim, "kv_embed_dim": max(widths)})
    k_width, v_width = widths
    return k_width, v_width


def divided(embed_dim: int, heads: int) -> int:
    """`embed_dim / heads`, refused with the counts that divide where it is no whole number."""
    if embed_dim % heads:
        raise MultiheadError(
            asked="heads that divide embed_dim evenly",
            arrived=f"embed_dim={embed_dim}, heads={heads}: {embed_dim} / {heads} = {embed_dim / heads:.4g}",
            remedy=f"heads={listed_divisors(embed_dim, heads)}, or heads of another size with head_dim=",
        )
    return embed_dim // heads


def listed_divisors(number: int, near: int, *, most: int = 8) -> str:
    """The divisors of a number that are nearest to another, in order: `2, 4 or 8`."""
    nearest = sorted(sorted(divisors(number), key=lambda n: abs(n - near))[:most])
    *others, last = map(str, nearest)
    return f"{', '.join(others)} or {last}" if others else last


def divisors(number: int) -> list[int]:
    """The divisors of a number, in order; they come in pairs, so that its root is as far as one has to look."""
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})


def _is_count(size: object) -> TypeGuard[int]:
    return isinstance(size, int) and not isinstance(size, bool) and size >= 1


def listed_rows(index: object) -> Tensor:
    """Rows as a tensor; what is none is a tensor of no rows, which is refused in the same words."""
    if isinstance(index, Tensor) and index.is_meta:
        raise MultiheadError(
            asked="rows of the batch: at least one whole number",
            arrived="a tensor on meta, which holds no numbers",
            remedy="pass the numbers",
        )
    try:
        return torch.as_tensor(index)
    except (TypeError, ValueError, RuntimeError) as fault:
        raise MultiheadError(
            asked="rows of the batch: at least one whole number",
            arrived=kind_and_text(index),
            remedy="pass a list or a tensor of numbers, such as [0, 0, 2]",
        ) from fault
