"""From scores to weights, with everything that falls off on the way: maximum, its place, entropy, sink."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from multihead.attend import Normaliser, Softmax

FLOOR = -1e30
"""Score of a key that cannot be seen: finite, so that weight * score is 0 there and not NaN.

Anything lower, such as the lowest number of a dtype in an additive mask, counts as unseen too."""

_BLOCK = 64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows:
    """What is known of each of some query rows.

    Args:
        sees: Number of keys it can see.
        finite: Whether all its scores are finite.
        peak: Its largest score.
        top: Its largest weight.
        top_key: Place of that key, the first of equals.
        entropy: -sum A ln A over the keys and the sink, in nats.
        sink: Weight of the learned sink, 0 where there is none.
    """

    sees: Int[Tensor, "batch heads rows"]
    finite: Bool[Tensor, "batch heads rows"]
    peak: Float[Tensor, "batch heads rows"]
    top: Float[Tensor, "batch heads rows"]
    top_key: Int[Tensor, "batch heads rows"]
    entropy: Float[Tensor, "batch heads rows"]
    sink: Float[Tensor, "batch heads rows"]


def weigh(
    scores: Float[Tensor, "batch heads rows keys"],
    allowed: Bool[Tensor, "_ _ rows keys"],
    visible: Bool[Tensor, "_ _ rows keys"],
    normaliser: Normaliser,
) -> tuple[Float[Tensor, "batch heads rows keys"], Rows]:
    """Weights of complete rows of scores, as the model used them: they are not normalised again.

    Args:
        scores: Scores before the mask; they are overwritten.
        allowed: Which keys the model lets each row see.
        visible: Which of them count: no padding. What others get is set to 0 and not handed on.
        normaliser: How scores become weights.

    Returns:
        The weights, 0 where a key cannot be seen and in rows that see none or hold NaN; and what is known of the rows.
    """
    sees = visible.sum(-1)
    peak = _mask(scores, allowed, full=visible is allowed and bool((sees == scores.shape[-1]).all()))
    real_peak = peak if visible is allowed else torch.where(visible, scores, FLOOR).amax(-1)
    if isinstance(normaliser, Softmax):
        weights, top, top_key, entropy, sink = _softmax(scores, peak, normaliser)
    else:
        settled = normaliser.settle(torch.where(allowed, scores, -torch.inf))
        weights = torch.where(allowed, normaliser.weigh(scores, settled), 0.0)
        entropy, sink = torch.special.entr(weights).sum(-1), torch.zeros_like(peak)
        top, top_key = _largest(weights)
    finite = peak.isfinite() & entropy.isfinite()
    void = ~finite | (sees == 0)
    if void.any():
        weights.masked_fill_(void[..., None], 0.0)
    if visible is not allowed:
        weights = torch.where(visible, weights, 0.0)
        entropy = torch.special.entr(weights).sum(-1) + torch.special.entr(sink)
        top, top_key = _largest(weights)
    return weights, Rows(
        sees=sees.expand_as(peak),
        finite=finite,
        peak=real_peak,
        top=top,
        top_key=top_key,
        entropy=entropy.clamp_(min=0.0),
        sink=sink,
    )


def join_rows(parts: Sequence[Rows]) -> Rows:
    """Rows of several tiles, one after another."""
    return Rows(**{f.name: torch.cat([getattr(part, f.name) for part in parts], -1) for f in fields(Rows)})


def _mask(scores: Tensor, allowed: Tensor, *, full: bool) -> Tensor:
    """Puts unseen keys to the floor, in place, and returns the largest score of each row."""
    if not full:
        shut = torch.zeros(allowed.shape, dtype=scores.dtype, device=scores.device).masked_fill_(~allowed, FLOOR)
        scores.add_(shut).clamp_(min=FLOOR)
    peak = scores.amax(-1)
    if not peak.isfinite().all():
        # NaN plus the floor is NaN: what a row cannot see must not reach it.
        scores.masked_fill_(~allowed, FLOOR)
        peak = scores.amax(-1)
    return peak


def _softmax(scores: Tensor, peak: Tensor, normaliser: Softmax) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Weights, the largest with its place, entropy and sink. The scores are used up.

    With scores less the row's largest, the log-sum-exp of a row is -ln(largest weight) and its mean score is not large.
    """
    shifted = scores.sub_(peak[..., None])
    weights = torch.softmax(shifted, -1)
    top, top_key = _largest(weights)
    total = -top.log()
    logit = normaliser.sink_logit(peak)
    if logit is None:
        return weights, top, top_key, total - shifted.mul_(weights).sum(-1), torch.zeros_like(peak)
    logit = logit.clamp(min=FLOOR) - peak
    whole = torch.logaddexp(total, logit)
    sink, rest = torch.exp(logit - whole), torch.exp(total - whole)
    weights.mul_(rest[..., None])
    return weights, top * rest, top_key, whole - shifted.mul_(weights).sum(-1) - sink * logit, sink


def _largest(weights: Tensor) -> tuple[Tensor, Tensor]:
    """Largest weight of each row and its first place: over blocks first, which is several times faster than `max`."""
    blocks = weights.shape[-1] // _BLOCK
    if blocks < 4:
        top, place = weights.max(-1)
        return top, place
    even = weights[..., : blocks * _BLOCK].unflatten(-1, (blocks, _BLOCK))
    top, block = even.amax(-1).max(-1)
    inside = even.gather(-2, block[..., None, None].expand(*block.shape, 1, _BLOCK)).squeeze(-2).argmax(-1)
    place = block * _BLOCK + inside
    if blocks * _BLOCK == weights.shape[-1]:
        return top, place
    rest, where = weights[..., blocks * _BLOCK :].max(-1)
    return torch.maximum(top, rest), torch.where(rest > top, where + blocks * _BLOCK, place)
