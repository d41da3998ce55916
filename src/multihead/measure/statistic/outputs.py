"""What is needed of head outputs to compare and to rank them: blocks of rows, each by itself."""

from collections.abc import Iterator

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from multihead.measure.part import Whole

LEAST_BLOCK = 64
"""A last block with fewer rows joins the one before it."""


def output_blocks(
    whole: Whole, size: int
) -> Iterator[tuple[Float[Tensor, "batch heads rows width"], Bool[Tensor, "batch 1 rows"]]]:
    """Outputs by blocks of rows, 0 in rows that do not count, and the rows that do: real, seeing, all heads finite.

    Args:
        whole: What was seen.
        size: Rows in a block.
    """
    output = whole.scene.call.output.transpose(1, 2).to(whole.scene.problem.wide)
    rows = whole.real() & (whole.rows.sees > 0) & output.isfinite().all(-1)
    rows = rows.all(1, keepdim=True)
    output = output.masked_fill(~rows[..., None], 0.0)
    length = output.shape[2]
    starts = list(range(0, length, size))
    if len(starts) > 1 and length - starts[-1] < LEAST_BLOCK:
        starts.pop()
    for start, stop in zip(starts, [*starts[1:], length], strict=True):
        yield output[:, :, start:stop], rows[:, :, start:stop]


def zeros(whole: Whole, *shape: int) -> Tensor:
    """A sum before anything was added, (batch, heads, *shape)."""
    problem = whole.scene.problem
    return torch.zeros((problem.batch, problem.heads, *shape), dtype=torch.float64, device=problem.q.device)
