"""What an aligner is given and gives back: a memory prepared once, and where a query looked."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from multihead.error import MultiheadError, check_kinds


@dataclass(frozen=True, slots=True, kw_only=True)
class AlignerSupport:
    """What an aligner can be asked for, with the options it has.

    Args:
        parallel: Many queries at once: `aligner(queries, memory)`. Where a query's scores depend on where earlier ones
            looked, there are only steps.
        carries: A step depends on earlier ones: `step` wants the state of the last one.
        monotone: It never looks back.
    """

    parallel: bool = True
    carries: bool = False
    monotone: bool = False


@runtime_checkable
class State(Protocol):
    """What an aligner knows of earlier steps."""

    def select(self, rows: Tensor) -> "State":
        """The same for other sequences."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Memory:
    """A source to be looked at, prepared once by `aligner.remember(values, keep)`.

    It holds what the aligner computes of the source alone, so it is one aligner's own, and is made anew after a change
    of its weights.

    Args:
        values: (batch, memory_len, memory_dim), 0 where nothing real is.
        keys: What scores are computed of, each (batch, memory_len, width).
        keep: (batch, memory_len), True = a real entry.
    """

    values: Float[Tensor, "batch memory_len value_dim"]
    keys: tuple[Float[Tensor, "batch memory_len _"], ...]
    keep: Bool[Tensor, "batch memory_len"]

    @property
    def batch(self) -> int:
        """Number of sources."""
        return self.values.shape[0]

    @property
    def length(self) -> int:
        """Entries of each, real ones and others."""
        return self.values.shape[1]

    def places(self) -> Tensor:
        """(batch, memory_len): number of each entry among the real ones, from 0, in float32."""
        return self.keep.to(torch.float32).cumsum(1) - 1

    def select(self, rows: Tensor) -> "Memory":
        """The same for other rows of the batch, for beam search.

        Args:
            rows: (new_batch,) whole numbers: which row each new one is a copy of.

        Raises:
            MultiheadError: Rows that are no whole numbers (new_batch,).

        Example:
            >>> memory = Luong(4, 4).remember(torch.randn(2, 5, 4))
            >>> memory.select(torch.tensor([0, 0, 1, 1])).batch
            4
        """
        return Memory(
            values=selected(self.values, rows),
            keys=tuple(selected(keys, rows) for keys in self.keys),
            keep=selected(self.keep, rows),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Aligned:
    """Where queries looked.

    Args:
        context: (batch, value_dim) of a step, (batch, q_len, value_dim) of the parallel form: sum of the memory's
            values by their weights.
        weights: (batch, memory_len) or (batch, q_len, memory_len), in float32 (float64 for float64 inputs).
        state: What the next step is given; None where steps know nothing of each other.
    """

    context: Float[Tensor, "batch *q_len value_dim"]
    weights: Float[Tensor, "batch *q_len memory_len"]
    state: State | None


def selected(tensor: Tensor, rows: Tensor) -> Tensor:
    """Rows of a batch, refused where they are none."""
    check_kinds({"rows": rows}, (Tensor,), "a tensor of row numbers")
    whole = not (rows.is_floating_point() or rows.is_complex() or rows.dtype == torch.bool)
    if rows.ndim != 1 or not whole or (not rows.is_meta and bool(((rows < 0) | (rows >= len(tensor))).any())):
        raise MultiheadError(
            asked=f"rows: whole numbers (new_batch,) from 0 to {len(tensor) - 1}",
            arrived=f"shape {tuple(rows.shape)}, {rows.dtype}"
            + (f", from {int(rows.min())} to {int(rows.max())}" if whole and rows.numel() and not rows.is_meta else ""),
            remedy="pass for each new row the one it comes from: torch.tensor([0, 0, 1])",
        )
    return tensor.index_select(0, rows.to(tensor.device))
