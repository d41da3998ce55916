"""A learned indexer: small heads score every key, and each query attends to the best of them."""

import sys
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from types import NoneType

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from multihead.attend.problem import Problem, make_problem
from multihead.attend.selector.asked import best, check_no_graph
from multihead.attend.selector.base import Selector
from multihead.attend.tile import Band, bands
from multihead.error import MultiheadError, check_kinds
from multihead.pattern import Pattern
from multihead.pattern.chosen import chosen_bits, packed

_TARGET = 2**22  # scores of a block, over all batch rows and heads
_AT_ONCE = 2**19  # scores that are made together to choose by: what caches hold


@dataclass(frozen=True, slots=True)
class Indexer(Selector):
    """The `budget` keys of each query that score highest, the same for all heads (DeepSeek-AI 2025, arXiv:2512.02556).

    `I[t, s] = sum_j weights[t, j] * relu(scale * q_j[t] . k[s])`, j the index heads, which share one key a token. Of
    keys with equal scores the earliest are taken. A query that may see no more than `budget` keys gets all of them.
    It costs O(q_len * kv_len) as attention does, but with few and narrow heads; what it saves comes behind it.

    Args:
        budget: Keys a query attends to.
        weights: Of the index heads at each query, (batch, heads, q_len); None weighs all alike.
        scale: Factor of the products; None is head_dim ** -0.5.

    Raises:
        MultiheadError: A budget that is no whole number of at least 1, weights that are no tensor, a scale that is no
            finite number.

    Example:
        >>> q, k = torch.randn(1, 4, 10, 8), torch.randn(1, 1, 10, 8)
        >>> chosen = Indexer(3).select(q, k, mask=causal())
        >>> chosen.mask(10, 10).sum(-1).max()
        tensor(3)
    """

    budget: int
    _: KW_ONLY
    weights: Float[Tensor, "batch heads q_len"] | None = None
    scale: float | None = None

    def __post_init__(self) -> None:
        check_budget("Indexer", self.budget)
        check_kinds({"weights": self.weights}, (Tensor, NoneType), "a tensor (batch, heads, q_len), or None")
        number = isinstance(self.scale, int | float) and not isinstance(self.scale, bool)
        # Compared, as a whole number may be greater than all floats.
        if self.scale is not None and not (number and abs(self.scale) <= sys.float_info.max):
            raise MultiheadError(
                asked="Indexer(scale=...): a finite number, or None",
                arrived=f"scale={self.scale!r}"[:200],
                remedy="leave it out for head_dim ** -0.5",
            )

    def scores(
        self,
        q: Float[Tensor, "batch heads q_len head_dim"],
        k: Float[Tensor, "batch 1 kv_len head_dim"],
        rows: slice = slice(None),
    ) -> Float[Tensor, "batch rows kv_len"]:
        """I of some queries, in float32 or wider; gradients flow.

        Args:
            q: Index queries.
            k: Index keys.
            rows: Which queries.
        """
        wide = torch.promote_types(q.dtype, torch.float32)
        scale = max(q.shape[-1], 1) ** -0.5 if self.scale is None else self.scale
        some, keys = q[:, :, rows].to(wide) * scale, k[:, 0].to(wide).mT
        weights = torch.ones_like(some[..., 0]) if self.weights is None else self.weights[:, :, rows].to(wide)
        # One head after the other: the products of all would be as many numbers more, written and read again.
        total = some.new_zeros(some.shape[0], some.shape[2], keys.shape[2])
        for head in range(some.shape[1]):
            total.addcmul_(torch.relu_(some[:, head] @ keys), weights[:, head, :, None])
        return total

    def select(
        self,
        q: Float[Tensor, "batch heads q_len head_dim"],
        k: Float[Tensor, "batch kv_heads kv_len head_dim"],
        *,
        mask: Pattern | Bool[Tensor, "..."] | None = None,
        q_offset: int | None = None,
    ) -> Pattern:
        """The best keys of each query: `attention(q, k, v, mask=mask & chosen)`, of other queries and keys than these.

        Args:
            q: Index queries.
            k: Index keys, of one head.
            mask: What may be chosen, alike for all heads.
            q_offset: Position of the first query.

        Raises:
            MultiheadError: Shapes that do not belong together, several heads of keys, a mask that differs by head.
        """
        check_no_graph("an indexer")
        self._check(q, k)
        problem = make_problem(q[:, :1], k, k, mask=mask, q_offset=q_offset)
        height = max(1, _AT_ONCE // max(problem.batch * problem.kv_len, 1))
        k = k.to(problem.wide)  # once, not for each band
        with torch.no_grad():
            words = [self._picked(q, k, problem, band) for band in bands(problem, height)]
        bits = torch.cat(words, 2) if words else torch.zeros(q.shape[0], 1, 0, -(-k.shape[2] // 64), dtype=torch.int64)
        return chosen_bits(bits, kv_len=k.shape[2], first=q_offset or 0)

    def _picked(self, q: Tensor, k: Tensor, problem: Problem, band: Band) -> Int[Tensor, "batch 1 rows words"]:
        """What some queries chose; the keys that none of them may choose are left out."""
        scores = self.scores(q, k[:, :, band.cols], band.rows)[:, None]
        allowed = problem.allowed(band.rows, band.cols) if band.masked else None
        if allowed is not None:
            scores.masked_fill_(~allowed, -torch.inf)
        found = best(scores, self.budget)
        if found.shape[3] == problem.kv_len:
            return packed(found)
        inside = torch.zeros(*found.shape[:3], problem.kv_len, dtype=torch.bool, device=found.device)
        inside[..., band.cols] = found
        return packed(inside)

    def divergence(
        self,
        q: Float[Tensor, "batch heads q_len head_dim"],
        k: Float[Tensor, "batch 1 kv_len head_dim"],
        attended: Problem,
    ) -> Float[Tensor, ""]:
        """The mean over queries of `KL(p[t] || softmax(I[t]))`, by which an indexer learns what attention looks at.

        p is the weights of all heads, added and divided by their sum, without a gradient; both are over the keys that
        the problem allows. It is computed a block of queries at a time, and again for the gradient: no (q_len, kv_len)
        numbers are kept.

        Args:
            q: Index queries.
            k: Index keys.
            attended: The attention whose weights are to be met.

        Raises:
            MultiheadError: Shapes that do not belong together.
        """
        self._check(q, k)
        if (attended.batch, attended.q_len, attended.kv_len) != (q.shape[0], q.shape[2], k.shape[2]):
            raise MultiheadError(
                asked=f"index queries and keys for attention of batch {attended.batch}, {attended.q_len} queries and "
                f"{attended.kv_len} keys",
                arrived=f"q {tuple(q.shape)}, k {tuple(k.shape)}",
                remedy="make them of the same tokens",
            )
        total, count = q.new_zeros((), dtype=torch.promote_types(q.dtype, torch.float32)), 0
        for rows in blocks(q, k, attended.heads):
            part, seen = checkpoint(self._diverging, q, k, attended, rows, use_reentrant=False)
            total, count = total + part, count + seen
        return total / max(int(count), 1)

    def _diverging(self, q: Tensor, k: Tensor, attended: Problem, rows: slice) -> tuple[Tensor, Tensor]:
        """The sum over some queries, and how many of them see a key."""
        index = torch.arange(rows.start, rows.stop, device=q.device)
        with torch.no_grad():
            scores = attended.scores(index)
            weights = attended.normaliser.weigh(scores, attended.normaliser.settle(scores)).sum(1)
            mass = weights.sum(-1, keepdim=True)
            target = weights / mass.where(mass > 0, 1.0)
            seen = (scores > -torch.inf).any(1)
        found = self.scores(q, k, rows).where(seen, -torch.inf)
        empty = ~seen.any(-1, keepdim=True)
        logs = torch.log_softmax(found.where(~empty, 0.0), -1).where(seen, 0.0)
        # 0 log 0 is 0; what is not seen has no weight.
        return (torch.xlogy(target, target) - target * logs.to(target)).sum(), (mass > 0).sum()

    def _check(self, q: Tensor, k: Tensor) -> None:
        alike = q.shape[0] == k.shape[0] and q.shape[-1] == k.shape[-1] and k.shape[1] == 1
        weights = self.weights
        if weights is not None:
            alike = alike and weights.shape == q.shape[:3] and weights.device == q.device and not weights.is_complex()
        if not alike:
            told = "" if weights is None else f", weights {tuple(weights.shape)} {weights.dtype} on {weights.device}"
            raise MultiheadError(
                asked="index queries (batch, heads, q_len, head_dim), keys (batch, 1, kv_len, head_dim) and weights "
                "(batch, heads, q_len), real numbers on one device",
                arrived=f"q {tuple(q.shape)} on {q.device}, k {tuple(k.shape)}{told}",
                remedy="give all index heads one key a token, and each of them a weight at each query",
            )


def blocks(q: Tensor, k: Tensor, more: int = 0) -> Iterator[slice]:
    """Queries a few at a time, so that their scores take a bounded memory.

    Args:
        q: Queries (batch, heads, q_len, head_dim).
        k: Keys (batch, 1, kv_len, head_dim).
        more: Heads besides those of the queries.
    """
    height = max(_TARGET // max(q.shape[0] * (q.shape[1] + more) * k.shape[2], 1), 1)
    return (slice(first, min(first + height, q.shape[2])) for first in range(0, q.shape[2], height))


def check_budget(what: str, budget: object) -> None:
    """Refuses a budget that is no whole number of at least 1.

    Args:
        what: Whose it is.
        budget: How many keys.
    """
    if not isinstance(budget, int) or isinstance(budget, bool) or budget < 1:
        raise MultiheadError(
            asked=f"{what}(budget=...): how many keys a query attends to, at least 1",
            arrived=f"budget={budget!r}"[:200],
            remedy="for example budget=2048; a budget of all keys is plain attention",
        )
