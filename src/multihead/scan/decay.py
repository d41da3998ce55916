"""Decays between the tokens of a chunk, and from chunk to chunk: every exponent is at most 0."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

# Chunks that are taken together in one product when states go from chunk to chunk.
_TOGETHER = 16
# Up to so many tokens every pair is looked at by itself where each channel decays in its own way.
_PAIRS = 4


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums of log decays from the start of a chunk; in two parts, so that their differences are exact to the last bits.

    After a strong decay, such as the start of a document, a sum is large, and the small differences behind it matter.

    Args:
        high: The sums, rounded.
        low: What the rounding took away.
    """

    high: Tensor
    low: Tensor | None

    @classmethod
    def of(cls, logs: Tensor, dim: int) -> "Sums":
        """Sums along a dimension, each with its own token."""
        sums = logs.double().cumsum(dim)
        high = sums.to(logs.dtype)
        return cls(high, None if high.dtype == torch.float64 else (sums - high).detach().to(logs.dtype))

    def at(self, *index: object) -> "Sums":
        """Some of them."""
        place = (..., *index)
        return Sums(self.high[place], None if self.low is None else self.low[place])  # pyright: ignore[reportArgumentType]

    def since(self, earlier: "Sums") -> Tensor:
        """Log decay from `earlier` up to these."""
        told = self.high - earlier.high
        return told if self.low is None or earlier.low is None else told + (self.low - earlier.low)


def floor_of(dtype: torch.dtype) -> float:
    """A log decay of which nothing is left in this dtype: what -inf and the start of a document are taken for."""
    return -750.0 if dtype == torch.float64 else -110.0


def scores(q: Tensor, k: Tensor, sums: Sums | None) -> Tensor:
    """`q_i . D_ij k_j` for j <= i within each chunk, 0 for later keys.

    Args:
        q: (..., group, chunk, head_dim).
        k: (..., chunk, head_dim).
        sums: Of the decays, (..., chunk) or (..., chunk, head_dim); None for no decay.

    Returns:
        (..., group, chunk, chunk).
    """
    if sums is not None and sums.high.shape[-1] == k.shape[-1] and sums.high.ndim == k.ndim:
        return _by_channel(q, k, sums)
    # Cut off before anything is multiplied: with a later token that overflows, its share of 0 would be no number.
    products = (q.flatten(-3, -2) @ k.mT).unflatten(-2, q.shape[-3:-1]).tril()
    return products if sums is None else products * shares(sums)[..., None, :, :]


def shares(sums: Sums) -> Tensor:
    """What is left from token j to token i of a chunk, 0 for later ones: (..., chunk, chunk) of sums (..., chunk)."""
    chunk = sums.high.shape[-1]
    later = torch.ones(chunk, chunk, dtype=torch.bool, device=sums.high.device).triu(1)
    logs = sums.at(slice(None), None).since(sums.at(None, slice(None)))
    return logs.masked_fill(later, -torch.inf).exp()


def _by_channel(q: Tensor, k: Tensor, sums: Sums) -> Tensor:
    """Where each channel decays in its own way: halves of halves.

    The second half of a chunk looks at the first through the decay up to the border and the decay from it on, both at
    most 1; within the halves it is the same again.
    """
    chunk = k.shape[-2]
    if chunk <= _PAIRS:
        later = torch.ones(chunk, chunk, dtype=torch.bool, device=q.device).triu(1)
        logs = sums.at(slice(None), None, slice(None)).since(sums.at(None, slice(None), slice(None)))
        decayed = logs.masked_fill(later[..., None], -torch.inf).exp() * k[..., None, :, :]
        return (decayed[..., None, :, :, :] @ q[..., None])[..., 0]
    half = (chunk + 1) // 2
    border = sums.at(slice(half - 1, half), slice(None))
    first, second = sums.at(slice(0, half), slice(None)), sums.at(slice(half, None), slice(None))
    reads = q[..., half:, :] * second.since(border).exp()[..., None, :, :]
    writes = k[..., :half, :] * border.since(first).exp()
    across = reads @ writes[..., None, :, :].mT
    above = _by_channel(q[..., :half, :], k[..., :half, :], first)
    below = _by_channel(q[..., half:, :], k[..., half:, :], second)
    return torch.cat([pad(above, (0, chunk - half)), torch.cat([across, below], -1)], -2)


def carried(steps: Tensor, logs: Tensor, first: Tensor) -> Tensor:
    """`s_0 = first`, `s_{n+1} = exp(logs_n) s_n + steps_n`: all of s_0, ..., s_count.

    Args:
        steps: (..., count, numbers).
        logs: (..., count), at most 0.
        first: (..., numbers).

    Returns:
        (..., count + 1, numbers).
    """
    count = steps.shape[-2]
    if count <= _TOGETHER:
        return _together(steps, logs, first)
    groups = -(-count // _TOGETHER)
    spare = groups * _TOGETHER - count
    steps = pad(steps, (0, 0, 0, spare)).unflatten(-2, (groups, _TOGETHER))
    logs = pad(logs, (0, spare)).unflatten(-1, (groups, _TOGETHER))
    sums = Sums.of(logs, -1)
    to_end = sums.at(slice(-1, None)).since(sums).exp()
    ends = (to_end[..., None, :] @ steps)[..., 0, :]
    starts = carried(ends, sums.at(-1).high, first)
    inner = _together(steps, logs, starts[..., :-1, :])[..., :-1, :]
    return torch.cat([inner.flatten(-3, -2)[..., :count, :], starts[..., -1:, :]], -2)


def _together(steps: Tensor, logs: Tensor, first: Tensor) -> Tensor:
    """The same, by one product."""
    count = steps.shape[-2]
    sums = Sums.of(pad(logs, (1, 0)), -1)
    unseen = torch.ones(count + 1, count, dtype=torch.bool, device=steps.device).triu(0)
    between = sums.at(slice(None), None).since(sums.at(None, slice(1, None)))
    weights = between.masked_fill(unseen, -torch.inf).exp()
    return weights @ steps + sums.high.exp()[..., None] * first[..., None, :]
