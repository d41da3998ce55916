"""Watching a model: every attention call, complete, while the model runs as it always does."""

import sys
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from multihead.attend import Problem
from multihead.hooks.call import Call, Projection, Site, Tokens
from multihead.hooks.fallback import sheltered
from multihead.hooks.kernel import check_kernel, problem_of
from multihead.hooks.locate import no_attention
from multihead.hooks.remark import remark_on, stateful, untold
from multihead.hooks.seam import tapped
from multihead.hooks.tap import KernelCall, OwnCall, Tap
from multihead.hooks.tokens import TokenReader, past_of
from multihead.hooks.trace import Trace, hooked

_OWN_KERNEL = "multihead"
_UNUSED = (
    "no linear layer was fed the head outputs as they are: they are gated, reordered or split before it, or there is "
    "none"
)

_LINEAR = (
    "its linear heads see earlier tokens as one sum: they have no weights that could be told; other heads are told"
)


class Watched:
    """A model under watch."""

    def __init__(self) -> None:
        self._sites: dict[Site, None] = {}
        self._unseen: dict[str, str] = {}
        self._remarks: dict[str, str] = {}

    @property
    def sites(self) -> tuple[Site, ...]:
        """Every site seen so far, in the order of its first call."""
        return tuple(self._sites)

    @property
    def unseen(self) -> Mapping[str, str]:
        """Modules that computed something like attention that could not be told, each with the reason."""
        return dict(self._unseen)

    @property
    def remarks(self) -> Mapping[str, str]:
        """Modules whose calls are not what they read as, each with what has to be known of them."""
        return dict(self._remarks)

    def refuse(self, module: str, reason: str) -> None:
        """Note a module whose attention cannot be told."""
        self._unseen.setdefault(module, reason)

    def remark(self, module: str, text: str) -> None:
        """Note what has to be known of a module; an empty text is nothing."""
        if text:
            self._remarks.setdefault(module, text)

    def see(self, site: Site) -> None:
        """Note a site."""
        self._sites.setdefault(site)


@contextmanager
def watching(
    model: nn.Module, on_call: Callable[[Call], None], *, on_pass: Callable[[bool], None] | None = None
) -> Generator[Watched, None, None]:
    """Tell of every attention call of a model, which runs on its own kernels to its own, unchanged outputs.

    `on_call` is called once a call, when its output projection is about to run, or, where that is not found, before
    the next attention layer of the model begins or the pass ends. A layer with heads of several kinds makes one call
    for each kind (`Call.first_head`). An exception in `on_call` goes up through the model.
    What happens within `model.generate` is seen token by token, at absolute positions. Layers run a second time by
    gradient checkpoints are not told again. Calls made by another thread are told in that thread.

    Modules that compute attention by themselves are looked at while they run: `Call.kernel` then ends in `(fallback)`.
    Where their scores are a product of queries and keys, scaled and added to, the problem holds these; where they are
    not (disentangled terms of DeBERTa), queries and keys have head_dim 0 and the bias holds the scores. What cannot be
    told, such as attention in blocks, is listed with its reason in `Watched.unseen`. Linear heads beside softmax heads
    are listed there too: they count (`Call.first_head`) and have columns of the projection, but no weights. What has to
    be known to read the calls of a module is in `Watched.remarks`.
    `NativeSparseAttention` makes three calls of the same heads, one a branch; `LSHAttention` computes from all pairs
    while it is watched, the same but for rounding. `nn.TransformerEncoder` in
    inference has a fast path that no one can look into: it gives the outputs, and torch's slow path runs beside it.

    Everything is put back when the context closes, also after an exception. Watches may be nested, and several models
    may be watched at once; each sees its own modules only.

    Args:
        model: Any model with attention; `locate` tells what of it can be seen. One of transformers has to run under
            sdpa or eager kernels.
        on_call: Gets each call. The tensors are the model's: read them, and keep no reference to them.
        on_pass: Called when a pass has ended: True if it ended well, False if it raised (its last call is then not
            told).

    Yields:
        What has been seen so far.

    Raises:
        MultiheadError: The model ran, and no attention passed through a seam we know; or it runs on a kernel whose mask
            cannot be read.

    Example:
        >>> with watching(model, lambda call: print(call.site.module, call.problem.scores(slice(0, 1)).shape)):
        ...     model(**inputs)  # doctest: +SKIP
    """
    watcher = _Watcher(model, on_call, on_pass)
    free = sheltered(model)
    for path, reason in stateful(model):
        watcher.watched.refuse(path, reason)
    with ExitStack() as open_hooks:
        open_hooks.enter_context(watcher.trace.followed())
        for module in model.modules():
            if isinstance(module, _linear_kinds()) and id(module) not in free:
                hooked(open_hooks, module.register_forward_pre_hook(watcher.feed))
        open_hooks.enter_context(tapped(watcher, model))
        yield watcher.watched
        watcher.check_seen()


