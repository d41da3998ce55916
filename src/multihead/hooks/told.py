"""From what was seen of a module's own attention to a call that can be told."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from multihead.hooks.lineage import SHUT, Product, Weights
from multihead.hooks.tap import OwnCall

_SOFTMAX = "softmax (fallback)"
# Rows in which scores that were put together again are compared with those of the model.
_ROWS = 16
_SDPA = "scaled_dot_product_attention (fallback)"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Told:
    """A call, or why there is none."""

    call: OwnCall | None = None
    reason: str = ""


def told_scores(weights: Weights, values: Tensor, batch: int) -> Told:
    """The call behind weights and the values they were multiplied with.

    Queries and keys are told where their product, scaled and added to, gives the scores the softmax got. Where it does
    not (relative terms that were rounded, scores that were changed in between), the scores themselves are the bias of a
    problem whose queries and keys have no dimensions: weights are then those of the model all the same.
    """
    scores, v = _apart(weights.scores, batch), _apart(values, batch)
    heads, kv_len = scores.shape[1], scores.shape[3]
    if v.shape[0] not in (1, batch) or v.shape[1] not in (1, heads) or v.shape[2] != kv_len:
        return Told(reason=f"weights of shape {tuple(scores.shape)} are multiplied with values {tuple(v.shape)}")
    void = None if weights.void is None else _apart(weights.void[..., None], batch)
    product = None if weights.product is None else _product(weights.product, scores, batch)
    if product is not None:
        q, k, scale, mask, bias = product
        k, v = _alike(k, batch, heads), _alike(v, batch, heads)
        wide = torch.promote_types(torch.promote_types(q.dtype, k.dtype), v.dtype)
        return Told(
            call=OwnCall(
                kernel=_SOFTMAX,
                q=q.to(wide),
                k=k.to(wide),
                v=v.to(wide),
                mask=_less(mask, void),
                bias=bias,
                scale=scale,
                dropout=weights.dropout,
            )
        )
    v = _alike(v, batch, heads)
    shut = scores <= SHUT
    mask = ~shut if bool(shut.any()) else None
    return Told(
        call=OwnCall(
            kernel=_SOFTMAX,
            q=v.new_empty(*scores.shape[:3], 0),
            k=v.new_empty(*v.shape[:3], 0),
            v=v,
            mask=_less(mask, void),
            bias=scores.masked_fill(shut, 0.0) if mask is not None else scores,
            dropout=weights.dropout,
        )
    )


def told_sdpa(given: Mapping[str, Any], batch: int) -> Told:
    """The call of torch's `scaled_dot_product_attention`.

    Args:
        given: Its arguments by name.
        batch: Number of sequences in it.
    """
    q, k, v = (_apart(given[name], batch) for name in ("query", "key", "value"))
    heads = q.shape[1]
    grouped = bool(given.get("enable_gqa"))
    if not grouped:
        k, v = (_alike(t, batch, heads) if t.shape[1] == 1 else t for t in (k, v))
    mask, bias = given.get("attn_mask"), None
    if mask is not None:
        mask = _apart(mask, batch) if mask.ndim == given["query"].ndim else mask[(None,) * (4 - mask.ndim)]
        if mask.dtype != torch.bool:
            mask, bias = _split(mask)
    return Told(
        call=OwnCall(
            kernel=_SDPA,
            q=q,
            k=k,
            v=v,
            mask=mask,
            bias=bias,
            scale=q.shape[-1] ** -0.5 if given.get("scale") is None else float(given["scale"]),
            dropout=float(given.get("dropout_p") or 0.0),
            causal=bool(given.get("is_causal")),
        )
    )


def _apart(tensor: Tensor, batch: int) -> Tensor:
    """Batch and heads as two dimensions; a first size of 1 stands for both."""
    if tensor.ndim == 4:
        return tensor
    return tensor[None] if tensor.shape[0] == 1 else tensor.unflatten(0, (batch, -1))


def _alike(tensor: Tensor, batch: int, heads: int) -> Tensor:
    """The whole batch; and all heads, so that keys and values have as many."""
    return tensor.expand(batch, heads, -1, -1)


def _less(mask: Tensor | None, void: Tensor | None) -> Tensor | None:
    """A mask without the rows that were emptied."""
    if void is None or not bool(void.any()):
        return mask
    return ~void if mask is None else mask & ~void


def _split(added: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """What is added to scores, taken apart: True = attend, and a bias where anything else is left."""
    shut = added <= SHUT
    rest = added.masked_fill(shut, 0.0)
    return ~shut if bool(shut.any()) else None, rest if bool((rest != 0).any()) else None


def _product(
    product: Product, scores: Tensor, batch: int
) -> tuple[Tensor, Tensor, float, Tensor | None, Tensor | None] | None:
    """Queries, keys, scale, mask and bias, if they give the scores; each term still has the shape it was added in."""
    if product.scale == 0 or not _fits(product, scores, batch):
        return None
    q, k = _apart(product.q, batch), _apart(product.k, batch)
    mask: Tensor | None = None
    bias: Tensor | None = None
    # One by one: each term may hold one row, or one head, for all.
    for factor, term in product.added:
        each = _apart(term, batch).to(scores.dtype)
        open_here, rest = _split(each * factor if factor != 1 else each)
        mask = open_here if mask is None else mask if open_here is None else mask & open_here
        bias = rest if bias is None else bias if rest is None else bias + rest
    for shut in product.shut:
        mask = ~_apart(shut, batch) if mask is None else mask & ~_apart(shut, batch)
    q = q.expand(*scores.shape[:2], -1, -1)
    parts = q, k, product.scale, mask, bias
    return parts if _are_those(scores, *parts) else None


def _fits(product: Product, scores: Tensor, batch: int) -> bool:
    sizes = product.q.shape[:-2].numel(), product.q.shape[-2], product.k.shape[-2]
    keys = product.k.shape[:-2].numel()
    whole = scores.shape[0] * scores.shape[1]
    return sizes == (whole, *scores.shape[2:]) and keys in (1, batch, whole) and product.q.shape[-1] > 0


def _are_those(scores: Tensor, q: Tensor, k: Tensor, scale: float, mask: Tensor | None, bias: Tensor | None) -> bool:
    """Whether scores that were put together again are those of the model, as exactly as its dtype tells.

    A function that was taken for another shows in every row, so some rows are enough.
    """
    length = scores.shape[2]
    rows = torch.linspace(0, length - 1, min(length, _ROWS), device=scores.device).round().long()
    wide = torch.promote_types(torch.float32, q.dtype)
    found = q[:, :, rows].to(wide) @ k.to(wide).transpose(-1, -2) * scale
    found = found if bias is None else found + _cut(bias, rows)
    want = scores[:, :, rows]
    hidden = want <= SHUT
    shut = torch.zeros_like(hidden) if mask is None else (~_cut(mask, rows)).expand_as(hidden)
    want = want.masked_fill(hidden, 0.0)
    slack = max(1e-5, 8 * torch.finfo(scores.dtype).eps) * (1 + want.abs().amax(-1, keepdim=True))
    return torch.equal(shut, hidden) and bool(((found - want).abs() <= slack).logical_or(hidden).all())


def _cut(given: Tensor, rows: Tensor) -> Tensor:
    """Some rows of a mask or bias that may have one for all."""
    return given if given.shape[2] == 1 else given[:, :, rows]
