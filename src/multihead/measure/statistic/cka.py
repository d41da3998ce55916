"""How alike the outputs of two heads of a layer are, whatever basis they are written in: centred kernel alignment.

Unbiased HSIC: Song et al. 2012, JMLR 13; over blocks: Nguyen et al. 2021, arXiv 2010.15327.
"""

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from multihead.measure.part import Whole
from multihead.measure.statistic.contract import Contribution, OfWhole
from multihead.measure.statistic.outputs import output_blocks, zeros
from multihead.record import Quantity

BLOCK = 256
"""Rows that are compared with one another: the work grows with it, and the estimate is unbiased for any."""

_LEAST = 4
"""The unbiased estimate needs as many rows."""


def take(whole: Whole) -> tuple[Contribution]:
    """The unbiased HSIC of every pair of heads, summed over blocks."""
    heads = whole.scene.problem.heads
    sums, count = zeros(whole, heads), zeros(whole, heads)
    for output, rows in output_blocks(whole, BLOCK):
        enough = rows.sum(-1)[..., None] >= _LEAST
        sums += torch.where(enough, _hsic(output, rows), 0.0)
        count += enough
    return (Contribution(sums, count),)


def _hsic(
    output: Float[Tensor, "batch heads rows width"], rows: Bool[Tensor, "batch 1 rows"]
) -> Float64[Tensor, "batch heads heads"]:
    """HSIC with linear kernels. Outputs less their mean leave it as it is, and make most of its sums vanish.

    With K = X X^T and L = Y Y^T without their diagonals a and b, rows of K sum to -a. So what is left of
    [tr(K L) + 1'K1 1'L1 / ((n-1)(n-2)) - 2 1'KL1 / (n-2)] / (n (n-3)) takes a, b and tr(K L) alone.
    """
    count = rows.sum(-1).clamp(min=_LEAST).double()[..., None]
    mean = output.sum(2, keepdim=True) / count[..., None].to(output)
    centred = (output - mean) * rows[..., None]
    kernels = centred @ centred.transpose(-1, -2)
    diagonal = kernels.diagonal(dim1=-2, dim2=-1)
    own = diagonal.double()
    diagonal.zero_()
    flat = kernels.flatten(2)
    trace = (flat @ flat.transpose(-1, -2)).double()
    total = own.sum(-1)
    cross = own @ own.transpose(-1, -2)
    product = total[..., :, None] * total[..., None, :]
    inner = trace + product / ((count - 1) * (count - 2)) - 2 / (count - 2) * cross
    return inner / (count * (count - 3))


CKA = OfWhole(
    quantities=(
        Quantity(
            name="cka",
            title="alike in outputs",
            unit="share",
            formula=(
                "of heads h, g of a layer: H_hg / sqrt(H_hh H_gg), H the unbiased HSIC of their outputs with linear "
                "kernels, summed over blocks of about 256 rows"
            ),
            shape=(0,),
            fold="cosine",
            pairs=True,
        ),
    ),
    take=take,
    outputs=True,
)
