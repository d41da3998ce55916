"""Calls that were met before: checked, chosen for, and written down for the kernel that runs them once.

A model makes the same call in every layer and for every text. Where its only tensors are q, k and v, a few facts decide
what its checks say, what "auto" chooses, and what the kernel is told: the same facts again need new addresses, no more.
Beside a small kernel all the rest is most of the time.
"""

from collections.abc import Hashable

import torch
from torch import Tensor

from multihead.attend import flash_cpu, native, sdpa
from multihead.attend.problem import Problem
from multihead.native import ops
from multihead.pattern.relative import Relative

Ready = ops.Prepared | flash_cpu.Prepared
_MOST = 1024  # calls that are remembered, of about a kilobyte each
_KNOWN: dict[Hashable, Ready] = {}
_PREPARES = {native.NAME: native.prepare, sdpa.NAME: sdpa.prepare}
_NUMBER, _WHOLE = (float, type(None)), (int, type(None))


def facts_of(
    q: Tensor, k: Tensor, v: Tensor, mask: object, scale: object, softcap: object, q_offset: object, backend: object
) -> Hashable | None:
    """All that decides what a call does, or None of a call that is never remembered, since more than this decides it.

    The arguments are those of `attention`, as the caller passed them: nothing is checked yet.
    """
    if ops.watched(q, k, v) or native.followed() or not (q.is_cpu and k.is_cpu and v.is_cpu):
        return None
    # By their very types: True, which is refused, is equal to 1, which is not.
    if type(q_offset) not in _WHOLE or type(scale) not in _NUMBER or type(softcap) not in _NUMBER:
        return None
    if not (mask is None or type(mask) is Relative) or type(backend) is not str:
        return None
    window = None if mask is None else (mask.low, mask.high)
    sizes = q.shape, k.shape, v.shape, q.stride(), k.stride(), v.stride()
    trained = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    return q.dtype, k.dtype, v.dtype, sizes, window, scale, softcap, q_offset, backend, trained, native.forcing()


def recall(facts: Hashable | None) -> Ready | None:
    """The call of these facts, ready to run; None where it was not met, or has to be made anew every time.

    Args:
        facts: What `facts_of` gives.
    """
    return None if facts is None else _KNOWN.get(facts)


def remember(facts: Hashable, problem: Problem, backend: str) -> Ready | None:
    """Remembers a call for `recall`, and gives it; None where nothing of it can be remembered.

    Args:
        facts: What `facts_of` gave.
        problem: The call, checked.
        backend: The name of what runs it.
    """
    prepare = _PREPARES.get(backend)
    prepared = None if prepare is None else prepare(problem)
    if prepared is None:
        return None
    if len(_KNOWN) >= _MOST:
        forget()
    _KNOWN[facts] = prepared
    return prepared


def forget() -> None:
    """Forgets every call."""
    _KNOWN.clear()
