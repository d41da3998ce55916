"""Hypothesis strategies for random patterns and problems."""

import random
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from multihead.attend import Entmax, Problem, Sigmoid, Softmax, Sparsemax, make_problem
from multihead.error import MultiheadError
from multihead.pattern import (
    Pattern,
    block_band,
    causal,
    chunk,
    dilated,
    distance,
    document,
    every,
    everything,
    from_callable,
    global_blocks,
    global_tokens,
    grid_window,
    keys_at,
    keys_every,
    neighbourhood,
    padding,
    prefix,
    random_blocks,
    random_pairs,
    same_token,
    sliding_window,
)
from multihead.position import AdaptiveSpan, ALiBi, PositionBias, RelativeTable
from multihead.testing.case import Draw, Sizes

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn, SearchStrategy

T = TypeVar("T")


def problems(*, dtype: torch.dtype = torch.float64, longest: int = 12) -> "SearchStrategy[Problem]":
    """Random problems: any sizes (0 too), masks, biases, softcap, normalisers, q_offset; without dropout.

    Args:
        dtype: Of queries, keys and values.
        longest: Most queries and most keys.

    Returns:
        A hypothesis strategy.

    Raises:
        MultiheadError: If hypothesis is not installed.

    Example:
        >>> from hypothesis import given
        >>> @given(problems())
        ... def test_backend(problem): ...
    """
    return _hypothesis().composite(_still(_draw_problem))(dtype=dtype, longest=longest)


def patterns(*, batch: int, length: int) -> "SearchStrategy[Pattern]":
    """Random patterns over positions below `length`, joined with &, | and ~.

    Args:
        batch: Rows of patterns that differ by row.
        length: Of what patterns hold by position, at least 1.

    Returns:
        A hypothesis strategy.

    Raises:
        MultiheadError: If hypothesis is not installed.
    """
    return _hypothesis().composite(_still(_draw_pattern))(batch=batch, length=length, depth=2)


def _draw_problem(draw: "DrawFn", *, dtype: torch.dtype, longest: int) -> Problem:
    st = _hypothesis()
    small, lengths = st.integers(1, 3), st.integers(0, longest)
    kv_heads, q_len, kv_len = draw(small), draw(lengths), draw(lengths)
    sizes = Sizes(
        batch=draw(st.integers(0, 2)),
        heads=kv_heads * draw(small),
        kv_heads=kv_heads,
        q_len=q_len,
        kv_len=kv_len,
        head_dim=draw(st.integers(0, 9)),
        v_head_dim=draw(st.integers(0, 9)),
    )
    numbers = Draw(draw(st.integers(0, 2**31)))
    return make_problem(
        *numbers.qkv(sizes, dtype=dtype),
        mask=_draw_mask(draw, sizes, numbers),
        bias=_draw_bias(draw, sizes, numbers),
        scale=draw(st.sampled_from([None, 1.0, -0.5])),
        softcap=draw(st.sampled_from([None, 1.5])),
        normaliser=_draw_normaliser(draw, sizes, numbers),
        q_offset=draw(st.integers(0, longest)),
    )


def _draw_mask(draw: "DrawFn", sizes: Sizes, numbers: Draw) -> Pattern | Tensor | None:
    st = _hypothesis()
    kind = draw(st.sampled_from(["none", "tensor", "pattern"]))
    if kind == "none":
        return None
    if kind == "tensor":
        return numbers.ids(*_shape(draw, sizes), below=2).bool()
    # Patterns look up what they hold at absolute positions: long enough for every offset that is drawn.
    return draw(patterns(batch=sizes.batch, length=4 * max(sizes.q_len, sizes.kv_len, 12)))


def _draw_bias(draw: "DrawFn", sizes: Sizes, numbers: Draw) -> Tensor | PositionBias | None:
    kind = draw(_hypothesis().sampled_from(["none", "tensor", "holes", "alibi", "table", "span"]))
    if kind == "alibi":
        return ALiBi(numbers.normal(sizes.heads))
    if kind == "span":
        return AdaptiveSpan(4 * numbers.normal(sizes.heads), ramp=draw(_hypothesis().integers(1, 6)))
    if kind == "table":
        bidirectional = draw(_hypothesis().booleans())
        return RelativeTable(numbers.normal(8, sizes.heads), bidirectional=bidirectional, max_distance=9)
    if kind == "none":
        return None
    bias = numbers.normal(*_shape(draw, sizes))
    return bias.masked_fill(bias < -0.5, -torch.inf) if kind == "holes" else bias


