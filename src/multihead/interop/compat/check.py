"""What functions with the signatures of others are given: refused in words where it is of another kind."""

import math
from collections.abc import Mapping
from numbers import Real
from typing import cast

import torch
from torch import Tensor

from multihead.error import MultiheadError, check_kinds, kind_and_text

_MOST = 2**40  # sums of two such numbers stay far inside int64


def check_tensors(given: Mapping[str, object], axes: str, *, ndim: int | None = None) -> None:
    """Refuses what are no dense tensors, or not of so many dimensions.

    Args:
        given: By their names.
        axes: What their sizes are, for the error.
        ndim: How many sizes there are; None for any number.
    """
    for name, value in given.items():
        if not isinstance(value, Tensor):
            arrived = kind_and_text(value)
        elif value.layout is not torch.strided or value.is_nested:
            arrived = f"a tensor of another layout, {'nested' if value.is_nested else value.layout}"
        elif ndim not in (None, value.ndim):
            arrived = f"{name} of shape {tuple(value.shape)}"
        else:
            continue
        raise MultiheadError(asked=f"{name}: a dense tensor {axes}", arrived=arrived, remedy="pass one of this form")


def check_flags(**flags: object) -> None:
    """Refuses what is neither True nor False, by its name."""
    check_kinds(flags, (bool,), "True or False")


def check_number(name: str, value: object, *, least: float = -math.inf) -> None:
    """Refuses what is no finite number, or too small."""
    number = isinstance(value, Real) and value is not True and value is not False
    if not number or not least <= float(cast(float, value)) < math.inf:
        raise MultiheadError(
            asked=f"{name}: a finite number" + (f" of at least {least:g}" if least > -math.inf else ""),
            arrived=f"{name}={value!r}"[:200],
            remedy=f"for example {name}={max(least, 0.0):g}",
        )


def is_size(value: object, *, least: int = 0) -> bool:
    """Whether it is a whole number of at least so much."""
    return isinstance(value, int | torch.SymInt) and not isinstance(value, bool) and least <= value <= _MOST


def check_like(given: Mapping[str, Tensor | None], like: Tensor) -> None:
    """Refuses tensors of another dtype or device than `like`, where no autocast mends it."""
    kind = like.device.type
    casts = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    for name, tensor in given.items():
        if tensor is None:
            continue
        alike = tensor.dtype == like.dtype or (casts and torch.float64 not in (tensor.dtype, like.dtype))
        if not (tensor.is_floating_point() and alike and tensor.device == like.device):
            raise MultiheadError(
                asked=f"inputs and weights of one floating dtype on one device, {like.dtype} on {like.device}",
                arrived=f"{name} of {tensor.dtype} on {tensor.device}",
                remedy=f"pass `{name}.to({like.dtype})` on that device, or call it under torch.autocast",
            )


def check_made(device: object, dtype: object) -> None:
    """Refuses what parameters cannot be made of, or on."""
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise MultiheadError(
            asked="dtype of the parameters: a floating one, or None",
            arrived=f"dtype={dtype!r}"[:200],
            remedy="for example dtype=torch.float32",
        )
    try:
        known = device is None or (isinstance(device, torch.device | str | int) and bool(torch.device(device).type))
    except (RuntimeError, ValueError, TypeError):
        known = False
    if not known or isinstance(device, bool):
        raise MultiheadError(
            asked="device of the parameters: one that torch knows, or None",
            arrived=f"device={device!r}"[:200],
            remedy='for example device="cpu"',
        )
