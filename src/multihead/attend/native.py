"""Our compiled kernel for the CPU: every mask and bias of this room, in one pass over the keys.

It gives no gradients; in training another backend runs.
"""

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor
from torch.autograd import forward_ad

from multihead.attend.lowering import bias_parts, mask_parts, sink_logits
from multihead.attend.normaliser import Softmax
from multihead.attend.problem import Problem
from multihead.attend.table import kind_of, prefers, processor_of
from multihead.native import NOT_BUILT, Library, Variant, load, ops, why_none
from multihead.native.ops import Prepared, unrecorded
from multihead.native.pack import DTYPES, WIDEST
from multihead.position import AdaptiveSpan

NAME = "native"
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}

_BUILD = "install a C++ compiler (g++ or clang++), then multihead again from its sources"
_FARTHEST = 2**40  # of an offset
_HIGHEST_CAP = 1e30
_LEAST, _MOST = torch.finfo(torch.float32).tiny, torch.finfo(torch.float32).max
# (variant, threads) that a test asked for; 0 leaves it to the kernel and to torch.
_FORCED: ContextVar[tuple[int, int]] = ContextVar("multihead.attend.native", default=(0, 0))


@contextmanager
def forced(*, variant: int = Variant.AUTO, threads: int = 0) -> Generator[None]:
    """Within it the kernel runs this variant on so many threads: for tests and benchmarks, the result is the same.

    Args:
        variant: One of `load().variants()`, or AUTO for the best one.
        threads: At most so many, or 0 for as many as torch has.
    """
    token = _FORCED.set((int(variant), threads))
    try:
        yield
    finally:
        _FORCED.reset(token)


def forcing() -> tuple[int, int]:
    """The variant and threads that were asked for by `forced`."""
    return _FORCED.get()


def why_not(problem: Problem) -> list[str]:
    """Every reason against it, in words; none if it can run the problem."""
    q, reasons = problem.q, list[str]()
    if not q.is_cpu:
        reasons.append(f"it runs on the CPU, not on {q.device.type}")
    if q.dtype not in DTYPES:
        reasons.append(f"it has float32, bfloat16 and float16, not {str(q.dtype).removeprefix('torch.')}")
    reasons += _differentiated(problem)
    if problem.dropout > 0:
        reasons.append("it has no dropout yet")
    if not isinstance(problem.normaliser, Softmax):
        reasons.append(f"it has softmax only, not {problem.normaliser}")
    reasons += _beyond(problem)
    if load() is None:
        told = why_none()
        reasons.append(f"{told}: {_BUILD}" if told == NOT_BUILT else str(told))
    return reasons


def _differentiated(problem: Problem) -> list[str]:
    """What is asked besides the numbers themselves."""
    reasons = ["it gives no gradients yet"] * (torch.is_grad_enabled() and _trained(problem))
    return reasons + followed()


def followed() -> list[str]:
    """What follows the call and cannot follow the kernel, in words; torch tells of it by no public name."""
    reasons: list[str] = []
    forward = forward_ad._current_level >= 0  # pyright: ignore[reportPrivateUsage]
    if forward or torch._C._are_functorch_transforms_active():  # pyright: ignore[reportPrivateUsage]
        reasons.append("it has no forward-mode derivatives (jvp) and no vmap")
    if torch._C._is_tracing():  # pyright: ignore[reportPrivateUsage]
        reasons.append("torch.jit.trace would keep what it gives as a constant")
    return reasons


def _trained(problem: Problem) -> bool:
    bias, normaliser = problem.bias, problem.normaliser
    if problem.q.requires_grad or problem.k.requires_grad or problem.v.requires_grad:
        return True
    if bias is not None and (bias if isinstance(bias, Tensor) else bias.weight).requires_grad:
        return True
    return isinstance(normaliser, Softmax) and normaliser.sinks is not None and normaliser.sinks.requires_grad


