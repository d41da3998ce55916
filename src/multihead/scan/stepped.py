"""Scans one token after another, for inputs of which a chunk makes no numbers.

Within a chunk later tokens are multiplied by 0, and 0 times infinity is no 0: an infinite value, or a product beyond
the largest number, would reach the tokens before it. The recurrence knows no later tokens.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from multihead.scan.chunked import Prepared

Step = Callable[[Prepared, Any], tuple[Tensor, Any]]


def mended(out: Tensor, given: Prepared, state: Any, step: Step) -> Tensor:
    """Outputs, those that are no numbers made once more by the recurrence; the others stay to the bit.

    Args:
        out: What the chunks gave, (batch, states, group, length, v_head_dim).
        given: The input.
        state: Before the first token.
        step: One token: its output and the next state.
    """
    if given.length == 1 or not _looks(out) or math.isfinite(float(out.detach().sum())):
        return out
    rows: list[Tensor] = []
    for token in given.parts([1] * given.length):
        row, state = step(token, state)
        rows.append(row)
    return torch.where(out.isfinite(), out, torch.cat(rows, 3))


def _looks(out: Tensor) -> bool:
    """Whether numbers are looked at: on a CPU, which waits for no device, outside of graphs and of torch.func."""
    if torch.compiler.is_compiling() or type(out) is not Tensor or out.device.type != "cpu":
        return False  # a tensor of a kind of its own may hold no numbers at all
    # Torch tells of these by no public name.
    return not (torch._C._are_functorch_transforms_active() or torch._C._is_tracing())  # pyright: ignore[reportPrivateUsage]
