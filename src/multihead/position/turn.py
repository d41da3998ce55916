"""Pairs of dimensions turned, with as little memory as it takes, and with gradients that keep no copy of the input."""

import inspect
from typing import Any, cast

import torch
from torch import Tensor

_AT_ONCE = 2**18
"""Numbers turned at once where there are more: what is made in between stays small, and in the cache of a core."""
_LEAST = 2**13
"""Numbers not worth cutting further."""
_SMALL = 2**17
"""Numbers up to which memory is no matter, and the plain formula the fastest."""


def turn(x: Tensor, cos: Tensor, sin: Tensor, *, halves: bool) -> Tensor:
    """`(a, b) cos + (b, a) sin` for the pairs (a, b) of the last dimension, in the dtype of the angles or a wider one.

    Args:
        x: (batch, heads, length, width).
        cos: Of each dimension, (batch | 1, 1, length, width).
        sin: Likewise, negative for a and positive for b.
        halves: Whether a pair is (k, k + width / 2); else it is (2 k, 2 k + 1).

    Returns:
        The same shape and dtype. The gradient is the same turn backwards.
    """
    wide = torch.promote_types(x.dtype, cos.dtype)
    cos, sin = cos.to(wide), sin.to(wide)
    trained = torch.is_grad_enabled() and x.requires_grad
    # In a graph nothing is gained by writing in place, and lengths may be unknown: it is asked about first.
    plain = torch.compiler.is_compiling() or cos.requires_grad or sin.requires_grad
    if plain or (x.numel() <= _SMALL and (trained or x.dtype == wide)):
        return _formula(x.to(wide), cos, sin, halves=halves).to(x.dtype)
    if trained:
        return cast(Tensor, _Turn.apply(x, cos, sin, halves))
    return _turned(x, cos, sin, halves=halves)


class _Turn(torch.autograd.Function):
    """The same, whose backward pass needs the angles alone."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, cos: Tensor, sin: Tensor, halves: Any) -> Tensor:
        return _turned(x, cos, sin, halves=halves)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, cos, sin, ctx.halves = inputs
        ctx.save_for_backward(cos, sin)
        ctx.save_for_forward(cos, sin)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None, None]:
        cos, sin = ctx.saved_tensors
        return turn(grad_outputs[0], cos, -sin, halves=ctx.halves), None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        cos, sin = ctx.saved_tensors
        return turn(tangents[0], cos, sin, halves=ctx.halves)


# torch asks for the signature at every call, and making it takes longer than turning a few tokens.
setattr(_Turn.forward, "__signature__", inspect.signature(_Turn.forward))  # noqa: B010 - functions take attributes


def _formula(x: Tensor, cos: Tensor, sin: Tensor, *, halves: bool) -> Tensor:
    """Out of place: (a, b) cos + (b, a) (-sin, sin), three passes over x where writing out both sums takes four."""
    wide = x.to(cos.dtype)
    if halves:
        swapped = torch.cat(wide.chunk(2, -1)[::-1], -1)
    else:
        swapped = torch.stack([wide[..., 1::2], wide[..., 0::2]], -1).flatten(-2)
    return torch.addcmul(wide * cos, swapped, sin).to(x.dtype)


def _turned(x: Tensor, cos: Tensor, sin: Tensor, *, halves: bool) -> Tensor:
    batch, heads, length, width = x.shape
    # What has to be widened is widened a quarter at most.
    at_once = _AT_ONCE if x.dtype == cos.dtype else min(_AT_ONCE, max(x.numel() // 4, _LEAST))
    rows = max(at_once // max(batch * heads * width, 1), 1)
    if length <= rows:
        return _in_place(x.to(cos.dtype), cos, sin, halves=halves).to(x.dtype)
    out = torch.empty_like(x)
    for first in range(0, length, rows):
        part = slice(first, first + rows)
        wide = x[:, :, part].to(cos.dtype)
        out[:, :, part] = _in_place(wide, cos[:, :, part], sin[:, :, part], halves=halves)
    return out


def _in_place(x: Tensor, cos: Tensor, sin: Tensor, *, halves: bool) -> Tensor:
    """Without a copy of x whose pairs are swapped."""
    out = x * cos
    half = x.shape[-1] // 2
    a, b = (slice(None, half), slice(half, None)) if halves else (slice(0, None, 2), slice(1, None, 2))
    # Not addcmul_, which torch.vmap knows no rule for; it is no faster.
    first, second = out[..., a], out[..., b]
    first += x[..., b] * sin[..., a]
    second += x[..., a] * sin[..., b]
    return out
