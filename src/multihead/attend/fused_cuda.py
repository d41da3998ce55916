"""PyTorch's fused kernels on CUDA: flash where there is no mask in half precision, else the memory-efficient one."""

from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.nn.functional import pad

from multihead.attend.fit import finite, fit, mask_copies, mask_numbers
from multihead.attend.normaliser import Softmax
from multihead.attend.order import FirstOrder, refuse
from multihead.attend.problem import Problem
from multihead.attend.tile import Band, bands
from multihead.pattern import Pattern

_FLASH = torch.ops.aten._scaled_dot_product_flash_attention.default
_EFFICIENT = torch.ops.aten._scaled_dot_product_efficient_attention.default
_ALIGN = 8  # numbers of a head, and of a row of the mask, that the kernels load together
_LARGEST = 256  # head size of the flash kernel
_NUMBERS = 2**26  # in the mask of a band
_HALF = (torch.float16, torch.bfloat16)


def why_not(problem: Problem) -> list[str]:
    """Reasons of these kernels alone."""
    reasons: list[str] = []
    if problem.q.dtype not in (*_HALF, torch.float32):
        reasons.append(f"its CUDA kernels do not take {str(problem.q.dtype).removeprefix('torch.')}")
    sinks = not (isinstance(problem.normaliser, Softmax) and problem.normaliser.plain)
    trained = any(x.requires_grad for x in (problem.q, problem.k, problem.v, *_sinks(problem)))
    if sinks and trained and torch.is_grad_enabled():
        reasons.append("its CUDA kernels give no gradient to the log-sum-exp, which sinks need")
    return reasons


def how(problem: Problem) -> str:
    """Which kernel runs."""
    return "CUDA flash kernel" if _flash(problem, masked=not _plain_mask(problem)) else "CUDA memory-efficient kernel"


def run(problem: Problem) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp. Gradients flow through the output alone; one to the log-sum-exp is refused by name."""
    if _plain_mask(problem):
        out, lse = _call(problem, None, problem.q, problem.k, problem.v)
    else:
        height = max(_NUMBERS // max(mask_copies(problem) * problem.kv_len, 1), 128)
        pieces = [_band(problem, band) for band in bands(problem, height)]
        out, lse = torch.cat([piece[0] for piece in pieces], 2), torch.cat([piece[1] for piece in pieces], 2)
    if isinstance(problem.normaliser, Softmax) and not problem.normaliser.plain:
        keys, lse = lse, problem.normaliser.with_sink(lse)
        out = out * torch.exp(keys - finite(lse))[..., None].to(out.dtype)
    return out, _Detached.apply(lse, problem.q, problem.k, problem.v)


class _Detached(FirstOrder):
    """A log-sum-exp that says so if a gradient is asked of it."""

    @staticmethod
    def forward(lse: Tensor, *sources: Tensor) -> Tensor:
        return lse.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Nothing is kept."""

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> NoReturn:
        refuse("a gradient of the log-sum-exp", backend="tiled")


def _band(problem: Problem, band: Band) -> tuple[Tensor, Tensor]:
    q, k, v = problem.q[:, :, band.rows], problem.k[:, :, band.cols], problem.v[:, :, band.cols]
    if k.shape[2] == 0:
        return q.new_zeros(*q.shape[:3], v.shape[3]), torch.full(q.shape[:3], -torch.inf, device=q.device)
    mask = mask_numbers(problem, band)
    out, lse = _call(problem, mask, q, k, v)
    return out, lse if mask is None else lse.masked_fill(mask.isneginf().all(-1), -torch.inf)


def _call(problem: Problem, mask: Tensor | None, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    size = -(-max(q.shape[3], v.shape[3]) // _ALIGN) * _ALIGN
    q, scale = _positive(q, problem.scale)
    causal = mask is None and isinstance(problem.mask, Pattern) and _plain_mask(problem)
    if _flash(problem, masked=mask is not None):
        out, lse, *_ = _FLASH(fit(q, size), fit(k, size), fit(v, size), 0.0, causal, scale=scale)
    else:
        k, v = (x.repeat_interleave(problem.group, 1) for x in (k, v))
        added = None if mask is None else _aligned(mask.to(q.dtype)).expand(*q.shape[:3], k.shape[2])
        padded = fit(q, size), fit(k, size), fit(v, size)
        out, lse, *_ = _EFFICIENT(*padded, added, True, 0.0, causal, scale=scale)  # noqa: FBT003 - aten's order
    return out[..., : problem.v_head_dim], lse[..., : q.shape[2]]


def _positive(q: Tensor, scale: float) -> tuple[Tensor, float]:
    """The same products with a scale above 0, exactly: the kernels multiply the -inf of their own masks by it."""
    if scale > 0:
        return q, scale
    return (-q, -scale) if scale < 0 else (q * 0, 1.0)


def _plain_mask(problem: Problem) -> bool:
    """True where the kernels need no mask of numbers: everything, or causal from position 0."""
    if problem.bias is not None or isinstance(problem.mask, Tensor):
        return False
    return problem.mask is None or (problem.mask.window == (None, 0) and not problem.q_offset)


def _flash(problem: Problem, *, masked: bool) -> bool:
    square = problem.mask is None or problem.q_len == problem.kv_len  # its causal flag aligns other shapes bottom-right
    fits = max(problem.head_dim, problem.v_head_dim) <= _LARGEST and problem.q.dtype in _HALF
    recent = problem.q.device.type != "cuda" or torch.cuda.get_device_capability(problem.q.device) >= (8, 0)
    return fits and square and recent and not masked


def _aligned(mask: Tensor) -> Tensor:
    """The mask with rows that start at multiples of what the kernel loads together."""
    cols = mask.shape[-1]
    return pad(mask, (0, -cols % _ALIGN))[..., :cols]


def _sinks(problem: Problem) -> tuple[Tensor, ...]:
    normaliser = problem.normaliser
    return () if not isinstance(normaliser, Softmax) or normaliser.sinks is None else (normaliser.sinks,)
