"""What every attention module has: a backend, a dropout, and the seam at which its heads are seen."""

from collections.abc import Callable
from typing import TypedDict, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from multihead.attend import Normaliser, Problem, attention, choose, make_problem
from multihead.layer.check import check_dropout
from multihead.pattern import Pattern
from multihead.position import PositionBias


class Options(TypedDict, total=False):
    """What an attention call is given besides its tensors."""

    mask: Pattern | Tensor | None
    bias: Tensor | PositionBias | None
    scale: float | None
    softcap: float | None
    normaliser: Normaliser | None
    q_offset: int | None


class Attends(nn.Module):
    """A module whose heads come out of `attend`: what is watched, gated and replaced there holds for all of them.

    Args:
        dropout: Share of the attention weights dropped in training.
        backend: `"auto"`, or the name of the backend that must run.

    Raises:
        MultiheadError: A dropout outside of 0 <= p < 1.
    """

    def __init__(self, *, dropout: float, backend: str) -> None:
        super().__init__()
        check_dropout(dropout)
        self.dropout, self.backend = dropout, backend

    def attend(self, problem: Problem) -> Float[Tensor, "batch heads q_len v_head_dim"]:
        """The heads of one call and group, before they are joined."""
        return choose(problem, self.backend).run(problem)[0]

    def told(self, problem: Problem) -> Problem:
        """A call as whoever looks is told of it: what its heads computed, and nothing that no token took.

        Args:
            problem: What `attend` was given.
        """
        return problem

    def heads_made(self, heads: Float[Tensor, "batch heads q_len v_head_dim"]) -> Tensor:
        """Heads that no problem tells of, as linear ones: where they are gated and replaced. They go on as they are."""
        return heads

    def without_scores(self, heads: Tensor) -> Tensor:
        """Heads of a group through `heads_made`, around which a graph is cut where somebody looks."""
        _ = self.heads_made  # as in `attended`
        if "heads_made" not in vars(self):
            return heads
        seen: Callable[..., Tensor] = self.heads_made
        if torch.compiler.is_compiling():
            seen = cast(Callable[..., Tensor], torch.compiler.disable(seen))
        return seen(heads)

    def attended(self, qkv: tuple[Tensor, Tensor, Tensor], options: Options) -> Tensor:
        """The heads of a call, through `attend`, or as one operator where a graph is made of it.

        Args:
            qkv: Queries, keys and values (batch, heads, length, width).
            options: As `multihead.attention` has them; dropout is the module's.

        Returns:
            (batch, heads, q_len, v_head_dim).
        """
        dropout = self.dropout if self.training else 0.0
        _ = self.attend  # the compiler takes note of what it is: a graph made before somebody looked is made anew
        if "attend" not in vars(self) and type(self).attend is Attends.attend:
            # Nobody looks at the problem: the function need not make one of a call it knows, nor in a graph.
            return attention(*qkv, **options, dropout=dropout, backend=self.backend)
        seen: Callable[..., Tensor] = self._seen
        if torch.compiler.is_compiling():
            # Whoever looks at a problem looks at numbers: a compiled graph is cut around it, once. No decorator: that
            # would import the compiler, slowly.
            seen = cast(Callable[..., Tensor], torch.compiler.disable(self._seen))
        return seen(qkv, options, dropout)

    def _seen(self, qkv: tuple[Tensor, Tensor, Tensor], options: Options, dropout: float) -> Tensor:
        """The same by `attend`, which somebody looks at."""
        return self.attend(make_problem(*qkv, **options, dropout=dropout))
