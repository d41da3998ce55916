"""Attention as one operator of torch, `torch.ops.multihead.attention`: what torch.compile and torch.export see of it.

`attention_lse` is the same with the log-sum-exp of each row beside the output.

A graph holds the call as it was asked: the tensors, the pattern in text, the numbers. When the graph runs, the backend
is chosen for the sizes there are then, and its kernel, which is compiled already, runs as it does without a graph. Its
backward pass computes the forward pass once more, since a graph can keep tensors and not what a backend remembers.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from multihead.attend import order
from multihead.attend.check import scaled
from multihead.attend.choose import Backend, choose
from multihead.attend.normaliser import Entmax, Normaliser, Sigmoid, Softmax, Sparsemax
from multihead.attend.problem import Problem, make_problem
from multihead.attend.spelling import Spelling, read
from multihead.pattern import Pattern
from multihead.position import AdaptiveSpan, ALiBi, PositionBias, RelativeTable

_ARGUMENTS = (
    "Tensor q, Tensor k, Tensor v, Tensor? mask, str pattern, Tensor[] held, SymInt[] numbers, Tensor? bias, "
    "int[] bias_form, Tensor? sinks, str normaliser, float option, float? scale, float? softcap, SymInt? q_offset, "
    "str backend, bool[] trained"
)
_OPERATORS = torch.library.Library("multihead", "FRAGMENT")
_OPERATORS.define(f"attention({_ARGUMENTS}) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
_OPERATORS.define(f"attention_lse({_ARGUMENTS}) -> (Tensor out, Tensor lse)", tags=(torch.Tag.pt2_compliant_tag,))
_OPERATORS.define(
    f"attention_backward(Tensor? grad, Tensor? grad_lse, {_ARGUMENTS}, bool[] wanted) -> Tensor[]",
    tags=(torch.Tag.pt2_compliant_tag,),
)


class Call(NamedTuple):
    """One call as the operator takes it.

    Args:
        q: Queries.
        k: Keys.
        v: Values.
        mask: A boolean tensor, or None.
        pattern: A pattern as `Spelling` writes it, empty where there is none.
        held: The tensors in it.
        numbers: The numbers in it.
        bias: Its tensor, or that of a bias of positions.
        bias_form: Nothing for a tensor, (0,) for ALiBi, (1, bidirectional, max_distance) for a relative table,
            (2, ramp) for an adaptive span.
        sinks: Those of `Softmax`.
        normaliser: "softmax", "softmax1", "sigmoid", "entmax" or "sparsemax".
        option: Bias of a sigmoid, alpha of an entmax.
        scale: As in `attention`.
        softcap: As in `attention`.
        q_offset: As in `attention`.
        backend: As in `attention`.
        trained: Whether q, k, v, bias and sinks get a gradient: then a backend that gives it runs forward as well.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None
    pattern: str
    held: Sequence[Tensor]
    numbers: Sequence[int]
    bias: Tensor | None
    bias_form: Sequence[int]
    sinks: Tensor | None
    normaliser: str
    option: float
    scale: float | None
    softcap: float | None
    q_offset: int | None
    backend: str
    trained: Sequence[bool]

    def problem(self) -> Problem:
        """The problem that was asked, checked."""
        return make_problem(
            self.q,
            self.k,
            self.v,
            mask=_read(self.pattern, self.held, tuple(self.numbers)) if self.pattern else self.mask,
            bias=self.position_bias(),
            scale=self.scale,
            softcap=self.softcap,
            normaliser=self._normaliser(),
            q_offset=self.q_offset,
        )

    def position_bias(self) -> Tensor | PositionBias | None:
        """The bias that was asked: its tensor, or what it was the weight of."""
        if self.bias is None or not self.bias_form:
            return self.bias
        if self.bias_form[0] == 0:
            return ALiBi(self.bias)
        if self.bias_form[0] == 2:
            return AdaptiveSpan(self.bias, ramp=self.bias_form[1])
        _, both, far = self.bias_form
        return RelativeTable(self.bias, bidirectional=bool(both), max_distance=far)

    def _normaliser(self) -> Normaliser:
        if self.normaliser in ("softmax", "softmax1"):
            return Softmax(sinks=self.sinks, off_by_one=self.normaliser == "softmax1")
        if self.normaliser == "sigmoid":
            return Sigmoid(self.option)
        return Sparsemax() if self.normaliser == "sparsemax" else Entmax(self.option)


