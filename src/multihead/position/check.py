"""What is asked of the numbers and tensors of positions, with the messages for those that break it."""

import math
from numbers import Integral, Real
from typing import TypeGuard, cast

import torch
from torch import Tensor

from multihead.error import MultiheadError, kind_and_text

_FARTHEST = 2**40  # sums and differences of two such numbers stay far inside int64


def is_number(value: object) -> TypeGuard[float]:
    """Whether it is one number; a truth value is none, and a tensor."""
    return isinstance(value, Real) and value is not True and value is not False


def is_whole_number(value: object) -> bool:
    """Whether it is one whole number, of Python or numpy."""
    return isinstance(value, Integral | torch.SymInt) and value is not True and value is not False


def check_tensor(name: str, value: object, asked: str) -> None:
    """Refuses what is no tensor, by its name."""
    if not isinstance(value, Tensor):
        raise MultiheadError(asked=asked, arrived=f"{name}={kind_and_text(value)}", remedy="pass a floating tensor")
    if value.layout is not torch.strided:
        raise MultiheadError(asked=asked, arrived=f"{name} of layout {value.layout}", remedy="pass a dense tensor")


def check_whole(name: str, value: object, what: str) -> None:
    """Refuses what is no whole number within reach."""
    if not is_whole_number(value) or not -_FARTHEST <= cast(int, value) <= _FARTHEST:
        raise MultiheadError(
            asked=f"{name}: {what}, a whole number from -2**40 to 2**40",
            arrived=f"{name}={value!r}"[:200],
            remedy=f"pass {name}=0, for example",
        )


def check_heads(name: str, value: object, asked: str, *, like: Tensor) -> None:
    """Refuses what are no queries or weights (batch, heads, q_len, ...) where the tables are."""
    asked = f"{asked}, floating, on {like.device}"
    check_tensor(name, value, asked)
    if isinstance(value, Tensor) and (value.ndim != 4 or not value.is_floating_point() or value.device != like.device):
        raise MultiheadError(
            asked=asked,
            arrived=f"{name} {tuple(value.shape)}, {value.dtype} on {value.device}",
            remedy="split the heads first: `x.unflatten(-1, (heads, -1)).transpose(1, 2)`, on the device of the tables",
        )


def check_place(*, q_offset: object, scale: object = None, **lengths: object) -> None:
    """Refuses lengths, an offset and a scale that are no such numbers; None is none given."""
    for name, number in (*lengths.items(), ("q_offset", q_offset)):
        least = -_FARTHEST if name == "q_offset" else 0
        given = number is not None or name == "q_offset"
        if given and (not is_whole_number(number) or not least <= cast(int, number) <= _FARTHEST):
            raise MultiheadError(
                asked=f"{name}: a whole number" + ("" if name == "q_offset" else " of at least 0"),
                arrived=f"{name}={number!r}"[:200],
                remedy="pass the position of the first query" if name == "q_offset" else "pass a number of positions",
            )
    if scale is not None and not isinstance(scale, Tensor) and not (is_number(scale) and math.isfinite(float(scale))):
        raise MultiheadError(
            asked="scale: the factor of the products, a finite number",
            arrived=f"scale={scale!r}"[:200],
            remedy="pass that of the attention, or None for head_dim ** -0.5",
        )


def check_factor(kind: str, factor: float) -> None:
    """Refuses a stretch below 1."""
    number = is_number(factor) and math.isfinite(factor)
    if not (number and factor >= 1):
        inverse = f", here {1 / factor:g}" if number and factor > 0 else ""
        raise MultiheadError(
            asked=f"{kind} with a factor of at least 1: how many times longer than trained the text may be",
            arrived=f"factor={factor}"[:200],
            remedy=f"pass a factor >= 1; where a scale of the frequencies is given, its inverse{inverse}",
        )


def check_length(kind: str, length: int, *, least: int = 1) -> None:
    """Refuses a trained length that is too small."""
    if not is_whole_number(length) or length < least:
        raise MultiheadError(
            asked=f"{kind} with the number of positions the model was trained on, at least {least}",
            arrived=f"trained_length={length}"[:200],
            remedy="pass the model's original_max_position_embeddings, for example 4096",
        )


def check_order(kind: str, names: tuple[str, str], low: float, high: float) -> None:
    """Refuses two bounds of which the first is not below the second, or not above 0."""
    if not (is_number(low) and is_number(high) and 0 < low < high):
        raise MultiheadError(
            asked=f"{kind} with 0 < {names[0]} < {names[1]}",
            arrived=f"{names[0]}={low}, {names[1]}={high}"[:200],
            remedy=f"pass the smaller number as {names[0]}",
        )


def check_pairs(asked: str, dim: int, head_dim: int) -> int:
    """The rotated numbers of a head, refused where they do not go in pairs or do not fit.

    Args:
        asked: Where the number comes from, in words.
        dim: Rotated numbers.
        head_dim: All of them.
    """
    if not is_whole_number(dim) or dim % 2 or not 0 < dim <= head_dim:
        below = min(dim, head_dim) if is_whole_number(dim) else head_dim
        even = max(below - below % 2, 2)
        raise MultiheadError(
            asked=f"{asked}: an even number of rotated dimensions, from 2 to head_dim={head_dim}",
            arrived=f"dim={dim}, head_dim={head_dim}",
            remedy=f"pass Rotary(dim={even}), which leaves the rest of the head as it is"
            if head_dim >= 2
            else "use heads of at least 2 dimensions",
        )
    return dim


def check_positions(positions: Tensor) -> None:
    """Refuses positions that are not whole numbers for one or for each sequence."""
    whole = not (positions.is_floating_point() or positions.is_complex() or positions.dtype == torch.bool)
    if positions.ndim not in (1, 2) or not whole:
        raise MultiheadError(
            asked="positions as integers, (length,) or (batch, length)",
            arrived=f"shape {tuple(positions.shape)}, {positions.dtype}",
            remedy="pass torch.arange(first, first + length), or one such row for each sequence",
        )


def check_turned(x: Tensor, batch: int, length: int, device: torch.device) -> None:
    """Refuses what is to be rotated where it does not go with its positions."""
    if x.ndim != 4 or not x.is_floating_point():
        raise MultiheadError(
            asked="x (batch, heads, length, head_dim) of a floating dtype",
            arrived=f"shape {tuple(x.shape)}, {x.dtype}",
            remedy="split the heads first: `x.unflatten(-1, (heads, -1)).transpose(1, 2)`",
        )
    if x.shape[2] != length or batch not in (1, x.shape[0]):
        raise MultiheadError(
            asked="one position for each place of x (batch, heads, length, head_dim)",
            arrived=f"x {tuple(x.shape)}, positions for batch={batch}, length={length}",
            remedy=f"pass positions of shape ({x.shape[2]},) or ({x.shape[0]}, {x.shape[2]})",
        )
    if x.device != device:
        raise MultiheadError(
            asked="x and its positions on one device",
            arrived=f"x on {x.device}, positions on {device}",
            remedy=f"pass `positions.to('{x.device}')`",
        )
