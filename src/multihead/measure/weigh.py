"""From scores to weights, with everything that falls off on the way: maximum, its place, entropy, sink."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

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
        entropy: -sum A ln A over the keys and the learned sink, in nats.
        sink: Weight of the learned sink, 0 where there is none.
        sees_sunk: Number of keys of the sink it can see.
        sunk: Weight on the keys of the sink.
        left: Weight on all other keys.
        left_entropy: Entropy of what is left as a distribution of its own, times `left`.
    """

    sees: Int[Tensor, "batch heads rows"]
    finite: Bool[Tensor, "batch heads rows"]
    peak: Float[Tensor, "batch heads rows"]
    top: Float[Tensor, "batch heads rows"]
    top_key: Int[Tensor, "batch heads rows"]
    entropy: Float[Tensor, "batch heads rows"]
    sink: Float[Tensor, "batch heads rows"]
    sees_sunk: Int[Tensor, "batch heads rows"]
    sunk: Float[Tensor, "batch heads rows"]
    left: Float[Tensor, "batch heads rows"]
    left_entropy: Float[Tensor, "batch heads rows"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sunk:
    """The keys of the sink among some keys, each with its batch row, and the weights on them.

    Args:
        batch: Row of the batch of each.
        key: Its place among the keys.
        weights: What every query gives to it; nothing before it was weighed.
        seen: Which queries see it; nothing before it was weighed.
    """

    batch: Int[Tensor, " sunk"]
    key: Int[Tensor, " sunk"]
    weights: Float[Tensor, "sunk heads rows"]
    seen: Bool[Tensor, "sunk _ _"]

    def pick(self, values: Float[Tensor, "batch heads rows keys"]) -> Float[Tensor, "sunk heads rows"]:
        """Values at the keys of the sink."""
        return values[self.batch, :, :, self.key]

    def see(self, visible: Bool[Tensor, "_ _ rows keys"]) -> Bool[Tensor, "sunk _ rows"]:
        """Which queries see each of them; the first size of what is given may be 1."""
        return visible[self.batch if visible.shape[0] > 1 else torch.zeros_like(self.batch), :, :, self.key]

    def total(self, values: Tensor, batch: int) -> Tensor:
        """Sum over the keys of each batch row, (batch, *shape)."""
        return values.new_zeros((batch, *values.shape[1:])).index_add_(0, self.batch, values)


def find_sunk(sunk: Bool[Tensor, "_ keys"], batch: int, like: Float[Tensor, "*shape"]) -> Sunk:
    """The keys of the sink, before anything was weighed.

    Args:
        sunk: Which keys belong to the sink; one row where all sequences are alike.
        batch: Number of sequences.
        like: A tensor of the dtype of the weights.
    """
    place, key = sunk.expand(batch, -1).nonzero(as_tuple=True)
    nothing = like.new_zeros((len(key), 0, 0))
    return Sunk(batch=place, key=key, weights=nothing, seen=nothing.bool())


def weigh(
    scores: Float[Tensor, "batch heads rows keys"],
    allowed: Bool[Tensor, "_ _ rows keys"],
    visible: Bool[Tensor, "_ _ rows keys"],
    normaliser: Normaliser,
    sunk: Sunk,
) -> tuple[Float[Tensor, "batch heads rows keys"], Sunk, Rows]:
    """Weights of complete rows of scores, as the model used them: they are not normalised again.

    The weights on the keys of the sink are handed on apart: what is left then needs no subtraction, which would lose
    all digits in a head that rests on its sink.

    Args:
        scores: Scores before the mask; they are overwritten.
        allowed: Which keys the model lets each row see.
        visible: Which of them count: no padding. What others get is set to 0 and not handed on.
        normaliser: How scores become weights.
        sunk: The keys of the sink.

    Returns:
        The weights, 0 on the sink, where a key cannot be seen and in rows that see none or hold NaN; those on the sink;
        and what is known of the rows.
    """
    sees, sunk = visible.sum(-1), replace(sunk, seen=sunk.see(visible))
    peak, top_key = _mask(scores, allowed, full=visible is allowed and bool((sees == scores.shape[-1]).all()))
    if isinstance(normaliser, Softmax) and visible is allowed:
        weights, sunk, found = _softmax(scores, peak, top_key, normaliser, sunk)
    else:
        weights, sunk, found = _any(scores, allowed, visible, normaliser, sunk)
    rows = Rows(
        sees=sees.expand_as(peak),
        finite=peak.isfinite() & found["entropy"].isfinite(),
        sees_sunk=sunk.total(sunk.seen.long(), len(scores)).expand_as(peak),
        **found,
    )
    return _void(weights, sunk, rows)


def join_rows(parts: Sequence[Rows]) -> Rows:
    """Rows of several tiles, one after another."""
    return Rows(**{f.name: torch.cat([getattr(part, f.name) for part in parts], -1) for f in fields(Rows)})


def _void(weights: Tensor, sunk: Sunk, rows: Rows) -> tuple[Tensor, Sunk, Rows]:
    """Takes all weight from rows that hold NaN or see no key."""
    void = ~rows.finite | (rows.sees == 0)
    if not void.any():
        return weights, sunk, rows
    weights.masked_fill_(void[..., None], 0.0)
    sunk = replace(sunk, weights=sunk.weights.masked_fill(void[sunk.batch], 0.0))
    names = ("sunk", "left", "left_entropy")
    return weights, sunk, replace(rows, **{name: getattr(rows, name).masked_fill(void, 0.0) for name in names})


def _mask(scores: Tensor, allowed: Tensor, *, full: bool) -> tuple[Tensor, Tensor]:
    """Puts unseen keys to the floor, in place, and returns the largest score of each row and its place."""
    if not full:
        # Most masks leave many keys to all rows of a tile: only the others are touched.
        shut = (~allowed).flatten(0, 2).any(0).nonzero()
        part = slice(int(shut[0]), int(shut[-1]) + 1) if len(shut) else slice(0, 0)
        scores[..., part].masked_fill_(~allowed[..., part], FLOOR)
    return _largest(scores)


def _softmax(
    scores: Tensor, peak: Tensor, top_key: Tensor, normaliser: Softmax, sunk: Sunk
) -> tuple[Tensor, Sunk, dict[str, Tensor]]:
    """Weights and what is known of their rows. The scores are used up.

    With scores less the row's largest, the log-sum-exp of a row is -ln(largest weight) and its mean score is not large.
    """
    shifted = scores.sub_(peak[..., None])
    weights = torch.softmax(shifted, -1)
    top = weights.gather(-1, top_key[..., None])[..., 0]
    whole, sink, logit = -top.log(), torch.zeros_like(peak), normaliser.sink_logit(peak)
    if logit is not None:
        logit = logit.clamp(min=FLOOR) - peak
        keys, whole = whole, torch.logaddexp(whole, logit)
        sink, rest = torch.exp(logit - whole), torch.exp(keys - whole)
        weights.mul_(rest[..., None])
        top = top * rest
    sunk, below = _set_apart(weights, sunk), sunk.pick(shifted)
    score = shifted.mul_(weights).sum(-1)
    of_sunk = sunk.total(below * sunk.weights, len(scores))
    left = weights.sum(-1)
    return (
        weights,
        sunk,
        {
            "peak": peak,
            "top": top,
            "top_key": top_key,
            "entropy": (whole - score - of_sunk - (0.0 if logit is None else sink * logit)).clamp_(min=0.0),
            "sink": sink,
            "sunk": sunk.total(sunk.weights, len(scores)),
            "left": left,
            "left_entropy": (left * whole - score + torch.xlogy(left, left)).clamp_(min=0.0),
        },
    )


def _any(
    scores: Tensor, allowed: Tensor, visible: Tensor, normaliser: Normaliser, sunk: Sunk
) -> tuple[Tensor, Sunk, dict[str, Tensor]]:
    """The same for any normaliser, and where keys that do not count get weight."""
    settled = normaliser.settle(torch.where(allowed, scores, -torch.inf))
    weights = torch.where(visible, normaliser.weigh(scores, settled), 0.0)
    sink = torch.zeros_like(settled[..., 0])
    logit = normaliser.sink_logit(sink) if isinstance(normaliser, Softmax) else None
    if logit is not None:
        sink = torch.exp(logit - settled[..., 0] - settled[..., 1])
    top, top_key = _largest(weights)
    sunk = _set_apart(weights, sunk)
    left, spread, of_sunk = weights.sum(-1), torch.special.entr(weights).sum(-1), torch.special.entr(sunk.weights)
    return (
        weights,
        sunk,
        {
            "peak": torch.where(visible, scores, FLOOR).amax(-1),
            "top": top,
            "top_key": top_key,
            "entropy": (spread + sunk.total(of_sunk, len(scores)) + torch.special.entr(sink)).clamp_(min=0.0),
            "sink": sink,
            "sunk": sunk.total(sunk.weights, len(scores)),
            "left": left,
            "left_entropy": (spread - torch.special.entr(left)).clamp_(min=0.0),
        },
    )


def _set_apart(weights: Tensor, sunk: Sunk) -> Sunk:
    """Takes the weights on the sink out of the others."""
    picked = sunk.pick(weights)
    weights[sunk.batch, :, :, sunk.key] = 0.0
    return replace(sunk, weights=picked)


def _largest(values: Tensor) -> tuple[Tensor, Tensor]:
    """Largest of each row and its first place: over blocks first, which is several times faster than `max`."""
    blocks = values.shape[-1] // _BLOCK
    if blocks < 4:
        top, place = values.max(-1)
        return top, place
    even = values[..., : blocks * _BLOCK].unflatten(-1, (blocks, _BLOCK))
    top, block = even.amax(-1).max(-1)
    inside = even.gather(-2, block[..., None, None].expand(*block.shape, 1, _BLOCK)).squeeze(-2).argmax(-1)
    place = block * _BLOCK + inside
    if blocks * _BLOCK == values.shape[-1]:
        return top, place
    rest, where = values[..., blocks * _BLOCK :].max(-1)
    return torch.maximum(top, rest), torch.where(rest > top, where + blocks * _BLOCK, place)
