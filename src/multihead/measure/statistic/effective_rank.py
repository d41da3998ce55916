"""In how many directions a head writes: the effective rank of its outputs (Roy & Vetterli 2007, EUSIPCO)."""

import torch

from multihead.measure.part import Whole
from multihead.measure.statistic.contract import Contribution, OfWhole
from multihead.measure.statistic.outputs import output_blocks, zeros
from multihead.record import Quantity

BLOCK = 512
"""Rows whose rank is taken."""


def take(whole: Whole) -> tuple[Contribution]:
    """Sum over blocks; a block in which a head puts out nothing but 0 says nothing of it."""
    sums, count = zeros(whole), zeros(whole)
    for output, _ in output_blocks(whole, BLOCK):
        # Squares of singular values: in float64, so that their roots keep the digits of the outputs.
        wide = output.double()
        squares = torch.linalg.eigvalsh(wide.transpose(-1, -2) @ wide)
        values = squares.clamp(min=0.0).sqrt()
        shares = values / values.sum(-1, keepdim=True).clamp(min=torch.finfo(values.dtype).tiny)
        some = values.sum(-1) > 0
        sums += torch.special.entr(shares).sum(-1).exp() * some
        count += some
    return (Contribution(sums, count),)


EFFECTIVE_RANK = OfWhole(
    quantities=(
        Quantity(
            name="effective_rank",
            title="effective rank of the output",
            unit="directions",
            formula=(
                "mean over blocks of about 512 rows of exp(-sum_k p_k ln p_k), p_k = s_k / sum_k s_k, "
                "s the singular values of the head's outputs there, rows x width"
            ),
        ),
    ),
    take=take,
    outputs=True,
)
