"""Blocks of keys, or of values, made one each: what compressed attention looks at."""

from typing import Protocol

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import gelu

from multihead.layer.part import zero_bias


class Compression(Protocol):
    """Makes one vector of each block."""

    def __call__(self, blocks: Tensor) -> Tensor:
        """(batch, kv_heads, blocks, block, width) as (batch, kv_heads, blocks, width)."""
        ...


class MeanCompression(nn.Module):
    """The mean of a block: nothing to learn."""

    def forward(
        self, blocks: Float[Tensor, "batch kv_heads blocks block width"]
    ) -> Float[Tensor, "batch kv_heads blocks width"]:
        """Means, one for each block."""
        return blocks.mean(3)

    def reset_parameters(self) -> None:
        """Nothing to start anew."""


class LearnedCompression(nn.Module):
    """`W_2 gelu(W_1 [x_1 + p_1; ...; x_block + p_block] + b_1) + b_2`, alike for all heads (Yuan et al. 2025, phi).

    Args:
        block: Vectors in a block.
        width: Numbers in a vector.

    Attributes:
        positions: (block, width), added to what stands there in its block.
        hidden: (block * width, block * width / 4 or width, the wider of them): W_1.
        out: (hidden, width): W_2.
    """

    def __init__(self, block: int, width: int) -> None:
        super().__init__()
        middle = max(block * width // 4, width)
        self.positions = nn.Parameter(torch.empty(block, width))
        self.hidden = nn.Linear(block * width, middle)
        self.out = nn.Linear(middle, width)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start anew: positions 0, Xavier-uniform weights, biases 0."""
        nn.init.zeros_(self.positions)
        for linear in (self.hidden, self.out):
            nn.init.xavier_uniform_(linear.weight)
            zero_bias(linear)

    def forward(
        self, blocks: Float[Tensor, "batch kv_heads blocks block width"]
    ) -> Float[Tensor, "batch kv_heads blocks width"]:
        """One vector for each block."""
        return self.out(gelu(self.hidden((blocks + self.positions).flatten(3))))
