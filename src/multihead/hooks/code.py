"""What the code of a module's class says about attention, read without running it."""

import dis
import inspect
from collections.abc import Iterator
from functools import cache
from types import CodeType, FunctionType

from torch import nn

# The table every attention module of transformers looks its kernel up in.
_TABLE = "ALL_ATTENTION_FUNCTIONS"
# These base classes name the table, or draw tokens by softmax; they are not attention.
_BASE_CLASSES = ("torch.", "transformers.modeling_utils", "transformers.generation")
_WHOLE = frozenset({"scaled_dot_product_attention", "multi_head_attention_forward"})
_PRODUCTS = frozenset({"matmul", "bmm", "baddbmm", "einsum", "@"})
_SOFTMAX = frozenset({"softmax", "Softmax"})
# A function that is called may call another; further away there is other business.
_DEPTH = 3


def uses_table(kind: type[nn.Module]) -> bool:
    """Whether a method of the class names transformers' table of kernels."""
    return _TABLE in _words(kind, 0)


def computes_attention(module: nn.Module) -> bool:
    """Whether the code of a module looks like attention written out: a fused call, or softmax between products.

    Functions that methods call are read too, and children without parameters (`nn.Softmax`, a module around `matmul`).
    """
    words = set(_words(type(module), _DEPTH))
    for child in module.children():
        if next(child.parameters(), None) is None:
            words |= _SOFTMAX if isinstance(child, nn.Softmax) else _words(type(child), _DEPTH)
    return bool(words & _WHOLE) or (bool(words & _SOFTMAX) and bool(words & _PRODUCTS))


@cache
def _words(kind: type[nn.Module], depth: int) -> frozenset[str]:
    """Every name the methods of a class use, and what they call so far down; decorators are seen through."""
    bases = (base for base in kind.__mro__ if base is not object and not base.__module__.startswith(_BASE_CLASSES))
    methods = (inspect.unwrap(value) for base in bases for value in vars(base).values() if callable(value))
    return frozenset(word for method in methods if isinstance(method, FunctionType) for word in _said(method, depth))


def _said(function: FunctionType, depth: int) -> Iterator[str]:
    for code in _codes(function.__code__):
        yield from code.co_names
        if any(step.opname == "BINARY_OP" and step.argrepr.startswith("@") for step in dis.get_instructions(code)):
            yield "@"
        if depth:
            for name in code.co_names:
                helper = inspect.unwrap(found) if callable(found := function.__globals__.get(name)) else None
                if isinstance(helper, FunctionType) and not helper.__module__.startswith(_BASE_CLASSES):
                    yield from _said(helper, depth - 1)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


_HEAD_COUNTS = (
    "num_heads", "n_heads", "num_attention_heads", "heads", "n_head", "attention_heads", "nhead", "num_head", "nh", "h"
)  # fmt: skip


def stated_heads(module: nn.Module) -> int | None:
    """Number of query heads as the module, or its configuration, states it."""
    config = getattr(module, "config", None)
    stated = (getattr(owner, name, None) for owner in (module, config) for name in _HEAD_COUNTS)
    return next((count for count in stated if type(count) is int and count > 0), None)
