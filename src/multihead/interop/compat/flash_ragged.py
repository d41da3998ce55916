"""flash-attn's functions for sequences of several lengths: behind one another, or each in a cache."""

from collections.abc import Mapping
from itertools import pairwise

import torch
from jaxtyping import Float, Int
from torch import Tensor

from multihead.error import MultiheadError
from multihead.interop.compat.check import check_flags, check_tensors, is_size
from multihead.interop.compat.flash import Asked, Probs, Window, attend, check_probs
from multihead.pattern import document

_REMEDIES = {
    "rotary_cos": "rotate q and k before the call",
    "rotary_sin": "rotate q and k before the call",
    "cache_batch_idx": "pass cache[cache_batch_idx]",
    "cache_leftpad": "pass caches without padding on the left",
    "block_table": "pass keys and values in one piece, not in pages",
}


def flash_attn_varlen_func(  # noqa: PLR0913 - the signature of flash-attn
    q: Float[Tensor, "total_q heads head_dim"],
    k: Float[Tensor, "total_k kv_heads head_dim"],
    v: Float[Tensor, "total_k kv_heads v_head_dim"],
    cu_seqlens_q: Int[Tensor, " sequences"],
    cu_seqlens_k: Int[Tensor, " sequences"],
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,  # noqa: FBT001, FBT002
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Float[Tensor, "..."] | None = None,
    deterministic: bool = False,  # noqa: FBT001, FBT002
    return_attn_probs: bool = False,  # noqa: FBT001, FBT002
    block_table: Tensor | None = None,
) -> Tensor | Probs:
    """Sequences of several lengths behind one another, none of which sees another, as flash-attn 2 takes them.

    Where queries and keys are cut alike it is one call within `document(...)`, else one for each sequence.

    Args:
        q: Queries (total_q, heads, head_dim).
        k: Keys (total_k, kv_heads, head_dim).
        v: Values (total_k, kv_heads, v_head_dim).
        cu_seqlens_q: (sequences + 1,) where each sequence of queries begins, from 0 to total_q.
        cu_seqlens_k: The same for the keys.
        max_seqlen_q: Length of the longest sequence; not needed here.
        max_seqlen_k: The same for the keys.
        dropout_p: As in `flash_attn_func`, like all that follow.
        softmax_scale: Factor of the products.
        causal: Within each sequence, its last query at its last key.
        window_size: Keys before and after.
        softcap: c in c * tanh(scaled / c); 0 is none.
        alibi_slopes: (heads,) or (sequences, heads).
        deterministic: Nothing: our backward pass always is.
        return_attn_probs: Whether to give the log-sum-exp as well.
        block_table: Keys in pages: refused.

    Returns:
        (total_q, heads, v_head_dim); with `return_attn_probs` also the log-sum-exp (heads, total_q), and None.

    Raises:
        MultiheadError: Bounds that do not fit the tensors, pages, or what `flash_attn_func` refuses.

    Example:
        >>> q = k = v = torch.randn(7, 8, 64)
        >>> bounds = torch.tensor([0, 3, 7])
        >>> flash_attn_varlen_func(q, k, v, bounds, bounds, 4, 4, causal=True).shape
        torch.Size([7, 8, 64])
    """
    check_tensors({"q": q, "k": k, "v": v}, "(total, heads, head_dim)", ndim=3)
    check_flags(deterministic=deterministic, return_attn_probs=return_attn_probs)
    _check_absent({"block_table": block_table})
    asked = Asked(
        scale=softmax_scale,
        causal=causal,
        window=window_size,
        softcap=softcap,
        slopes=alibi_slopes,
        dropout=dropout_p,
    )
    check_probs(dropout_p, asked=return_attn_probs)
    ends_q, ends_k = _bounds("q", cu_seqlens_q, q.shape[0]), _bounds("k", cu_seqlens_k, k.shape[0])
    if len(ends_q) != len(ends_k):
        raise MultiheadError(
            asked="as many sequences of keys as of queries",
            arrived=f"cu_seqlens_q for {len(ends_q) - 1} and cu_seqlens_k for {len(ends_k) - 1}",
            remedy="pass both with one more number than there are sequences",
        )
    _check_slopes(alibi_slopes, len(ends_q) - 1)
    if ends_q == ends_k and (alibi_slopes is None or alibi_slopes.ndim == 1):
        lengths = torch.tensor(ends_q, device=q.device).diff()
        ids = torch.arange(len(lengths), device=q.device).repeat_interleave(lengths)
        attended = attend(q[None], k[None], v[None], asked, within=document(ids))
        out, lse = attended.out[0].transpose(0, 1), attended.lse
    else:
        cuts = zip(pairwise(ends_q), pairwise(ends_k), strict=True)
        each = [
            attend(q[None, a:b], k[None, c:d], v[None, c:d], asked.of(n)) for n, ((a, b), (c, d)) in enumerate(cuts)
        ]
        out = torch.cat([one.out[0].transpose(0, 1) for one in each])
        lse = torch.cat([one.lse for one in each if one.lse is not None], 2)
    return (out, None if lse is None else lse[0], None) if return_attn_probs else out


