"""torch's two masks (True = masked out, or scores to add) as one of ours (True = attend) and a bias."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import reduce

import torch
from torch import Tensor
from torch.nn.functional import pad

from multihead.error import MultiheadError
from multihead.interop.compat.check import check_tensors
from multihead.pattern import Pattern, causal, keys_at, padding


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TorchMasks:
    """What `nn.MultiheadAttention` is told about pairs.

    Args:
        key_padding_mask: (batch, kv_len), True = ignore this key, or scores to add; None for nothing.
        attn_mask: (q_len, kv_len) or (batch * heads, q_len, kv_len), True = masked out, or scores to add.
        is_causal: Whether, besides, query i sees keys 0..i only.
    """

    key_padding_mask: Tensor | None = None
    attn_mask: Tensor | None = None
    is_causal: bool = False

    def check_kinds(self, query: Tensor) -> None:
        """Refuses masks that are no tensors, or elsewhere than the queries."""
        for name, given in (("key_padding_mask", self.key_padding_mask), ("attn_mask", self.attn_mask)):
            if given is None:
                continue
            check_tensors({name: given}, "of booleans, True = masked out, or of scores, or None")
            if given.device != query.device:
                raise MultiheadError(
                    asked=f"{name} on the device of the query, {query.device}",
                    arrived=f"{name} on {given.device}",
                    remedy=f"pass `{name}.to(query.device)`",
                )

    def batched(self) -> "TorchMasks":
        """The masks of one sequence as those of a batch of one."""
        lone = self.key_padding_mask
        return self if lone is None else replace(self, key_padding_mask=lone[None])

    def check(self, sizes: tuple[int, int, int, int]) -> None:
        """Refuses masks that do not belong to `sizes` (batch, heads, q_len, kv_len).

        Raises:
            MultiheadError: A mask of another shape, or of whole numbers.
        """
        batch, heads, q_len, kv_len = sizes
        legal = {
            "key_padding_mask": {"(batch, kv_len)": (batch, kv_len)},
            "attn_mask": {
                "(q_len, kv_len)": (q_len, kv_len),
                "(batch * heads, q_len, kv_len)": (batch * heads, q_len, kv_len),
            },
        }
        for name, given in (("key_padding_mask", self.key_padding_mask), ("attn_mask", self.attn_mask)):
            if given is not None:
                _check(name, given, legal[name])

    def split(self, sizes: tuple[int, int, int, int], extra: int) -> tuple[Pattern | Tensor | None, Tensor | None]:
        """The mask, True = attend, and the bias, over the keys and `extra` ones behind them that all may see.

        Args:
            sizes: (batch, heads, q_len, kv_len), without the extra keys.
            extra: How many keys stand behind those of the input.
        """
        batch, heads, q_len, kv_len = sizes
        given: list[Tensor] = []
        if self.key_padding_mask is not None:
            given.append(self.key_padding_mask[:, None, None])
        if self.attn_mask is not None:
            whole = self.attn_mask.ndim == 2
            given.append(self.attn_mask[None, None] if whole else self.attn_mask.unflatten(0, (batch, heads)))
        shown = [pad(~mask, (0, extra), value=True) for mask in given if mask.dtype == torch.bool]
        added = [pad(mask, (0, extra)) for mask in given if mask.dtype != torch.bool]
        mask = reduce(torch.logical_and, shown) if shown else None
        bias = reduce(torch.add, added) if added else None
        return (_with_causal(mask, (q_len, kv_len), extra) if self.is_causal else mask), bias


def _with_causal(mask: Tensor | None, sizes: tuple[int, int], extra: int) -> Pattern | Tensor:
    q_len, kv_len = sizes
    order = causal() | keys_at(range(kv_len, kv_len + extra)) if extra else causal()
    if mask is None:
        return order
    if mask.shape[1] == mask.shape[2] == 1:
        return order & padding(mask[:, 0, 0])
    return mask & order.mask(q_len, kv_len + extra, device=mask.device)


def _check(name: str, given: Tensor, legal: Mapping[str, tuple[int, ...]]) -> None:
    if given.dtype != torch.bool and not given.is_floating_point():
        raise MultiheadError(
            asked=f"{name}: booleans, True = masked out, or floating numbers that are added to the scores",
            arrived=f"{name} of {given.dtype}",
            remedy=f"pass `{name}.bool()` where 1 stood for masked out, `{name} == 0` where 1 stood for attend",
        )
    if tuple(given.shape) not in legal.values():
        raise MultiheadError(
            asked=f"{name} of shape " + " or ".join(f"{words} = {shape}" for words, shape in legal.items()),
            arrived=f"{name} of shape {tuple(given.shape)}",
            remedy="expand it: `mask.repeat_interleave(heads, 0)` makes (batch, q_len, kv_len) one mask for each head",
        )
