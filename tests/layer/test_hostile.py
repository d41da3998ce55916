"""What a caller gets to read who passes nonsense, and what padding and an empty batch must not do."""

import pytest
import torch

from multihead.attend.selector import Buckets, Indexer, TopBlocks, TopKeys
from multihead.error import MultiheadError
from multihead.layer import (
    GatedCrossAttention,
    GatedDeltaNet,
    GatedLinearAttention,
    HeadGroup,
    LatentAttention,
    LinearAttention,
    LinearScoring,
    LSHAttention,
    MoAAttention,
    MoHAttention,
    MultiHeadAttention,
    NativeSparseAttention,
    PerceiverResampler,
    retention_decay,
)
from multihead.layer.latent import Latent
from multihead.pattern import causal, document, padding

NAN, INF = float("nan"), float("inf")


def latent(bias):
    return LatentAttention(16, 4, Latent(8, nope_dim=4, rope_dim=4, v_dim=4), bias=bias)


@pytest.mark.parametrize(
    ("build", "wrong", "named"),
    [
        (lambda each: GatedLinearAttention(16, 2, divisor=each), (None, "16", True, NAN, INF, 0.0, [1]), "divisor"),
        (lambda each: GatedLinearAttention(16, 2, eps=each), (None, "16", True, NAN, 0.0, [1]), "eps"),
        (lambda each: LinearScoring(scale=each), ("x", True, NAN, INF, [1], torch.ones(2)), "scale"),
        (retention_decay, (None, True, 0, -1, 1.5, "4"), "heads"),
        (lambda each: Buckets(4, dedupe=each), (None, 1, "yes", torch.ones(2)), "dedupe"),
        (lambda each: Buckets(4, cut=each), (None, ["bucket"], torch.ones(2)), "cut"),
        (lambda each: Indexer(4, scale=each), ("x", True, NAN, INF, torch.ones(2)), "scale"),
        (lambda each: Indexer(4, weights=each), (1.0, [1.0], "x"), "weights"),
        (lambda each: PerceiverResampler(16, 4, activation=each), (None, [], {}, "gelu "), "activation"),
        (lambda each: GatedCrossAttention(16, 4, media_dim=each), ((1, 2), 0, 1.5, True, "8"), "media_dim"),
        (latent, (None, 1, "yes", torch.ones(2)), "bias"),
        (lambda each: LSHAttention(16, 4, bias=each), (None, 1, "yes", torch.ones(2)), "bias"),
        (lambda each: MoHAttention(16, bias=each), (None, 1, "yes", torch.ones(2)), "bias"),
        (lambda each: MoAAttention(16, bias=each), (None, 1, "yes", torch.ones(2)), "bias"),
    ],
)
def test_options_of_the_wrong_kind_are_refused_by_name(build, wrong, named, unhooked):
    for each in wrong:
        with pytest.raises(MultiheadError, match=named):
            build(each)


@pytest.mark.parametrize("mask", [TopBlocks(4, 2), TopKeys(3), Buckets(4, seed=1)])
def test_no_sequences_at_all_give_none_with_gradients_too(mask):
    layer, x = MultiHeadAttention(16, HeadGroup(4, mask=mask)), torch.randn(0, 9, 16, requires_grad=True)
    out = layer(x, mask=causal())
    out.sum().backward()
    assert out.shape == x.grad.shape == x.shape
    assert layer.q_proj.weight.grad.eq(0).all()


def test_native_sparse_attention_of_no_sequences():
    x = torch.randn(0, 70, 16, requires_grad=True)
    NativeSparseAttention(16, 4)(x).sum().backward()
    assert x.grad.shape == x.shape


@pytest.mark.parametrize("junk", [1e30, NAN, INF])
def test_what_stands_in_padding_is_nothing_to_gated_linear_attention(junk, randomise):
    """In the middle of a text as well: how much is left of what was before padding does not depend on what it holds."""
    layer, keep = randomise(GatedLinearAttention(16, 2)), torch.ones(2, 12, dtype=torch.bool)
    keep[0, 4:7] = keep[1, :3] = keep[1, 10:] = False
    x = torch.randn(2, 12, 16)
    mask = causal() & padding(keep)
    given = x.masked_fill(~keep[..., None], junk).requires_grad_()
    out = layer(given, mask=mask)
    assert torch.equal(out, layer(x, mask=mask))
    out.square().sum().backward()
    assert all(p.grad.isfinite().all() for p in layer.parameters())
    assert given.grad.isfinite().all()
    assert given.grad[~keep].eq(0).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64, torch.bool])
def test_tokens_of_another_dtype_than_the_weights_are_told_so(dtype):
    with pytest.raises(MultiheadError, match="dtype and on the device of the weights"):
        LSHAttention(16, 4)(torch.ones(2, 7, 16, dtype=dtype))


def test_a_mixture_is_told_what_no_mask_is(unhooked):
    for wrong in ("causal", 1, True, [True], TopKeys(3)):
        with pytest.raises(MultiheadError, match="mask as a pattern"):
            MoAAttention(16)(torch.randn(2, 7, 16), mask=wrong)


def test_a_padding_of_another_batch_is_refused_by_a_state():
    for layer in (LinearAttention(16, 4), GatedLinearAttention(16, 2), GatedDeltaNet(16, 4)):
        for given in (padding(torch.ones(5, 7, dtype=torch.bool)), document(torch.zeros(5, 7, dtype=torch.long))):
            with pytest.raises(MultiheadError, match="a mask for 2 sequences"):
                layer(torch.randn(2, 7, 16), mask=causal() & given)


@pytest.mark.parametrize("shape", [(7, 8), (2, 7, 7), (2, 3, 7, 7), (5, 1, 7, 7), (7, 7)])
def test_a_tensor_that_is_no_mask_is_refused_by_heads_that_choose(shape, unhooked):
    """(7, 7) is refused as it holds numbers."""
    layer = MultiHeadAttention(16, HeadGroup(4, mask=Buckets(4, seed=1)))
    with pytest.raises(MultiheadError, match="mask"):
        layer(torch.randn(2, 7, 16), mask=torch.ones(shape) if shape == (7, 7) else torch.ones(shape).bool())