def traced(  # noqa: PLR0913 - the parts of the formula, as in the public function
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Pattern | Tensor | None,
    bias: Tensor | PositionBias | None,
    scale: float | Tensor | None,
    softcap: float | None,
    normaliser: Normaliser | None,
    q_offset: int | None,
    backend: str,
) -> tuple[Call, Problem]:
    """A call of `multihead.attention` with these arguments, without dropout: as an operator takes it, and its problem.

    Nothing in them depends on sizes, so that one graph serves them all; the operator checks the call when it runs.

    Raises:
        MultiheadError: If the pattern has no text form, or a scale that is a tensor does not fit.
    """
    mask = mask[None, None] if isinstance(mask, Tensor) and mask.ndim == 2 else mask
    bias = bias[None, None] if isinstance(bias, Tensor) and bias.ndim == 2 else bias
    if isinstance(scale, Tensor):
        q, scale = scaled(q, scale), 1.0
    problem = Problem(
        q=q,
        k=k,
        v=v,
        mask=mask,
        bias=bias,
        scale=q.shape[3] ** -0.5 if scale is None else scale,
        softcap=softcap,
        normaliser=Softmax() if normaliser is None else normaliser,
        q_offset=q_offset,
    )
    spelling = Spelling([], [])
    pattern = spelling.spell(mask) if isinstance(mask, Pattern) else ""
    weight, form = _taken_apart(bias)
    name, option, sinks = _named(problem.normaliser)
    # What is exported is there to be run: the fastest backend, which may be one without gradients.
    training = torch.is_grad_enabled() and not torch.compiler.is_exporting()
    call = Call(
        q,
        k,
        v,
        None if isinstance(mask, Pattern) else mask,
        pattern,
        spelling.tensors,
        spelling.numbers,
        weight,
        form,
        sinks,
        name,
        option,
        scale,
        softcap,
        q_offset,
        backend,
        [training and part is not None and part.requires_grad for part in (q, k, v, weight, sinks)],
    )
    return call, problem


def _taken_apart(bias: Tensor | PositionBias | None) -> tuple[Tensor | None, list[int]]:
    if isinstance(bias, ALiBi):
        return bias.slopes, [0]
    if isinstance(bias, RelativeTable):
        return bias.table, [1, int(bias.bidirectional), bias.max_distance]
    if isinstance(bias, AdaptiveSpan):
        return bias.spans, [2, bias.ramp]
    return bias, []


def _named(normaliser: Normaliser) -> tuple[str, float, Tensor | None]:
    if isinstance(normaliser, Softmax):
        return "softmax1" if normaliser.off_by_one else "softmax", 0.0, normaliser.sinks
    if isinstance(normaliser, Sigmoid):
        return "sigmoid", normaliser.bias, None
    return "sparsemax" if isinstance(normaliser, Sparsemax) else "entmax", normaliser.alpha, None


def _read(text: str, held: Sequence[Tensor], numbers: tuple[int, ...]) -> Pattern:
    return read(text, held, numbers) if held else _read_text(text, numbers)


@lru_cache(maxsize=256)
def _read_text(text: str, numbers: tuple[int, ...]) -> Pattern:
    return read(text, (), numbers)


_LEAVES = ("q", "k", "v", "bias", "sinks")
_PLACES = [Call._fields.index(name) for name in _LEAVES]


def _keys_of_recording() -> Any:
    """What is left out of dispatching below autograd."""
    before = torch._C._dispatch_tls_local_exclude_set()  # pyright: ignore[reportPrivateUsage] - no public name
    with torch._C._AutoDispatchBelowAutograd():  # pyright: ignore[reportPrivateUsage]
        return torch._C._dispatch_tls_local_exclude_set() - before  # pyright: ignore[reportPrivateUsage]


_RECORDING = _keys_of_recording()


@contextmanager
def _recording() -> Generator[None]:
    """Within an operator torch records nothing for a backward pass; here it does, as outside of one."""
    include = torch._C._dispatch_tls_local_include_set()  # pyright: ignore[reportPrivateUsage]
    exclude = torch._C._dispatch_tls_local_exclude_set()  # pyright: ignore[reportPrivateUsage]
    recorded = torch._C._ForceDispatchKeyGuard(include, exclude - _RECORDING)  # pyright: ignore[reportPrivateUsage]
    with torch.enable_grad(), recorded:
        yield


def _asked(call: Call, graded: Sequence[bool]) -> tuple[list[Tensor | None], Backend, Problem]:
    """Tensors of our own that ask for these gradients, and the backend and the problem of the call on them."""
    parts: list[Tensor | None] = [getattr(call, name) for name in _LEAVES]
    leaves = [
        None if part is None else part.detach().requires_grad_(wanted)
        for part, wanted in zip(parts, graded, strict=True)
    ]
    problem = call._replace(**dict(zip(_LEAVES, leaves, strict=True))).problem()
    return leaves, choose(problem, call.backend), problem


def _run(call: Call) -> tuple[Tensor, Tensor | None]:
    """Output and log-sum-exp, by the backend that is chosen when the graph runs."""
    with _recording() if any(call.trained) else torch.no_grad():
        _, backend, problem = _asked(call, call.trained)
    with torch.no_grad():
        return backend.run(problem)


