"""What a scan hands over: outputs, and the state in which the next tokens go on."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from multihead.error import MultiheadError, kind_and_text


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LinearState:
    """What `linear_attention` keeps of all earlier tokens; float32 or wider, and as large after a million of them.

    Args:
        memory: S, the decayed sum of `k v^T`: (batch, heads, head_dim, v_head_dim). Heads are kv heads, or query heads
            where each of those decays in its own way.
        mass: z, the decayed sum of `k`: (batch, heads, head_dim); None where outputs are not normalised.
    """

    memory: Float[Tensor, "batch heads head_dim v_head_dim"]
    mass: Float[Tensor, "batch heads head_dim"] | None = None

    def select(self, rows: Tensor | Sequence[int]) -> "LinearState":
        """The state of these batch rows in this order, for beams that are reordered.

        Raises:
            MultiheadError: There is no such row.
        """
        index = chosen_rows(rows, self.memory)
        mass = None if self.mass is None else self.mass.index_select(0, index)
        return LinearState(memory=self.memory.index_select(0, index), mass=mass)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeltaState:
    """What `delta_rule` keeps of all earlier tokens; float32 or wider.

    Args:
        memory: S, which maps a key to the value written under it: (batch, heads, head_dim, v_head_dim).
    """

    memory: Float[Tensor, "batch heads head_dim v_head_dim"]

    def select(self, rows: Tensor | Sequence[int]) -> "DeltaState":
        """The state of these batch rows in this order, for beams that are reordered.

        Raises:
            MultiheadError: There is no such row.
        """
        return DeltaState(memory=self.memory.index_select(0, chosen_rows(rows, self.memory)))


S = TypeVar("S", LinearState, DeltaState)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scanned(Generic[S]):
    """What a scan gives.

    Args:
        out: (batch, heads, length, v_head_dim), in the dtype of the queries.
        state: After the last token; pass it as `state=` with the tokens that follow.
    """

    out: Float[Tensor, "batch heads length v_head_dim"]
    state: S


def chosen_rows(rows: object, like: Tensor) -> Tensor:
    """Batch rows as a tensor of whole numbers, refused where there is no such row."""
    batch = like.shape[0]
    try:
        index = torch.as_tensor(rows, device=like.device)
    except (TypeError, ValueError, RuntimeError) as fault:
        raise _no_rows(kind_and_text(rows), batch) from fault
    if index.ndim != 1 or index.is_floating_point() or index.dtype == torch.bool or not index.numel():
        raise _no_rows(f"shape {tuple(index.shape)}, {index.dtype}", batch)
    if int(index.min()) < 0 or int(index.max()) >= batch:
        raise _no_rows(f"{index.tolist()}"[:100], batch)
    return index.long()


def _no_rows(arrived: str, batch: int) -> MultiheadError:
    return MultiheadError(
        asked=f"rows of a state for a batch of {batch}: at least one whole number",
        arrived=arrived,
        remedy=f"pass numbers from 0 to {batch - 1}, such as [0, 0, {batch - 1}]",
    )
