"""The law itself, against attention written out pair by pair, and against sorted sparsemax."""

import math
from pathlib import Path

import pytest
import torch

from attend.oracle import attend_slowly, full, near, qkv
from multihead.attend import Entmax, Sigmoid, Softmax, Sparsemax, attention, define, make_problem, reference
from multihead.pattern import causal, sliding_window
from multihead.position import ALiBi, RelativeTable

SIZES = (2, 4, 6, 7)


def test_it_is_short():
    assert len(Path(reference.__file__).read_text().splitlines()) <= 60


def test_it_shares_no_code_with_the_backends():
    source = Path(reference.__file__).read_text()
    imported = [line for line in source.splitlines() if line.startswith(("import", "from"))]
    assert imported == [
        "import torch",
        "from torch import Tensor",
        "from multihead.attend.normaliser import Entmax, Normaliser, Sigmoid, Softmax",
        "from multihead.attend.problem import Problem",
    ]
    for method in ("scores(", "allowed(", "bias_rows(", "settle(", "weigh(", "sink_logit(", "q_positions("):
        assert f"p.{method}" not in source
        assert f"n.{method}" not in source


@pytest.mark.parametrize("softcap", [None, 0.7])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("sunk", ["", "sinks", "off by one", "both"])
def test_softmax_pair_by_pair(softcap, masked, biased, sunk):
    q, k, v = qkv(dtype=torch.float64)
    mask = torch.rand(1, 4, 6, 7) < 0.6 if masked else None
    if masked:
        mask[0, 1, 2] = False
    bias = torch.randn(2, 1, 6, 7, dtype=torch.float64) if biased else None
    sinks = torch.randn(4, dtype=torch.float64)
    normaliser = Softmax(sinks=sinks if sunk in ("sinks", "both") else None, off_by_one=sunk in ("off by one", "both"))
    logit = {"": None, "sinks": sinks, "off by one": torch.zeros(4), "both": (sinks.exp() + 1).log()}[sunk]
    problem = make_problem(q, k, v, mask=mask, bias=bias, softcap=softcap, normaliser=normaliser)
    expected = attend_slowly(
        q,
        k,
        v,
        allowed=full(mask, *SIZES) if masked else None,
        bias=full(bias, *SIZES) if biased else None,
        softcap=softcap,
        sinks=logit,
    )
    for got, want in zip(define(problem), expected, strict=True):
        assert near(got, want, 1e-13)


@pytest.mark.parametrize("offset", [0, 1, -2, 5])
def test_positions_are_shifted_by_the_offset(offset):
    q, k, v = qkv(dtype=torch.float64)
    allowed = torch.zeros(2, 4, 6, 7, dtype=torch.bool)
    bias = torch.zeros(2, 4, 6, 7, dtype=torch.float64)
    slopes = torch.rand(4, dtype=torch.float64)
    for i in range(6):
        for j in range(7):
            allowed[:, :, i, j] = 0 <= (i + offset) - j < 3
            bias[:, :, i, j] = -slopes * abs(i + offset - j)
    problem = make_problem(q, k, v, mask=sliding_window(3), bias=ALiBi(slopes), q_offset=offset)
    for got, want in zip(define(problem), attend_slowly(q, k, v, allowed=allowed, bias=bias), strict=True):
        assert near(got, want, 1e-13)


def sorted_sparsemax(row):
    """Martins and Astudillo's closed form: the largest support whose mean excess is 1."""
    ordered = sorted(row.tolist(), reverse=True)
    total = 0.0
    for size, value in enumerate(ordered, 1):
        total += value
        if size * value > total - 1:
            tau = (total - 1) / size
    return (row - tau).clamp(min=0)


def test_sparsemax_by_sorting():
    q, k, v = qkv(dtype=torch.float64)
    mask = torch.rand(6, 7) < 0.7
    mask[:, 0] = True
    _, lse, weights = define(make_problem(q, k, v, mask=mask, scale=1.0, normaliser=Sparsemax()))
    assert lse is None
    scores = q @ k.repeat_interleave(2, 1).mT
    for b in range(2):
        for h in range(4):
            for i in range(6):
                seen = mask[i]
                assert near(weights[b, h, i][seen], sorted_sparsemax(scores[b, h, i][seen]), 1e-13)
                assert not weights[b, h, i][~seen].any()


