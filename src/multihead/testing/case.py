"""The problems a backend is held to: each part of the formula alone, together with others, and at the edges."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from multihead.attend import Entmax, Problem, Sigmoid, Softmax, Sparsemax, make_problem
from multihead.pattern import causal, distance, document, everything, nothing, padding, per_head, sliding_window
from multihead.position import AdaptiveSpan, ALiBi, RelativeTable, alibi_slopes

_LONG = 300  # more than one band or block of any kernel, and no multiple of one


class Draw:
    """Random numbers for the problems of one seed."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int, dtype: torch.dtype = torch.float32, spread: float = 1.0) -> Tensor:
        """Normal numbers with this standard deviation."""
        return (torch.randn(shape, generator=self._generator, dtype=torch.float64) * spread).to(dtype)

    def mask(self, *shape: int, share: float = 0.6) -> Tensor:
        """True with this probability; the first row has nothing to attend to."""
        mask = torch.rand(shape, generator=self._generator) < share
        mask[..., 0, :] = False
        return mask

    def ids(self, *shape: int, below: int) -> Tensor:
        """Whole numbers from 0."""
        return torch.randint(0, below, shape, generator=self._generator)

    def qkv(
        self, sizes: "Sizes | None" = None, *, dtype: torch.dtype = torch.float32, spread: float = 1.0
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values."""
        s = sizes or Sizes()
        return (
            self.normal(s.batch, s.heads, s.q_len, s.head_dim, dtype=dtype, spread=spread),
            self.normal(s.batch, s.kv_heads, s.kv_len, s.head_dim, dtype=dtype, spread=spread),
            self.normal(s.batch, s.kv_heads, s.kv_len, s.v_head_dim, dtype=dtype),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes of a problem; none equals another, so that a mix-up shows."""

    batch: int = 2
    heads: int = 4
    kv_heads: int = 2
    q_len: int = 7
    kv_len: int = 9
    head_dim: int = 8
    v_head_dim: int = 8


Build = Callable[[Draw], Problem]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One problem a backend is held to.

    Args:
        name: Short words, e.g. "mask: one head sees nothing".
        build: Makes the problem from random numbers.
    """

    name: str
    build: Build


def standard_cases() -> tuple[Case, ...]:
    """The problems `check_backend` uses where it is given none."""
    tables = (_sizes(), _masks(), _patterns(), _biases(), _scores(), _normalisers(), _layouts(), _dropouts(), _dtypes())
    return tuple(Case(name=name, build=build) for table in tables for name, build in table.items())


def _sized(**sizes: int) -> Build:
    return lambda d: make_problem(*d.qkv(Sizes(**sizes)))


def _sizes() -> Mapping[str, Build]:
    named = {
        "plain": {},
        "heads alike": {"kv_heads": 4},
        "one kv head": {"kv_heads": 1},
        "groups of three": {"heads": 6, "kv_heads": 2, "q_len": 5},
        "one query": {"q_len": 1},
        "one key": {"kv_len": 1},
        "more queries than keys": {"q_len": 9, "kv_len": 4},
        "long": {"batch": 1, "heads": 2, "kv_heads": 1, "q_len": _LONG, "kv_len": _LONG + 7},
        "odd head_dim": {"head_dim": 31, "v_head_dim": 31},
        "larger values": {"head_dim": 24, "v_head_dim": 40},
        "smaller values": {"head_dim": 40, "v_head_dim": 24},
        "head_dim 1": {"head_dim": 1, "v_head_dim": 1},
        "no batch": {"batch": 0},
        "no heads": {"heads": 0, "kv_heads": 0},
        "no queries": {"q_len": 0},
        "no keys": {"kv_len": 0},
        "no head_dim": {"head_dim": 0},
        "no v_head_dim": {"v_head_dim": 0},
    }
    return {f"sizes: {name}": _sized(**sizes) for name, sizes in named.items()}


def _masks() -> Mapping[str, Build]:
    def headless(d: Draw) -> Problem:
        mask = d.mask(2, 4, 7, 9)
        mask[:, 1] = False
        return make_problem(*d.qkv(), mask=mask)

    return {
        "mask: two dimensions": lambda d: make_problem(*d.qkv(), mask=d.mask(7, 9)),
        "mask: each batch row": lambda d: make_problem(*d.qkv(), mask=d.mask(2, 1, 7, 9)),
        "mask: each head": lambda d: make_problem(*d.qkv(), mask=d.mask(1, 4, 7, 9)),
        "mask: keys of each batch row": lambda d: make_problem(*d.qkv(), mask=d.ids(2, 1, 1, 9, below=2).bool()),
        "mask: whole queries": lambda d: make_problem(*d.qkv(), mask=d.mask(2, 4, 7, 1)),
        "mask: one head sees nothing": headless,
        "mask: nothing": lambda d: make_problem(*d.qkv(), mask=torch.zeros(7, 9, dtype=torch.bool)),
        "mask: everything": lambda d: make_problem(*d.qkv(), mask=torch.ones(1, 1, 1, 1, dtype=torch.bool)),
        "mask: one query": lambda d: make_problem(
            *d.qkv(Sizes(q_len=1)), mask=d.ids(2, 4, 1, 9, below=2).bool(), bias=d.normal(1, 4, 1, 9)
        ),
        "mask: poison behind it": lambda d: _poisoned(d),
    }


def _poisoned(d: Draw) -> Problem:
    """Keys and values no one may see are huge."""
    q, k, v = d.qkv()
    mask = d.mask(2, 1, 7, 9)
    mask[..., 3] = False
    k[:, :, 3], v[:, :, 3] = 1e4, 1e6
    return make_problem(q, k, v, mask=mask, softcap=0.5)


def _patterns() -> Mapping[str, Build]:
    square, long = Sizes(kv_len=7), Sizes(batch=1, heads=2, kv_heads=1, q_len=_LONG, kv_len=_LONG)
    heads = per_head([causal(), sliding_window(3), nothing(), distance(2)])
    return {
        "pattern: causal": lambda d: make_problem(*d.qkv(square), mask=causal()),
        "pattern: causal, long": lambda d: make_problem(*d.qkv(long), mask=causal()),
        "pattern: causal, first key at first query": lambda d: make_problem(*d.qkv(), mask=causal(), q_offset=0),
        "pattern: causal after a cache": lambda d: make_problem(*d.qkv(), mask=causal(), q_offset=2),
        "pattern: causal, one query after a cache": lambda d: make_problem(
            *d.qkv(Sizes(q_len=1)), mask=causal(), q_offset=8
        ),
        "pattern: causal, queries before any key": lambda d: make_problem(
            *d.qkv(Sizes(q_len=9, kv_len=4)), mask=causal(), q_offset=-5
        ),
        "pattern: window": lambda d: make_problem(*d.qkv(square), mask=sliding_window(3)),
        "pattern: window, long": lambda d: make_problem(*d.qkv(long), mask=sliding_window(20)),
        "pattern: causal and padding": lambda d: make_problem(
            *d.qkv(square), mask=causal() & padding(d.ids(2, 7, below=2).bool())
        ),
        "pattern: documents": lambda d: make_problem(*d.qkv(square), mask=document(d.ids(2, 7, below=3))),
        "pattern: far apart": lambda d: make_problem(*d.qkv(long), mask=distance(0) | distance(290) | distance(-3)),
        "pattern: another for each head": lambda d: make_problem(*d.qkv(square), mask=heads),
        "pattern: everything": lambda d: make_problem(*d.qkv(), mask=everything()),
        "pattern: nothing": lambda d: make_problem(*d.qkv(), mask=nothing()),
    }


def _biases() -> Mapping[str, Build]:
    def table(d: Draw, *, bidirectional: bool) -> RelativeTable:
        return RelativeTable(d.normal(8, 4), bidirectional=bidirectional, max_distance=6)

    def holes(d: Draw) -> Tensor:
        return d.normal(2, 4, 7, 9).masked_fill(~d.mask(7, 9), -math.inf)

    lowest = torch.finfo(torch.float32).min
    return {
        "bias: two dimensions": lambda d: make_problem(*d.qkv(), bias=d.normal(7, 9)),
        "bias: full": lambda d: make_problem(*d.qkv(), bias=d.normal(2, 4, 7, 9)),
        "bias: each head and key": lambda d: make_problem(*d.qkv(), bias=d.normal(1, 4, 1, 9)),
        "bias: each query": lambda d: make_problem(*d.qkv(), bias=d.normal(2, 1, 7, 1)),
        "bias: one number": lambda d: make_problem(*d.qkv(), bias=d.normal(1, 1)),
        "bias: -inf in it": lambda d: make_problem(*d.qkv(), bias=holes(d)),
        "bias: lowest number for a row": lambda d: make_problem(
            *d.qkv(), bias=torch.zeros(7, 9).masked_fill(~d.mask(7, 9), lowest)
        ),
        "bias: with a mask": lambda d: make_problem(*d.qkv(), bias=d.normal(1, 4, 7, 9), mask=d.mask(2, 1, 7, 9)),
        "bias: ALiBi": lambda d: make_problem(*d.qkv(), bias=ALiBi(alibi_slopes(4)), q_offset=2),
        "bias: ALiBi, window": lambda d: make_problem(
            *d.qkv(Sizes(q_len=_LONG, kv_len=_LONG, heads=3, kv_heads=1, batch=1)),
            bias=ALiBi(alibi_slopes(3)),
            mask=sliding_window(30),
        ),
        "bias: table, both sides": lambda d: make_problem(*d.qkv(), bias=table(d, bidirectional=True), q_offset=0),
        "bias: table, looking back": lambda d: make_problem(
            *d.qkv(), bias=table(d, bidirectional=False), mask=causal(), q_offset=2
        ),
        "bias: spans": lambda d: make_problem(*d.qkv(), bias=AdaptiveSpan(d.normal(4).abs() * 3, ramp=3), q_offset=1),
        "bias: spans that end before some queries": lambda d: make_problem(
            *d.qkv(), bias=AdaptiveSpan(d.normal(4), ramp=2), mask=causal(), q_offset=6
        ),
    }


def _scores() -> Mapping[str, Build]:
    return {
        "scale: negative": lambda d: make_problem(*d.qkv(), scale=-0.7),
        "scale: zero": lambda d: make_problem(*d.qkv(), scale=0.0),
        "scale: negative, causal": lambda d: make_problem(*d.qkv(Sizes(kv_len=7)), scale=-0.7, mask=causal()),
        "scale: zero, causal": lambda d: make_problem(*d.qkv(Sizes(kv_len=7)), scale=0.0, mask=causal()),
        "softcap": lambda d: make_problem(*d.qkv(), softcap=0.8),
        "softcap: bias and mask after it": lambda d: make_problem(
            *d.qkv(), softcap=0.8, bias=d.normal(1, 4, 7, 9, spread=3.0), mask=d.mask(7, 9)
        ),
        # Scores of about 40: at 100 the last bit of a score, 8e-6, is itself more than the tolerance of float32.
        "scores: large": lambda d: make_problem(*d.qkv(spread=3.0)),
    }


def _normalisers() -> Mapping[str, Build]:
    def sinks(d: Draw) -> Tensor:
        return torch.cat([d.normal(2), torch.tensor([-math.inf, 100.0])])

    kinds: Mapping[str, Callable[[Draw], Softmax | Sigmoid | Entmax]] = {
        "sinks": lambda d: Softmax(sinks=sinks(d)),
        "off by one": lambda d: Softmax(off_by_one=True),
        "sinks and off by one": lambda d: Softmax(sinks=sinks(d), off_by_one=True),
        "sigmoid": lambda d: Sigmoid(-2.0),
        "sparsemax": lambda d: Sparsemax(),
        "entmax": lambda d: Entmax(1.5),
        "entmax 1.2": lambda d: Entmax(1.2),
    }
    cases: dict[str, Build] = {}
    for name, kind in kinds.items():
        cases[f"normaliser: {name}"] = lambda d, kind=kind: make_problem(*d.qkv(), normaliser=kind(d))
        cases[f"normaliser: {name}, masked"] = lambda d, kind=kind: make_problem(
            *d.qkv(), normaliser=kind(d), mask=d.mask(2, 1, 7, 9), bias=d.normal(1, 4, 7, 9)
        )
        cases[f"normaliser: {name}, no keys"] = lambda d, kind=kind: make_problem(
            *d.qkv(Sizes(kv_len=0)), normaliser=kind(d)
        )
    cases["normaliser: sinks, causal, larger values"] = lambda d: make_problem(
        *d.qkv(Sizes(kv_len=7, v_head_dim=12)), normaliser=Softmax(sinks=sinks(d)), mask=causal()
    )
    return cases


def _layouts() -> Mapping[str, Build]:
    def relaid(d: Draw, change: Callable[[Tensor], Tensor]) -> Problem:
        q, k, v = (change(x) for x in d.qkv())
        return make_problem(q, k, v, mask=change(d.mask(2, 4, 7, 9)), bias=change(d.normal(2, 4, 7, 9)))

    def swapped(x: Tensor) -> Tensor:
        return x.transpose(1, 2).contiguous().transpose(1, 2)

    def strided(x: Tensor) -> Tensor:
        return torch.stack([x, x + 1 if x.is_floating_point() else ~x], -1)[..., 0]

    def shifted(x: Tensor) -> Tensor:
        return torch.cat([x[:, :, :1], x], 2)[:, :, 1:]

    return {
        "layout: heads after tokens": lambda d: relaid(d, swapped),
        "layout: last dimension first": lambda d: relaid(d, lambda x: x.mT.contiguous().mT),
        "layout: every second number": lambda d: relaid(d, strided),
        "layout: starts later": lambda d: relaid(d, shifted),
        "layout: one row for the whole batch": lambda d: relaid(d, lambda x: x[:1].expand(2, -1, -1, -1)),
        "layout: one head for all": lambda d: relaid(d, lambda x: x[:, :1].expand(-1, x.shape[1], -1, -1)),
    }


def _dropouts() -> Mapping[str, Build]:
    sizes = Sizes(q_len=40, kv_len=50)
    return {
        "dropout": lambda d: make_problem(*d.qkv(sizes), dropout=0.3),
        "dropout: masked": lambda d: make_problem(*d.qkv(sizes), dropout=0.3, mask=d.mask(2, 1, 40, 50)),
        "dropout: long": lambda d: make_problem(*d.qkv(Sizes(q_len=_LONG, kv_len=60)), dropout=0.3),
        "dropout: window": lambda d: make_problem(
            *d.qkv(Sizes(q_len=_LONG, kv_len=_LONG)), dropout=0.3, mask=sliding_window(20)
        ),
        "dropout: sinks": lambda d: make_problem(*d.qkv(sizes), dropout=0.3, normaliser=Softmax(sinks=d.normal(4))),
        "dropout: sigmoid": lambda d: make_problem(*d.qkv(sizes), dropout=0.3, normaliser=Sigmoid()),
    }


def _dtypes() -> Mapping[str, Build]:
    cases: dict[str, Build] = {}
    for dtype in (torch.float64, torch.float16, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        cases[f"{name}: plain"] = lambda d, t=dtype: make_problem(*d.qkv(dtype=t))
        cases[f"{name}: causal, larger values"] = lambda d, t=dtype: make_problem(
            *d.qkv(Sizes(kv_len=7, v_head_dim=12), dtype=t), mask=causal()
        )
        cases[f"{name}: masked bias, sinks"] = lambda d, t=dtype: make_problem(
            *d.qkv(dtype=t),
            mask=d.mask(7, 9),
            bias=d.normal(1, 4, 7, 9, dtype=t),
            normaliser=Softmax(sinks=d.normal(4)),
        )
        cases[f"{name}: bias in float32"] = lambda d, t=dtype: make_problem(*d.qkv(dtype=t), bias=d.normal(2, 4, 7, 9))
        cases[f"{name}: ALiBi, long"] = lambda d, t=dtype: make_problem(
            *d.qkv(Sizes(batch=1, heads=2, kv_heads=1, q_len=_LONG, kv_len=_LONG), dtype=t),
            bias=ALiBi(d.normal(2, spread=0.1, dtype=t)),
        )
        cases[f"{name}: softcap"] = lambda d, t=dtype: make_problem(*d.qkv(dtype=t), softcap=1.5)
        cases[f"{name}: large scores"] = lambda d, t=dtype: make_problem(*d.qkv(dtype=t, spread=4.0))
    return cases
