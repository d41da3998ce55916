"""What a head writes: the length of its output after the output projection (Kobayashi 2020, arXiv 2004.10102)."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from multihead.measure.part import Whole, total
from multihead.measure.statistic.contract import Contribution, Missing, OfWhole
from multihead.record import Quantity

NO_PROJECTION = "no output projection was found"
NO_RESIDUAL = "the layer stands in no block whose input is known"


def take(whole: Whole) -> tuple[Contribution | Missing, ...]:
    """Norms, norms over the mean of the layer, norms over that of the block's input, of rows that see a key."""
    scene = whole.scene
    if scene.factor is None:
        return (Missing(scene.call.projection.reason or NO_PROJECTION),) * 3
    output = scene.call.output.transpose(1, 2).to(scene.factor)
    norms = torch.linalg.vector_norm(output @ scene.factor.transpose(-1, -2), dim=-1)
    rows = whole.real() & (whole.rows.sees > 0) & norms.isfinite()
    residual = scene.call.residual
    share = Missing(NO_RESIDUAL) if residual is None else _share(norms, rows, residual)
    return Contribution(total(norms, rows), rows.sum(-1, dtype=torch.float64)), _ratio(norms, rows), share


def _ratio(norms: Float[Tensor, "batch heads q_len"], rows: Bool[Tensor, "batch heads q_len"]) -> Contribution:
    """Sums over rows in which every head has an output: the head's over the mean of all heads'."""
    sums = total(norms, rows.all(1, keepdim=True).expand_as(rows))
    return Contribution(sums, sums.mean(1, keepdim=True).expand_as(sums))


def _share(
    norms: Float[Tensor, "batch heads q_len"],
    rows: Bool[Tensor, "batch heads q_len"],
    residual: Float[Tensor, "batch q_len width"],
) -> Contribution:
    length = torch.linalg.vector_norm(residual.to(norms), dim=-1)[:, None]
    rows = rows & (length > 0) & length.isfinite()
    return Contribution(total(norms / length, rows), rows.sum(-1, dtype=torch.float64))


OUTPUT = OfWhole(
    quantities=(
        Quantity(
            name="output_norm",
            title="length of the output",
            unit="norm",
            formula="mean over rows of ||O_i W_O||, the head's output after its part of the output projection",
        ),
        Quantity(
            name="output_ratio",
            title="output, of the layer's mean",
            unit="ratio",
            formula="mean of ||O_i W_O|| over rows / the same, mean over the heads of the layer",
        ),
        Quantity(
            name="output_share",
            title="output, of the block's input",
            unit="share",
            formula="mean over rows of ||O_i W_O|| / ||x_i||, x the input of the block around the layer",
        ),
    ),
    take=take,
    outputs=True,
)