@pytest.mark.parametrize("alpha", [1.05, 1.5, 2.0, 2.5])
def test_entmax_satisfies_its_conditions(alpha):
    """One tau = (alpha - 1) s - p ** (alpha - 1) in a row where p > 0, and not below (alpha - 1) s elsewhere."""
    q, k, v = qkv(dtype=torch.float64)
    _, _, weights = define(make_problem(q, k, v, normaliser=Entmax(alpha)))
    scores = (alpha - 1) * (q @ k.repeat_interleave(2, 1).mT) * 8**-0.5
    assert near(weights.sum(-1), torch.ones(2, 4, 6), 1e-12)
    assert (weights >= 0).all()
    tau = (scores - weights ** (alpha - 1)).where(weights > 0, math.inf).amin(-1, keepdim=True)
    assert near((scores - weights ** (alpha - 1)).where(weights > 0, tau), tau.expand_as(scores), 1e-9)
    assert (scores.where(weights == 0, -math.inf) <= tau + 1e-9).all()


def test_entmax_near_1_is_softmax():
    q, k, v = qkv(dtype=torch.float64)
    soft = define(make_problem(q, k, v))[2]
    assert near(define(make_problem(q, k, v, normaliser=Entmax(1.0001)))[2], soft, 1e-3)


def test_sigmoid_row_by_row():
    q, k, v = qkv(dtype=torch.float64)
    mask = torch.rand(6, 7) < 0.5
    _, lse, weights = define(make_problem(q, k, v, mask=mask, normaliser=Sigmoid(-1.5)))
    expected = 1 / (1 + torch.exp(1.5 - q @ k.repeat_interleave(2, 1).mT * 8**-0.5))
    assert lse is None
    assert near(weights, expected.where(mask, 0), 1e-14)


def test_dropout_takes_the_weights_it_is_told():
    q, k, v = qkv(dtype=torch.float64)
    keep = torch.rand(2, 4, 6, 7) < 0.5
    out, lse, weights = define(make_problem(q, k, v, dropout=0.25), keep)
    plain = define(make_problem(q, k, v))
    assert near(weights, plain[2], 0)
    assert near(lse, plain[1], 0)
    assert near(out, (weights * keep / 0.75) @ v.repeat_interleave(2, 1), 1e-14)


def test_dropout_draws_only_when_there_is_some():
    q, k, v = qkv()
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    define(make_problem(q, k, v))
    assert torch.equal(torch.rand(3), expected)
    first, second = (define(make_problem(q, k, v, dropout=0.5))[0] for _ in range(2))
    assert not torch.equal(first, second)


NORMALISERS = [
    Softmax(),
    Softmax(off_by_one=True),
    Sigmoid(-1.0),
    Sparsemax(),
    Entmax(1.5),
]


@pytest.mark.parametrize("normaliser", NORMALISERS, ids=str)
def test_first_and_second_derivatives(normaliser):
    q, k, v = qkv(
        batch=1, heads=2, kv_heads=1, q_len=3, kv_len=4, head_dim=2, v_head_dim=2, dtype=torch.float64, grad=True
    )
    mask = torch.tensor([[1, 1, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1]]).bool()

    def run(q, k, v):
        out, lse, _ = define(make_problem(q, k, v, mask=mask, softcap=2.0, normaliser=normaliser))
        return (out,) if lse is None else (out, lse.nan_to_num(neginf=0.0))

    assert torch.autograd.gradcheck(run, (q, k, v))
    assert torch.autograd.gradgradcheck(run, (q, k, v))


def test_gradients_of_what_is_trained_besides():
    q, k, v = qkv(batch=1, heads=2, kv_heads=1, q_len=2, kv_len=2, head_dim=2, v_head_dim=1, dtype=torch.float64)
    leaves = [torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in ((2,), (4, 2), (1, 2, 2, 2))]

    def run(sinks, table, bias):
        one = define(make_problem(q, k, v, bias=RelativeTable(table, max_distance=3), normaliser=Softmax(sinks=sinks)))
        two = define(make_problem(q, k, v, bias=bias, mask=causal()))
        return one[0], one[1], two[0], two[1]

    assert torch.autograd.gradcheck(run, leaves)
    assert torch.autograd.gradgradcheck(run, leaves)


def test_an_empty_row_has_gradient_zero():
    q, k, v = qkv(grad=True)
    mask = torch.ones(6, 7, dtype=torch.bool)
    mask[2] = False
    out, lse, weights = define(make_problem(q, k, v, mask=mask))
    assert not out[:, :, 2].any()
    assert not weights[:, :, 2].any()
    assert (lse[:, :, 2] == -math.inf).all()
    grads = torch.autograd.grad(out.sum() + lse[lse > -math.inf].sum(), (q, k, v))
    assert not grads[0][:, :, 2].any()
    assert all(grad.isfinite().all() for grad in grads)


def test_by_name():
    q, k, v = qkv()
    assert torch.equal(attention(q, k, v, backend="reference"), define(make_problem(q, k, v))[0])
