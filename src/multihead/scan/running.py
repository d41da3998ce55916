"""Linear attention one chunk after the other, in place: where nothing asks for gradients, and no channel decays alone.

A chunk of all heads fits into a processor's cache with all that is made of it: only the outputs are as large as the
input.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from multihead.scan import chunked
from multihead.scan.chunked import Prepared
from multihead.scan.decay import Sums, shares
from multihead.scan.followed import unfollowed


def suits(given: Prepared, *state: Tensor | None) -> bool:
    """Whether an input is one for `linear`; otherwise it is one for `chunked.linear`."""
    by_channel = given.logs is not None and given.logs.ndim == 4
    return not by_channel and unfollowed(given.q, given.k, given.v, given.logs, *state)


def linear(
    given: Prepared, state: tuple[Tensor, Tensor | None], *, normalise: bool
) -> tuple[Tensor, tuple[Tensor, Tensor | None]]:
    """Linear attention; the arguments and what is returned are those of `chunked.linear`, outputs in the dtype of q."""
    batch, states, group, length = given.q.shape[:4]
    sizes = (batch, states)
    out = _room(given)
    memory, mass = state[0].flatten(0, 1), None if state[1] is None else state[1].flatten(0, 1)[:, None]
    decays, moving = None, given.logs is not None and given.logs.shape[2] > 1
    chunks = [min(chunked.CHUNK, length - start) for start in range(0, length, chunked.CHUNK)]
    for part, put in zip(given.parts(chunks), out.split(chunks, 3), strict=True):
        k, v = part.k.reshape(-1, *part.k.shape[2:]), part.v.reshape(-1, *part.v.shape[2:])
        q = part.q.reshape(len(k), -1, k.shape[2])
        if part.logs is not None and (decays is None or moving or decays.size != part.length):
            decays = _Decays.of(part.logs.expand(*sizes, part.length).reshape(len(k), -1))
        weights = torch.bmm(q, k.mT).view(len(k), group, part.length, part.length).tril_()
        if decays is not None:
            weights.mul_(decays.between[:, None])
            q = (q.unflatten(1, (group, -1)) * decays.early[:, None]).flatten(1, 2)
        weights = weights.flatten(1, 2)
        heads = torch.bmm(weights, v).baddbmm_(q, memory)
        if mass is not None:
            # A row times a column as rows times rows: the other way round takes five times as long.
            weight = weights.sum(-1, keepdim=True).baddbmm_(q, mass.mT)
            heads.div_(weight.masked_fill_(weight == 0, torch.inf))
        put.copy_(heads.view(put.shape))
        if decays is not None:
            k, memory = k * decays.late, memory * decays.left
            mass = None if mass is None else mass * decays.left
        memory = torch.baddbmm(memory, k.mT, v)
        mass = None if mass is None else mass + k.sum(1, keepdim=True)
    return out, (memory.unflatten(0, sizes), None if mass is None else mass[:, 0].unflatten(0, sizes))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Decays:
    """What is left within a chunk, (rows, ...): from token to token, from the start, to the end, from start to end."""

    between: Tensor
    early: Tensor
    late: Tensor
    left: Tensor

    @property
    def size(self) -> int:
        """Tokens."""
        return self.between.shape[-1]

    @classmethod
    def of(cls, logs: Tensor) -> "_Decays":
        """Of log decays (rows, tokens)."""
        sums = Sums.of(logs, 1)
        last = sums.at(slice(-1, None))
        early = sums.high.exp()[..., None]
        return cls(between=shares(sums), early=early, late=last.since(sums).exp()[..., None], left=early[:, -1:])


def _room(given: Prepared) -> Tensor:
    """Where outputs go, (batch, states, group, length, v_head_dim), in memory as the queries are."""
    q, width = given.q, given.v.shape[3]
    if q.stride(3) > q.stride(1) and q.shape[1] * q.shape[2] > 1:
        return q.new_empty(q.shape[0], q.shape[3], *q.shape[1:3], width).permute(0, 2, 3, 1, 4)
    return q.new_empty(*q.shape[:4], width)
