"""Every option of `attention`, each with what it means in the oracle's words."""

import math
from dataclasses import dataclass, field

import torch

from laws import oracle
from multihead import pattern as mp
from multihead.attend import Entmax, Sigmoid, Softmax, Sparsemax
from multihead.position import AdaptiveSpan, ALiBi, RelativeTable


@dataclass(frozen=True)
class Option:
    """One option: `given` to the library, `told` to the oracle."""

    given: dict
    told: dict = field(default_factory=dict)
    positional: bool = False


@dataclass(frozen=True)
class Sizes:
    """Sizes of a problem, and the position of its first query."""

    batch: int = 2
    heads: int = 4
    kv_heads: int = 2
    q_len: int = 6
    kv_len: int = 7
    head_dim: int = 5
    v_head_dim: int = 3
    first: int = 1

    def qkv(self, dtype=torch.float64):
        shapes = (
            (self.heads, self.q_len, self.head_dim),
            (self.kv_heads, self.kv_len, self.head_dim),
            (self.kv_heads, self.kv_len, self.v_head_dim),
        )
        return tuple(torch.randn(self.batch, *shape, dtype=dtype) for shape in shapes)


def options(s, dtype=torch.float64):
    """One value of each option; names with the same first word exclude each other."""
    return masks(s) | biases(s, dtype) | scorings(s) | normalisers(s, dtype)


def masks(s):
    length = s.first + s.q_len + s.kv_len
    ids = [min(place // 3, 2) for place in range(length)]
    keep = torch.rand(s.batch, s.kv_len) < 0.6
    keep[0, 0], keep[:, 1:2] = False, True
    drawn = torch.rand(s.batch, s.heads, s.q_len, s.kv_len) < 0.6
    drawn[0, :, 0] = False
    each = [lambda i, j: j <= i, lambda i, j: i - 2 < j <= i, lambda i, j: i - j == 1, lambda i, j: True]
    made = [mp.causal(), mp.sliding_window(2), mp.distance(1), mp.everything()]
    in_order = [h % 4 for h in range(s.heads)]
    return {
        "mask causal": Option({"mask": mp.causal()}, {"sees": lambda b, h, i, j: j <= i}, positional=True),
        "mask window": Option({"mask": mp.sliding_window(3)}, {"sees": lambda b, h, i, j: i - 3 < j <= i}, True),
        "mask band": Option({"mask": mp.band(1, 2)}, {"sees": lambda b, h, i, j: i - 1 <= j <= i + 2}, True),
        "mask documents": Option(
            {"mask": mp.document(torch.tensor(ids))}, {"sees": lambda b, h, i, j: ids[i] == ids[j]}, True
        ),
        "mask padding": Option({"mask": mp.padding(keep)}, {"sees": lambda b, h, i, j: bool(keep[b, j])}),
        "mask heads": Option(
            {"mask": mp.per_head([made[n] for n in in_order])},
            {"sees": lambda b, h, i, j: each[in_order[h]](i, j)},
            True,
        ),
        "mask joined": Option(
            {"mask": (mp.causal() & ~mp.distance(1)) | mp.keys_at([0])},
            {"sees": lambda b, h, i, j: (j <= i and i - j != 1) or j == 0},
            True,
        ),
        "mask tensor": Option({"mask": drawn}, {"sees": lambda b, h, i, j: bool(drawn[b, h, i - s.first, j])}),
    }


def biases(s, dtype):
    drawn = torch.randn(1, s.heads, s.q_len, s.kv_len, dtype=dtype)
    holes = torch.randn(s.batch, 1, s.q_len, s.kv_len, dtype=dtype)
    holes = holes.masked_fill(holes < -0.5, -math.inf)
    slopes, numbers = torch.rand(s.heads, dtype=dtype) + 0.3, torch.randn(8, s.heads, dtype=dtype)
    spans = torch.rand(s.heads, dtype=dtype) * 3

    return {
        "bias tensor": Option({"bias": drawn}, {"added": lambda b, h, i, j: float(drawn[0, h, i - s.first, j])}),
        "bias holes": Option({"bias": holes}, {"added": lambda b, h, i, j: float(holes[b, 0, i - s.first, j])}),
        "bias alibi": Option(
            {"bias": ALiBi(slopes)}, {"added": lambda b, h, i, j: -float(slopes[h]) * abs(i - j)}, True
        ),
        "bias table": Option(
            {"bias": RelativeTable(numbers, max_distance=6)},
            {"added": lambda b, h, i, j: float(numbers[oracle.bucket(i - j), h])},
            True,
        ),
        "bias span": Option(
            {"bias": AdaptiveSpan(spans, ramp=2)},
            {"added": lambda b, h, i, j: oracle.faded(float(spans[h]), 2, i - j)},
            True,
        ),
    }


def scorings(s):
    return {
        "scale": Option({"scale": -0.8}, {"scale": -0.8}),
        "softcap": Option({"softcap": 0.6}, {"softcap": 0.6}),
    }


def normalisers(s, dtype):
    sinks = torch.randn(s.heads, dtype=dtype)
    return {
        "normaliser sinks": Option({"normaliser": Softmax(sinks=sinks)}, {"weigh": oracle.with_sinks(sinks)}),
        "normaliser off by one": Option({"normaliser": Softmax(off_by_one=True)}, {"weigh": oracle.off_by_one}),
        "normaliser both": Option(
            {"normaliser": Softmax(sinks=sinks, off_by_one=True)}, {"weigh": oracle.with_sinks(sinks, 1.0)}
        ),
        "normaliser sigmoid": Option({"normaliser": Sigmoid(-0.7)}, {"weigh": oracle.sigmoid(-0.7)}),
        "normaliser sparsemax": Option({"normaliser": Sparsemax()}, {"weigh": oracle.sparsemax}),
        "normaliser entmax": Option({"normaliser": Entmax(1.5)}, {"weigh": oracle.entmax15}),
    }


NAMES = list(options(Sizes()))


def kind(name):
    """What excludes others of its kind."""
    return name.split()[0]
