"""What every aligner has: a memory it prepares, steps, and many queries at once where that exists."""

from abc import ABC, abstractmethod
from typing import Generic, TypeVar, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from multihead.align.aligned import Aligned, AlignerSupport, Memory, State
from multihead.align.check import check_made_here, check_queries, check_values
from multihead.align.score import Additive, Dot, General

Kept = TypeVar("Kept", bound=State)
Score = Additive | General | Dot


class Aligner(nn.Module, ABC, Generic[Kept]):
    """Looks from a decoder's states at the entries of a memory, one state at a time.

    Args:
        query_dim: Width of a decoder's state.
        memory_dim: Width of an entry, and of the context.
    """

    def __init__(self, query_dim: int, memory_dim: int) -> None:
        super().__init__()
        self.query_dim, self.memory_dim = query_dim, memory_dim

    @property
    @abstractmethod
    def support(self) -> AlignerSupport:
        """What it can be asked for."""

    def remember(
        self,
        values: Float[Tensor, "batch memory_len memory_dim"],
        keep: Bool[Tensor, "batch memory_len"] | None = None,
    ) -> Memory:
        """A source, prepared once: what is computed of its entries alone is not computed at every step.

        Args:
            values: (batch, memory_len, memory_dim), the entries.
            keep: (batch, memory_len), True = a real entry; None is all. The others get no weight, whatever they hold.

        Raises:
            MultiheadError: Another width, dtype or device, or a `keep` of another shape.
        """
        check_values(values, keep, self.memory_dim, self._weight)
        if keep is None:
            keep = torch.ones(values.shape[:2], dtype=torch.bool, device=values.device)
        else:
            # Anything may lie in padding: a NaN times a weight of 0, or in a gradient, would still be one.
            values = values.masked_fill(~keep[..., None], 0.0)
        return Memory(values=values, keys=tuple(score.keys(values) for score in self._scores()), keep=keep)

    def step(self, query: Float[Tensor, "batch query_dim"], memory: Memory, state: Kept | None = None) -> Aligned:
        """Where one state of the decoder looks.

        Args:
            query: (batch, query_dim).
            memory: What `remember` gave.
            state: `aligned.state` of the step before; None at the first.

        Returns:
            `Aligned(context (batch, value_dim), weights (batch, memory_len), state)`. Where a source has no real entry
            both are 0.

        Raises:
            MultiheadError: A query of another shape, batch, dtype or device, or a memory or state of something else.
        """
        self._check(query, memory, state, step=True)
        told = self._align(query[:, None], memory, state)
        return Aligned(context=told.context[:, 0], weights=told.weights[:, 0], state=told.state)

    def forward(
        self, queries: Float[Tensor, "batch q_len query_dim"], memory: Memory, state: Kept | None = None
    ) -> Aligned:
        """Where many states look, which are known beforehand: as so many steps, at once.

        Args:
            queries: (batch, q_len, query_dim).
            memory: What `remember` gave.
            state: Of the step before the first of these; None at the beginning.

        Returns:
            `Aligned(context (batch, q_len, value_dim), weights (batch, q_len, memory_len), state)`.

        Raises:
            MultiheadError: As `step`; and where there are only steps (`support.parallel`).
        """
        self._check_parallel()
        self._check(queries, memory, state, step=False)
        return self._align(queries, memory, state)

    @abstractmethod
    def _scores(self) -> tuple[Score, ...]:
        """The scores it computes, in the order of `Memory.keys`."""

    @abstractmethod
    def _check_state(self, state: Kept, memory: Memory) -> None:
        """Refuses another one's state."""

    @abstractmethod
    def _align(self, queries: Tensor, memory: Memory, state: Kept | None) -> Aligned:
        """The steps, for checked arguments."""

    def _check_parallel(self) -> None:
        """Refuses where there are only steps."""

    def _check(self, given: Tensor, memory: Memory, state: object, *, step: bool) -> None:
        check_queries(given, memory, self.query_dim, step=step, weight=self._weight)
        check_made_here(memory, [score.width for score in self._scores()], self.memory_dim)
        if state is not None:
            self._check_state(cast(Kept, state), memory)

    @property
    def _weight(self) -> Tensor | None:
        return self._scores()[0].weight


def summed(weights: Tensor, memory: Memory) -> Float[Tensor, "batch q_len value_dim"]:
    """The context of weights."""
    return weights.to(memory.values.dtype) @ memory.values
