"""Adaptive span: each head learns how far it looks (Sukhbaatar et al. 2019)."""

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from multihead.error import MultiheadError
from multihead.position.check import check_tensor, is_whole_number


@dataclass(frozen=True, slots=True, eq=False)
class AdaptiveSpan:
    """Weights multiplied by `m(d) = clamp((span + ramp - d) / ramp, 0, 1)`, d = |q_pos - k_pos|, and made to sum to 1.

    Sukhbaatar, Grave, Bojanowski, Joulin 2019, "Adaptive Attention Span in Transformers", arXiv:1905.07799. Multiplying
    weights and normalising again is adding log m to the scores, so this is a bias: 0 up to `span`, falling over the
    next `ramp` distances, -inf from span + ramp on. (The authors' code adds 1e-8 to the sum it divides by; this does
    not.)

    The paper is about causal attention. Both sides are treated alike here, so the same object serves encoders.

    Only keys on the ramp tell a span where to go: its gradient is 1 / (span + ramp - d) of each of them. The price of
    long spans is `penalty`, added to the loss times a small number (the paper: 2e-6 times the longest span allowed). A
    pattern that ends at `reach` leaves the same answer, and the keys beyond are not computed:
    `mask=sliding_window(span.reach())`.

    Args:
        spans: (heads,), in tokens; at least 0 where a head is to see itself in full: clamp them after each step.
        ramp: Tokens over which m falls from 1 to 0, at least 1.

    Raises:
        MultiheadError: If `spans` is not a floating tensor of one dimension, or `ramp` is below 1.

    Example:
        >>> span = AdaptiveSpan(torch.tensor([2.0, 5.0]), ramp=2)
        >>> span.scores(torch.tensor([9]), torch.arange(5, 10))[0, 0]
        tensor([[   -inf, -0.6931,  0.0000,  0.0000,  0.0000]])
    """

    spans: Float[Tensor, " heads"]
    ramp: int = 32

    def __post_init__(self) -> None:
        check_tensor("spans", self.spans, "adaptive spans: one floating number of tokens for each head, shape (heads,)")
        if self.spans.ndim != 1 or not self.spans.is_floating_point():
            raise MultiheadError(
                asked="adaptive spans: one floating number of tokens for each head, shape (heads,)",
                arrived=f"shape {tuple(self.spans.shape)}, {self.spans.dtype}",
                remedy="pass a floating tensor of shape (heads,), for example torch.full((heads,), 64.0)",
            )
        if not is_whole_number(self.ramp) or not 1 <= self.ramp <= 2**40:
            raise MultiheadError(
                asked="an adaptive span with a ramp of at least 1 token",
                arrived=f"ramp={self.ramp!r}"[:200],
                remedy="pass ramp >= 1, whole, such as the paper's 32; without a ramp spans get no gradient",
            )

    @property
    def heads(self) -> int:
        """Number of query heads the spans are for."""
        return self.spans.shape[0]

    @property
    def weight(self) -> Float[Tensor, " heads"]:
        """What can be trained: the spans."""
        return self.spans

    def with_weight(self, weight: Float[Tensor, " heads"]) -> "AdaptiveSpan":
        """The same ramp with other spans."""
        return replace(self, spans=weight)

    def pick(self, heads: Int[Tensor, " chosen"]) -> "AdaptiveSpan":
        """The spans of some heads."""
        return replace(self, spans=self.spans[heads])

    def scores(
        self, q_pos: Int[Tensor, " rows"], k_pos: Int[Tensor, " columns"]
    ) -> Float[Tensor, "1 heads rows columns"]:
        """The logarithm of m for each (query position, key position), in the dtype of the spans; -inf beyond.

        Args:
            q_pos: Absolute positions of the queries.
            k_pos: Absolute positions of the keys.

        Returns:
            (1, heads, rows, columns).
        """
        # In float64: what is left of a span is a small difference of large numbers, whose logarithm is large.
        left = self._left(self.spans.double(), q_pos, k_pos)
        falling = (left > 0) & (left < self.ramp)
        # The logarithm is taken of 1 off the ramp: of 0 it would make the gradient NaN, which no mask removes.
        logs = torch.log(torch.where(falling, left, self.ramp) / self.ramp)
        return torch.where(left > 0, logs, -torch.inf)[None].to(self.spans.dtype)

    def pull(
        self,
        grad: Float[Tensor, "heads rows columns"],
        q_pos: Int[Tensor, " rows"],
        k_pos: Int[Tensor, " columns"],
    ) -> Float[Tensor, " heads"]:
        """Gradient of the spans from the gradient of the scores, summed over the batch."""
        left = self._left(self.spans.double(), q_pos, k_pos)
        falling = (left > 0) & (left < self.ramp)
        return torch.where(falling, grad / torch.where(falling, left, 1.0).to(grad), 0.0).sum((-2, -1))

    def _left(self, spans: Tensor, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        """Tokens left until nothing is seen: (heads, rows, columns)."""
        return spans[:, None, None] + self.ramp - (q_pos[:, None] - k_pos).abs().to(spans)

    def penalty(self) -> Float[Tensor, ""]:
        """The mean of |span| over heads, in tokens, for the loss. Gradients flow."""
        return self.spans.abs().mean()

    def reach(self) -> int:
        """How many keys the farthest head sees on one side, its own position included, at least 1.

        It reads the spans, so it is asked outside of a compiled graph, and again when they have changed.

        Raises:
            MultiheadError: A span is not finite.
        """
        longest = float(self.spans.detach().amax()) if self.heads else 0.0
        if not math.isfinite(longest):
            raise MultiheadError(
                asked="the reach of adaptive spans",
                arrived=f"spans {self.spans.detach().tolist()}"[:200],
                remedy="pass finite spans; NaN comes from a step that diverged",
            )
        return max(math.ceil(longest) + self.ramp, 1)

    def __str__(self) -> str:
        return f"AdaptiveSpan({self.heads} heads, ramp={self.ramp})"
