"""Where a forward pass is: which modules around the attention are running, with what arguments."""

import inspect
import threading
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from torch.utils.module_tracker import ModuleTracker

from multihead.hooks.address import CROSS, name_stacks
from multihead.hooks.call import Site, Tokens
from multihead.hooks.fallback import sheltered
from multihead.hooks.locate import crosses, find_attention, find_fallback, innermost
from multihead.layer import Attends, MultiHeadAttention

# transformers calls it `cache` from 5.24 on.
CACHES = ("cache", "past_key_values")
_NAMED = "transformers."
_BACKWARD = ModuleTracker()


class Frame:
    """One module that is running.

    Args:
        module: The module.
        args: Positional arguments of its forward.
        kwargs: Keyword arguments of its forward.
        block: Whether it is a layer of a ModuleList or Sequential with attention inside.
    """

    def __init__(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, block: bool) -> None:
        self.module, self.block = module, block
        self._args, self._kwargs = args, kwargs
        self.cache: object = None
        self.past = 0
        self.output: object = None
        # Notes of the token reader: what the module was fed, alone and with what its cache stands for.
        self.tokens: Tokens | None = None
        self.whole: Tokens | None = None

    @cached_property
    def given(self) -> Mapping[str, Any]:
        """Arguments by name."""
        return dict(zip(self.names, self._args, strict=False)) | dict(self._kwargs)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parameters of its forward."""
        return _parameters(type(self.module).forward)

    def hidden(self) -> Tensor | None:
        """What it transforms: `hidden_states`, or its first tensor of floating (batch, length, width)."""
        candidates = (self._kwargs.get("hidden_states"), *self._args)
        return next((t for t in candidates if isinstance(t, Tensor) and t.ndim == 3 and t.is_floating_point()), None)


class _Pass(threading.local):
    """The pass a thread is in."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.visits: Counter[int] = Counter()
        # Attention calls of the run of each module that goes on.
        self.calls: Counter[int] = Counter()


class Trace:
    """Follows the forward passes of a model; a pass begins and ends with the outermost module that is called.

    So it also follows what `generate` does: the encoder called by itself, then the whole model once a token.

    Args:
        model: The model.
        on_leave: Called with each frame that ends well, after its module has run.
        on_end: Called when a pass has ended, with its outermost module, or with None if it raised.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        on_end: Callable[[nn.Module | None], None],
        on_leave: Callable[[Frame], None] | None = None,
    ) -> None:
        self.model = model
        self.paths = {id(module): path for path, module in model.named_modules()}
        seen, fallback = find_attention(model), find_fallback(model)
        self._attention = {id(module) for _, module in (*seen, *fallback)}
        self._cross = crosses(model)
        self._free = sheltered(model)
        found = (*seen, *innermost(fallback, seen))
        stacks = name_stacks((path, self._cross[id(module)]) for path, module in found)
        self.stacks = {path: stack for (path, _), stack in stacks.items()}
        self._around = _ancestors(model, self._attention)
        self._blocks = _blocks(model, self._around, self._attention)
        self._on_end, self._on_leave = on_end, on_leave
        self._pass = _Pass()
        self._most_visits: Counter[int] = Counter()

    def __deepcopy__(self, _memo: object) -> "Trace":
        # Copies of a watched module carry its hooks; they are not followed.
        return self

    @property
    def frames(self) -> Sequence[Frame]:
        """What is running in this thread, the outermost first."""
        return self._pass.frames

    @property
    def backward(self) -> bool:
        """Whether a backward pass is running in this thread: gradient checkpoints then run layers again."""
        return _BACKWARD.is_bw

    @contextmanager
    def followed(self) -> Generator[None, None, None]:
        """While this is open, passes are followed."""
        with ExitStack() as hooks:
            for module in self._around:
                if id(module) not in self._free:
                    hooked(hooks, module.register_forward_pre_hook(self.enter, with_kwargs=True))
                    hooked(hooks, module.register_forward_hook(self.leave, always_call=True))
            yield

    def site(self, module: nn.Module) -> Site:
        """The site of an attention call that runs now."""
        path = self.paths[id(module)]
        cross = self._cross[id(module)] or self._keys_given(module)
        repeat = max(self._pass.visits[id(module)] - 1, 0)
        return Site(module=path, repeat=repeat, cross=cross, stack=CROSS if cross else self.stacks.get(path))

    def begin(self, module: nn.Module) -> None:
        """An attention call of a module begins."""
        self._pass.calls[id(module)] += 1

    def calls(self, module: nn.Module) -> int:
        """How many attention calls the run of a module has made so far."""
        return self._pass.calls[id(module)]

    def heads_before(self, module: nn.Module) -> int:
        """How many heads of its layer come before those of the call at hand: a mixed layer makes one for each group."""
        groups = module.groups if isinstance(module, MultiHeadAttention) else ()
        place = (self._pass.calls[id(module)] - 1) % len(groups) if groups else 0
        return sum(group.heads for group in groups[:place])

    def most_visits(self, module: nn.Module) -> int:
        """How often a module was called in one pass, at most; backward passes may run in threads of their own."""
        return self._most_visits[id(module)]

    def again(self, module: nn.Module) -> None:
        """A module begins another layer within one call of it."""
        self._visit(module)

    def _visit(self, module: nn.Module) -> None:
        visits = self._pass.visits
        visits[id(module)] += 1
        self._most_visits[id(module)] = max(self._most_visits[id(module)], visits[id(module)])

    def _keys_given(self, module: nn.Module) -> bool:
        """Modules that are one class for both are told apart by what they are called with."""
        if not self.frames or self.frames[-1].module is not module:
            return False
        query, key = (
            next((self.frames[-1].given[name] for name in names if name in self.frames[-1].given), None)
            for names in (("query", "q"), ("key", "k"))
        )
        if isinstance(module, Attends):
            remembered = getattr(self.frames[-1].given.get("cache"), "fixed", False) is True
            return remembered or (key is not None and key is not query)
        if is_told_by_name(module):
            # There names and classes tell; Funnel's pooled queries are no other sequence.
            return False
        if not isinstance(query, Tensor) or not isinstance(key, Tensor) or query.ndim > 3:
            return False
        return key is not query and not (key.shape == query.shape and torch.equal(key, query))

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A module begins. What takes no hooks is told of by those who run it."""
        state = self._pass
        state.calls.pop(id(module), None)
        if self.backward or id(module) not in self.paths:
            return
        if any(frame.module is module for frame in state.frames):
            # No module runs inside itself: an interrupt (Ctrl-C) ended the earlier pass without leaving it.
            state.frames.clear()
            self._on_end(None)
        if not state.frames:
            state.visits.clear()
        self._visit(module)
        frame = Frame(module, args, kwargs, block=id(module) in self._blocks)
        if isinstance(module, Attends):
            _read_own_cache(frame)
        elif not (frame.block or any(outer.block for outer in state.frames)):
            _read_cache(frame, state.frames)
        state.frames.append(frame)

    def leave(self, module: nn.Module, _args: tuple[Any, ...], result: object) -> None:
        """It ends, with None where it failed."""
        frames = self._pass.frames
        if self.backward or not any(frame.module is module for frame in frames):
            return
        while frames[-1].module is not module:
            frames.pop()
        # torch calls this with None where forward raised.
        frame, well = frames.pop(), result is not None
        if well and self._on_leave is not None:
            frame.output = result
            self._on_leave(frame)
        if not frames:
            self._on_end(module if well else None)


