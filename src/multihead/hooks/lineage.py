"""Where scores and weights come from, followed from tensor to tensor while attention is computed step by step."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

# Added to a score, this much or less is a mask: no model has such scores, and exp(-5000) is 0 in every dtype.
SHUT = -5000.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Product:
    """Scores: scale * q @ k.T + what was added, not there where shut.

    Tensors have four dimensions, or three where the model folds batch and heads into one; sizes of 1 stand for all.

    Args:
        q: (batch, heads, q_len, head_dim).
        k: (batch, kv_heads, kv_len, head_dim).
        scale: Factor of the products.
        added: Terms, each with its factor.
        shut: True = no weight.
    """

    q: Tensor
    k: Tensor
    scale: float = 1.0
    added: tuple[tuple[float, Tensor], ...] = ()
    shut: tuple[Tensor, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the scores when they were made."""
        return *self.q.shape[:-1], self.k.shape[-2]

    def plus(self, other: object, sign: float, ndim: int) -> "Product":
        """Scores of so many dimensions with a number or a tensor added."""
        term = other if isinstance(other, Tensor) else torch.full((1,) * ndim, float(other), device=self.q.device)  # pyright: ignore[reportArgumentType]
        return replace(self, added=(*self.added, (sign, term[(None,) * (ndim - term.ndim)])))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Weights:
    """What a softmax returned.

    Args:
        scores: What it was given, (batch, heads, q_len, kv_len) or with batch and heads folded.
        values: The weights.
        product: How the scores came about, if that is known.
        void: Rows that were set to zero afterwards, True = zero, or None.
        dropout: Share that was dropped since.
    """

    scores: Tensor
    values: Tensor
    product: Product | None
    void: Tensor | None = None
    dropout: float = 0.0

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the weights when they were made."""
        return tuple(self.values.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """Weights, or something made of them, that cannot be told as one weight for each query and key.

    Args:
        reason: What happened to them.
    """

    reason: str


Record = Product | Weights | Lost
Rule = Callable[[Any, "Use"], Record | None]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Use:
    """A function that was called with a tensor something is known of.

    Args:
        name: Name of the function.
        place: Which of its positional arguments that tensor is.
        args: Its positional arguments.
        kwargs: Its others.
        result: What it returned.
    """

    name: str
    place: int
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    result: Any


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Axes:
    """How two operands and a result are to be turned so that their last two dimensions are a product of matrices.

    Args:
        left: Order of the left operand's dimensions: (..., rows, inner).
        right: Order of the right operand's: (..., inner, columns).
        out: Order of the result's: (..., rows, columns).
    """

    left: tuple[int, ...]
    right: tuple[int, ...]
    out: tuple[int, ...]


def follow(record: Record, use: Use) -> Record | None:
    """What is known of the result of a function, None if nothing."""
    if isinstance(record, Lost) or not isinstance(use.result, Tensor):
        return record if isinstance(use.result, Tensor) else None
    name = _PLAIN.sub("", use.name)
    rules = _OF_PRODUCT if isinstance(record, Product) else _OF_WEIGHTS
    known = rules[name](record, use) if name in rules else None
    if known is None and isinstance(record, Weights):
        return Lost(reason=f"its weights go through {name} after the softmax")
    return known


def product_of(left: Tensor, right: Tensor, scale: float = 1.0) -> Product | None:
    """Scores from `left @ right`, if these can be queries and keys."""
    if left.ndim != right.ndim or left.ndim not in (3, 4) or not left.is_floating_point():
        return None
    return Product(q=left, k=right.transpose(-1, -2), scale=scale)


def einsum_axes(equation: str, *, batched: bool) -> Axes | None:
    """The product of matrices an equation for two operands stands for, or None if it is none.

    Args:
        equation: E.g. `"bnij,jbnd->ibnd"`.
        batched: Whether the left operand is already in the order (..., rows, inner).
    """
    sides = equation.replace(" ", "").split("->")
    terms = sides[0].split(",")
    if len(sides) != 2 or len(terms) != 2 or "." in equation:
        return None
    left, right, out = terms[0], terms[1], sides[1]
    shared = [c for c in (left if batched else out) if c in left and c in right and c in out]
    rows = [c for c in left if c in out and c not in right]
    inner = [c for c in left if c in right and c not in out]
    columns = [c for c in right if c in out and c not in left]
    if not len(rows) == len(inner) == len(columns) == 1 or len(shared) not in (1, 2):
        return None
    if len(set(left)) != len(left) or not len(left) == len(right) == len(out) == len(shared) + 2:
        return None
    turned = {
        "left": [left.index(c) for c in (*shared, *rows, *inner)],
        "right": [right.index(c) for c in (*shared, *inner, *columns)],
        "out": [out.index(c) for c in (*shared, *rows, *columns)],
    }
    return Axes(**{name: tuple(order) for name, order in turned.items()})


def _is_folding(old: Sequence[int], new: Sequence[int]) -> bool:
    """Whether a shape is the same but for batch and heads, apart or in one."""
    return tuple(old) == tuple(new) or (
        old[-2:] == new[-2:] and len(old) in (3, 4) and len(new) in (3, 4) and _count(old) == _count(new)
    )


def _same(record: Record, _use: Use) -> Record:
    return record


def _shaped(record: Product | Weights, use: Use) -> Record | None:
    return record if _is_folding(record.shape, use.result.shape) else None


def _scaled(record: Product, use: Use) -> Product | None:
    factor = _number(use.args[1 - use.place])
    return None if factor is None else _times(record, factor)


def _divided(record: Product, use: Use) -> Product | None:
    divisor = _number(use.args[1]) if use.place == 0 and not use.kwargs else None
    return _times(record, 1 / divisor) if divisor else None


def _times(record: Product, factor: float) -> Product:
    added = tuple((factor * old, term) for old, term in record.added)
    return replace(record, scale=record.scale * factor, added=added)


def _number(given: object) -> float | None:
    if isinstance(given, Tensor):
        return float(given.detach()) if given.numel() == 1 else None
    return float(given) if isinstance(given, int | float) else None


def _added(record: Product, use: Use) -> Product | None:
    if use.kwargs or len(use.args) != 2:
        return None
    return record.plus(use.args[1 - use.place], 1.0, use.result.ndim)


def _taken(record: Product, use: Use) -> Product | None:
    if use.kwargs or len(use.args) != 2 or use.place != 0:
        return None
    return record.plus(use.args[1], -1.0, use.result.ndim)


def _raised(term: Tensor, ndim: int) -> Tensor:
    """Sizes of 1 in front, as adding puts them there."""
    return term[(None,) * (ndim - term.ndim)]


def _masked(record: Product, use: Use) -> Product | None:
    if use.place != 0 or len(use.args) != 3:
        return None
    return _closed(record, use.args[1], use.args[2], use.result.ndim)


def _chosen(record: Product, use: Use) -> Product | None:
    """`torch.where(open, scores, lowest)`, or `scores.where(open, lowest)`."""
    if len(use.args) != 3 or use.kwargs:
        return None
    condition = use.args[1 - use.place]
    return _closed(record, ~condition, use.args[2], use.result.ndim) if isinstance(condition, Tensor) else None


def _closed(record: Product, shut: object, value: object, ndim: int) -> Product | None:
    lowest = _number(value)
    if not isinstance(shut, Tensor) or lowest is None or lowest > SHUT:
        return None
    return replace(record, shut=(*record.shut, _raised(shut.bool(), ndim)))


def _dropped(record: Weights, use: Use) -> Weights:
    share = float(use.args[1] if len(use.args) > 1 else use.kwargs.get("p", 0.5))
    acts = bool(use.args[2] if len(use.args) > 2 else use.kwargs.get("training", use.kwargs.get("train", True)))
    return replace(record, dropout=share if acts else record.dropout)


def _emptied(record: Weights, use: Use) -> Weights | None:
    """Rows that see nothing are often set to zero after the softmax; any other change makes other weights."""
    if record.dropout or use.result.shape != record.shape:
        return None
    void = (use.result == 0).all(-1)
    same = (use.result == record.values).all(-1)
    return replace(record, void=void) if bool((same | void).all()) else None


def _count(shape: Sequence[int]) -> int:
    return int(torch.Size(shape[:-2]).numel())


# __iadd__, add_, __radd__, add: the same function.
_PLAIN = re.compile(r"^__[ir]?(?=add|sub|mul|truediv)|^_+|_+$")
_CONVERTED = dict.fromkeys(
    ("to", "type", "type_as", "float", "double", "half", "bfloat16", "contiguous", "clone"), _same
)
_FOLDED = dict.fromkeys(("view", "reshape", "flatten", "unflatten", "unsafe_view"), _shaped)
_OF_PRODUCT: Mapping[str, Rule] = {
    **_CONVERTED,
    **_FOLDED,
    # Some models bound scores from below. The scores are compared once more at the softmax.
    **dict.fromkeys(("maximum", "max", "clamp", "clip", "clamp_min"), _same),
    **dict.fromkeys(("mul", "multiply"), _scaled),
    **dict.fromkeys(("div", "truediv", "true_divide", "divide"), _divided),
    "add": _added,
    **dict.fromkeys(("sub", "subtract"), _taken),
    "masked_fill": _masked,
    "where": _chosen,
}
_OF_WEIGHTS: Mapping[str, Rule] = {
    **_CONVERTED,
    **_FOLDED,
    "dropout": _dropped,
    **dict.fromkeys(("masked_fill", "nan_to_num", "where", "mul"), _emptied),
}
