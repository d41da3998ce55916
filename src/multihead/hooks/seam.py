"""The two seams attention passes through: transformers' AttentionInterface and our own module's `attend`.

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
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from multihead.attend import Problem
from multihead.layer import MultiHeadAttention

Kernel = Callable[..., Any]
_POSITIONAL = ("module", "query", "key", "value", "attention_mask")
_OWN = "multihead"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KernelCall:
    """What transformers handed to an attention function.

    Args:
        kernel: Name of the implementation, `"eager"` for the model's own default.
        function: The function itself.
        given: Its arguments by name, `module`, `query`, `key`, `value` and `attention_mask` among them.
    """

    kernel: str
    function: Kernel
    given: Mapping[str, Any]


class Tap:
    """Someone who wants to see, or change, the attention calls of some modules."""

    def owns(self, module: nn.Module) -> bool:
        """Whether calls of this module are wanted."""
        raise NotImplementedError

    def begin(self, module: nn.Module) -> None:
        """An attention call is about to run."""

    def gate(self, module: nn.Module, output: Tensor) -> Tensor:
        """Head outputs (batch, q_len, heads, v_head_dim) as they shall go on; `output` itself to leave them alone."""
        return output

    def end(self, module: nn.Module, call: KernelCall | Problem, output: Tensor) -> None:
        """The call has run, and every gate has acted on its output."""


class _Seams:
    """The one installation, with those who listen."""

    def __init__(self) -> None:
        self.taps: tuple[Tap, ...] = ()
        self._lock = threading.RLock()
        self._interface: tuple[type, Mapping[str, Any]] | None = None
        self._attending: Counter[nn.Module] = Counter()

    def listeners(self, module: nn.Module) -> tuple[Tap, ...]:
        return tuple(tap for tap in self.taps if tap.owns(module))

    def add(self, tap: Tap, own: Iterable[MultiHeadAttention]) -> None:
        with self._lock:
            self._install()
            for module in own:
                if not self._attending[module]:
                    # A method, not a closure: a deep copy of the module then gets it bound to the copy.
                    vars(module)["attend"] = types.MethodType(_attend, module)
                self._attending[module] += 1
            self.taps = (*self.taps, tap)

    def remove(self, tap: Tap, own: Iterable[MultiHeadAttention]) -> None:
        with self._lock:
            self.taps = tuple(other for other in self.taps if other is not tap)
            for module in own:
                self._attending[module] -= 1
                if not self._attending[module]:
                    del self._attending[module], vars(module)["attend"]
            if not self.taps:
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
    own = [module for module in model.modules() if isinstance(module, MultiHeadAttention)]
    _SEAMS.add(tap, own)
    try:
        yield
    finally:
        _SEAMS.remove(tap, own)


def _set(interface: type, name: str, value: object) -> None:
    setattr(interface, name, value)


class _Watched:
    """An attention function that tells the taps of the module it is called for."""

    def __init__(self, kernel: str, function: Kernel) -> None:
        functools.update_wrapper(self, function)
        self.kernel, self.function = kernel, function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module: nn.Module = args[0] if args else kwargs["module"]
        taps = _SEAMS.listeners(module)
        for tap in taps:
            tap.begin(module)
        result = self.function(*args, **kwargs)
        if not taps:
            return result
        output = _gated(taps, module, result[0])
        given = dict(zip(_POSITIONAL, args, strict=False)) | kwargs
        call = KernelCall(kernel=self.kernel, function=self.function, given=given)
        for tap in taps:
            tap.end(module, call, output)
        return result if output is result[0] else (output, *result[1:])


def _watched(kernel: str, function: Kernel) -> Kernel:
    return function if isinstance(function, _Watched) else _Watched(kernel, function)


def _gated(taps: Iterable[Tap], module: nn.Module, output: Tensor) -> Tensor:
    for tap in taps:
        output = tap.gate(module, output)
    return output


def _attend(self: MultiHeadAttention, problem: Problem) -> Tensor:
    """`MultiHeadAttention.attend` of a watched module: (batch, heads, q_len, v_head_dim)."""
    taps = _SEAMS.listeners(self)
    for tap in taps:
        tap.begin(self)
    plain: Tensor = type(self).attend(self, problem)
    # Taps speak (batch, q_len, heads, v_head_dim); the same numbers, seen the other way round.
    turned = plain.transpose(1, 2)
    output = _gated(taps, self, turned)
    for tap in taps:
        tap.end(self, problem, output)
    return plain if output is turned else output.transpose(1, 2)
