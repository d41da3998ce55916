"""The functions of flash-attn 2, on our kernels: its signatures, its layout, its alignment at the last key."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor

from multihead.attend import Attended, attention_lse
from multihead.error import MultiheadError
from multihead.interop.compat.check import check_flags, check_number, check_tensors, is_size
from multihead.pattern import Pattern, band, causal
from multihead.position import ALiBi

Probs = tuple[Tensor, Tensor | None, None]
Window = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is the same for every sequence of a call."""

    scale: float | None
    causal: bool
    window: Window
    softcap: float
    slopes: Tensor | None
    dropout: float = 0.0

    def __post_init__(self) -> None:
        check_flags(causal=self.causal)
        check_number("softcap", self.softcap, least=0.0)
        check_number("dropout_p", self.dropout, least=0.0)
        if self.slopes is not None:
            check_tensors({"alibi_slopes": self.slopes}, "(heads,) or (batch, heads), or None")
        sides = _sides(self.window)
        if len(sides) != 2 or not all(is_size(side, least=-1) for side in sides):
            raise MultiheadError(
                asked="window_size=(before, after): numbers of keys, -1 for no bound",
                arrived=f"window_size={self.window}"[:200],
                remedy="for example window_size=(255, 0) with causal=True: the query and the 255 keys before it",
            )

    def of(self, sequence: int) -> "Asked":
        """For one sequence of the batch, where each has slopes of its own."""
        if self.slopes is None or self.slopes.ndim == 1:
            return self
        return replace(self, slopes=self.slopes[sequence])


def flash_attn_func(  # noqa: PLR0913 - the signature of flash-attn
    q: Float[Tensor, "batch q_len heads head_dim"],
    k: Float[Tensor, "batch kv_len kv_heads head_dim"],
    v: Float[Tensor, "batch kv_len kv_heads v_head_dim"],
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,  # noqa: FBT001, FBT002
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Float[Tensor, "..."] | None = None,
    deterministic: bool = False,  # noqa: FBT001, FBT002
    return_attn_probs: bool = False,  # noqa: FBT001, FBT002
) -> Tensor | Probs:
    """Attention with the signature and the layout of flash-attn 2 (Dao 2023, arXiv:2307.08691), on any device.

    The last query stands at the last key: with `causal` query i sees the keys up to i + kv_len - q_len. A row that sees
    nothing is 0.

    Args:
        q: Queries (batch, q_len, heads, head_dim).
        k: Keys (batch, kv_len, kv_heads, head_dim), kv_heads a divisor of heads.
        v: Values (batch, kv_len, kv_heads, v_head_dim).
        dropout_p: Share of the weights to drop.
        softmax_scale: Factor of the products; None is head_dim ** -0.5.
        causal: Whether a query sees no later key.
        window_size: Keys before and after the query's own position that it sees besides the one there; -1 is no bound.
        softcap: c in c * tanh(scaled / c); 0 is none.
        alibi_slopes: (heads,) or (batch, heads): `-slope * |i + kv_len - q_len - j|` is added to the scores.
        deterministic: Nothing: our backward pass always is.
        return_attn_probs: Whether to give the log-sum-exp as well.

    Returns:
        (batch, q_len, heads, v_head_dim); with `return_attn_probs` also the log-sum-exp (batch, heads, q_len), -inf in
        a row that sees nothing, and None where flash-attn gives the weights it dropped from.

    Raises:
        MultiheadError: Sizes that do not fit, a window below -1, or weights asked for under dropout.

    Example:
        >>> q = k = v = torch.randn(2, 10, 8, 64)
        >>> flash_attn_func(q, k, v, causal=True, window_size=(4, 0)).shape
        torch.Size([2, 10, 8, 64])
    """
    check_tensors({"q": q, "k": k, "v": v}, "(batch, length, heads, head_dim)", ndim=4)
    check_flags(deterministic=deterministic, return_attn_probs=return_attn_probs)
    asked = Asked(
        scale=softmax_scale,
        causal=causal,
        window=window_size,
        softcap=softcap,
        slopes=alibi_slopes,
        dropout=dropout_p,
    )
    check_probs(dropout_p, asked=return_attn_probs)
    attended = attend(q, k, v, asked)
    out = attended.out.transpose(1, 2)
    return (out, attended.lse, None) if return_attn_probs else out


def attend(q: Tensor, k: Tensor, v: Tensor, asked: Asked, *, within: Pattern | None = None) -> Attended:
    """One call in flash-attn's layout, the last query at the last key."""
    offset = k.shape[1] - q.shape[1]
    return attention_lse(
        *(x.transpose(1, 2) for x in (q, k, v)),
        mask=_pattern(asked, q.shape[1] + k.shape[1], within),
        bias=_bias(asked.slopes, q.shape[1], k.shape[1]),
        scale=asked.scale,
        softcap=asked.softcap or None,
        dropout=asked.dropout,
        q_offset=offset,
    )


def _pattern(asked: Asked, farthest: int, within: Pattern | None) -> Pattern | None:
    """All that must hold; a side of a window without a bound reaches as far as there is anything."""
    parts = [] if within is None else [within]
    parts += [causal()] * asked.causal
    if max(asked.window) >= 0:
        before, after = (farthest if side < 0 else side for side in asked.window)
        parts.append(band(before, after))
    joined = parts[0] if parts else None
    for part in parts[1:]:
        joined = part if joined is None else joined & part
    return joined


def _sides(window: object) -> list[object]:
    """Both numbers of a window, or what else it holds."""
    return list(cast(Sequence[object], window)) if isinstance(window, tuple | list) else []


def _bias(slopes: Tensor | None, q_len: int, kv_len: int) -> ALiBi | Tensor | None:
    if slopes is None or slopes.ndim == 1:
        return None if slopes is None else ALiBi(slopes)
    if slopes.ndim != 2:
        raise MultiheadError(
            asked="alibi_slopes of shape (heads,) or (batch, heads)",
            arrived=f"shape {tuple(slopes.shape)}",
            remedy="pass one slope for each query head",
        )
    if not slopes.is_floating_point():
        raise MultiheadError(
            asked="alibi_slopes of floating numbers", arrived=f"{slopes.dtype}", remedy="pass slopes.float()"
        )
    queries = torch.arange(kv_len - q_len, kv_len, device=slopes.device)
    distance = (queries[:, None] - torch.arange(kv_len, device=slopes.device)).abs()
    return -slopes[:, :, None, None] * distance


def check_probs(dropout: float, *, asked: bool) -> None:
    """Refuses to tell what was dropped."""
    if asked and dropout > 0:
        raise MultiheadError(
            asked="return_attn_probs: weights that say which of them were dropped",
            arrived=f"dropout_p={dropout}",
            remedy="pass dropout_p=0; weights without dropout are multihead.attention_lse(...).weights()",
        )
