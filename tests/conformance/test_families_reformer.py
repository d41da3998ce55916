"""Layers of transformers' Reformer on random weights."""

import pytest
import torch
from transformers.models.reformer.configuration_reformer import ReformerConfig
from transformers.models.reformer.modeling_reformer import LocalSelfAttention, LSHSelfAttention

from multihead.attend import attention
from multihead.attend.selector import Buckets
from multihead.layer import LSHAttention
from multihead.pattern import block_band, causal, padding

SIZES = {"hidden_size": 24, "num_attention_heads": 3, "attention_head_size": 8}


def config(**given):
    return ReformerConfig(
        **SIZES, lsh_attn_chunk_length=8, local_attn_chunk_length=8, lsh_attention_probs_dropout_prob=0.0, **given
    )


def pair(rounds, buckets, *, decoder, seed):
    theirs = LSHSelfAttention(config(num_hashes=rounds, num_buckets=buckets, is_decoder=decoder, hash_seed=seed), 0)
    given = tuple(buckets) if isinstance(buckets, list) else buckets
    ours = LSHAttention(
        24, 3, Buckets(given, rounds=rounds, chunk=8, cut="sorted", dedupe=False, seed=seed), bias=False
    )
    with torch.no_grad():
        for linear in (theirs.query_key, theirs.value):
            linear.weight.copy_(torch.randn(24, 24) * 24**-0.5)
        ours.qk_proj.weight.copy_(theirs.query_key.weight)
        ours.v_proj.weight.copy_(theirs.value.weight)
        ours.out_proj.weight.copy_(torch.eye(24))
    return ours.eval(), theirs.eval()


def lonely(ours, x, mask):
    """Rows of heads that meet nothing but themselves: theirs scores these by -1e5, where float32 loses log(count)."""
    counted = []
    ours.attend = lambda p: (counted.append(p), LSHAttention.attend(ours, p))[1]
    ours(x, mask=mask)
    del ours.attend
    allowed = counted[0].mask & ~torch.eye(x.shape[1], dtype=torch.bool)
    return ~allowed.any(-1).transpose(1, 2).repeat_interleave(8, -1)


@pytest.mark.parametrize("decoder", [True, False])
@pytest.mark.parametrize(("rounds", "buckets"), [(1, 8), (4, 8), (3, [4, 6])])
def test_reformer(rounds, buckets, decoder):
    seed = int(torch.randint(1000, ()))
    ours, theirs = pair(rounds, buckets, decoder=decoder, seed=seed)
    x = torch.randn(2, 64, 24)
    keep = torch.arange(64) < torch.tensor([[64], [41]])
    for attention_mask in (None, keep):
        with torch.no_grad():
            want = theirs(x, attention_mask=attention_mask).hidden_states
            mask = causal() if decoder else None
            if attention_mask is not None:
                mask = padding(keep) if mask is None else mask & padding(keep)
            got = ours(x, mask=mask)
        real = keep if attention_mask is not None else torch.ones_like(keep)
        alone = lonely(ours, x, mask)
        exact = real[..., None] & ~alone
        torch.testing.assert_close(got[exact], want[exact], rtol=1e-5, atol=1e-5)
        # The quirk: the same value, times the sum of rounded shares. With one round there is nothing to round.
        loose = real[..., None] & alone
        near = 0.02 if rounds > 1 else 1e-6
        torch.testing.assert_close(got[loose], want[loose], rtol=near, atol=1e-6)
        if decoder:
            assert loose[:, 0].all()


@pytest.mark.parametrize("decoder", [True, False])
def test_reformer_of_a_text_within_one_chunk_is_dense(decoder):
    ours, theirs = pair(4, 8, decoder=decoder, seed=1)
    x = torch.randn(2, 7, 24)
    with torch.no_grad():
        want = theirs(x).hidden_states
        got = ours(x, mask=causal() if decoder else None)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("decoder", [True, False])
def test_local_attention_of_the_reformer_is_a_band_of_blocks(decoder):
    theirs = LocalSelfAttention(config(is_decoder=decoder, local_attention_probs_dropout_prob=0.0), 0).eval()
    x = torch.randn(2, 40, 24)
    with torch.no_grad():
        for linear in (theirs.query, theirs.key, theirs.value):
            linear.weight.copy_(torch.randn(24, 24) * 24**-0.5)
        want = theirs(x).hidden_states
        q, k, v = (
            linear(x).unflatten(2, (3, 8)).transpose(1, 2) for linear in (theirs.query, theirs.key, theirs.value)
        )
        # Chunks see themselves and the one before; the first of an encoder sees the last one: it wraps around.
        seen = block_band(8, 1, 0)
        mask = seen.mask(40, 40)
        if not decoder:
            mask[..., :8, 32:] = True
        got = attention(q, k, v, mask=seen & causal() if decoder else mask)
    torch.testing.assert_close(got.transpose(1, 2).flatten(2), want, rtol=1e-5, atol=1e-5)
