"""What is asked of the arguments of an attention call, with the messages for those that break it."""

import math
import operator
import sys
from collections.abc import Sequence
from numbers import Real

import torch
from torch import Tensor

from multihead.error import MultiheadError, check_kinds, kind_and_text
from multihead.pattern.check import LIMIT

Shape = tuple[int, int, int, int]
_DENSE = torch.strided


def check_tensors(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Refuses queries, keys and values that do not belong together."""
    check_kinds({"q": q, "k": k, "v": v}, (Tensor,), "a tensor")
    if not q.layout is k.layout is v.layout is _DENSE:
        raise MultiheadError(
            asked="dense tensors as q, k and v",
            arrived=", ".join(f"{name} {x.layout}" for name, x in (("q", q), ("k", k), ("v", v))),
            remedy="pass `x.to_dense()`, or padded sequences with mask=padding(keep): `x.to_padded_tensor(0.0)`",
        )
    shapes = q.shape, k.shape, v.shape
    if not len(shapes[0]) == len(shapes[1]) == len(shapes[2]) == 4:
        raise _misfit(
            q,
            k,
            v,
            asked="q (batch, heads, q_len, head_dim), k and v (batch, kv_heads, kv_len, ...): four dimensions each",
            remedy="add the missing dimension (`q[None]` for a batch of 1), or split the heads: "
            "`q.unflatten(-1, (heads, -1)).transpose(1, 2)`",
        )
    if not q.dtype == k.dtype == v.dtype or not q.is_floating_point():
        raise _misfit(
            q, k, v, asked="q, k and v of one floating dtype", remedy="convert them to one dtype, e.g. `k.to(q.dtype)`"
        )
    if not q.device == k.device == v.device:
        raise _misfit(q, k, v, asked="q, k and v on one device", remedy="move them to one, e.g. `k.to(q.device)`")
    (batch, heads, _, head_dim), (_, kv_heads, _, _) = shapes[:2]
    # What fits is told at once, what does not in words.
    alike = shapes[1][:3] == shapes[2][:3] and batch == shapes[1][0] and head_dim == shapes[1][3]
    if not alike or heads % max(kv_heads, 1) or kv_heads == 0:
        _check_sizes(q, k, v)


def _check_sizes(q: Tensor, k: Tensor, v: Tensor) -> None:
    if not q.shape[0] == k.shape[0] == v.shape[0]:
        raise _misfit(
            q,
            k,
            v,
            asked="one batch size for q, k and v (the first dimension; batch comes first here)",
            remedy="bring the batch to the front, or expand the smaller: `k.expand(q.shape[0], -1, -1, -1)`",
        )
    if k.shape[1:3] != v.shape[1:3]:
        raise _misfit(
            q,
            k,
            v,
            asked="k and v with the same kv_heads and kv_len (each key has one value)",
            found=f"kv_heads {k.shape[1]} and {v.shape[1]}, kv_len {k.shape[2]} and {v.shape[2]}",
            remedy="cut or project v like k",
        )
    if q.shape[3] != k.shape[3]:
        raise _misfit(
            q,
            k,
            v,
            asked="q and k of one head_dim (their products are the scores)",
            found=f"head_dim {q.shape[3]} and {k.shape[3]}",
            remedy="project both to one head_dim; only v may have another",
        )
    heads, kv_heads = q.shape[1], k.shape[1]
    if heads % max(kv_heads, 1) or (heads > 0 and kv_heads == 0):
        legal = ", ".join(str(n) for n in range(1, heads + 1) if heads % n == 0)
        raise _misfit(
            q,
            k,
            v,
            asked="kv_heads that divide heads (each serves a group of equal size)",
            found=f"heads={heads}, kv_heads={kv_heads}",
            remedy=f"for heads={heads} pass kv_heads of {legal}; for kv_heads={kv_heads} a multiple of it as heads",
        )


def _misfit(q: Tensor, k: Tensor, v: Tensor, *, asked: str, remedy: str, found: str = "") -> MultiheadError:
    told = f"q {_seen(q)}, k {_seen(k)}, v {_seen(v)}"
    return MultiheadError(asked=asked, arrived=f"{found}: {told}" if found else told, remedy=remedy)


def check_scale(scale: float | None, head_dim: int) -> float:
    """The factor of the scores: the given one, or head_dim ** -0.5."""
    if scale is None:
        return head_dim**-0.5 if head_dim else 1.0
    if type(scale) is not float:
        _check_number("scale", scale, "a finite scale", "pass a number, a tensor, or None for head_dim ** -0.5")
    if not math.isfinite(scale):
        raise MultiheadError(
            asked="a finite scale", arrived=f"scale={scale}", remedy="pass a number, or None for head_dim ** -0.5"
        )
    return float(scale)


def scaled(q: Tensor, scale: Tensor) -> Tensor:
    """The queries with a scale that is a tensor multiplied onto them; the product is rounded once, to the dtype of q.

    Args:
        q: (batch, heads, q_len, head_dim).
        scale: (), (heads,), or (batch | 1, heads | 1, q_len | 1, 1).
    """
    four = scale[:, None, None] if scale.ndim == 1 else scale
    shape = (*q.shape[:3], 1)
    heads = four.ndim == 3 and four.shape[0] in (1, q.shape[1])
    fits = heads or four.ndim == 0 or (four.ndim == 4 and _broadcasts(four.shape, shape))
    if not fits or scale.ndim == 3 or not scale.is_floating_point() or scale.device != q.device:
        raise MultiheadError(
            asked=f"a scale as a floating tensor on the device of q ({q.device}): one number, one for each head "
            f"({q.shape[1]},), or of shape (batch, heads, q_len, 1) = {shape}, where any size may be 1",
            arrived=f"scale {_seen(scale)}",
            remedy="reshape it, e.g. `scale[:, None, None, None]` for one a batch row; "
            "a factor for each column belongs to q itself",
        )
    return (q * four).to(q.dtype)


def check_softcap(softcap: float | None) -> float | None:
    """The softcap, or None for none."""
    if softcap is None:
        return None
    asked, remedy = (
        "softcap * tanh(scores / softcap) with a finite softcap above 0",
        "pass softcap > 0, or None for no softcap (0 does not mean off here)",
    )
    _check_number("softcap", softcap, asked, remedy)
    if not (math.isfinite(softcap) and softcap > 0):
        raise MultiheadError(asked=asked, arrived=f"softcap={softcap}", remedy=remedy)
    return float(softcap)


def check_dropout(dropout: float) -> float:
    """The share of weights that is dropped."""
    asked, remedy = (
        "dropout: the share of weights to drop, 0 <= dropout < 1",
        "pass a share below 1; 0 outside of training (the function applies what it is given)",
    )
    if type(dropout) is not float:
        _check_number("dropout", dropout, asked, remedy)
    if not 0 <= dropout < 1:
        raise MultiheadError(asked=asked, arrived=f"dropout={dropout}", remedy=remedy)
    return float(dropout)


def check_offset(q_offset: int) -> int:
    """The position of the first query."""
    try:
        number = None if isinstance(q_offset, bool) else operator.index(q_offset)
    except TypeError:
        number = None
    if number is None or abs(number) > LIMIT:
        raise MultiheadError(
            asked="q_offset: the position of the first query, a whole number",
            arrived=f"q_offset={kind_and_text(q_offset)}",
            remedy="pass a whole number (kv_len - q_len with a cache), or None where q_len and kv_len are equal",
        )
    return number


def _check_number(name: str, number: object, asked: str, remedy: str) -> None:
    """Refuses what is no number; a tensor is none, since no gradient would flow to it."""
    beyond = isinstance(number, int) and abs(number) > sys.float_info.max  # what no float can be made of
    if beyond or isinstance(number, bool) or not isinstance(number, Real | torch.SymFloat | torch.SymInt):
        remedy = f"pass `float({name})`; it gets no gradient" if isinstance(number, Tensor) else remedy
        raise MultiheadError(asked=asked, arrived=f"{name}={kind_and_text(number)}", remedy=remedy)


def check_mask(mask: Tensor, shape: Shape, device: torch.device) -> Tensor:
    """A boolean mask as four dimensions that broadcast to `shape` (batch, heads, q_len, kv_len)."""
    if mask.dtype != torch.bool:
        scores = mask.is_floating_point()
        raise MultiheadError(
            asked="a boolean mask, True = this query may attend to this key",
            arrived=f"mask of {mask.dtype}, shape {tuple(mask.shape)}",
            remedy="pass numbers that are added to the scores as `bias=`, or `mask == 0` if 0 stood for attend"
            if scores
            else "pass `mask.bool()` if 1 stood for attend, `mask == 0` if 1 stood for masked out",
        )
    return _check_four("mask", mask, shape, device)


def check_bias(bias: Tensor, shape: Shape, device: torch.device) -> Tensor:
    """A tensor of added scores as four dimensions that broadcast to `shape` (batch, heads, q_len, kv_len)."""
    if not bias.is_floating_point():
        raise MultiheadError(
            asked="a floating bias, added to the scores",
            arrived=f"bias of {bias.dtype}, shape {tuple(bias.shape)}",
            remedy="pass a boolean tensor as `mask=`, or convert the bias to the dtype of q",
        )
    return _check_four("bias", bias, shape, device)


def _check_four(name: str, given: Tensor, shape: Shape, device: torch.device) -> Tensor:
    *_, q_len, kv_len = shape
    if given.device != device:
        raise MultiheadError(
            asked=f"a {name} on the device of q",
            arrived=f"{name} on {given.device}, q on {device}",
            remedy=f"pass `{name}.to(q.device)`",
        )
    four = given[None, None] if given.ndim == 2 else given
    if four.ndim == 4 and _broadcasts(four.shape, shape):
        return four
    raise MultiheadError(
        asked=f"a {name} of shape (q_len, kv_len) = ({q_len}, {kv_len}) or (batch, heads, q_len, kv_len) = {shape}; "
        "any size may be 1",
        arrived=f"{name} of shape {tuple(given.shape)}",
        remedy=_shape_remedy(name, given.ndim),
    )


def _broadcasts(shape: Sequence[int], to: Sequence[int]) -> bool:
    return all(have in (1, want) for have, want in zip(shape, to, strict=True))


def _shape_remedy(name: str, ndim: int) -> str:
    if ndim == 3:
        return (
            f"three dimensions are ambiguous: `{name}[:, None]` if the first is the batch, `{name}[None]` if it is "
            f"the heads, `{name}.unflatten(0, (batch, heads))` if it is both"
        )
    if ndim == 2 and name == "mask":
        return "for a mask (batch, kv_len) of real tokens pass `padding(mask)` or `mask[:, None, None]`"
    return f"reshape or expand the {name} to one of these shapes"


def check_counts(name: str, given: object, has: Sequence[int | None], want: Sequence[int]) -> None:
    """Refuses a pattern made for another batch or other heads; None goes with any.

    Args:
        name: What it is.
        given: It; it is written out only where it is refused, which takes longer than to attend to a short text.
        has: Its batch and heads.
        want: Those of q.
    """
    for axis, have, wanted in zip(("batch", "heads"), has, want, strict=False):
        if have is not None and have not in (1, wanted):
            raise MultiheadError(
                asked=f"a {name} {given} for {axis}={wanted}, like q",
                arrived=f"{name} {given} for {axis}={have}",
                remedy=f"build it for {axis}={wanted}" + (" (query heads, not kv_heads)" if axis == "heads" else ""),
            )


def check_heads(name: str, given: object, weight: Tensor, q: Tensor) -> None:
    """Refuses a bias of positions, or sinks, made for other heads or on another device.

    Args:
        name: What it is.
        given: It, or None where its name says it all.
        weight: Its tensor.
        q: Queries.
    """
    heads, told = weight.shape[-1], name if given is None else f"{name} {given}"
    if heads != q.shape[1]:
        raise MultiheadError(
            asked=f"a {told} for heads={q.shape[1]}, like q",
            arrived=f"heads={heads}",
            remedy=f"build it for heads={q.shape[1]} (query heads, not kv_heads)",
        )
    if weight.device != q.device:
        raise MultiheadError(
            asked=f"a {told} on the device of q",
            arrived=f"{weight.device}, q on {q.device}",
            remedy=f"move it: `.to('{q.device}')`",
        )


def unaligned(q_len: int, kv_len: int, positional: Sequence[str]) -> MultiheadError:
    """The error where nothing says how queries and keys line up.

    Args:
        q_len: Number of queries.
        kv_len: Number of keys.
        positional: What in the call depends on positions, in words.
    """
    last = kv_len - q_len
    return MultiheadError(
        asked=f"{' and '.join(positional)} with q_len != kv_len: the answer depends on the positions of the queries",
        arrived=f"q_len={q_len}, kv_len={kv_len}, q_offset=None",
        remedy=f"pass q_offset=0 (top-left: queries at positions 0..{q_len - 1}, the first query at the first key) or "
        f"q_offset=kv_len-q_len={last} (bottom-right: positions {last}..{kv_len - 1}, the last query at the last key, "
        "as with a cache)",
    )


def _seen(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {tensor.dtype} on {tensor.device}".replace("torch.", "")
