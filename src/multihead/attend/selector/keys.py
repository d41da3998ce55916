"""The selector of single keys by their exact scores."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from multihead.attend.problem import Problem
from multihead.attend.selector.asked import asked, best, check_budget, check_no_graph, height
from multihead.attend.selector.base import Selector
from multihead.attend.tile import Band, bands
from multihead.pattern import Pattern
from multihead.pattern.chosen import chosen_bits, packed


@dataclass(frozen=True, slots=True)
class TopKeys(Selector):
    """Each query attends to the keys with its greatest scores `q . k`, exactly `budget` of them where it sees as many.

    Of equal scores the key that comes first is taken. Every score is computed, so that choosing costs as much as
    attention does: it is what other selectors are measured against (Gupta et al. 2021, "Memory-efficient Transformers
    via Top-k Attention"), and the sharpest baseline of sparse attention. Scores are made a band of queries at a time;
    a choice is kept as a bit for each pair. A position bias has no part in it.

    Args:
        budget: Keys that a query attends to.

    Raises:
        MultiheadError: A budget that is no whole number of at least 1.

    Example:
        >>> q, k = torch.randn(2, 1, 4, 100, 32)
        >>> TopKeys(8).select(q, k).mask(100, 100).sum(-1).unique()
        tensor([8])
    """

    budget: int

    def __post_init__(self) -> None:
        check_budget("TopKeys(budget)", self.budget, "keys")

    @torch.no_grad()
    def select(
        self,
        q: Float[Tensor, "batch heads q_len head_dim"],
        k: Float[Tensor, "batch kv_heads kv_len head_dim"],
        *,
        mask: Pattern | Bool[Tensor, "..."] | None = None,
        q_offset: int | None = None,
    ) -> Pattern:
        """The keys to attend to; `Selector.select` says what is asked."""
        check_no_graph(str(self))
        problem = asked(q, k, mask=mask, q_offset=q_offset)
        rows = [self._picked(problem, band) for band in bands(problem, height(problem, problem.kv_len))]
        shape = (1, 1, 0, -(-problem.kv_len // 64))
        bits = torch.cat(rows, 2) if rows else torch.zeros(shape, dtype=torch.int64, device=q.device)
        return chosen_bits(bits, kv_len=problem.kv_len, first=problem.q_offset or 0)

    def _picked(self, problem: Problem, band: Band) -> Int[Tensor, "batch heads rows words"]:
        """What some queries chose; the keys that none of them sees are left out."""
        scores = problem.scores(band.rows, band.cols)
        inside = torch.zeros(*scores.shape[:3], problem.kv_len, dtype=torch.bool, device=scores.device)
        inside[..., band.cols] = best(scores, self.budget)
        return packed(inside)
