"""What backends with a backward pass of their own share, and what their derivatives cover: one such pass, no more."""

import inspect
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NoReturn

import torch
from torch import Tensor

from multihead.attend.normaliser import Softmax
from multihead.attend.problem import Problem
from multihead.error import MultiheadError

_MIX = 0x9E3779B97F4A7C15  # spreads neighbouring places over the seeds


class FirstOrder(torch.autograd.Function):
    """A function with a gradient, without second derivatives, forward-mode derivatives or vmap."""

    def __init_subclass__(cls) -> None:
        # torch asks for the signature at every call, and making it takes longer than a small kernel.
        setattr(cls.forward, "__signature__", inspect.signature(cls.forward))  # noqa: B010 - functions take attributes

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> NoReturn:
        """Refused."""
        refuse("forward-mode derivatives (jvp)")

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> NoReturn:
        """Refused."""
        refuse("torch.func.vmap")


class _Last(FirstOrder):
    """Hands gradients through and says, if they are to be differentiated again, what to do instead."""

    @staticmethod
    def forward(count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The first `count` tensors; the others are what they were made from."""
        return tuple(tensor.clone() for tensor in tensors[:count])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Nothing is kept."""

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> NoReturn:
        """Refused."""
        refuse("second derivatives")


def last(grads: Sequence[Tensor], sources: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The gradients, guarded where a graph of the backward pass is asked for.

    Args:
        grads: What a backward pass computed.
        sources: What it computed them from.
    """
    return _Last.apply(len(grads), *grads, *sources) if torch.is_grad_enabled() else tuple(grads)


def rebuilt(problem: Problem, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None) -> Problem:
    """The problem around the tensors that autograd hands over.

    Args:
        problem: As it was asked.
        q: Its queries.
        k: Its keys.
        v: Its values.
        sinks: Its sinks, if it has some.
    """
    normaliser = problem.normaliser
    if isinstance(normaliser, Softmax) and sinks is not None:
        normaliser = replace(normaliser, sinks=sinks)
    return replace(problem, q=q, k=k, v=v, normaliser=normaliser)


def kept(shape: tuple[int, ...], problem: Problem, seed: int, place: int) -> Tensor | None:
    """The factor of dropout on some weights, the same whenever it is asked for; None without dropout.

    Args:
        shape: Of the weights.
        problem: What is asked.
        seed: Of the call.
        place: Tells these weights from others of the call.
    """
    if problem.dropout == 0:
        return None
    if problem.q.is_meta:  # there is nothing to draw, and no generator
        return torch.empty(shape, dtype=problem.wide, device=problem.q.device)
    generator = torch.Generator(problem.q.device).manual_seed((seed ^ (place * _MIX)) % 2**63)
    drawn = torch.rand(shape, generator=generator, device=problem.q.device)
    return (drawn >= problem.dropout).to(problem.wide) / (1 - problem.dropout)


def hidden(problem: Problem) -> list[str]:
    """Which tensors besides q, k and v a torch.func.vmap goes over, in words: our kernels do not see them as such.

    Args:
        problem: What is asked.
    """
    if not torch._C._are_functorch_transforms_active():  # pyright: ignore[reportPrivateUsage] - no public name
        return []
    bias, normaliser = problem.bias, problem.normaliser
    parts = {
        "mask": problem.mask,
        "bias": bias if isinstance(bias, Tensor) or bias is None else bias.weight,
        "sinks": normaliser.sinks if isinstance(normaliser, Softmax) else None,
    }
    batched = torch._C._functorch.is_batchedtensor  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
    return [f"torch.func.vmap over the {name}" for name, x in parts.items() if isinstance(x, Tensor) and batched(x)]


def refuse(what: str, *, backend: str = "reference") -> NoReturn:
    """Raises the error that names the backend to select.

    Args:
        what: The derivative that was asked for.
        backend: The one that has it.

    Raises:
        MultiheadError: Always.
    """
    cost = ", which has all of them and stores every weight" if backend == "reference" else ""
    raise MultiheadError(
        asked=f"{what} of an attention call",
        arrived="a backend whose derivatives do not go that far",
        remedy=f'call it with backend="{backend}"{cost}',
    )
