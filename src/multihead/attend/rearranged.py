"""Attention put in another order first, so that what no head looks at is not computed either.

Kernels that work in tiles take all heads at once: a tile that one head sees is computed for all. And a mask of every
s-th key touches every tile, though a row sees a key in s: the strided Sparse Transformer's promise needs the sequence
in another order (Child et al. 2019, arXiv 1904.10509, section 4.2). Here heads with the same mask go together, and
tokens with the same remainder by s: among those the mask is a plain window again, and the s short sequences are so many
batch rows. Rows see the keys that they saw, so that weights and the log-sum-exp are the same. Only what is indexed and
viewed is done here, which autograd follows; the parts are run by the backends for dense masks.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from multihead.attend import sdpa, tiled
from multihead.attend.normaliser import Softmax
from multihead.attend.order import hidden
from multihead.attend.problem import Problem
from multihead.pattern import Pattern, band, causal, padding, sliding_window
from multihead.pattern.algebra import And
from multihead.pattern.heads import PerHead
from multihead.pattern.law import Bounds
from multihead.pattern.spaced import Spaced

NAME = "rearranged"
TOLERANCE = sdpa.TOLERANCE


def why_not(problem: Problem) -> list[str]:
    """Every reason against it, in words; none if it can run the problem."""
    reasons = [f"it has no {what}" for what in hidden(problem)]
    parts = _parts_of(problem)
    if len(parts) == 1 and parts[0].step == 1:
        reasons.append("it is for masks that differ by head, or are of every n-th key, alone or in a window")
    if any(part.step > 1 for part in parts) and (problem.q_len != problem.kv_len or problem.q_offset):
        reasons.append("every n-th key of other positions than those of the queries")
    if not isinstance(problem.normaliser, Softmax):
        reasons.append(f"it has softmax only, not {problem.normaliser}")
    if problem.bias is not None:
        reasons.append("it has no bias")
    if problem.dropout > 0:
        reasons.append("it has no dropout")
    if 0 in (*problem.q.shape, *problem.v.shape):
        reasons.append("there is nothing to put in order: a size is 0")
    return reasons


def how(problem: Problem) -> str:
    """What runs, in words."""
    told: list[str] = []
    for part in _parts_of(problem):
        made = part.problem(problem)
        classes = f"{part.step} remainders of up to {made.q_len} tokens, " if part.step > 1 else ""
        inner = tiled.how(made) if sdpa.why_not(made) else sdpa.how(made)
        told.append(f"{len(part.heads)} heads: {classes}{inner}")
    return "; ".join(told)


def run(problem: Problem) -> tuple[Tensor, Tensor]:
    """Output (batch, heads, q_len, v_head_dim) and log-sum-exp (batch, heads, q_len); gradients as of the parts."""
    parts = _parts_of(problem)
    found = [part.run(problem) for part in parts]
    if len(parts) == 1:
        return found[0]
    place = torch.tensor([head for part in parts for head in part.heads]).argsort().to(problem.q.device)
    out, lse = (torch.cat(each, 1).index_select(1, place) for each in zip(*found, strict=True))
    return out, lse


@dataclass(frozen=True, slots=True)
class _Part:
    """Heads that have the same mask.

    Args:
        heads: Which, rising.
        mask: Their mask.
        step: Where above 1, the mask is of keys whose distance is a multiple of it.
        bounds: And within these, of `Pattern.window`.
    """

    heads: tuple[int, ...]
    mask: Pattern | Tensor | None
    step: int
    bounds: Bounds

    def run(self, whole: Problem) -> tuple[Tensor, Tensor]:
        """Output and log-sum-exp of these heads."""
        made = self.problem(whole)
        out, lse = tiled.run(made) if sdpa.why_not(made) else sdpa.run(made)
        assert lse is not None  # as with every softmax
        if self.step == 1:
            return out, lse
        return _in_order(out, self.step, whole.q_len), _in_order(lse[..., None], self.step, whole.q_len)[..., 0]

    def problem(self, whole: Problem) -> Problem:
        """The problem of these heads, in the order in which it is run."""
        q, k, v = self._picked(whole)
        normaliser = whole.normaliser
        assert isinstance(normaliser, Softmax)
        if normaliser.sinks is not None:
            normaliser = replace(normaliser, sinks=normaliser.sinks[list(self.heads)])
        if self.step == 1:
            return replace(whole, q=q, k=k, v=v, mask=self.mask, normaliser=normaliser)
        q, k, v = (_by_remainder(x, self.step) for x in (q, k, v))
        return replace(whole, q=q, k=k, v=v, mask=self._among_remainders(whole), normaliser=normaliser, q_offset=0)

    def _picked(self, whole: Problem) -> tuple[Tensor, Tensor, Tensor]:
        """Queries of these heads, and the keys and values that they share."""
        if len(self.heads) == whole.heads:
            return whole.q, whole.k, whole.v
        kv = [head // whole.group for head in self.heads]
        shared = sorted(set(kv))
        each = len(kv) // len(shared)
        # Groups that are cut, each elsewhere, get a key head for each of their queries.
        kv = shared if kv == [head for head in shared for _ in range(each)] else kv
        heads, kv = (torch.tensor(index, device=whole.q.device) for index in (self.heads, kv))
        return whole.q.index_select(1, heads), whole.k.index_select(1, kv), whole.v.index_select(1, kv)

    def _among_remainders(self, whole: Problem) -> Pattern | None:
        """The mask in steps, of each remainder as a batch row."""
        left, right = (None if bound is None else bound // self.step for bound in self.bounds)
        if right == 0:
            # What was added at the end is later than all queries that count.
            return causal() if left is None else sliding_window(left + 1)
        places = torch.arange(self.step)[:, None] + torch.arange(-(-whole.kv_len // self.step)) * self.step
        there = padding((places < whole.kv_len).repeat(whole.batch, 1)) if whole.kv_len % self.step else None
        if left is None or right is None:
            return there
        return band(left, right) if there is None else band(left, right) & there


def _parts_of(problem: Problem) -> list[_Part]:
    """Heads by their masks."""
    mask, every, length = problem.mask, tuple(range(problem.heads)), problem.q_len
    if not isinstance(mask, PerHead):
        return [_part(every, mask, length)]
    if len(mask.parts) == 1:  # one for all
        return [_part(every, mask.parts[0], length)]
    together: dict[Pattern, list[int]] = {}
    for head, each in enumerate(mask.parts):
        together.setdefault(each, []).append(head)
    return [_part(tuple(heads), each, length) for each, heads in together.items()]


def _part(heads: tuple[int, ...], mask: Pattern | Tensor | None, length: int) -> _Part:
    spaced = _spaced(mask)
    if spaced is None:
        return _Part(heads, mask, 1, (None, None))
    # Beyond the length all steps are alike: a token is alone. Each remainder takes a batch row, also an empty one.
    return _Part(heads, mask, min(spaced.step, max(length, 2)), spaced.bounds)


class _Spacing(NamedTuple):
    step: int
    bounds: Bounds


def _spaced(mask: Pattern | Tensor | None) -> _Spacing | None:
    """Step and bounds of every n-th key in a window; None for any other mask."""
    if not isinstance(mask, Pattern):
        return None
    parts = mask.parts if isinstance(mask, And) else (mask,)
    steps = [part for part in parts if isinstance(part, Spaced) and part.step > 1]
    windows = [part.reach if part in steps else part.window for part in parts]
    if len(steps) != 1 or any(window is None for window in windows):
        return None
    left, right = (_least([window[side] for window in windows if window is not None]) for side in (0, 1))
    one_sided = (left is None) != (right is None) and right != 0
    if one_sided or any(bound is not None and bound < 0 for bound in (left, right)):
        return None
    return _Spacing(steps[0].step, (left, right))


def _least(bounds: list[int | None]) -> int | None:
    return min((bound for bound in bounds if bound is not None), default=None)


def _by_remainder(x: Tensor, step: int) -> Tensor:
    """(batch, heads, tokens, dim) as (batch * step, heads, tokens / step, dim), zeros at the end where one is short."""
    x = pad(x, (0, 0, 0, -x.shape[2] % step))
    apart = x.unflatten(2, (-1, step)).permute(0, 3, 1, 2, 4)
    return apart.reshape(-1, *apart.shape[2:])


def _in_order(x: Tensor, step: int, length: int) -> Tensor:
    """What `_by_remainder` took apart."""
    return x.unflatten(0, (-1, step)).permute(0, 2, 3, 1, 4).flatten(2, 3)[:, :, :length]
