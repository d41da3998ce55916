"""Adaptive spans against the paper's mask on the weights, and against themselves as a bias."""

import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from multihead.error import MultiheadError
from multihead.position import AdaptiveSpan


def soft_mask(span, ramp, distance):
    return min(max((span + ramp - distance) / ramp, 0.0), 1.0)


@given(
    spans=st.lists(st.floats(-3, 12), min_size=1, max_size=3),
    ramp=st.integers(1, 6),
    q_offset=st.integers(0, 9),
)
def test_scores_are_the_logarithm_of_the_mask(spans, ramp, q_offset):
    bias = AdaptiveSpan(torch.tensor(spans, dtype=torch.float64), ramp=ramp)
    q_pos, k_pos = torch.arange(3) + q_offset, torch.arange(8)
    scores = bias.scores(q_pos, k_pos)
    assert scores.shape == (1, len(spans), 3, 8)
    for h, span in enumerate(spans):
        for i in range(3):
            for j in range(8):
                m = soft_mask(span, ramp, abs(q_offset + i - j))
                expected = math.log(m) if m > 0 else -math.inf
                assert scores[0, h, i, j].item() == pytest.approx(expected, abs=1e-9)


def test_weights_are_those_of_the_paper():
    spans = torch.tensor([0.0, 1.5, 4.0, 30.0], dtype=torch.float64)
    products = torch.randn(2, 4, 9, 9, dtype=torch.float64)
    visible = torch.ones(9, 9).tril() > 0
    positions = torch.arange(9)
    # Softmax, times the mask, normalised again.
    weights = torch.softmax(products.masked_fill(~visible, -torch.inf), -1)
    distance = (positions[:, None] - positions).double()
    weights = weights * ((spans[:, None, None] + 3 - distance) / 3).clamp(0, 1)
    weights = weights / weights.sum(-1, keepdim=True)
    scores = products + AdaptiveSpan(spans, ramp=3).scores(positions, positions)
    ours = torch.softmax(scores.masked_fill(~visible, -torch.inf), -1)
    assert torch.allclose(ours, weights, rtol=0, atol=1e-14)
    assert torch.equal(scores[:, 3], products[:, 3])  # a long span changes nothing


@given(span=st.floats(-3, 20), ramp=st.integers(1, 6))
def test_reach_is_a_window_that_loses_nothing(span, ramp):
    bias = AdaptiveSpan(torch.tensor([0.0, span], dtype=torch.float64), ramp=ramp)
    scores = bias.scores(torch.tensor([40]), torch.arange(41))[0, :, 0].flip(-1)  # by distance
    assert bool(scores[:, bias.reach() :].isneginf().all())
    # Rounded up to a whole token: the last distance but one is always seen.
    assert bias.reach() == 1 or bool(scores[:, bias.reach() - 2].isfinite().any())


def test_reach_is_at_least_the_query_itself():
    assert AdaptiveSpan(torch.tensor([-9.0]), ramp=2).reach() == 1
    assert AdaptiveSpan(torch.tensor([2.0, 5.25]), ramp=3).reach() == 9


def test_gradients():
    spans = torch.tensor([0.3, 2.6, 5.1], dtype=torch.float64, requires_grad=True)
    q_pos, k_pos = torch.arange(4) + 2, torch.arange(9)

    def masks(spans):
        # Through exp what is -inf is 0 and can be compared.
        return AdaptiveSpan(spans, ramp=3).scores(q_pos, k_pos).exp()

    assert torch.autograd.gradcheck(masks, spans)
    loss = masks(spans).sum() + AdaptiveSpan(spans, ramp=3).penalty()
    assert bool(torch.autograd.grad(loss, spans)[0].isfinite().all())


def test_the_gradient_of_a_softmax_is_finite_beyond_the_span():
    spans = torch.tensor([1.0, 2.5], requires_grad=True)
    positions = torch.arange(9)
    scores = torch.randn(2, 2, 9, 9) + AdaptiveSpan(spans, ramp=2).scores(positions, positions)
    (grad,) = torch.autograd.grad((torch.softmax(scores, -1) * torch.randn(9)).sum(), spans)
    assert bool(grad.isfinite().all())
    assert grad[1] != 0  # at 1.0 the ramp of 2 has one key on it, at 2.5 two


def test_pull_is_the_adjoint_of_scores():
    spans = torch.tensor([0.3, 2.6, 9.1], dtype=torch.float64, requires_grad=True)
    bias = AdaptiveSpan(spans, ramp=3)
    q_pos, k_pos, grad = torch.arange(4) + 2, torch.arange(9), torch.randn(3, 4, 9, dtype=torch.float64)
    (expected,) = torch.autograd.grad(bias.scores(q_pos, k_pos), spans, grad[None])
    assert torch.allclose(bias.pull(grad, q_pos, k_pos), expected)


def test_the_price_of_spans():
    spans = torch.tensor([1.0, -2.0, 6.0], requires_grad=True)
    price = AdaptiveSpan(spans).penalty()
    assert price.item() == pytest.approx(3.0)
    (grad,) = torch.autograd.grad(price, spans)
    assert torch.allclose(grad, torch.tensor([1.0, -1.0, 1.0]) / 3)


def test_pick_and_with_weight():
    bias = AdaptiveSpan(torch.tensor([1.0, 2.0, 3.0]), ramp=7)
    assert bias.pick(torch.tensor([2, 0])).spans.tolist() == [3.0, 1.0]
    other = bias.with_weight(torch.tensor([7.0]))
    assert (other.weight.tolist(), other.ramp, other.heads) == ([7.0], 7, 1)
    assert bias.weight is bias.spans
    assert str(bias) == "AdaptiveSpan(3 heads, ramp=7)"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            lambda: AdaptiveSpan(torch.ones(2, 2)),
            r"one floating number of tokens for each head.*\n  got: shape \(2, 2\), torch.float32\n  fix: pass a",
        ),
        (lambda: AdaptiveSpan(torch.ones(2).long()), r"got: shape \(2,\), torch.int64"),
        (
            lambda: AdaptiveSpan(torch.ones(2), ramp=0),
            r"a ramp of at least 1 token\n  got: ramp=0\n  fix: pass ramp >= 1",
        ),
        (
            lambda: AdaptiveSpan(torch.tensor([1.0, math.nan])).reach(),
            r"the reach of adaptive spans\n  got: spans \[1.0, nan\]\n  fix: pass finite spans",
        ),
    ],
)
def test_bad_input(wrong, message, unchecked):
    with pytest.raises(MultiheadError, match=message):
        wrong()
