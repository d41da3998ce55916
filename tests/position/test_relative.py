"""The relative table against transformers' T5 and against its definition."""

import hypothesis
import hypothesis.strategies as st
import pytest
import torch

from multihead.error import MultiheadError
from multihead.position import RelativeTable


@pytest.mark.parametrize(("buckets", "distance"), [(32, 128), (16, 50), (8, 20), (7, 30)])
@pytest.mark.parametrize("bidirectional", [True, False])
def test_buckets_of_t5(buckets, distance, bidirectional):
    modeling = pytest.importorskip("transformers.models.t5.modeling_t5", reason="T5 is the oracle")
    bias = RelativeTable(torch.zeros(buckets, 2), bidirectional=bidirectional, max_distance=distance)
    far = torch.arange(-3 * distance, 3 * distance)
    theirs = modeling.T5Attention._relative_position_bucket(  # theirs counts key - query
        -far, bidirectional=bidirectional, num_buckets=buckets, max_distance=distance
    )
    assert torch.equal(bias.bucket(far), theirs)


def test_near_distances_have_a_bucket_each():
    bias = RelativeTable(torch.zeros(32, 1))
    assert bias.bucket(torch.arange(8)).tolist() == list(range(8))
    assert bias.bucket(-torch.arange(1, 8)).tolist() == list(range(17, 24))
    assert bias.bucket(torch.tensor([128, 1000, -128, -1000])).tolist() == [15, 15, 31, 31]


def test_looking_back_puts_later_keys_with_the_query():
    bias = RelativeTable(torch.zeros(8, 1), bidirectional=False, max_distance=16)
    assert bias.bucket(torch.tensor([-5, -1, 0, 1, 3])).tolist() == [0, 0, 0, 1, 3]


def test_scores_look_the_bucket_up():
    table = torch.randn(8, 3)
    bias = RelativeTable(table, max_distance=9)
    q_pos, k_pos = torch.arange(3, 8), torch.arange(6)
    scores = bias.scores(q_pos, k_pos)
    assert scores.shape == (1, 3, 5, 6)
    for i, q in enumerate(q_pos):
        for j, k in enumerate(k_pos):
            assert torch.equal(scores[0, :, i, j], table[bias.bucket((q - k)[None])[0]])


def test_pull_is_the_adjoint_of_scores():
    table = torch.randn(8, 3, dtype=torch.float64, requires_grad=True)
    bias = RelativeTable(table, max_distance=9)
    q_pos, k_pos, grad = torch.arange(4) + 2, torch.arange(5), torch.randn(3, 4, 5, dtype=torch.float64)
    (expected,) = torch.autograd.grad(bias.scores(q_pos, k_pos), table, grad[None])
    assert torch.allclose(bias.pull(grad, q_pos, k_pos), expected)


def test_pick_and_with_weight():
    bias = RelativeTable(torch.randn(8, 3), bidirectional=False, max_distance=11)
    picked = bias.pick(torch.tensor([2, 0]))
    assert torch.equal(picked.table, bias.table[:, [2, 0]])
    assert (picked.bidirectional, picked.max_distance) == (False, 11)
    assert bias.with_weight(torch.zeros(8, 1)).heads == 1
    assert bias.weight is bias.table
    assert str(bias) == "RelativeTable(8 buckets, 3 heads, looking back, max_distance=11)"


def test_too_few_buckets():
    with pytest.raises(MultiheadError, match=r"at least 4 buckets \(bidirectional=True\)\n  got: 3 buckets"):
        RelativeTable(torch.zeros(3, 8))


def test_max_distance_too_small():
    with pytest.raises(
        MultiheadError, match=r"above the 8 distances.*\n  got: max_distance=8, 32 buckets\n  fix: pass"
    ):
        RelativeTable(torch.zeros(32, 8), max_distance=8)


def test_a_table_of_a_wrong_kind():
    bias = object.__new__(RelativeTable)
    object.__setattr__(bias, "table", torch.zeros(32, dtype=torch.int64))
    with pytest.raises(MultiheadError, match=r"shape \(buckets, heads\).*\n  got: shape \(32,\), torch.int64"):
        bias.__post_init__()


@pytest.mark.parametrize("decoder", [True, False])
@pytest.mark.parametrize(("q_len", "kv_len", "past"), [(200, 200, 0), (3, 170, 167), (1, 9, 8)])
def test_the_bias_of_t5(decoder, q_len, kv_len, past):
    modeling = pytest.importorskip("transformers.models.t5.modeling_t5", reason="T5 is the oracle")
    config = modeling.T5Config(num_heads=3, d_model=12, d_kv=4, is_decoder=decoder)
    theirs = modeling.T5Attention(config, has_relative_attention_bias=True)
    torch.nn.init.normal_(theirs.relative_attention_bias.weight)
    bias = RelativeTable(theirs.relative_attention_bias.weight, bidirectional=not decoder)
    expected = theirs.compute_bias(q_len, kv_len, past_seen_tokens=past)
    assert torch.equal(bias.scores(torch.arange(past, past + q_len), torch.arange(kv_len)), expected)


@hypothesis.given(shift=st.integers(0, 1000), bidirectional=st.booleans())
def test_scores_depend_on_distances_alone(shift, bidirectional):
    bias = RelativeTable(torch.randn(8, 3), bidirectional=bidirectional, max_distance=9)
    q_pos, k_pos = torch.arange(4), torch.arange(30)
    assert torch.equal(bias.scores(q_pos + shift, k_pos + shift), bias.scores(q_pos, k_pos))