def is_told_by_name(module: nn.Module) -> bool:
    """Whether a module's name or class tells cross-attention, and not what it is called with."""
    return type(module).__module__.startswith(_NAMED)


def hooked(hooks: ExitStack, handle: RemovableHandle) -> None:
    """Take a hook away when `hooks` is closed."""
    hooks.callback(handle.remove)


def _read_cache(frame: Frame, outer: Sequence[Frame]) -> None:
    """Tokens in the cache before this pass. Layers write to it, so it is read outside of them and once a pass."""
    cache = next((frame.given[name] for name in CACHES if frame.given.get(name) is not None), None)
    if cache is None or not hasattr(cache, "get_seq_length"):
        return
    known = next((other.past for other in outer if other.cache is cache), None)
    frame.cache, frame.past = cache, int(cache.get_seq_length()) if known is None else known


def _read_own_cache(frame: Frame) -> None:
    """Tokens in the cache of one of our modules, each of which has its own, before this call."""
    cache = frame.given.get("cache")
    if getattr(cache, "fixed", None) is False:
        frame.cache, frame.past = cache, int(getattr(cache, "length", 0))


def _ancestors(model: nn.Module, attention: set[int]) -> list[nn.Module]:
    """The modules around attention layers, these included, and the model; shared layers have several paths."""
    around = {id(model): model}
    modules = dict(model.named_modules(remove_duplicate=False))
    for path, module in modules.items():
        if id(module) in attention:
            parts = path.split(".")
            for end in range(1, len(parts) + 1):
                above = modules[".".join(parts[:end])]
                around[id(above)] = above
    return list(around.values())


def _blocks(model: nn.Module, around: Sequence[nn.Module], attention: set[int]) -> set[int]:
    ids = {id(module) for module in around} - attention
    lists = (module for module in model.modules() if isinstance(module, nn.ModuleList | nn.Sequential))
    return {id(child) for layers in lists for child in layers if id(child) in ids}


@cache
def _parameters(forward: Callable[..., Any]) -> tuple[str, ...]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return tuple(p.name for p in inspect.signature(forward).parameters.values() if p.kind in kinds)[1:]
