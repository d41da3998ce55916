"""NaN and +inf among the scores: the rows that see them are NaN by every backend, and no other row is touched."""

import math

import pytest
import torch

from attend.oracle import near, qkv
from built import NATIVE
from multihead.attend import Entmax, Sigmoid, Softmax, Sparsemax, attention_lse
from multihead.pattern import causal
from multihead.position import ALiBi

BACKENDS = [NATIVE, "sdpa", "tiled", "reference"]
NORMALISERS = {
    "softmax": Softmax,
    "off by one": lambda: Softmax(off_by_one=True),
    "sinks": lambda: Softmax(sinks=torch.randn(4)),
    "sparsemax": Sparsemax,
    "entmax": Entmax,
}
SEEN = [2, 3, 5]  # rows of a causal mask that see the numbers below


def spoiled(number, dtype):
    """A bias with the number in some pairs, the last two of which a causal mask shuts out."""
    bias = torch.randn(6, 6, dtype=dtype)
    clean = bias.clone()
    for row, key in ((2, 0), (3, 3), (5, 0), (5, 4), (0, 1), (1, 5)):
        bias[row, key] = number
    return bias, clean


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("number", [math.inf, math.nan])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", NORMALISERS)
def test_a_row_that_sees_it_is_nan_and_others_are_as_without_it(name, backend, number, dtype):
    if name in ("sparsemax", "entmax") and backend in ("native", "sdpa"):
        backend = "tiled"
    q, k, v = qkv(kv_len=6, dtype=dtype)
    normaliser, (bias, clean) = NORMALISERS[name](), spoiled(number, dtype)
    options = {"mask": causal(), "normaliser": normaliser, "backend": backend}
    got, want = (attention_lse(q, k, v, bias=given, **options) for given in (bias, clean))
    others = [row for row in range(6) if row not in SEEN]
    assert got.out[:, :, SEEN].isnan().all()
    assert torch.equal(got.out[:, :, others], want.out[:, :, others])
    if got.lse is not None:
        assert got.lse[:, :, SEEN].isnan().all()
        assert torch.equal(got.lse[:, :, others], want.lse[:, :, others])
    weights = got.weights()
    assert weights[:, :, others].isfinite().all()
    assert weights[:, :, SEEN].sum(-1).isnan().all()


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("backend", BACKENDS)
def test_slopes_without_end_are_nan(backend, number):
    """0 * inf stands on the diagonal."""
    q, k, v = qkv(kv_len=6)
    slopes = torch.tensor([0.5, number, 0.1, number])
    attended = attention_lse(q, k, v, bias=ALiBi(slopes), backend=backend)
    assert attended.out.isnan().all(-1).tolist() == [[[False] * 6, [True] * 6] * 2] * 2
    assert attended.lse.isnan().tolist() == [[[False] * 6, [True] * 6] * 2] * 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_sink_of_infinity_takes_up_all_the_weight(backend):
    q, k, v = qkv()
    sinks = torch.tensor([math.inf, 0.3, -math.inf, math.inf])
    attended = attention_lse(q, k, v, normaliser=Softmax(sinks=sinks), backend=backend)
    for head in (0, 3):
        assert not attended.out[:, head].any()
        assert (attended.lse[:, head] == math.inf).all()
        assert not attended.weights()[:, head].any()
    plain = attention_lse(q, k, v, backend=backend)
    assert near(attended.out[:, 2], plain.out[:, 2], 1e-6)
    assert near(attended.lse[:, 2], plain.lse[:, 2], 1e-6)


@pytest.mark.parametrize("backend", ["tiled", "reference"])
def test_a_sigmoid_of_infinity_is_one(backend):
    q, k, v = qkv(kv_len=6)
    bias, _ = spoiled(math.inf, torch.float32)
    weights = attention_lse(q, k, v, mask=causal(), bias=bias, normaliser=Sigmoid(), backend=backend).weights()
    assert weights.isfinite().all()
    assert (weights[:, :, [2, 3, 5, 5], [0, 3, 0, 4]] == 1).all()
