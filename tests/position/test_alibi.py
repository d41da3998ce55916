"""ALiBi against the paper's numbers and a loop over pairs."""

import hypothesis
import hypothesis.strategies as st
import pytest
import torch

from multihead.error import MultiheadError
from multihead.position import ALiBi, alibi_slopes


def test_slopes_of_the_paper_for_eight_heads():
    assert alibi_slopes(8).tolist() == [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]


def test_slopes_of_sixteen_heads_start_at_the_root():
    assert torch.allclose(alibi_slopes(16), 0.5 ** (0.5 * torch.arange(1, 17)))


@pytest.mark.parametrize("heads", [1, 2, 3, 5, 12, 20, 25])
def test_slopes_of_other_counts_fill_up_from_the_next_power_of_two(heads):
    lower = 1
    while 2 * lower <= heads:
        lower *= 2
    expected = [2 ** (-8 * h / lower) for h in range(1, lower + 1)]
    finer = [2 ** (-8 * h / (2 * lower)) for h in range(1, 2 * lower + 1)]
    expected += finer[0::2][: heads - lower]
    assert torch.allclose(alibi_slopes(heads), torch.tensor(expected))
    assert alibi_slopes(heads).shape == (heads,)


def test_slopes_of_no_heads():
    with pytest.raises(
        MultiheadError, match=r"at least one head, and for 65536 at most\n  got: heads=0\n  fix: pass heads >= 1"
    ):
        alibi_slopes(0)


def test_scores_by_a_loop():
    slopes = torch.rand(3, dtype=torch.float64)
    q_pos, k_pos = torch.tensor([4, 9]), torch.tensor([0, 4, 12])
    scores = ALiBi(slopes).scores(q_pos, k_pos)
    assert scores.shape == (1, 3, 2, 3)
    for h in range(3):
        for i, q in enumerate([4, 9]):
            for j, k in enumerate([0, 4, 12]):
                assert scores[0, h, i, j].item() == pytest.approx(-slopes[h].item() * abs(q - k))


def test_pull_is_the_adjoint_of_scores():
    slopes = torch.rand(3, dtype=torch.float64, requires_grad=True)
    q_pos, k_pos, grad = torch.arange(4) + 2, torch.arange(5), torch.randn(3, 4, 5, dtype=torch.float64)
    bias = ALiBi(slopes)
    (expected,) = torch.autograd.grad(bias.scores(q_pos, k_pos), slopes, grad[None])
    assert torch.allclose(bias.pull(grad, q_pos, k_pos), expected)


def test_pick_and_with_weight():
    bias = ALiBi(torch.tensor([1.0, 2.0, 3.0]))
    assert bias.pick(torch.tensor([2, 0])).slopes.tolist() == [3.0, 1.0]
    assert bias.with_weight(torch.tensor([7.0])).slopes.tolist() == [7.0]
    assert bias.weight is bias.slopes
    assert str(bias) == "ALiBi(3 heads)"


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_slopes_of_a_wrong_kind(dtype):
    wrong = torch.ones(2, 2) if dtype == torch.float32 else torch.ones(2, dtype=dtype)
    # Built around the shape annotation, which only tests check, to see the message that users see.
    bias = object.__new__(ALiBi)
    object.__setattr__(bias, "slopes", wrong)
    with pytest.raises(MultiheadError, match=r"shape \(heads,\)\n  got: shape .*\n  fix: pass alibi_slopes"):
        bias.__post_init__()


@pytest.mark.parametrize("heads", [1, 2, 4, 6, 7, 12, 16, 25])
def test_bloom_and_mpt(heads):
    bloom = pytest.importorskip("transformers.models.bloom.modeling_bloom", reason="it is the oracle")
    mpt = pytest.importorskip("transformers.models.mpt.modeling_mpt", reason="it is the oracle")
    q_pos, k_pos = torch.arange(5) + 3, torch.arange(8)
    products = torch.randn(1, heads, 5, 8)
    ours = products + ALiBi(alibi_slopes(heads)).scores(q_pos, k_pos)
    visible = k_pos <= q_pos[:, None]
    weights = torch.softmax(ours.masked_fill(~visible, -torch.inf), -1)
    # Both add slope * position of the key: to each row the same number less, which a softmax does not see.
    for added in (
        bloom.build_alibi_tensor(torch.ones(1, 8), heads, torch.float32).view(1, heads, 1, 8),
        mpt.build_mpt_alibi_tensor(heads, 8)[None],
    ):
        theirs = torch.softmax((products + added).masked_fill(~visible, -torch.inf), -1)
        assert torch.allclose(weights, theirs, rtol=0, atol=2e-6)


@hypothesis.given(shift=st.integers(0, 1000), heads=st.integers(1, 5))
def test_scores_depend_on_distances_alone(shift, heads):
    bias, q_pos, k_pos = ALiBi(alibi_slopes(heads).double()), torch.arange(4), torch.arange(6)
    assert torch.equal(bias.scores(q_pos + shift, k_pos + shift), bias.scores(q_pos, k_pos))