def flash_attn_with_kvcache(  # noqa: PLR0913 - the signature of flash-attn
    q: Float[Tensor, "batch q_len heads head_dim"],
    k_cache: Float[Tensor, "batch cache_len kv_heads head_dim"],
    v_cache: Float[Tensor, "batch cache_len kv_heads v_head_dim"],
    k: Float[Tensor, "batch new kv_heads head_dim"] | None = None,
    v: Float[Tensor, "batch new kv_heads v_head_dim"] | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    cache_seqlens: int | Int[Tensor, " batch"] | None = None,
    cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    block_table: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,  # noqa: FBT001, FBT002
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,  # noqa: FBT001, FBT002
    alibi_slopes: Float[Tensor, "..."] | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,  # noqa: FBT001, FBT002
) -> Tensor | tuple[Tensor, Tensor | None]:
    """A step of decoding over a cache that lies there in full length, as flash-attn 2 takes it.

    New keys and values are written into the cache, behind those that are there: this function alone changes what it is
    given, as flash-attn's does. The last query stands at the last key of its sequence.

    Args:
        q: Queries (batch, q_len, heads, head_dim).
        k_cache: Keys (batch, cache_len, kv_heads, head_dim), written to.
        v_cache: Values (batch, cache_len, kv_heads, v_head_dim), written to.
        k: New keys (batch, new, kv_heads, head_dim).
        v: New values (batch, new, kv_heads, v_head_dim).
        rotary_cos: Refused: rotate queries and keys before the call.
        rotary_sin: Refused likewise.
        cache_seqlens: Keys of each sequence before the new ones, (batch,) or one number; None is all of the cache.
        cache_batch_idx: Refused: index the cache.
        cache_leftpad: Refused.
        block_table: Keys in pages: refused.
        softmax_scale: As in `flash_attn_func`, like all that follow.
        causal: Whether a query sees no later key.
        window_size: Keys before and after.
        softcap: c in c * tanh(scaled / c); 0 is none.
        rotary_interleaved: Nothing, as there is no rotation here.
        alibi_slopes: (heads,) or (batch, heads).
        num_splits: Nothing: the kernels cut the work themselves.
        return_softmax_lse: Whether to give the log-sum-exp as well.

    Returns:
        (batch, q_len, heads, v_head_dim); with `return_softmax_lse` also the log-sum-exp (batch, heads, q_len).

    Raises:
        MultiheadError: New keys that do not fit into the cache, or anything named as refused.

    Example:
        >>> cache_k, cache_v = torch.zeros(2, 32, 8, 64), torch.zeros(2, 32, 8, 64)
        >>> q = k = v = torch.randn(2, 1, 8, 64)
        >>> flash_attn_with_kvcache(q, cache_k, cache_v, k, v, cache_seqlens=5, causal=True).shape
        torch.Size([2, 1, 8, 64])
    """
    _check_absent(
        {
            "rotary_cos": rotary_cos,
            "rotary_sin": rotary_sin,
            "cache_batch_idx": cache_batch_idx,
            "cache_leftpad": cache_leftpad,
            "block_table": block_table,
        }
    )
    check_tensors({"q": q, "k_cache": k_cache, "v_cache": v_cache}, "(batch, length, heads, head_dim)", ndim=4)
    new = {name: value for name, value in {"k": k, "v": v}.items() if value is not None}
    check_tensors(new, "(batch, new, kv_heads, head_dim), or None", ndim=4)
    check_flags(rotary_interleaved=rotary_interleaved, return_softmax_lse=return_softmax_lse)
    asked = Asked(scale=softmax_scale, causal=causal, window=window_size, softcap=softcap, slopes=alibi_slopes)
    _check_slopes(alibi_slopes, q.shape[0])
    lengths = _written(k_cache, v_cache, k, v, _lengths(cache_seqlens, k_cache))
    if len(set(lengths)) == 1:
        attended = attend(q, k_cache[:, : lengths[0]], v_cache[:, : lengths[0]], asked)
        out, lse = attended.out.transpose(1, 2), attended.lse
    else:
        each = [
            attend(q[n : n + 1], k_cache[n : n + 1, :length], v_cache[n : n + 1, :length], asked.of(n))
            for n, length in enumerate(lengths)
        ]
        out = torch.cat([one.out.transpose(1, 2) for one in each]) if each else q.new_empty(q.shape)
        lse = torch.cat([one.lse for one in each if one.lse is not None]) if each else None
    return (out, lse) if return_softmax_lse else out


