"""Seeing attention in code that has no seam: every torch function a module calls passes by here."""

import inspect
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from multihead.hooks.code import stated_heads
from multihead.hooks.lineage import Axes, Lost, Product, Record, Use, Weights, einsum_axes, follow, product_of
from multihead.hooks.tap import RUNNING, Tap, gated
from multihead.hooks.told import Told, told_scores, told_sdpa

_PIECES = "it computes its attention in pieces, block by block"
_RIGHT = "its weights are the right factor of a product, or go into one with other dimensions"
_DEEP = "its softmax has {} dimensions: scores of blocks or of several streams"
_SDPA = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")


class Lookout(TorchFunctionMode):
    """Looks at one run of a module's forward, in the thread in which it runs.

    Args:
        module: The module.
        taps: Who is told.
        args: Positional arguments of the forward.
        kwargs: Its keyword arguments.
    """

    def __init__(
        self, module: nn.Module, taps: tuple[Tap, ...], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        super().__init__()
        self._module, self._taps = module, taps
        self._given = [t for t in (*args, *kwargs.values()) if isinstance(t, Tensor) and t.ndim > 2]
        self._heads = stated_heads(module)
        self._known: dict[int, tuple[weakref.ref[Tensor], Record]] = {}
        # Products of weights and values so far, and linear maps since the last of them.
        self._products, self._linears = 0, 0
        self._acts: Mapping[str, Callable[..., Any]] = {
            "scaled_dot_product_attention": self._sdpa,
            "multi_head_attention_forward": self._torchs_own,
            "linear": self._linear,
            "softmax": self._softmax,
            "special_softmax": self._softmax,
            "matmul": self._matmul,
            "__matmul__": self._matmul,
            "bmm": self._matmul,
            "baddbmm": self._baddbmm,
            "einsum": self._einsum,
        }

    def __enter__(self) -> "Lookout":  # noqa: PYI034 - the type checks of the tests know no Self
        RUNNING.inner.append(self)
        super().__enter__()
        return self

    def __exit__(self, *failure: object) -> None:
        super().__exit__(*failure)  # pyright: ignore[reportArgumentType]
        RUNNING.inner.pop()
        if self not in RUNNING.inner:
            self._known.clear()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Called by torch for every function of its own while this is entered."""
        given = kwargs or {}
        if RUNNING.inner[-1] is not self:
            return func(*args, **given)
        name = getattr(func, "__name__", "")
        act = self._acts.get(name)
        if act is not None:
            return act(func, args, given)
        result = func(*args, **given)
        if self._known:
            self._follow(name, args, given, result)
        return result

    def _follow(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], result: object) -> None:
        for place, operand in enumerate(args):
            record = self._record(operand)
            if record is not None:
                use = Use(name=name, place=place, args=args, kwargs=kwargs, result=result)
                with torch.no_grad():
                    # Nothing is added to the model's graph: checkpoints count what it saves.
                    self._keep(result, follow(record, use))
                if name.endswith("setitem__"):
                    self._keep(operand, None)
                return

    def _record(self, tensor: object) -> Record | None:
        if not isinstance(tensor, Tensor):
            return None
        known = self._known.get(id(tensor))
        return known[1] if known is not None and known[0]() is tensor else None

    def _keep(self, tensor: object, record: Record | None) -> None:
        if isinstance(tensor, Tensor):
            if record is None:
                self._known.pop(id(tensor), None)
            else:
                self._known[id(tensor)] = weakref.ref(tensor), record

    def _linear(self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        self._linears += 1
        if len(args) > 1:
            for tap in self._taps:
                tap.fed(args[0], args[1])
        return func(*args, **kwargs)

    def _torchs_own(self, _func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The function with its own code, but for the line that would hand it over to us once more."""
        opened = _opened(functional.multi_head_attention_forward)
        before, self._heads = self._heads, args[4] if len(args) > 4 else kwargs["num_heads"]
        try:
            with self:
                return opened(*args, **kwargs)
        finally:
            self._heads = before

    def _softmax(self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        result = func(*args, **kwargs)
        scores = args[0] if args else kwargs["input"]
        dim = args[1] if len(args) > 1 else kwargs.get("dim")
        if dim not in (-1, scores.ndim - 1) or scores.ndim < 3:
            return result
        if scores.ndim > 4:
            self._keep(result, Lost(reason=_DEEP.format(scores.ndim)))
            return result
        product = self._record(scores)
        product = product if isinstance(product, Product) else None
        self._keep(result, Weights(scores=scores, values=result.detach(), product=product))
        return result

    def _matmul(self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        operands = (*args, *kwargs.values())
        left, right = operands[0], operands[1]
        if self._is_of_weights(left, right):
            return self._weighted(func, args, kwargs, axes=None, operands=(left, right))
        result = func(*args, **kwargs)
        self._keep(result, product_of(left, right))
        return result

    def _baddbmm(self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        result = func(*args, **kwargs)
        named = dict(zip(("input", "batch1", "batch2"), args, strict=False)) | dict(kwargs)
        product = product_of(named["batch1"], named["batch2"], float(named.get("alpha", 1.0)))
        if product is not None:
            self._keep(result, product.plus(named["input"], float(named.get("beta", 1.0)), result.ndim))
        return result

    def _einsum(self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        operands = tuple(args[1]) if len(args) == 2 and isinstance(args[1], list | tuple) else tuple(args[1:])
        if len(operands) != 2 or not isinstance(args[0], str):
            return func(*args, **kwargs)
        weighted = self._is_of_weights(*operands)
        axes = einsum_axes(args[0], batched=weighted)
        if weighted:
            return self._weighted(func, args, kwargs, axes=axes, operands=operands)
        result = func(*args, **kwargs)
        if axes is not None and axes.out == tuple(range(result.ndim)):
            self._keep(result, product_of(operands[0].permute(axes.left), operands[1].permute(axes.right)))
        return result

    def _is_of_weights(self, left: object, right: object) -> bool:
        return any(isinstance(self._record(operand), Weights | Lost) for operand in (left, right))

    def _weighted(
        self,
        func: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        axes: Axes | None,
        operands: tuple[Tensor, Tensor],
    ) -> Any:
        """Weights times values, or something with weights in it."""
        result = func(*args, **kwargs)
        weights, values = operands
        record = self._record(weights)
        straight = axes is None or axes.left == tuple(range(weights.ndim))
        if not isinstance(record, Weights) or not straight or values.ndim != weights.ndim:
            self._refuse(record.reason if isinstance(record, Lost) else _RIGHT)
            return result
        if self._products and not self._linears:
            self._refuse(_PIECES)
            return result
        if axes is not None:
            values = values.permute(axes.right)
        batch = self._batch(record.scores if record.scores.ndim == 4 else weights)
        with torch.no_grad():
            told = told_scores(record, values, batch)
        return self._tell(told, result, None if axes is None else axes.out)

    def _sdpa(self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        for tap in self._taps:
            tap.begin(self._module)
        result = func(*args, **kwargs)
        given = dict(zip(_SDPA, args, strict=False)) | dict(kwargs)
        if given["query"].ndim not in (3, 4):
            self._refuse(f"its queries have {given['query'].ndim} dimensions")
            return result
        with torch.no_grad():
            told = told_sdpa(given, self._batch(given["query"]))
        return self._tell(told, result, None)

    def _tell(self, told: Told, result: Tensor, order: tuple[int, ...] | None) -> Tensor:
        """Hand a call on, and its gated output back to the model in the model's own layout."""
        if told.reason:
            self._refuse(told.reason)
            return result
        call = told.call
        assert call is not None
        for tap in self._taps:
            tap.begin(self._module)
            if self._products and self._linears:
                tap.again(self._module)
        self._products, self._linears = self._products + 1, 0
        outer = result if order is None else result.permute(order)
        heads = call.q.shape[1]
        output = (outer if outer.ndim == 4 else outer.unflatten(0, (-1, heads))).transpose(1, 2)
        after = gated(self._taps, self._module, output)
        time_first = (order is not None and order[-2] == 0) or getattr(self._module, "batch_first", True) is False
        for tap in self._taps:
            tap.end(self._module, call.laid(time_first=time_first), after)
        if after is output:
            return result
        back = after.transpose(1, 2)
        back = back if outer.ndim == 4 else back.flatten(0, 1)
        return back if order is None else back.permute(_inverse(order))

    def _batch(self, example: Tensor) -> int:
        """Number of sequences in a tensor that holds (batch, heads, ...) or both in one (batch * heads, ...)."""
        if example.ndim == 4:
            return example.shape[0]
        folded, length = example.shape[:2]
        batch = next((size for given in self._given if (size := _sequences(given, length))), None)
        if self._heads is not None and batch != folded and folded % self._heads == 0:
            return folded // self._heads
        return batch if batch is not None and folded % batch == 0 else folded

    def _refuse(self, reason: str) -> None:
        for tap in self._taps:
            tap.refuse(self._module, reason)


def _sequences(given: Tensor, length: int) -> int | None:
    """Batch size of hidden states (batch, length, width) or (length, batch, width)."""
    if given.ndim != 3 or not given.is_floating_point():
        return None
    return given.shape[0] if given.shape[1] == length else given.shape[1] if given.shape[0] == length else None


def _inverse(order: Sequence[int]) -> tuple[int, ...]:
    return tuple(order.index(place) for place in range(len(order)))


def _opened(function: Callable[..., Any]) -> Callable[..., Any]:
    inner = inspect.unwrap(function)
    assert isinstance(inner, FunctionType)
    names = {**inner.__globals__, "has_torch_function": lambda _tensors: False}
    opened = FunctionType(inner.__code__, names, inner.__name__, inner.__defaults__, inner.__closure__)
    opened.__kwdefaults__ = inner.__kwdefaults__
    return opened
