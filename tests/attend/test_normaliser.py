"""Normalisers by themselves: settle, weigh and pull against the reference's own arithmetic."""

import math

import pytest
import torch

from attend.oracle import near, qkv
from multihead.attend import Entmax, Sigmoid, Softmax, Sparsemax, define, make_problem

KINDS = [Softmax(), Softmax(off_by_one=True), Sigmoid(-1.0), Sparsemax(), Entmax(1.3), Entmax(1.5)]


def problem_of(normaliser, **options):
    q, k, v = qkv(dtype=torch.float64)
    mask = torch.rand(2, 1, 6, 7) < 0.6
    mask[:, :, 3] = False
    return make_problem(q, k, v, mask=mask, normaliser=normaliser, **options)


@pytest.mark.parametrize("normaliser", KINDS, ids=str)
def test_weights_and_lse_of_the_definition(normaliser):
    p = problem_of(normaliser)
    settled = normaliser.settle(p.scores())
    _, lse, weights = define(p)
    assert settled.shape == (2, 4, 6, 2)
    assert near(normaliser.weigh(p.scores(), settled), weights, 1e-12)
    assert normaliser.has_lse == (lse is not None)
    assert normaliser.lse(settled) is None if lse is None else near(normaliser.lse(settled), lse, 1e-12)


@pytest.mark.parametrize("normaliser", KINDS, ids=str)
def test_a_part_of_a_row_follows_from_what_it_settled_on(normaliser):
    scores = problem_of(normaliser).scores()
    settled = normaliser.settle(scores)
    whole = normaliser.weigh(scores, settled)
    assert torch.equal(normaliser.weigh(scores[..., 2:5], settled), whole[..., 2:5])


@pytest.mark.parametrize("normaliser", [*KINDS, Entmax(2.5)], ids=str)
def test_pull_is_the_derivative(normaliser):
    scores = problem_of(normaliser).scores().requires_grad_()
    weights = normaliser.weigh(scores, normaliser.settle(scores))
    grad = torch.randn_like(weights)
    (expected,) = torch.autograd.grad(weights, scores, grad)
    # Above alpha 2 the slope grows without bound as a weight goes to 0.
    limit = 1e-11 if getattr(normaliser, "alpha", 2.0) <= 2 else 1e-4 * max(1.0, float(expected.abs().max()))
    assert near(normaliser.pull(weights.detach(), grad), expected, limit)


@pytest.mark.parametrize("normaliser", KINDS[:-1], ids=str)
@pytest.mark.parametrize("shape", [(1, 2, 3, 0), (0, 2, 3, 4), (1, 2, 0, 4)])
def test_nothing_to_weigh(normaliser, shape):
    scores = torch.randn(shape)
    settled = normaliser.settle(scores)
    assert settled.shape == (*shape[:3], 2)
    assert normaliser.weigh(scores, settled).shape == shape


@pytest.mark.parametrize("normaliser", [Softmax(), Sparsemax(), Entmax(1.5)], ids=str)
@pytest.mark.parametrize("height", [1e6, -1e6, 3e38, -3e38])
def test_a_common_height_of_the_scores_costs_no_precision(normaliser, height):
    steps = torch.tensor([[[[0.0, -64.0, 0.0, 0.0]]]])  # exact beside 1e6, lost beside 3e38
    scores = steps + height
    weights = normaliser.weigh(scores, normaliser.settle(scores))
    assert near(
        weights, torch.tensor([[[[1 / 3, 0, 1 / 3, 1 / 3]]]]) if abs(height) < 1e7 else torch.full_like(scores, 0.25)
    )


def test_the_sink_that_sinks_and_off_by_one_amount_to():
    sinks, like = torch.tensor([0.5, -math.inf, 100.0]), torch.zeros(1, dtype=torch.float64)
    assert Softmax().sink_logit(like) is None
    assert Softmax(off_by_one=True).sink_logit(like).tolist() == [[0.0]]
    assert Softmax(sinks=sinks).sink_logit(like).dtype == torch.float64
    both = Softmax(sinks=sinks, off_by_one=True).sink_logit(like)
    assert near(both, torch.tensor([[math.log(math.exp(0.5) + 1)], [0.0], [100.0]]), 1e-6)
    lse = torch.randn(2, 3, 4, dtype=torch.float64)
    assert torch.equal(Softmax().with_sink(lse), lse)
    assert near(Softmax(sinks=sinks).with_sink(lse), (lse.exp() + sinks[:, None].double().exp()).log(), 1e-12)


def test_heads_can_be_picked():
    sinks, some = torch.arange(4.0), torch.tensor([3, 1])
    assert Softmax(sinks=sinks).pick(some).sinks.tolist() == [3.0, 1.0]
    for normaliser in KINDS:
        assert normaliser.pick(some) is normaliser


def test_words():
    assert [str(normaliser) for normaliser in KINDS] == [
        "Softmax()",
        "Softmax(off_by_one)",
        "Sigmoid(bias=-1.0)",
        "Sparsemax()",
        "Entmax(alpha=1.3)",
        "Entmax(alpha=1.5)",
    ]
    assert str(Softmax(sinks=torch.zeros(2), off_by_one=True)) == "Softmax(sinks, off_by_one)"
    assert Softmax().plain
    assert not Softmax(off_by_one=True).plain
    assert Sparsemax() == Sparsemax()
