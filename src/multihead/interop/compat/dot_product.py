"""`torch.nn.functional.scaled_dot_product_attention`, on our kernels."""

import torch
from jaxtyping import Float
from torch import Tensor

from multihead.attend import attention
from multihead.error import MultiheadError
from multihead.interop.compat.check import check_flags, check_tensors
from multihead.pattern import Pattern, causal


def scaled_dot_product_attention(
    query: Float[Tensor, "..."],
    key: Float[Tensor, "..."],
    value: Float[Tensor, "..."],
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,  # noqa: FBT001, FBT002
    scale: float | None = None,
    enable_gqa: bool = False,  # noqa: FBT001, FBT002
) -> Float[Tensor, "..."]:
    """`softmax(scale * query @ key.T + attn_mask) @ value`, with the signature of torch's function.

    It is `multihead.attention` for inputs of any number of dimensions. What differs: `is_causal` and `attn_mask` may
    both be given, and both hold. As in torch, `is_causal` counts from the first query and the first key, `dropout_p` is
    applied whatever the mode, and a row that may see nothing is 0.

    Args:
        query: (..., heads, q_len, head_dim); also without heads, (..., q_len, head_dim). Leading sizes broadcast.
        key: (..., kv_heads, kv_len, head_dim).
        value: (..., kv_heads, kv_len, v_head_dim).
        attn_mask: True = attend, or scores to add; it broadcasts to (..., heads, q_len, kv_len).
        dropout_p: Share of the weights to drop.
        is_causal: Whether query i sees keys 0..i only.
        scale: Factor of the products; None is head_dim ** -0.5.
        enable_gqa: Whether a key head may serve several query heads.

    Returns:
        (..., heads, q_len, v_head_dim).

    Raises:
        MultiheadError: Shapes that do not broadcast, or anything that `multihead.attention` refuses.

    Example:
        >>> q, k, v = torch.randn(2, 8, 5, 16), torch.randn(2, 8, 7, 16), torch.randn(2, 8, 7, 16)
        >>> scaled_dot_product_attention(q, k, v, is_causal=True).shape
        torch.Size([2, 8, 5, 16])
    """
    check_tensors({"query": query, "key": key, "value": value}, "(..., heads, length, head_dim)")
    check_flags(is_causal=is_causal, enable_gqa=enable_gqa)
    if attn_mask is not None:
        check_tensors({"attn_mask": attn_mask}, "(..., heads, q_len, kv_len), or None")
    if min(query.ndim, key.ndim, value.ndim) < 2:
        raise _misfit(query, key, value, asked="query, key and value of two dimensions at least")
    q, k, v, lead = _aligned(query, key, value, enable_gqa=enable_gqa)
    mask, bias = _split(attn_mask, lead, (q.shape[2], k.shape[2]))
    out = attention(
        q,
        k,
        v,
        mask=_with_causal(mask, (q.shape[2], k.shape[2])) if is_causal else mask,
        bias=bias,
        scale=scale,
        dropout=dropout_p,
        q_offset=0,
    )
    return out.reshape(*lead, q.shape[2], v.shape[3])


def _aligned(
    query: Tensor, key: Tensor, value: Tensor, *, enable_gqa: bool
) -> tuple[Tensor, Tensor, Tensor, torch.Size]:
    """The three in four dimensions, and the leading sizes of the output; missing sizes are 1."""
    q, k, v = (x[(None,) * (4 - x.ndim)] if x.ndim < 4 else x for x in (query, key, value))
    own = 3 if enable_gqa else 2
    try:
        shared = torch.broadcast_shapes(*(x.shape[:-own] for x in (q, k, v)))
    except RuntimeError:
        hint = "" if enable_gqa else "; a key head for several query heads needs enable_gqa=True"
        raise _misfit(query, key, value, asked=f"leading sizes that broadcast{hint}") from None
    q, k, v = (x.expand(*shared, *x.shape[-own:]) for x in (q, k, v))
    lead = q.shape[:-2]
    # Leading sizes of 1 that were put in are taken out again.
    given = max(query.ndim, key.ndim, value.ndim) - 2
    return q.flatten(0, -4), k.flatten(0, -4), v.flatten(0, -4), lead[max(len(lead) - given, 0) :]


def _split(attn_mask: Tensor | None, lead: torch.Size, sizes: tuple[int, int]) -> tuple[Tensor | None, Tensor | None]:
    """A mask of torch as ours (True = attend) and as a bias, four dimensions each."""
    if attn_mask is None:
        return None, None
    four = _four(attn_mask, lead, sizes)
    return (four, None) if attn_mask.dtype == torch.bool else (None, four)


def _four(mask: Tensor, lead: torch.Size, sizes: tuple[int, int]) -> Tensor:
    full = (*lead, *sizes)
    try:
        fits = torch.broadcast_shapes(mask.shape, full) == full
    except RuntimeError:
        fits = False
    if not fits:
        raise MultiheadError(
            asked=f"an attn_mask that broadcasts to {full}: (..., heads, q_len, kv_len)",
            arrived=f"attn_mask of shape {tuple(mask.shape)}",
            remedy="reshape the mask: `mask[:, None, None]` where it is (batch, kv_len)",
        )
    mask = mask[(None,) * (max(len(full), 4) - mask.ndim)]
    # Several batch sizes become one, so each must be there.
    return mask.expand(*lead[:-1], *mask.shape[-3:]).flatten(0, -4) if len(full) > 4 else mask


def _with_causal(mask: Tensor | None, sizes: tuple[int, int]) -> Pattern | Tensor:
    return causal() if mask is None else mask & causal().mask(*sizes, device=mask.device)


def _misfit(query: Tensor, key: Tensor, value: Tensor, *, asked: str) -> MultiheadError:
    return MultiheadError(
        asked=asked,
        arrived=f"query {tuple(query.shape)}, key {tuple(key.shape)}, value {tuple(value.shape)}",
        remedy="pass (..., heads, length, head_dim), as torch does",
    )