@dataclass(slots=True, kw_only=True)
class _Pending:
    """A call that waits for its projection. It keeps the output alive, so that no other tensor takes its place."""

    site: Site
    problem: Problem
    output: Tensor
    hidden: Tensor | None
    queries: Tokens
    keys: Tokens
    kernel: str
    first_head: int = 0
    own: bool = False
    time_first: bool = False

    @property
    def width(self) -> int:
        """Numbers of its heads, joined."""
        return self.output.shape[-2] * self.output.shape[-1]

    @property
    def residual(self) -> Tensor | None:
        """What the block around it was given, (batch, q_len, width)."""
        hidden = self.hidden.transpose(0, 1) if self.hidden is not None and self.time_first else self.hidden
        fits = hidden is not None and hidden.shape[:2] == (self.problem.batch, self.problem.q_len)
        return hidden if fits else None

    def is_fed(self, given: Tensor) -> bool:
        """Whether a tensor is its heads, joined; modules with attention of their own may join them time first."""
        if not _is_like(given, self.output):
            return False
        if _is_same(given, self.output):
            return True
        turned = self.own and torch.equal(_bits(given), _bits(self.output.transpose(0, 1)))
        self.time_first = self.time_first or (turned and given.ndim == 3)
        return turned


@dataclass(slots=True, kw_only=True)
class _Untold:
    """Heads without scores that wait with the others of their layer: the projection has columns of them too."""

    site: Site
    output: Tensor

    @property
    def width(self) -> int:
        """Numbers of its heads, joined."""
        return self.output.shape[-2] * self.output.shape[-1]

    def is_fed(self, given: Tensor) -> bool:
        """Whether a tensor is its heads, joined."""
        return _is_like(given, self.output) and _is_same(given, self.output)


class _Local(threading.local):
    def __init__(self) -> None:
        # More than one where a layer has heads of several kinds: they wait for each other.
        self.pending: list[_Pending | _Untold] = []


class _Watcher(Tap):
    """The tap behind `watching`."""

    def __init__(
        self, model: nn.Module, on_call: Callable[[Call], None], on_pass: Callable[[bool], None] | None
    ) -> None:
        self.model, self.watched = model, Watched()
        self._on_call, self._on_pass = on_call, on_pass
        self._tokens = TokenReader()
        self._local = _Local()
        self._ran = False
        self.trace = Trace(model, on_end=self._end_pass, on_leave=self._tokens.leave)

    def __deepcopy__(self, _memo: object) -> "_Watcher":
        return self

    def owns(self, module: nn.Module) -> bool:
        return id(module) in self.trace.paths and not self.trace.backward

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.trace.enter(module, args, kwargs)

    def leave(self, module: nn.Module, args: tuple[Any, ...], result: object) -> None:
        self.trace.leave(module, args, result)

    def again(self, module: nn.Module) -> None:
        self.trace.again(module)

    def begin(self, module: nn.Module) -> None:
        self.trace.begin(module)
        if not self.trace.heads_before(module):
            self._tell(Projection(weight=None, reason=_UNUSED))

    def end(self, module: nn.Module, call: KernelCall | OwnCall | Problem, output: Tensor) -> None:
        path, why_not = self.trace.paths[id(module)], untold(module, self.trace.calls(module))
        if why_not:
            self.watched.refuse(path, why_not)
            return
        self.watched.remark(path, remark_on(module))
        site, frames = self.trace.site(module), self.trace.frames
        kernel, problem = self._read(site, call)
        queries, keys = self._tokens.read(frames, site, problem)
        block = next((frame for frame in reversed(frames) if frame.block), None)
        pending = _Pending(
            site=site,
            problem=problem,
            output=output,
            hidden=None if block is None else block.hidden(),
            queries=queries,
            keys=keys,
            kernel=kernel,
            first_head=self.trace.heads_before(module),
            own=isinstance(call, OwnCall),
            time_first=isinstance(call, OwnCall) and call.time_first,
        )
        self._local.pending.append(pending)

    def made(self, module: nn.Module, output: Tensor) -> None:
        site = self.trace.site(module)
        self._local.pending.append(_Untold(site=site, output=output))
        self.watched.refuse(site.module, _LINEAR)

    def fed(self, given: Tensor, weight: Tensor) -> None:
        if _are_fed(self._local.pending, given):
            self._tell(Projection(weight=weight))

    def refuse(self, module: nn.Module, reason: str) -> None:
        path, pending = self.trace.paths[id(module)], self._local.pending
        self.watched.refuse(path, reason)
        if pending and pending[-1].site.module == path:
            pending.clear()

    def feed(self, linear: nn.Module, args: tuple[Any, ...]) -> None:
        """A linear layer is about to run: is it fed the head outputs?"""
        fed = args[0] if args else None
        if isinstance(fed, Tensor) and _are_fed(self._local.pending, fed):
            self._tell(_projection(linear, fed.shape[-1]))

    def check_seen(self) -> None:
        """Complain of a model that ran without any attention to be seen."""
        if self._ran and not self.watched.sites:
            unseen = (f"{path or 'the model'}: {reason}" for path, reason in self.watched.unseen.items())
            raise no_attention(self.model, "it ran, and no attention call passed through", unseen)

    def _read(self, site: Site, call: KernelCall | OwnCall | Problem) -> tuple[str, Problem]:
        """Name of the kernel, and what it computed."""
        if isinstance(call, OwnCall):
            return call.kernel, call.problem(past=self._offset(site, call.q, call.k))
        if isinstance(call, KernelCall):
            check_kernel(call.kernel)
            offset = self._offset(site, call.given["query"], call.given["key"])
            return call.kernel, problem_of(call, past=offset)
        return _OWN_KERNEL, call

    def _offset(self, site: Site, q: Tensor, k: Tensor) -> int | None:
        """Absolute position of the first query, where key 0 has position 0."""
        past = past_of(self.trace.frames)
        beyond = k.shape[2] - q.shape[2]
        if site.cross:
            return past or 0
        if past is None:
            return 0 if beyond == 0 else None
        # A sliding cache holds the last keys only; a static one also places that are still empty.
        return min(past, max(beyond, 0))

    def _tell(self, projection: Projection) -> None:
        every, self._local.pending = self._local.pending, []
        for pending, own in zip(every, _dealt(projection, [one.width for one in every]), strict=True):
            if isinstance(pending, _Untold):
                continue
            self.watched.see(pending.site)
            self._on_call(
                Call(
                    site=pending.site,
                    problem=pending.problem,
                    output=pending.output,
                    projection=own,
                    residual=pending.residual,
                    queries=pending.queries,
                    keys=pending.keys,
                    kernel=pending.kernel,
                    first_head=pending.first_head,
                )
            )

    def _end_pass(self, outermost: nn.Module | None) -> None:
        if outermost is None:
            self._local.pending = []
        else:
            self._ran = True
            self._tell(Projection(weight=None, reason=_UNUSED))
        if self._on_pass is not None:
            self._on_pass(outermost is not None)
        if outermost is self.model:
            self.check_seen()


