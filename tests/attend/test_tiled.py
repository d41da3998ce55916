"""The tiled backend: derivatives to all it claims, band by band, and memory that does not hold a matrix."""

import pytest
import torch

from attend.oracle import near, qkv
from multihead.attend import Entmax, Sigmoid, Softmax, Sparsemax, attention, attention_lse, define, make_problem, tiled
from multihead.pattern import causal, distance, sliding_window
from multihead.position import ALiBi, RelativeTable


@pytest.fixture(params=[2, 256], ids=lambda height: f"bands of {height}")
def height(request, monkeypatch):
    """Bands of this many queries."""
    monkeypatch.setattr(tiled, "_LEAST", request.param)
    monkeypatch.setattr(tiled, "_MOST", request.param)
    return request.param


TINY = {"batch": 2, "heads": 2, "kv_heads": 1, "q_len": 3, "kv_len": 4, "head_dim": 2, "v_head_dim": 3}
EMPTY_ROW = torch.tensor([[1, 1, 1, 0], [0, 0, 0, 0], [1, 0, 1, 1]]).bool()


@pytest.mark.parametrize(
    "normaliser", [Softmax(), Softmax(off_by_one=True), Sigmoid(-1.0), Sparsemax(), Entmax(1.5)], ids=str
)
def test_gradients_of_both_results(normaliser, height):
    def run(q, k, v):
        out, lse = tiled.run(make_problem(q, k, v, mask=EMPTY_ROW, softcap=2.0, normaliser=normaliser))
        return out if lse is None else (out, lse.nan_to_num(neginf=0.0))

    assert torch.autograd.gradcheck(run, qkv(**TINY, dtype=torch.float64, grad=True), fast_mode=True)


@pytest.mark.parametrize("shape", [(3, 4), (2, 2, 3, 4), (1, 2, 1, 4), (2, 1, 3, 1), (1, 1)])
def test_gradients_of_a_bias(shape, height):
    bias = torch.randn(shape, dtype=torch.float64, requires_grad=True)

    def run(q, k, v, bias):
        return tiled.run(make_problem(q, k, v, bias=bias, softcap=1.0, mask=distance(0) | distance(-3), q_offset=0))

    leaves = (*qkv(**TINY, dtype=torch.float64, grad=True), bias)
    assert torch.autograd.gradcheck(lambda *x: [y.nan_to_num(neginf=0.0) for y in run(*x)], leaves, fast_mode=True)


def test_gradients_of_sinks_slopes_and_tables(height):
    sinks, slopes = (torch.randn(2, dtype=torch.float64, requires_grad=True) for _ in range(2))
    table = torch.randn(4, 2, dtype=torch.float64, requires_grad=True)
    q, k, v = qkv(**TINY, dtype=torch.float64)

    def run(sinks, slopes, table):
        one = make_problem(q, k, v, normaliser=Softmax(sinks=sinks, off_by_one=True), bias=ALiBi(slopes), q_offset=1)
        two = make_problem(q, k, v, mask=causal(), bias=RelativeTable(table, max_distance=3), q_offset=0)
        return *tiled.run(one), *tiled.run(two)

    assert torch.autograd.gradcheck(run, (sinks, slopes, table), fast_mode=True)


def test_gradients_with_dropout_are_those_of_one_draw(height):
    def run(q, k, v):
        torch.manual_seed(7)
        return tiled.run(make_problem(q, k, v, dropout=0.4, mask=EMPTY_ROW))[0]

    assert torch.autograd.gradcheck(run, qkv(**TINY, dtype=torch.float64, grad=True), fast_mode=True)


def test_a_result_alone_has_a_gradient():
    q, k, v = qkv(dtype=torch.float64, grad=True)
    out, lse = tiled.run(make_problem(q, k, v))
    law = define(make_problem(q, k, v))
    for mine, theirs in ((out, law[0]), (lse, law[1])):
        weight = torch.randn_like(mine)
        got = torch.autograd.grad(mine, (q, k, v), weight, retain_graph=True)
        want = torch.autograd.grad(theirs, (q, k, v), weight, retain_graph=True, allow_unused=True)
        for x, y in zip(got, want, strict=True):
            assert near(x, torch.zeros_like(x) if y is None else y, 1e-12)


def test_what_needs_no_gradient_gets_none():
    q, k, v = qkv()
    bias = torch.randn(6, 7, requires_grad=True)
    out = attention(q, k, v, bias=bias, backend="tiled")
    out.sum().backward()
    assert bias.grad is not None
    assert q.grad is None
    assert not attention(q, k, v, bias=bias.detach(), backend="tiled").requires_grad


def test_the_same_values_with_and_without_gradients():
    q, k, v = qkv(grad=True)
    with torch.no_grad():
        plain = attention_lse(q, k, v, softcap=1.0, backend="tiled")
    trained = attention_lse(q, k, v, softcap=1.0, backend="tiled")
    assert torch.equal(plain.out, trained.out)
    assert torch.equal(plain.lse, trained.lse)


def test_tiles_that_a_pattern_skips_are_not_computed(monkeypatch):
    """Counted in the scores that are made."""
    made = []
    monkeypatch.setattr(
        tiled, "products", lambda q, k, scale: made.append(k.shape[2]) or torch.zeros(*q.shape[:3], k.shape[2])
    )
    q, k, v = qkv(batch=1, heads=1, kv_heads=1, q_len=2048, kv_len=2048)
    with torch.no_grad():
        tiled.run(make_problem(q, k, v, mask=sliding_window(100)))
    assert len(made) == 8
    assert sum(made) * 256 <= 2048 * (100 + 256 + 128)


def test_the_output_is_laid_out_for_joining_heads():
    q, k, v = qkv()
    assert attention(q, k, v, backend="tiled").transpose(1, 2).is_contiguous()