def _bounds(name: str, given: Tensor, total: int) -> list[int]:
    check_tensors({f"cu_seqlens_{name}": given}, "(sequences + 1,) of whole numbers", ndim=1)
    if given.is_floating_point() or given.is_complex() or given.dtype == torch.bool or given.is_meta:
        raise MultiheadError(
            asked=f"cu_seqlens_{name}: whole numbers, with values",
            arrived=f"{given.dtype} on {given.device}",
            remedy="pass them as an integer tensor on the device of q",
        )
    told: list[int] = given.tolist()
    if len(told) < 2 or told[0] != 0 or told[-1] != total or any(a > b for a, b in pairwise(told)):
        raise MultiheadError(
            asked=f"cu_seqlens_{name}: where each sequence begins, from 0 up to the {total} rows of {name}",
            arrived=f"{told[:8]}{'...' * (len(told) > 8)}",
            remedy="pass the lengths summed up, with a 0 before them: `pad(lengths.cumsum(0), (1, 0))`",
        )
    return told


def _lengths(given: int | Tensor | None, cache: Tensor) -> list[int]:
    batch, longest = cache.shape[:2]
    if isinstance(given, Tensor):
        whole = not (given.is_floating_point() or given.is_complex() or given.dtype == torch.bool or given.is_meta)
        fits = whole and given.layout is torch.strided and tuple(given.shape) in ((), (1,), (batch,))
        told: list[int] = given.expand(batch).tolist() if fits else [-1]
    else:
        told = [longest if given is None else given] * batch
    if not all(is_size(length) for length in told):
        raise MultiheadError(
            asked=f"cache_seqlens: keys that count, from 0, one number or ({batch},) of them",
            arrived=f"{given!r}"[:200],
            remedy="pass how many keys of each sequence lie in the cache already, or None for all",
        )
    return told


def _written(k_cache: Tensor, v_cache: Tensor, k: Tensor | None, v: Tensor | None, lengths: list[int]) -> list[int]:
    """Writes what is new behind what is there, and tells the lengths after it."""
    if (k is None) != (v is None):
        raise MultiheadError(
            asked="new keys and their values, both",
            arrived="k without v" if v is None else "v without k",
            remedy="pass both",
        )
    _check_new(k_cache, v_cache, k, v)
    new = 0 if k is None else k.shape[1]
    if max(lengths, default=0) + new > k_cache.shape[1]:
        raise MultiheadError(
            asked=f"room in the cache for {new} keys behind the {max(lengths)} that are there",
            arrived=f"a cache of {k_cache.shape[1]} keys",
            remedy="make a longer cache, or pass cache_seqlens: how many keys of it count",
        )
    if k is None or v is None:
        return lengths
    with torch.no_grad():
        for row, length in enumerate(lengths):
            k_cache[row, length : length + new] = k[row]
            v_cache[row, length : length + new] = v[row]
    return [length + new for length in lengths]


def _check_new(k_cache: Tensor, v_cache: Tensor, k: Tensor | None, v: Tensor | None) -> None:
    """Refuses, before anything is written, what the cache cannot take."""
    fits = k_cache.shape[:2] == v_cache.shape[:2] and k_cache.shape[2] == v_cache.shape[2]
    for cache, new in ((k_cache, k), (v_cache, v)):
        if new is not None:
            alike = new.shape[0] == cache.shape[0] and new.shape[2:] == cache.shape[2:]
            fits = fits and alike and new.dtype == cache.dtype and new.device == cache.device
    fits = fits and (k is None or v is None or k.shape[1] == v.shape[1])
    if not fits:
        given = {"k_cache": k_cache, "v_cache": v_cache, "k": k, "v": v}
        told = (f"{n} {tuple(x.shape)} {x.dtype} on {x.device}" for n, x in given.items() if x is not None)
        raise MultiheadError(
            asked="caches of one length and batch, and new keys and values that differ from them in length alone",
            arrived=", ".join(told),
            remedy="pass (batch, length, kv_heads, head_dim) for each, in one dtype",
        )


def _check_slopes(slopes: Tensor | None, sequences: int) -> None:
    """Refuses slopes of other sequences."""
    if slopes is not None and (slopes.ndim not in (1, 2) or (slopes.ndim == 2 and slopes.shape[0] != sequences)):
        raise MultiheadError(
            asked=f"alibi_slopes of shape (heads,) or (batch, heads), of {sequences} sequences",
            arrived=f"shape {tuple(slopes.shape)}",
            remedy="pass one slope for each query head",
        )


def _check_absent(given: Mapping[str, object]) -> None:
    found = {name: value for name, value in given.items() if value is not None}
    if found:
        raise MultiheadError(
            asked=f"flash-attn's call without {' and '.join(found)}",
            arrived=", ".join(
                f"{name} of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"{name}={value!r}"[:100]
                for name, value in found.items()
            ),
            remedy="; ".join(dict.fromkeys(_REMEDIES[name] for name in found)),
        )
