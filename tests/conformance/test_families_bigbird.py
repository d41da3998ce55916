"""Block-sparse attention of transformers' BigBird on random weights, with what it does in evaluation."""

import math

import pytest
import torch
from transformers.models.big_bird.configuration_big_bird import BigBirdConfig
from transformers.models.big_bird.modeling_big_bird import BigBirdBlockSparseAttention, BigBirdModel

from multihead.attend import attention
from multihead.layer import MultiHeadAttention
from multihead.pattern import block_band, global_blocks, padding

BLOCK, COUNT = 8, 12
LENGTH = BLOCK * COUNT


def build(random):
    config = BigBirdConfig(
        hidden_size=24,
        num_attention_heads=3,
        block_size=BLOCK,
        num_random_blocks=random,
        max_position_embeddings=128,
        attention_probs_dropout_prob=0.0,
    )
    theirs = BigBirdBlockSparseAttention(config, seed=0).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.copy_(torch.randn(parameter.shape) * (0.5 if parameter.ndim == 1 else 24**-0.5))
    ours = MultiHeadAttention(24, 3).eval()
    state = {"out_proj.weight": torch.eye(24), "out_proj.bias": torch.zeros(24)}
    for mine, name in (("q_proj", "query"), ("k_proj", "key"), ("v_proj", "value")):
        state |= {f"{mine}.{kind}": getattr(theirs, name).state_dict()[kind] for kind in ("weight", "bias")}
    ours.load_state_dict(state)
    return ours, theirs


@pytest.mark.parametrize("random", [1, 3])
def test_bigbird_counts_its_first_block_again_for_each_random_block(random):
    ours, theirs = build(random)
    x, keep = torch.randn(2, LENGTH, 24), torch.arange(LENGTH) < torch.tensor([[LENGTH], [LENGTH - 11]])
    blocked, band, rows, keys = BigBirdModel.create_masks_for_block_sparse_attn(keep.float(), BLOCK)
    seen = (block_band(BLOCK, 1, 1) | global_blocks(BLOCK, [0, COUNT - 1])) & padding(keep)
    # In evaluation every random block is block 0: rows that are not global see it 1 + r times.
    again = torch.zeros(LENGTH, LENGTH)
    again[BLOCK:-BLOCK, :BLOCK] = math.log(1 + random)
    with torch.no_grad():
        want = theirs(x, band, rows, keys, blocked, blocked)[0].reshape(2, LENGTH, 24)
        got, once = ours(x, mask=seen, bias=again), ours(x, mask=seen)
    torch.testing.assert_close(got[keep], want[keep], rtol=1e-5, atol=1e-5)
    apart = (once - want).abs().amax(-1)[keep & (torch.arange(LENGTH) // BLOCK % (COUNT - 1) > 0)]
    assert apart.median() > 1e-3
    ends = keep & (torch.arange(LENGTH) // BLOCK % (COUNT - 1) == 0)
    torch.testing.assert_close(once[ends], want[ends], rtol=1e-5, atol=1e-5)


def test_a_key_counted_twice_is_one_with_log_two_added():
    q, k, v = (torch.randn(1, 2, 5, 4, dtype=torch.float64) for _ in range(3))
    bias = torch.zeros(5, 5, dtype=torch.float64)
    bias[:, 2] = math.log(2)
    twice = [torch.cat([x, x[:, :, 2:3]], 2) for x in (k, v)]
    torch.testing.assert_close(attention(q, *twice), attention(q, k, v, bias=bias), rtol=1e-12, atol=1e-12)
