"""Every statistic equals its definition on the whole matrix of weights."""

import math

import pytest
import torch

from built import NATIVE
from measure.calls import assert_same, expect, make_call, take
from multihead.attend import Softmax
from multihead.pattern import band, causal, padding, per_head, sliding_window
from multihead.position import ALiBi, RelativeTable, alibi_slopes


def keep(*spans, length=13):
    rows = torch.zeros(len(spans), length, dtype=torch.bool)
    for row, (start, stop) in enumerate(spans):
        rows[row, start:stop] = True
    return rows


def table(heads, *, bidirectional):
    return RelativeTable(torch.randn(8, heads), bidirectional=bidirectional, max_distance=12)


def additive(shape, lowest):
    bias = torch.randn(shape)
    shut = torch.rand(shape) < 0.3
    shut[..., 0] = False
    return bias.masked_fill(shut, lowest)


LEFT, RIGHT = keep((4, 13), (0, 13)), keep((0, 13), (0, 8))
MAKE = {
    "no mask": lambda: make_call(),
    "causal": lambda: make_call(mask=causal()),
    "sliding window": lambda: make_call(mask=sliding_window(4)),
    "band": lambda: make_call(mask=band(2, 3)),
    "a pattern for each head": lambda: make_call(mask=per_head([causal(), sliding_window(3), band(1, 1), causal()])),
    "boolean mask": lambda: make_call(mask=torch.rand(2, 4, 13, 13) < 0.6),
    "boolean mask for all heads": lambda: make_call(mask=torch.rand(2, 1, 13, 13) < 0.2),
    "grouped heads": lambda: make_call(heads=6, kv_heads=2, mask=causal()),
    "one head": lambda: make_call(heads=1, batch=1),
    "softcap": lambda: make_call(softcap=1.5),
    "large scores": lambda: make_call(scale=20.0, coarse=True),
    "additive bias": lambda: make_call(bias=torch.randn(1, 4, 13, 13)),
    "additive mask of -inf": lambda: make_call(bias=additive((2, 1, 13, 13), -math.inf)),
    "additive mask of the lowest number": lambda: make_call(
        bias=additive((2, 4, 13, 13), torch.finfo(torch.float).min)
    ),
    "additive mask within a pattern": lambda: make_call(mask=causal(), bias=additive((1, 4, 13, 13), -math.inf)),
    "ALiBi": lambda: make_call(mask=causal(), bias=ALiBi(alibi_slopes(4))),
    "relative table": lambda: make_call(bias=table(4, bidirectional=True)),
    "sinks": lambda: make_call(normaliser=Softmax(sinks=torch.randn(4) * 2), mask=causal()),
    "off by one": lambda: make_call(normaliser=Softmax(off_by_one=True)),
    "padded left, causal": lambda: make_call(k_keep=LEFT, mask=causal() & padding(LEFT)),
    "padded right, causal": lambda: make_call(k_keep=RIGHT, mask=causal() & padding(RIGHT)),
    "padded left": lambda: make_call(k_keep=LEFT, mask=LEFT[:, None, None]),
    "padded right": lambda: make_call(k_keep=RIGHT, mask=padding(RIGHT)),
    "padded right, causal mask alone": lambda: make_call(k_keep=RIGHT, mask=causal()),
    "padding that gets weight": lambda: make_call(k_keep=RIGHT),
    "padding on both sides": lambda: make_call(k_keep=keep((3, 9), (5, 6)), mask=padding(keep((3, 9), (5, 6)))),
    "a row of nothing but padding": lambda: make_call(
        k_keep=keep((0, 13), (0, 0)), mask=padding(keep((0, 13), (0, 0)))
    ),
    "queries after a cache": lambda: make_call(q_len=5, kv_len=13, q_offset=8, mask=causal(), q_keep=None),
    "cross": lambda: make_call(q_len=7, kv_len=13, cross=True),
    "cross, padded": lambda: make_call(
        q_len=7, kv_len=13, cross=True, k_keep=LEFT, mask=padding(LEFT), q_keep=keep((0, 7), (2, 6), length=7)
    ),
    "no token ids": lambda: make_call(ids=False),
    "one token": lambda: make_call(q_len=1),
    "two tokens": lambda: make_call(q_len=2, mask=causal()),
    "longer than a block": lambda: make_call(batch=1, heads=1, q_len=590, mask=causal()),
    "many tiles": lambda: make_call(batch=1, heads=1, q_len=200),
}
NEED_IDS = (
    "special_token",
    "special_token_argmax",
    "token_class",
    "token_class_content",
    *(f"{name}{end}" for name in ("same_token", "induction") for end in ("", "_argmax", "_even", "_content")),
)


BACKENDS = (NATIVE, "torch")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", MAKE)
def test_statistics_equal_their_definitions(name, backend):
    call = MAKE[name]()
    got, want = take(call, backend=backend), expect(call)
    if call.keys.ids is None:
        assert {n for n, part in got.items() if isinstance(part, str)} == set(NEED_IDS)
        want = {n: both for n, both in want.items() if n not in NEED_IDS}
    assert got.keys() >= want.keys()
    assert set(want) | set(NEED_IDS) >= got.keys()
    assert_same(got, want, again=lambda: expect(call))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["causal", "padded left", "cross, padded", "no token ids", "sinks"])
def test_classes_by_place_count_instead_of_those_of_ids(name, backend):
    call = MAKE[name]()
    at = torch.randint(0, 3, (call.problem.batch, call.problem.kv_len))
    got, want = take(call, classes_at=at, backend=backend), expect(call, classes_at=at)
    told = [n for n in want if not isinstance(got[n], str)]
    assert {"token_class", "token_class_content", "special_token", "sink", "sink_argmax"} <= set(told)
    assert_same(got, want, names=told)