def _beyond(problem: Problem) -> list[str]:
    """Sizes and numbers the kernel does not take."""
    head_dim, v_head_dim, softcap = problem.q.shape[3], problem.v.shape[3], problem.softcap
    reasons: list[str] = []
    if max(head_dim, v_head_dim) > WIDEST:
        sizes = {"head_dim": head_dim, "v_head_dim": v_head_dim}
        reasons += [f"{name} {size} is over {WIDEST}" for name, size in sizes.items() if size > WIDEST]
    for name, number in (("scale", problem.scale), ("softcap", softcap)):
        if number and not _LEAST <= abs(number) <= _MOST:
            reasons.append(f"{name} {number:g} is beyond the numbers of float32")
    if softcap is not None and softcap > _HIGHEST_CAP:
        reasons.append(f"softcap {softcap:g} is over {_HIGHEST_CAP:g}, where it caps nothing")
    if abs(problem.q_offset or 0) > _FARTHEST:
        reasons.append(f"q_offset {problem.q_offset} is beyond +-2**40")
    return reasons


def behind(problem: Problem) -> str | None:
    """Why another backend that can run the problem as well goes first, in words; None where this is the fastest."""
    library = load()
    if library is None:
        return None
    return prefers(problem, asked(library)[0].name.lower(), processor_of(library, problem.q.dtype))


def how(problem: Problem) -> str:
    """What runs, in words."""
    library = load()
    if library is None:
        return NOT_BUILT
    variant, threads = asked(library)
    words = [f"compiled kernel, {variant.name.lower()}, {threads} thread{'s' * (threads != 1)}"]
    words += ["keys read where they lie"] * (kind_of(problem) == "decode")
    words += [text for text in (str(mask_parts(problem)), str(bias_parts(problem))) if text]
    words += ["sinks"] * (isinstance(problem.normaliser, Softmax) and not problem.normaliser.plain)
    copied = [name for name in ("q", "k", "v") if _gaps(getattr(problem, name))]
    return ", ".join(words + [f"copies of {' and '.join(copied)} without gaps"] * bool(copied))


def asked(library: Library) -> tuple[Variant, int]:
    """The variant and the number of threads that run.

    Args:
        library: The kernel.
    """
    variant, threads = _FORCED.get()
    return Variant(variant) if variant else library.best_variant(), library.threads(threads)


def _gaps(x: Tensor) -> bool:
    return x.stride(3) != 1 and x.shape[3] > 1 and x.numel() > 0


def run(problem: Problem) -> tuple[Tensor, Tensor]:
    """Output (batch, heads, q_len, v_head_dim) and log-sum-exp (batch, heads, q_len)."""
    q, k, v = problem.q, problem.k, problem.v
    if q.stride(3) != 1 or k.stride(3) != 1 or v.stride(3) != 1:
        q, k, v = (x.contiguous() if _gaps(x) else x for x in (q, k, v))
    bias = None if problem.bias is None else bias_parts(problem)
    variant, threads = _FORCED.get()
    return unrecorded(
        q,
        k,
        v,
        [] if problem.mask is None and not isinstance(problem.bias, AdaptiveSpan) else mask_parts(problem).tensors(),
        [] if bias is None else bias.tensors(),
        sink_logits(problem),
        problem.scale,
        problem.softcap or 0.0,
        problem.q_offset or 0,
        0 if bias is None else bias.first,
        threads,
        variant,
    )


def prepare(problem: Problem) -> Prepared | None:
    """A problem ready to be run again for other q, k and v of the same sizes and strides.

    Args:
        problem: One that it can run.

    Returns:
        None where something else is in it that may be another the next time: a bias, sinks, copies without gaps.
    """
    if (
        problem.bias is not None
        or sink_logits(problem) is not None
        or any(map(_gaps, (problem.q, problem.k, problem.v)))
    ):
        return None
    mask = mask_parts(problem).tensors()
    numbers = (problem.scale, problem.softcap or 0.0, problem.q_offset or 0)
    return ops.prepare((problem.q, problem.k, problem.v), mask, numbers, _FORCED.get())
