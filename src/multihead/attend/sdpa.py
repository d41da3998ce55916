"""PyTorch's fused attention kernels: the flash kernel on the CPU, the flash and the memory-efficient kernel on CUDA.

The kernels are called themselves, never `scaled_dot_product_attention`, which changes to a slow path without saying so.
"""

import torch
from torch import Tensor

from multihead.attend import flash_cpu, fused_cuda
from multihead.attend.fit import buried
from multihead.attend.normaliser import Softmax
from multihead.attend.order import hidden
from multihead.attend.problem import Problem

NAME = "sdpa"
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def why_not(problem: Problem) -> list[str]:
    """Every reason against it, in words; none if it can run the problem."""
    reasons: list[str] = []
    if not isinstance(problem.normaliser, Softmax):
        reasons.append(f"its kernels have softmax only, not {problem.normaliser}")
    if problem.softcap is not None:
        reasons.append("its kernels have no softcap")
    if problem.dropout > 0:
        reasons.append(
            "its kernels with dropout store every weight (CPU) or cannot be held against the reference (CUDA)"
        )
    sizes = ("batch", "heads", "q_len", "kv_len", "head_dim", "v_head_dim")
    reasons += [f"{name} is 0, which its kernels do not take" for name in sizes if getattr(problem, name) == 0]
    unseen = hidden(problem)
    reasons += [f"its kernels have no {what}" for what in unseen]
    # A number of what vmap goes over cannot be looked at.
    reasons += _why_no_gradient(problem) if torch.is_grad_enabled() and not unseen else []
    if problem.q.device.type == "cuda":
        return reasons + fused_cuda.why_not(problem)
    if problem.q.device.type != "cpu":
        reasons.append(f"no kernel that gives a log-sum-exp is known on {problem.q.device.type}")
    return reasons


def _why_no_gradient(problem: Problem) -> list[str]:
    bias, reasons = problem.bias, list[str]()
    if bias is None:
        return reasons
    if (bias if isinstance(bias, Tensor) else bias.weight).requires_grad:
        reasons.append("its kernels give no gradient to a bias")
    if any(x.requires_grad for x in (problem.q, problem.k, problem.v)) and buried(problem):
        reasons.append("a row of the bias is beyond +-1000 throughout, which its backward pass gets wrong (use a mask)")
    return reasons


def how(problem: Problem) -> str:
    """Which kernel runs, and how the problem is put to it."""
    return fused_cuda.how(problem) if problem.q.device.type == "cuda" else flash_cpu.how(problem)


def prepare(problem: Problem) -> flash_cpu.Prepared | None:
    """A problem ready to be run again for other q, k and v of the same facts; None where it has to be made anew."""
    return flash_cpu.prepare(problem) if problem.q.is_cpu else None


def run(problem: Problem) -> tuple[Tensor, Tensor | None]:
    """Output (batch, heads, q_len, v_head_dim) and log-sum-exp (batch, heads, q_len)."""
    return fused_cuda.run(problem) if problem.q.device.type == "cuda" else flash_cpu.run(problem)
