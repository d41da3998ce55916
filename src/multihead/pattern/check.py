"""Checks of the numbers and tensors patterns are made of; each says what was asked, what arrived, what to do."""

import operator
from collections.abc import Iterable, Mapping
from typing import cast

import torch
from torch import Tensor

from multihead.error import MultiheadError, kind_and_text

# Sums and differences of two such numbers stay far inside int64.
LIMIT = 2**40


def whole(value: object, *, asked: str, least: int | None = None) -> int:
    """The value as a Python int.

    Args:
        value: What arrived; anything with `__index__` except a bool.
        asked: The rule in words, first line of the error.
        least: Smallest value allowed; None for no bound below -2**40.

    Raises:
        MultiheadError: It is not a whole number, or it is out of bounds.
    """
    floor = -LIMIT if least is None else least
    number = None if isinstance(value, bool) else _index(value)
    if number is None or not floor <= number <= LIMIT:
        raise MultiheadError(
            asked=asked, arrived=f"{value!r}", remedy=f"pass a whole number from {floor} to 2**40 = {LIMIT}"
        )
    return number


def wholes(values: object, *, asked: str) -> list[int]:
    """Several values as Python ints, in order and each once.

    Args:
        values: What arrived: a list of them, or what else they can be taken out of one by one.
        asked: The rule in words, first line of the error.

    Raises:
        MultiheadError: It is no list of whole numbers from 0.
    """
    listed = entries(values, asked=asked, remedy="pass a list of them, such as [0, 5]")
    return sorted({whole(value, asked=asked, least=0) for value in listed})


def entries(values: object, *, asked: str, remedy: str) -> list[object]:
    """What a list, or anything that can be gone through, holds.

    Raises:
        MultiheadError: It can not be gone through.
    """
    lone = isinstance(values, str | bytes | Mapping) or (isinstance(values, Tensor) and not values.ndim)
    if lone or not isinstance(values, Iterable):
        raise MultiheadError(asked=asked, arrived=kind_and_text(values), remedy=remedy)
    return list(cast(Iterable[object], values))


def plain(given: object, *, asked: str, remedy: str) -> Tensor:
    """The tensor that was asked for.

    Raises:
        MultiheadError: It is no tensor, or one whose numbers do not lie side by side (sparse, nested).
    """
    if not isinstance(given, Tensor):
        raise MultiheadError(asked=asked, arrived=kind_and_text(given), remedy=remedy)
    if given.layout is not torch.strided or given.is_nested:
        kind = "nested" if given.is_nested else given.layout
        raise MultiheadError(asked=asked, arrived=f"a tensor of another layout, {kind}", remedy="pass a dense tensor")
    return given


def merged(sizes: list[int | None], *, what: str, remedy: str) -> int | None:
    """The one size that the sizes agree on; None is any size.

    Args:
        sizes: Sizes of the parts.
        what: `"batch"` or `"heads"`, for the error.
        remedy: What to do when they differ.

    Raises:
        MultiheadError: Two parts state different sizes.
    """
    stated = [size for size in sizes if size is not None]
    # Compared, not put into a set: in a graph sizes may be symbols, which have no hash.
    if any(size != stated[0] for size in stated):
        told = " and ".join(f"{what}={size}" for size in sorted(set(stated)))
        raise MultiheadError(asked=f"one {what} size in every pattern and position", arrived=told, remedy=remedy)
    return stated[0] if stated else None


def merged_batch(sizes: list[int | None]) -> int | None:
    """The batch size that all parts agree on.

    Raises:
        MultiheadError: Two parts state different sizes.
    """
    return merged(
        sizes, what="batch", remedy="give every part the same batch size, or 1-D ids, which hold for every row"
    )


def positions(tensor: Tensor, *, name: str) -> Tensor:
    """The positions as int64 of shape (batch | 1, length).

    Raises:
        MultiheadError: They are not integers of shape (length,) or (batch, length).
    """
    asked = f"{name}: absolute positions as integers of shape (length,) or (batch, length)"
    remedy = f"pass {name}=torch.arange(length), plus the offset of the first one"
    tensor = plain(tensor, asked=asked, remedy=remedy)
    if not is_whole(tensor) or tensor.ndim not in (1, 2):
        raise MultiheadError(asked=asked, arrived=f"{tensor.dtype} of shape {tuple(tensor.shape)}", remedy=remedy)
    return (tensor if tensor.ndim == 2 else tensor[None]).long()


def is_whole(tensor: Tensor) -> bool:
    """Whether the tensor holds integers; truth values are none."""
    return not (tensor.dtype is torch.bool or tensor.is_floating_point() or tensor.is_complex())


def member(value: object, size: int | None, *, what: str) -> int:
    """A number from 0 to size - 1; any from 0 where the size is None.

    Args:
        value: What arrived.
        size: How many there are.
        what: Of what, for the error: `"head"`.

    Raises:
        MultiheadError: There is no such one.
    """
    number = whole(value, asked=f"a {what}, counted from 0", least=0)
    if size is not None and number >= size:
        raise MultiheadError(
            asked=f"a {what} of a pattern made for {size}", arrived=str(number), remedy=f"pass 0 to {size - 1}"
        )
    return number


def merged_heads(sizes: list[int | None]) -> int | None:
    """The number of heads that all parts agree on.

    Raises:
        MultiheadError: Two parts state different numbers.
    """
    return merged(sizes, what="heads", remedy="give per_head(...) the same number of patterns in every part")


def _index(value: object) -> int | None:
    try:
        return operator.index(value)  # pyright: ignore[reportArgumentType]
    except TypeError:
        return None
