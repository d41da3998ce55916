"""How a problem is put into the form that PyTorch's fused kernels take."""

import torch
from torch import Tensor
from torch.nn.functional import pad

from multihead.attend.problem import Problem
from multihead.attend.tile import Band, bands

_FAR = 1e3  # float32 has four digits left after the point
_HEIGHT = 128  # queries looked at together


def fit(x: Tensor, size: int) -> Tensor:
    """Zeros up to `size` in the last dimension, and no gaps in it: with gaps the kernels read the wrong numbers."""
    if x.shape[-1] < size:
        return pad(x, (0, size - x.shape[-1]))
    return x if x.stride(-1) == 1 else x.contiguous()


def finite(lse: Tensor) -> Tensor:
    """The log-sum-exp with 0 for empty rows, so that exp(-inf - lse) is 0."""
    return torch.where(lse.isneginf(), 0.0, lse)


def mask_numbers(problem: Problem, band: Band) -> Tensor | None:
    """Mask and bias of a band as numbers to add (batch | 1, heads | 1, rows, cols), or None where there are none."""
    bias = problem.bias_rows(band.rows, band.cols)
    allowed = problem.allowed(band.rows, band.cols) if band.masked else None
    if allowed is None:
        return None if bias is None else bias.contiguous()
    if bias is not None:
        return torch.where(allowed, bias, -torch.inf)
    return torch.zeros(allowed.shape, dtype=problem.wide, device=allowed.device).masked_fill_(~allowed, -torch.inf)


def buried(problem: Problem) -> bool:
    """True where all that some query may attend to has a bias so far from 0 that scores have no digits left beside it.

    The kernels' backward passes start from the log-sum-exp and would weigh such a row wrongly; the forward pass is
    right.
    """
    bias = problem.bias
    if not isinstance(bias, Tensor) or not bool(((bias.abs() > _FAR) & bias.isfinite()).any()):
        return False
    for band in bands(problem, _HEIGHT):
        numbers = mask_numbers(problem, band)
        if numbers is not None and numbers.numel() > 0:
            peak = numbers.amax(-1)
            if bool(((peak.abs() > _FAR) & peak.isfinite()).any()):
                return True
    return False


def mask_copies(problem: Problem) -> int:
    """How many masks there are: one for each batch row and head in which they differ."""
    mask, bias = problem.mask, problem.bias
    sizes = [(1, 1)]
    if mask is not None:
        sizes.append((mask.shape[0], mask.shape[1]) if isinstance(mask, Tensor) else (mask.batch or 1, mask.heads or 1))
    if bias is not None:
        sizes.append((bias.shape[0], bias.shape[1]) if isinstance(bias, Tensor) else (1, bias.heads))
    return max(batch for batch, _ in sizes) * max(heads for _, heads in sizes)
