"""Watching modules that compute attention by themselves: their `forward` runs under a lookout, in any thread.

torch's own Transformer has a fast path for inference that no one can look into, and that it leaves as soon as someone
looks or hangs hooks on it. There the model's outputs come from the fast path, untouched, and torch's slow path is run
beside it to be looked at.
"""

import types
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import (
    TorchFunctionMode,
    _get_current_function_mode,  # pyright: ignore[reportPrivateUsage]
    _pop_mode,  # pyright: ignore[reportPrivateUsage]
    _push_mode,  # pyright: ignore[reportPrivateUsage]
)

from multihead.hooks.lookout import Lookout
from multihead.hooks.tap import RUNNING, TAPS, Tap

_LAYERED = (nn.TransformerEncoder, nn.TransformerEncoderLayer)
TORCHS_OWN = (*_LAYERED, nn.MultiheadAttention)
"""Modules that leave their fast path if hooks hang on them or within them."""


def sheltered(model: nn.Module) -> set[int]:
    """Modules, by identity, on which nothing may be hung."""
    return {id(inner) for module in model.modules() if isinstance(module, TORCHS_OWN) for inner in module.modules()}


class Lookouts:
    """Puts the watched `forward` on modules, and takes it away when the last who asked for it has gone."""

    def __init__(self) -> None:
        self._asked: Counter[nn.Module] = Counter()

    def put(self, modules: Iterable[nn.Module]) -> None:
        """Watch modules, once more for each call."""
        for module in modules:
            if not self._asked[module]:
                _BEFORE[module] = vars(module).get("forward")
                # A method, not a closure: a deep copy of the module then gets it bound to the copy.
                vars(module)["forward"] = types.MethodType(_forward, module)
            self._asked[module] += 1

    def take(self, modules: Iterable[nn.Module]) -> None:
        """Let modules go."""
        for module in modules:
            self._asked[module] -= 1
            if self._asked[module]:
                continue
            del self._asked[module]
            before = _BEFORE.pop(module)
            if before is None:
                del vars(module)["forward"]
            else:
                vars(module)["forward"] = before


# What stood in a module's own `forward`, if anything did.
_BEFORE: dict[nn.Module, Callable[..., Any] | None] = {}


class _Slow(TorchFunctionMode):
    """Does nothing; that it is there makes torch leave its fast path."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Called by torch for every function of its own."""
        return func(*args, **(kwargs or {}))


def _forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """`forward` of a watched module."""
    original = _BEFORE.get(self) or types.MethodType(type(self).forward, self)
    taps = () if RUNNING.blind else TAPS.of(self)
    if not taps:
        return original(*args, **kwargs)
    if not isinstance(self, TORCHS_OWN):
        with Lookout(self, taps, args, kwargs):
            return original(*args, **kwargs)
    if any(isinstance(given, Tensor) and given.is_nested for given in (*args, *kwargs.values())):
        # An encoder that someone else has hung hooks in packs its input, and its layers leave their fast path.
        for tap in taps:
            tap.refuse(self, "its input is a nested tensor")
        return original(*args, **kwargs)
    acts = any(tap.acts for tap in taps)
    if RUNNING.beside or acts or not _may_be_fast(self, args, kwargs):
        return _looked_at(self, taps, original, args, kwargs, slow=RUNNING.beside or acts)
    with _blind():
        result = original(*args, **kwargs)
    with _beside():
        _looked_at(self, taps, original, args, kwargs, slow=True)
    return result


def _looked_at(
    module: nn.Module,
    taps: tuple[Tap, ...],
    original: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    slow: bool,
) -> Any:
    """Run one of torch's modules, which take no hooks, and tell of its beginning and end."""
    for tap in taps:
        tap.enter(module, args, kwargs)
    result = None
    try:
        with ExitStack() as modes:
            if isinstance(module, nn.MultiheadAttention):
                modes.enter_context(Lookout(module, taps, args, kwargs))
            elif slow:
                modes.enter_context(_Slow())
            result = original(*args, **kwargs)
    finally:
        for tap in taps:
            tap.leave(module, args, result)
    return result


def _may_be_fast(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether torch may take its fast path; where it does not after all, a second run does no harm."""
    if any(inner.training for inner in module.modules()):
        return False
    if isinstance(module, _LAYERED) and any(_is_hooked(inner) or _has_other(inner) for inner in module.modules()):
        return False
    tensors = [t for t in (*args, *kwargs.values(), *module.parameters()) if isinstance(t, Tensor)]
    return not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors))


def _has_other(module: nn.Module) -> bool:
    """Whether another attention was put into one of torch's layers: its fast path then computes nothing."""
    held: object = getattr(module, "self_attn", None)
    return isinstance(module, nn.TransformerEncoderLayer) and not isinstance(held, nn.MultiheadAttention)


def _is_hooked(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)  # pyright: ignore[reportPrivateUsage]


@contextmanager
def _blind() -> Generator[None, None, None]:
    """Nobody looks: not even a lookout around this module, if it is the last to have been put up."""
    modes: list[TorchFunctionMode] = []
    while isinstance(_get_current_function_mode(), Lookout | _Slow):
        modes.append(_pop_mode())
    RUNNING.blind = True
    try:
        yield
    finally:
        RUNNING.blind = False
        for mode in reversed(modes):
            _push_mode(mode)


@contextmanager
def _beside() -> Generator[None, None, None]:
    RUNNING.beside = True
    try:
        yield
    finally:
        RUNNING.beside = False
