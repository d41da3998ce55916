"""What the code of a module's class says about attention, read without running it."""

import dis
import inspect
import sys
from collections.abc import Iterator
from functools import cache
from types import CodeType, FunctionType

from torch import nn

# The table every attention module of transformers looks its kernel up in.
_TABLE = "ALL_ATTENTION_FUNCTIONS"
_WHOLE = frozenset({"scaled_dot_product_attention", "multi_head_attention_forward"})
_PRODUCTS = frozenset({"matmul", "bmm", "baddbmm", "einsum"})
_SOFTMAX = frozenset({"softmax", "Softmax"})
# A function that is called may call another; further away there is other business.
_DEPTH = 3


def uses_table(kind: type[nn.Module]) -> bool:
    """Whether a method of the class names transformers' table of kernels."""
    return any(_TABLE in code.co_names for code in _codes(kind, 0))


def computes_attention(module: nn.Module) -> bool:
    """Whether the code of a module looks like attention written out: a fused call, or softmax between products.

    Functions that methods call are read too, and children without parameters (`nn.Softmax`, a module around `matmul`).
    """
    kinds = [type(module), *(type(child) for child in module.children() if next(child.parameters(), None) is None)]
    words = frozenset[str]().union(*map(_words, kinds))
    if words & _WHOLE:
        return True
    if not words & _SOFTMAX and nn.Softmax not in kinds:
        return False
    return bool(words & _PRODUCTS) or any(map(_multiplies, kinds))


@cache
def _words(kind: type[nn.Module]) -> frozenset[str]:
    """Every name the methods of a class use, and what they call."""
    return frozenset(name for code in _codes(kind, _DEPTH) for name in code.co_names)


@cache
def _multiplies(kind: type[nn.Module]) -> bool:
    """Whether there is an `@` in it."""
    steps = (step for code in _codes(kind, _DEPTH) for step in dis.get_instructions(code))
    return any(step.opname == "BINARY_OP" and step.argrepr.startswith("@") for step in steps)


@cache
def _codes(kind: type[nn.Module], depth: int) -> frozenset[CodeType]:
    """The code of all methods of a class, and of what they call so far down; decorators are seen through."""
    bases = (base for base in kind.__mro__ if is_of_models(base.__module__))
    methods = (inspect.unwrap(value) for base in bases for value in vars(base).values() if callable(value))
    return frozenset().union(*(_reached(method, depth) for method in methods if isinstance(method, FunctionType)))


@cache
def _reached(function: FunctionType, depth: int) -> frozenset[CodeType]:
    found = set(_nested(function.__code__))
    for name in {name for code in found for name in code.co_names} if depth else ():
        called = function.__globals__.get(name)
        helper = inspect.unwrap(called) if callable(called) else None
        if isinstance(helper, FunctionType) and is_of_models(helper.__module__):
            found |= _reached(helper, depth - 1)
    return frozenset(found)


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


@cache
def is_of_models(module: str) -> bool:
    """Whether a Python module may hold attention: of transformers' only those of models, none of torch or Python.

    Args:
        module: Its dotted name.
    """
    top = module.partition(".")[0]
    if top == "transformers":
        return module.startswith("transformers.models.")
    # The user's script is no part of Python.
    return top != "torch" and (top == "__main__" or top not in sys.stdlib_module_names)


_HEAD_COUNTS = (
    "num_heads", "n_heads", "num_attention_heads", "heads", "n_head", "attention_heads", "nhead", "num_head", "nh", "h"
)  # fmt: skip


def stated_heads(module: nn.Module) -> int | None:
    """Number of query heads as the module, or its configuration, states it."""
    own, config = _stated(module), _stated(getattr(module, "config", None))
    if own is not None or config is None:
        return own
    # The configuration may speak of another part of the model (the encoder of DETR).
    rows, width = getattr(getattr(module, "q_proj", None), "out_features", None), getattr(module, "head_dim", None)
    if not isinstance(rows, int) or not isinstance(width, int) or width < 1 or rows % width:
        return config
    # Queries may come with as many gates.
    return config if rows in (config * width, 2 * config * width) else rows // width


def _stated(owner: object) -> int | None:
    stated = (getattr(owner, name, None) for name in _HEAD_COUNTS)
    return next((count for count in stated if type(count) is int and count > 0), None)
