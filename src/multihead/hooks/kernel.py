"""What a kernel of transformers really computed, as a problem of ours.

Read off the functions of transformers 5.24: eager functions add the mask they are given and know no causal rule of
their own; sdpa is causal where there is no mask and more than one query; only the functions that name `softcap`, or
read sinks, heed them. Sliding windows are in the mask; no function here acts on the keyword.
"""

import inspect
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from multihead.attend import Problem, Softmax, make_problem
from multihead.error import MultiheadError
from multihead.hooks.tap import KernelCall
from multihead.pattern import Pattern, causal

# Kernels that compute windows, padding or pages by themselves, from arguments other than a 4-D mask.
_OPAQUE = ("flash", "flex", "paged")


def problem_of(call: KernelCall, *, past: int | None) -> Problem:
    """The problem a kernel solved.

    Args:
        call: What it was given.
        past: Absolute position of the first query as the caches tell it, None for queries over another sequence's keys
            whose position is not known.

    Raises:
        MultiheadError: The kernel, or something it was given, cannot be told in the terms of a problem.
    """
    given = call.given
    module: nn.Module = given["module"]
    q, k, v = _aligned(given["query"], given["key"], given["value"])
    heeded = _parameters(call.function)
    mask, bias = _mask_and_bias(call, module)
    causal_rule = mask is None and call.kernel != "eager" and _is_causal(given, module) and q.shape[2] > 1
    position_bias = given.get("position_bias") if "position_bias" in heeded else None
    if causal_rule:
        # A static cache is longer than what was written to it: the kernel cuts it to the queries.
        k, v = k[:, :, : q.shape[2]], v[:, :, : q.shape[2]]
        position_bias = position_bias if position_bias is None else position_bias[..., : q.shape[2]]
        mask, past = causal(), 0
    mask, bias = _with_position_bias(mask, bias, position_bias)
    return make_problem(
        q,
        k,
        v,
        mask=mask,
        bias=bias,
        scale=given.get("scaling"),
        softcap=given.get("softcap") if "softcap" in heeded else None,
        normaliser=Softmax(sinks=_sinks(call, module)),
        dropout=_dropout(call, module),
        q_offset=past,
    )


def check_kernel(kernel: str) -> None:
    """Refuse a kernel whose masks cannot be read.

    Raises:
        MultiheadError: The model runs on flash, flex or paged attention.
    """
    if any(word in kernel for word in _OPAQUE):
        raise MultiheadError(
            asked="to watch a model whose kernel gets its mask as a tensor (sdpa, eager)",
            arrived=f"attn_implementation={kernel!r}, which masks by lengths, blocks or pages of its own",
            remedy="load the model with attn_implementation='sdpa' (or 'eager'), or call "
            "model.set_attn_implementation('sdpa')",
        )


def _aligned(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One batch size (learned queries come with batch 1) and one dtype (rotary embeddings may leave q and k wider)."""
    batch = max(q.shape[0], k.shape[0])
    wide = torch.promote_types(torch.promote_types(q.dtype, k.dtype), v.dtype)
    q, k, v = (t if t.shape[0] == batch else t.expand(batch, -1, -1, -1) for t in (q, k, v))
    return q.to(wide), k.to(wide), v.to(wide)


def _mask_and_bias(call: KernelCall, module: nn.Module) -> tuple[Tensor | None, Tensor | None]:
    """The mask a kernel was given, as True = attend, and what it adds besides."""
    mask = call.given.get("attention_mask")
    if mask is None:
        return None, None
    if not isinstance(mask, Tensor) or mask.ndim != 4:
        kind = f"shape {tuple(mask.shape)}" if isinstance(mask, Tensor) else type(mask).__name__
        raise MultiheadError(
            asked="an attention mask of four dimensions (batch, heads, q_len, kv_len), or none",
            arrived=f"{kind} for {type(module).__name__} under {call.kernel!r}",
            remedy="load the model with attn_implementation='sdpa' or 'eager'",
        )
    if mask.dtype == torch.bool and call.kernel != "eager":
        return mask, None
    # An eager function adds whatever it is given: a boolean mask there adds 1 to the scores it means to keep.
    return _split(mask if mask.is_floating_point() else mask.to(call.given["query"].dtype))


def _split(added: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """An additive mask taken apart: shut where it is near the lowest number, a bias where anything else is left."""
    shut = added <= torch.finfo(added.dtype).min / 2
    rest = added.masked_fill(shut, 0.0)
    # NaN is not zero, so it stays in the bias, where it can be seen.
    return ~shut if bool(shut.any()) else None, rest if bool((rest != 0).any()) else None


def _with_position_bias(
    mask: Pattern | Tensor | None, bias: Tensor | None, position_bias: Tensor | None
) -> tuple[Pattern | Tensor | None, Tensor | None]:
    if position_bias is None:
        return mask, bias
    # Some models fold a mask into it.
    open_here, added = _split(position_bias)
    if open_here is not None:
        written = mask.mask(*open_here.shape[-2:], device=open_here.device) if isinstance(mask, Pattern) else mask
        mask = open_here if written is None else written & open_here
    return mask, added if bias is None else bias if added is None else bias + added


def _is_causal(given: Mapping[str, Any], module: nn.Module) -> bool:
    asked = given.get("is_causal")
    return bool(asked if asked is not None else getattr(module, "is_causal", True))


def _sinks(call: KernelCall, module: nn.Module) -> Tensor | None:
    """Sinks (heads,) if the function takes part of the weight for them; sdpa is given them and does not."""
    heeded, sinks = _parameters(call.function), None
    if "sinks" in heeded and call.given.get("sinks") is not None:
        raise MultiheadError(
            asked="sinks of one number a head",
            arrived=f"{type(module).__name__} computes a sink for every query",
            remedy="this family cannot be watched yet; watch a model with sinks of shape (heads,) or none",
        )
    if "s_aux" in heeded:
        sinks = call.given.get("s_aux")
    elif call.kernel == "eager" and _reads_sinks(call.function):
        sinks = getattr(module, "sinks", None)
    return sinks.reshape(-1) if isinstance(sinks, Tensor) else None


def _dropout(call: KernelCall, module: nn.Module) -> float:
    """Eager functions drop in training only; the others drop whatever share they are told."""
    share = float(call.given.get("dropout") or 0.0)
    return share if module.training or call.kernel != "eager" else 0.0


@cache
def _parameters(function: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters)


@cache
def _reads_sinks(function: Callable[..., Any]) -> bool:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return "sinks" in getattr(code, "co_names", ())
