"""The seams attention passes through: transformers' AttentionInterface, our own module's `attend`, and lookouts.

The interface is one for the whole process, so there is one installation, made when the first model is watched and taken
back when the last one is let go. It replaces two lookups of the class `AttentionInterface`, not the entries of its
table: so the eager function is the very one a model passes as default, tables that a model keeps for itself are seen as
well, and no list of valid names changes.
"""

import functools
import sys
import threading
import types
from collections import Counter
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from multihead.attend import Problem
from multihead.hooks.fallback import TORCHS_OWN, Lookouts
from multihead.hooks.locate import find_fallback
from multihead.hooks.tap import TAPS, Kernel, KernelCall, Tap, gated, unseen
from multihead.layer import Attends

_POSITIONAL = ("module", "query", "key", "value", "attention_mask")
_OWN = "multihead"


class _Seams:
    """The one installation, with those who listen."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._interface: tuple[type, Mapping[str, Any]] | None = None
        self._attending: Counter[nn.Module] = Counter()
        self._lookouts = Lookouts()

    def add(self, tap: Tap, own: Iterable[Attends], others: Iterable[nn.Module]) -> None:
        with self._lock:
            self._install()
            self._lookouts.put(others)
            for module in own:
                if not self._attending[module]:
                    # A method, not a closure: a deep copy of the module then gets it bound to the copy.
                    vars(module)["attend"] = types.MethodType(_attend, module)
                    vars(module)["heads_made"] = types.MethodType(_heads_made, module)
                self._attending[module] += 1
            TAPS.all = (*TAPS.all, tap)

    def remove(self, tap: Tap, own: Iterable[Attends], others: Iterable[nn.Module]) -> None:
        with self._lock:
            TAPS.all = tuple(other for other in TAPS.all if other is not tap)
            self._lookouts.take(others)
            for module in own:
                self._attending[module] -= 1
                if not self._attending[module]:
                    del self._attending[module], vars(module)["attend"], vars(module)["heads_made"]
            if not TAPS.all:
                self._restore()

    def _install(self) -> None:
        modeling = sys.modules.get("transformers.modeling_utils")
        # No model of transformers can exist before that module is there.
        if self._interface is not None or modeling is None:
            return
        interface: type = modeling.AttentionInterface
        before = {name: vars(interface)[name] for name in ("get_interface", "__getitem__") if name in vars(interface)}
        self._interface = interface, before
        looked_up, got = interface.__getitem__, interface.get_interface

        def getitem(table: Any, key: str) -> Kernel:
            return _watched(key, looked_up(table, key))

        def get_interface(table: Any, attn_implementation: str | None, default: Kernel) -> Kernel:
            return _watched(attn_implementation or "eager", got(table, attn_implementation, default))

        _set(interface, "__getitem__", getitem)
        _set(interface, "get_interface", get_interface)

    def _restore(self) -> None:
        if self._interface is None:
            return
        interface, before = self._interface
        for name in ("get_interface", "__getitem__"):
            if name in before:
                _set(interface, name, before[name])
            else:
                delattr(interface, name)
        self._interface = None


_SEAMS = _Seams()


@contextmanager
def tapped(tap: Tap, model: nn.Module) -> Generator[None, None, None]:
    """While this is open, `tap` sees the attention calls of the modules it owns.

    Taps are told of a call in the order in which they were opened. May be nested, and opened from several threads.
    """
    own = [module for module in model.modules() if isinstance(module, Attends)]
    others = [module for _, module in find_fallback(model)]
    others += [module for module in model.modules() if isinstance(module, TORCHS_OWN) and module not in others]
    _SEAMS.add(tap, own, others)
    try:
        yield
    finally:
        _SEAMS.remove(tap, own, others)


def _set(interface: type, name: str, value: object) -> None:
    setattr(interface, name, value)


class _Watched:
    """An attention function that tells the taps of the module it is called for."""

    def __init__(self, kernel: str, function: Kernel) -> None:
        functools.update_wrapper(self, function)
        self.kernel, self.function = kernel, function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module: nn.Module = args[0] if args else kwargs["module"]
        taps = TAPS.of(module)
        for tap in taps:
            tap.begin(module)
        with unseen():
            result = self.function(*args, **kwargs)
        if not taps:
            return result
        output = gated(taps, module, result[0])
        given = dict(zip(_POSITIONAL, args, strict=False)) | kwargs
        call = KernelCall(kernel=self.kernel, function=self.function, given=given)
        for tap in taps:
            tap.end(module, call, output)
        return result if output is result[0] else (output, *result[1:])


def _watched(kernel: str, function: Kernel) -> Kernel:
    return function if isinstance(function, _Watched) else _Watched(kernel, function)


def _attend(self: Attends, problem: Problem) -> Tensor:
    """`MultiHeadAttention.attend` of a watched module: (batch, heads, q_len, v_head_dim)."""
    taps = TAPS.of(self)
    for tap in taps:
        tap.begin(self)
    with unseen():
        plain: Tensor = type(self).attend(self, problem)
    # Taps speak (batch, q_len, heads, v_head_dim); the same numbers, seen the other way round.
    turned = plain.transpose(1, 2)
    output = gated(taps, self, turned)
    told = self.told(problem) if taps else problem
    for tap in taps:
        tap.end(self, told, output)
    return plain if output is turned else output.transpose(1, 2)


def _heads_made(self: Attends, plain: Tensor) -> Tensor:
    """`MultiHeadAttention.heads_made` of a watched module: (batch, heads, q_len, v_head_dim)."""
    taps = TAPS.of(self)
    for tap in taps:
        tap.begin(self)
    turned = plain.transpose(1, 2)
    output = gated(taps, self, turned)
    for tap in taps:
        tap.made(self, output)
    return plain if output is turned else output.transpose(1, 2)