def _are_fed(pending: Sequence[_Pending | _Untold], given: Tensor) -> bool:
    """Whether a tensor is all heads of a layer, joined: of one call, or of one after another."""
    if len(pending) < 2:
        return bool(pending) and pending[0].is_fed(given)
    widths = [one.width for one in pending]
    first = pending[0].output
    if given.ndim != 3 or given.dtype != first.dtype or given.shape != (*first.shape[:2], sum(widths)):
        return False
    return all(
        torch.equal(_bits(part), _bits(one.output)) for part, one in zip(given.split(widths, -1), pending, strict=True)
    )


def _dealt(projection: Projection, widths: Sequence[int]) -> list[Projection]:
    """The projection of each of several calls whose heads were joined: their columns."""
    if projection.weight is None or len(widths) < 2:
        return [projection] * len(widths)
    return [Projection(weight=columns) for columns in projection.weight.split(list(widths), 1)]


def _is_like(fed: Tensor, output: Tensor) -> bool:
    """Whether a tensor can be the head outputs, concatenated, by its size."""
    wide = fed.ndim > 0 and fed.shape[-1] == output.shape[-2] * output.shape[-1]
    return wide and fed.numel() == output.numel() and fed.dtype == output.dtype


def _is_same(fed: Tensor, output: Tensor) -> bool:
    """Whether it is: the same memory, or the same bits if copied."""
    if output.is_contiguous():
        return fed.is_contiguous() and fed.data_ptr() == output.data_ptr()
    # Concatenating heads that lie apart makes a copy.
    return torch.equal(_bits(fed), _bits(output))


def _bits(tensor: Tensor) -> Tensor:
    """As bytes, so that NaN equals itself."""
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


def _linear_kinds() -> tuple[type[nn.Module], ...]:
    """Linear layers; GPT-2 has a class of its own, with the weight the other way round."""
    utils = sys.modules.get("transformers.pytorch_utils")
    return (nn.Linear,) if utils is None else (nn.Linear, utils.Conv1D)


def _projection(linear: nn.Module, inner: int) -> Projection:
    weight = linear.weight
    if not isinstance(weight, Tensor) or weight.ndim != 2 or not weight.is_floating_point():
        return Projection(weight=None, reason=f"the weight of {type(linear).__name__} is packed")
    weight = weight if isinstance(linear, nn.Linear) else weight.t()
    if weight.shape[1] != inner:
        return Projection(weight=None, reason=f"the weight of {type(linear).__name__} is packed")
    return Projection(weight=weight)