def _forward(*given: Any) -> Tensor:
    call = Call(*given)
    return _laid_out(_run(call)[0], _blank(call), call)


def _forward_lse(*given: Any) -> tuple[Tensor, Tensor]:
    call = Call(*given)
    out, lse = _run(call)
    if lse is None:
        raise AssertionError(f"{call.normaliser} has no log-sum-exp, and is asked for none")
    return _laid_out(out, _blank(call), call), _laid_out(lse, _blank_lse(call), call)


def _laid_out(found: Tensor, blank: Tensor, call: Call) -> Tensor:
    """A result with the strides that were promised, in memory of its own."""
    return found if found.stride() == blank.stride() and not _shares(found, call) else blank.copy_(found)


def _shares(out: Tensor, call: Call) -> bool:
    """Whether the output is a view of an input, which an operator must not return."""
    places = {part.untyped_storage().data_ptr() for part in (call.q, call.k, call.v)}
    return out.untyped_storage().data_ptr() in places


def _backward(grad: Tensor | None, grad_lse: Tensor | None, *given: Any) -> list[Tensor]:
    """Gradients of q, k, v, bias and sinks, empty where they are not wanted."""
    call, wanted = Call(*given[:-1]), given[-1]
    with _recording():
        leaves, backend, problem = _asked(call, wanted)
        asked = [leaf for leaf, want in zip(leaves, wanted, strict=True) if want and leaf is not None]
        pairs = zip(backend.run(problem), (grad, grad_lse), strict=True)
        pulled = [(result, flow) for result, flow in pairs if result is not None and flow is not None]
        results, flows = [result for result, _ in pulled], [flow for _, flow in pulled]
        found = iter(torch.autograd.grad(results, asked, flows, materialize_grads=True))
    return [next(found).contiguous() if want else call.q.new_empty(0) for want in wanted]


def _blank(call: Call) -> Tensor:
    """Where the output goes: joining the heads of a token then needs no copy."""
    batch, heads, q_len, _ = call.q.shape
    return call.q.new_empty((batch, q_len, heads, call.v.shape[3])).transpose(1, 2)


def _blank_lse(call: Call) -> Tensor:
    wide = torch.float64 if call.q.dtype == torch.float64 else torch.float32
    return call.q.new_empty(call.q.shape[:3], dtype=wide)


def _fake(*given: Any) -> Tensor:
    return _blank(Call(*given))


def _fake_lse(*given: Any) -> tuple[Tensor, Tensor]:
    return _blank(Call(*given)), _blank_lse(Call(*given))


def _fake_backward(grad: Tensor | None, grad_lse: Tensor | None, *given: Any) -> list[Tensor]:
    call, wanted = Call(*given[:-1]), given[-1]
    parts: list[Tensor | None] = [getattr(call, name) for name in _LEAVES]
    return [
        call.q.new_empty(0) if part is None or not want else part.new_empty(part.shape)
        for part, want in zip(parts, wanted, strict=True)
    ]


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor | tuple[Tensor, Tensor]) -> None:
    call = Call(*inputs)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(call.q, call.k, call.v, call.mask, call.bias, call.sinks, *call.held)
    ctx.call = call._replace(q=None, k=None, v=None, mask=None, bias=None, sinks=None, held=())  # pyright: ignore[reportArgumentType]


def _pull(ctx: Any, grad: Tensor | None, grad_lse: Tensor | None = None) -> tuple[Any, ...]:
    q, k, v, mask, bias, sinks, *held = ctx.saved_tensors
    call = ctx.call._replace(q=q, k=k, v=v, mask=mask, bias=bias, sinks=sinks, held=held)
    wanted = [bool(ctx.needs_input_grad[place]) for place in _PLACES]
    grads = torch.ops.multihead.attention_backward(grad, grad_lse, *call, wanted)
    every = [_nothing(given) for given in call]
    for place, found, want in zip(_PLACES, grads, wanted, strict=True):
        every[place] = found if want else None
    return tuple(every)


def _nothing(given: Any) -> Any:
    """No gradient, as torch wants it said: a list for a list of tensors, which an empty one is to it as well."""
    return [None] * len(given) if isinstance(given, list) and all(isinstance(x, Tensor) for x in given) else None


def _refuse(*given: Any) -> None:
    order.refuse("second derivatives")


for _name, _function, _shape in (
    ("attention", _forward, _fake),
    ("attention_lse", _forward_lse, _fake_lse),
    ("attention_backward", _backward, _fake_backward),
):
    _OPERATORS.impl(_name, _function, "CompositeExplicitAutograd")
    torch.library.register_fake(f"multihead::{_name}", _shape, lib=_OPERATORS)
for _name in ("attention", "attention_lse"):
    torch.library.register_autograd(f"multihead::{_name}", _pull, setup_context=_remember, lib=_OPERATORS)
torch.library.register_autograd("multihead::attention_backward", _refuse, lib=_OPERATORS)