def _draw_normaliser(draw: "DrawFn", sizes: Sizes, numbers: Draw) -> Softmax | Sigmoid | Entmax:
    st = _hypothesis()
    kinds = [
        Softmax(),
        Softmax(off_by_one=True),
        Softmax(sinks=numbers.normal(sizes.heads), off_by_one=draw(st.booleans())),
        Sigmoid(-1.0),
        Sparsemax(),
        Entmax(1.5),
    ]
    return kinds[draw(st.integers(0, len(kinds) - 1))]


def _draw_pattern(draw: "DrawFn", *, batch: int, length: int, depth: int) -> Pattern:
    st = _hypothesis()
    if depth == 0 or draw(st.booleans()):
        made = [_plain, _held, _in_blocks, _at_random][draw(st.integers(0, 3))](draw, batch, length)
        return made[draw(st.integers(0, len(made) - 1))]
    left = _draw_pattern(draw, batch=batch, length=length, depth=depth - 1)
    right = _draw_pattern(draw, batch=batch, length=length, depth=depth - 1)
    return draw(st.sampled_from([left & right, left | right, ~left]))


def _plain(draw: "DrawFn", batch: int, length: int) -> list[Pattern]:
    """Patterns of the distance, and places."""
    st = _hypothesis()
    few, place = st.integers(1, 5), st.integers(0, length - 1)
    return [
        everything(),
        causal(),
        sliding_window(draw(few)),
        distance(draw(st.integers(-3, 3))),
        dilated(draw(few), draw(few)),
        every(draw(few)),
        keys_at([draw(place)]),
        global_tokens([draw(place)]),
        prefix(draw(few)),
    ]


def _held(draw: "DrawFn", batch: int, length: int) -> list[Pattern]:
    """Patterns of what stands at a position."""
    numbers = Draw(draw(_hypothesis().integers(0, 2**31)))
    rows = (batch, length) if batch else (length,)
    return [
        document(numbers.ids(length, below=3)),
        document(numbers.ids(*rows, below=3)),
        padding(numbers.ids(*rows, below=2).bool()),
        same_token(numbers.ids(length, below=3)),
    ]


def _in_blocks(draw: "DrawFn", batch: int, length: int) -> list[Pattern]:
    """Patterns of blocks and of pictures, in a cache that begins anywhere."""
    st = _hypothesis()
    few, side, first = st.integers(1, 5), st.integers(3, 5), draw(st.integers(0, 9))
    made = [
        chunk(draw(few)),
        block_band(draw(few), 1, draw(st.integers(0, 1))),
        global_blocks(draw(few), [1]),
        keys_every(5, draw(few), 2),
        neighbourhood(draw(side), draw(side), 3),
        grid_window(draw(side), draw(side), 3),
    ]
    return [pattern.at(q_offset=first, k_offset=first) for pattern in made]


def _at_random(draw: "DrawFn", batch: int, length: int) -> list[Pattern]:
    """Patterns drawn by a seed, and one that only a function knows."""
    st = _hypothesis()
    seed, few = draw(st.integers(0, 2**31)), st.integers(1, 3)
    return [
        random_pairs(draw(st.floats(0, 1)), seed=seed),
        random_blocks(draw(few), draw(few), seed=seed),
        random_blocks(draw(few), draw(few), seed=seed, length=length),
        from_callable(lambda q, k: (q + 2 * k) % 3 == 1, name="thirds"),
    ]


def _shape(draw: "DrawFn", sizes: Sizes) -> tuple[int, int, int, int]:
    """A shape that broadcasts to (batch, heads, q_len, kv_len)."""
    full = (sizes.batch, sizes.heads, sizes.q_len, sizes.kv_len)
    one = [draw(_hypothesis().booleans()) for _ in full]
    return tuple(1 if single else size for single, size in zip(one, full, strict=True))  # pyright: ignore[reportReturnType]


def _still(made: Callable[..., T]) -> Callable[..., T]:
    """Leaves Python's random numbers as they were, as hypothesis asks: type checkers pick by them what to check."""

    @wraps(made)
    def draw_still(*args: Any, **sizes: Any) -> T:
        state = random.getstate()
        try:
            return made(*args, **sizes)
        finally:
            random.setstate(state)

    return draw_still


def _hypothesis() -> Any:
    """`hypothesis.strategies`, imported when it is asked for: who only runs models need not have it."""
    try:
        return import_module("hypothesis.strategies")
    except ImportError as error:
        raise MultiheadError(
            asked="random problems for property tests",
            arrived=f"hypothesis cannot be imported ({error})",
            remedy="install it: pip install hypothesis",
        ) from error
