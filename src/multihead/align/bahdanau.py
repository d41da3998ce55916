"""Additive alignment, with coverage: the first attention."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from multihead.align.aligned import Aligned, AlignerSupport, Memory, selected
from multihead.align.base import Aligner, summed
from multihead.align.check import check_number, check_sizes, check_state
from multihead.align.score import Additive, weigh
from multihead.error import MultiheadError, check_kinds


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Scores know how much each entry was looked at: `w_c cov_ij` inside tanh, with `cov_ij = sum of a_tj over t < i`.

    It keeps a decoder from saying things twice. See, Liu and Manning, "Get To The Point" (2017), arXiv:1704.04368.

    Args:
        start: Range of w_c at the start, in units of `hidden ** -0.5`; with 0 a trained aligner begins as it was.

    Raises:
        MultiheadError: A start that is no number of at least 0.

    Example:
        >>> Bahdanau(8, 8, 16, coverage=Coverage()).support.parallel
        False
    """

    start: float = 1.0

    def __post_init__(self) -> None:
        check_number("start", self.start, least=0.0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Covered:
    """What steps of an aligner with coverage have looked at.

    Args:
        covered: (batch, memory_len): sum of the weights so far, in float32 (float64 for float64 inputs).
        loss: (batch,): `sum_j min(a_j, cov_j)` of the last step, between 0 and 1: how much of it was looked at before.
            Mean over the real steps of a batch, it is added to the loss in training.
    """

    covered: Float[Tensor, "batch memory_len"]
    loss: Float[Tensor, " batch"]

    def select(self, rows: Tensor) -> "Covered":
        """The same for other rows of the batch (`Memory.select`)."""
        return Covered(covered=selected(self.covered, rows), loss=selected(self.loss, rows))


class Bahdanau(Aligner[Covered]):
    """Additive alignment: weights are softmax over j of `e_ij = v . tanh(W s_i + U h_j + b)`.

    s is the state of a decoder (of the step before, in the paper), h an entry of the memory. `U h` is computed once a
    source, by `remember`. Bahdanau, Cho and Bengio, "Neural machine translation by jointly learning to align and
    translate" (2014), arXiv:1409.0473. A pair costs `hidden` tanh: a hundred times what a product costs, so this is for
    decoders that look at a few hundred entries. Many queries at once are computed in blocks of rows, so that memory
    stays bounded, with gradients too.

    Args:
        query_dim: Width of a query.
        memory_dim: Width of an entry, and of the context.
        hidden: Width of the sum inside tanh.
        bias: Whether there is b.
        normalised: Whether v is `g v / |v|`, with g a parameter.
        coverage: Adds what was looked at before to the scores; there are then only steps.

    Attributes:
        score: Its parameters: `query_proj` (W, b), `memory_proj` (U), `vector` (v), `gain` (g), `coverage` (w_c).

    Raises:
        MultiheadError: Sizes that are no whole numbers of at least 1.

    Example:
        >>> aligner = Bahdanau(32, 64, 16, coverage=Coverage())
        >>> memory = aligner.remember(torch.randn(2, 10, 64))
        >>> state = None
        >>> for _ in range(3):
        ...     aligned = aligner.step(torch.randn(2, 32), memory, state)
        ...     state = aligned.state
        >>> aligned.context.shape, aligned.weights.shape, state.loss.shape
        (torch.Size([2, 64]), torch.Size([2, 10]), torch.Size([2]))
    """

    def __init__(
        self,
        query_dim: int,
        memory_dim: int,
        hidden: int,
        *,
        bias: bool = True,
        normalised: bool = False,
        coverage: Coverage | None = None,
    ) -> None:
        check_sizes({"query_dim": query_dim, "memory_dim": memory_dim, "hidden": hidden})
        check_kinds({"bias": bias, "normalised": normalised}, (bool,), "True or False")
        check_kinds({"coverage": coverage}, (Coverage, type(None)), "Coverage() or None")
        super().__init__(query_dim, memory_dim)
        start = None if coverage is None else coverage.start
        self.score = Additive(query_dim, memory_dim, hidden, bias=bias, normalised=normalised, coverage=start)

    @property
    def support(self) -> AlignerSupport:
        """What it can be asked for."""
        covers = self.score.coverage is not None
        return AlignerSupport(parallel=not covers, carries=covers)

    def extra_repr(self) -> str:
        """Sizes for `print(model)`."""
        shown = f"{self.query_dim}, {self.memory_dim}, hidden={self.score.width}"
        shown += ", normalised" if self.score.gain is not None else ""
        return shown + (", coverage" if self.score.coverage is not None else "")

    def _scores(self) -> tuple[Additive]:
        return (self.score,)

    def _check_parallel(self) -> None:
        if self.score.coverage is not None:
            raise MultiheadError(
                asked="many queries at once of an aligner with coverage",
                arrived="scores of each query that depend on the weights of those before it",
                remedy="go step by step, aligner.step(query, memory, state), or leave coverage out",
            )

    def _check_state(self, state: Covered, memory: Memory) -> None:
        if self.score.coverage is None:
            raise MultiheadError(
                asked="a step of an aligner that knows nothing of earlier ones",
                arrived=f"state={type(state).__name__}",
                remedy="leave state out, or build the aligner with coverage=Coverage()",
            )
        check_state(state, Covered, memory, {"covered": (memory.batch, memory.length), "loss": (memory.batch,)})

    def _align(self, queries: Tensor, memory: Memory, state: Covered | None) -> Aligned:
        covered = None if state is None else state.covered
        weights = weigh(self.score(queries, memory.keys[0], covered), memory.keep[:, None])
        kept = None if self.score.coverage is None else _covered(covered, weights[:, 0])
        return Aligned(context=summed(weights, memory), weights=weights, state=kept)


def _covered(before: Tensor | None, weights: Tensor) -> Covered:
    if before is None:
        before = torch.zeros_like(weights)
    return Covered(covered=before + weights, loss=torch.minimum(weights, before).sum(-1))
