import copy
import math

import pytest
import torch

from multihead.error import MultiheadError
from multihead.layer import (
    GatedDeltaNet,
    GatedLinearAttention,
    LinearAttention,
    LinearScoring,
    SwishGate,
    retention_decay,
)
from multihead.pattern import causal, document, everything, padding, prefix, sliding_window
from multihead.position import ALiBi, DynamicNTK, Rotary, alibi_slopes
from multihead.scan import EluPlusOne, Favor, Identity

WIDE = torch.float64


def swish(x):
    return x / (1 + torch.exp(-x))


def heads_by_hand(q, k, v, phi, allowed, *, normalise):
    """Heads (heads, length, width) of one sequence, pair by pair."""
    out = torch.zeros(len(q), q.shape[1], v.shape[2], dtype=WIDE)
    for h in range(len(q)):
        g = h * len(k) // len(q)
        for i in range(q.shape[1]):
            weights = [(phi(q[h, i]) @ phi(k[g, j])) * allowed(h, i, j) for j in range(k.shape[1])]
            total = sum(weights) if normalise else 1
            if total:
                out[h, i] = sum(weight * v[g, j] for j, weight in enumerate(weights)) / total
    return out


def split(x, linear, heads):
    bias = 0 if linear.bias is None else linear.bias
    return (x @ linear.weight.T + bias).view(len(x), heads, -1).transpose(0, 1)


@pytest.mark.parametrize("order", ["causal", "all", "cross"])
@torch.no_grad()
def test_the_definition_by_hand(randomise, order):
    layer = randomise(LinearAttention(16, heads=4, kv_heads=2, head_dim=5, v_head_dim=3)).double()
    x, memory = torch.randn(2, 6, 16, dtype=WIDE), torch.randn(2, 8, 16, dtype=WIDE)
    keep = torch.arange(8) < torch.tensor([[8], [5]])
    mask = {"causal": causal(), "all": None, "cross": padding(keep)}[order]
    got = layer(x, memory, mask=mask) if order == "cross" else layer(x, mask=mask)
    for b in range(2):

        def allowed(h, i, j, b=b):
            return {"causal": j <= i, "all": True, "cross": bool(keep[b, j])}[order]

        source = memory[b] if order == "cross" else x[b]
        q, k, v = split(x[b], layer.q_proj, 4), split(source, layer.k_proj, 2), split(source, layer.v_proj, 2)
        heads = heads_by_hand(q, k, v, lambda a: torch.where(a > 0, a + 1, a.exp()), allowed, normalise=True)
        want = heads.transpose(0, 1).flatten(1) @ layer.out_proj.weight.T + layer.out_proj.bias
        torch.testing.assert_close(got[b], want, rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_retention_by_hand(randomise):
    """Sun et al. 2023, equations 5, 7 and 8, with the group norm's weight and no bias."""
    layer = randomise(LinearAttention.retnet(16, heads=2)).double()
    x, d, e = torch.randn(1, 7, 16, dtype=WIDE), 8, 16
    q, k, v = (split(x[0], linear, 2) for linear in (layer.q_proj, layer.k_proj, layer.v_proj))
    assert v.shape == (2, 7, e)
    angle = torch.arange(7, dtype=WIDE)[:, None] * 10000 ** (-torch.arange(0, d, 2, dtype=WIDE) / d)
    turned = torch.polar(torch.ones_like(angle), angle)
    q, k = (torch.complex(a[..., : d // 2], a[..., d // 2 :]) * turned for a in (q, k))
    q, k = (torch.cat([a.real, a.imag], -1) for a in (q, k))
    gamma = [1 - 2.0 ** (-5 - h) for h in range(2)]
    heads = heads_by_hand(
        q, k / math.sqrt(d), v, lambda a: a, lambda h, i, j: gamma[h] ** (i - j) if j <= i else 0.0, normalise=False
    )
    centred = heads - heads.mean(-1, keepdim=True)
    normed = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * layer.finish.norm.weight[:, None]
    want = (swish(x[0] @ layer.finish.gate.weight.T) * normed.transpose(0, 1).flatten(1)) @ layer.out_proj.weight.T
    torch.testing.assert_close(layer(x, mask=causal())[0], want, rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_gated_linear_attention_by_hand(randomise):
    layer = randomise(GatedLinearAttention(16, heads=2, rank=3, divisor=4.0)).double()
    x = torch.randn(1, 6, 16, dtype=WIDE)
    q, k, v = (split(x[0], linear, 2) for linear in (layer.q_proj, layer.k_proj, layer.v_proj))
    assert (q.shape, v.shape) == ((2, 6, 4), (2, 6, 8))
    low = x[0] @ layer.decay_down.weight.T
    share = (1 / (1 + torch.exp(-(low @ layer.decay_up.weight.T + layer.decay_up.bias)))) ** (1 / 4)
    share = share.view(6, 2, 4).transpose(0, 1)
    heads = torch.zeros(2, 6, 8, dtype=WIDE)
    for h in range(2):
        state = torch.zeros(4, 8, dtype=WIDE)
        for t in range(6):
            state = share[h, t][:, None] * state + torch.outer(k[h, t], v[h, t])
            heads[h, t] = state.T @ q[h, t] / 2
    normed = heads / (heads.square().mean(-1, keepdim=True) + 1e-5).sqrt() * layer.finish.norm.weight[:, None]
    want = (swish(x[0] @ layer.finish.gate.weight.T) * normed.transpose(0, 1).flatten(1)) @ layer.out_proj.weight.T
    torch.testing.assert_close(layer(x)[0], want, rtol=1e-9, atol=1e-9)


LAYERS = {
    "elu": lambda: LinearAttention(16, 4, kv_heads=2),
    "performer": lambda: LinearAttention(16, 4, scoring=LinearScoring(features=Favor(features=9))),
    "decay": lambda: LinearAttention(
        16, 4, scoring=LinearScoring(decay=retention_decay(4)), gate=SwishGate(norm="rms")
    ),
    "retnet": lambda: LinearAttention.retnet(16, 4),
    "gated": lambda: GatedLinearAttention(16, 4),
}


@pytest.fixture(params=LAYERS)
def layer(request, randomise):
    return randomise(LAYERS[request.param]()).double()


@torch.no_grad()
def test_any_split_with_a_cache_equals_one_pass(layer):
    x = torch.randn(2, 11, 16, dtype=WIDE)
    ids, keep = torch.arange(11) // 4, torch.rand(2, 11) < 0.8
    for mask in (causal(), causal() & padding(keep) & document(ids), everything() & causal()):
        want = layer(x, mask=mask)
        for lengths in ([11], [1] * 11, [4, 1, 6]):
            cache = layer.cache(batch=2)
            got = [layer(part, mask=mask, cache=cache) for part in x.split(lengths, 1)]
            torch.testing.assert_close(torch.cat(got, 1), want, rtol=1e-9, atol=1e-9)
    assert cache.length == 11
    size = cache.nbytes
    layer(x, mask=causal(), cache=cache)
    assert (cache.nbytes, cache.length) == (size, 22)
    cache.select(torch.tensor([1]))
    assert layer(x[1:], mask=causal(), cache=copy.deepcopy(cache)).shape == (1, 11, 16)


@torch.no_grad()
def test_documents_padding_and_the_future(layer):
    x = torch.randn(2, 9, 16, dtype=WIDE)
    got = layer(x, mask=causal() & document(torch.tensor([3] * 5 + [1] * 4)))
    torch.testing.assert_close(got[:, :5], layer(x[:, :5], mask=causal()), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(got[:, 5:], layer(x[:, 5:], mask=causal()), rtol=1e-5, atol=1e-5)
    other = x.clone()
    other[0, 5:], other[1] = 1e6, -1e6
    assert torch.equal(layer(x, mask=causal())[0, :5], layer(other, mask=causal())[0, :5])
    keep = torch.arange(9) < torch.tensor([[9], [4]])
    garbage = x.masked_fill(~keep[..., None], 1e6)
    got = layer(garbage, mask=causal() & padding(keep))
    torch.testing.assert_close(got[1, :4], layer(x[1:, :4], mask=causal())[0])
    bias = layer.out_proj.bias
    torch.testing.assert_close(got[1, 4:], torch.zeros(5, 16, dtype=WIDE) if bias is None else bias.expand(5, 16))


def test_padding_of_all_that_see_all(randomise):
    layer, x = randomise(LinearAttention(16, 4)).double(), torch.randn(2, 9, 16, dtype=WIDE)
    keep = torch.arange(9) < torch.tensor([[9], [4]])
    got = layer(x.masked_fill(~keep[..., None], 1e6), mask=padding(keep))
    torch.testing.assert_close(got[1, :4], layer(x[1:, :4])[0])
    torch.testing.assert_close(got[1, 4:], layer.out_proj.bias.expand(5, 16))
    order = torch.randperm(9)
    torch.testing.assert_close(layer(x[:, order]), layer(x)[:, order])


def test_gradients_reach_everything(layer):
    x = torch.randn(1, 5, 16, dtype=WIDE, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, *_: layer(x, mask=causal()), (x, *layer.parameters()), fast_mode=True)
    layer(x, mask=causal()).square().sum().backward()
    assert all(p.grad.any() for p in layer.parameters())


def test_the_features_are_saved_with_the_module():
    first, second = (LinearAttention(16, 4, scoring=LinearScoring(features=Favor(features=9))) for _ in range(2))
    second.load_state_dict(first.state_dict())
    x = torch.randn(1, 5, 16)
    assert torch.equal(first(x), second(x))
    second.part.redraw()
    assert not torch.equal(first(x), second(x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@torch.no_grad()
def test_low_precision_keeps_a_wide_state(layer, dtype):
    layer, x = layer.to(dtype), torch.randn(1, 70, 16, dtype=dtype)
    cache = layer.cache(batch=1)
    got = layer(x, mask=causal(), cache=cache)
    assert (got.dtype, cache.state.memory.dtype) == (dtype, torch.float32)
    want = layer.double()(x.double(), mask=causal())
    assert float((got - want).abs().mean() / want.abs().mean()) < 0.1


X, Y = torch.randn(1, 3, 16), torch.randn(1, 4, 16)


@pytest.mark.parametrize(
    ("use", "told"),
    [
        (lambda: LinearAttention(16, 3), "embed_dim=16, heads=3"),
        (lambda: LinearAttention(0, 4), "embed_dim=0"),
        (lambda: LinearAttention(16, 4, scoring=3), "scoring"),
        (lambda: LinearAttention(16, 4, gate=3), "gate"),
        (lambda: SwishGate(norm="l2"), "'layer' or 'rms'"),
        (lambda: SwishGate(eps=0.0), "eps"),
        (lambda: LinearAttention(16, 4, scoring=LinearScoring(decay=(-1.0,))), "each of 4 kv heads"),
        (lambda: LinearAttention(16, 4, position=Rotary()), "normalise=True"),
        (lambda: LinearAttention(16, 4, position=ALiBi(alibi_slopes(4))), "softmax heads"),
        (
            lambda: LinearAttention(
                16,
                4,
                position=Rotary(scaling=DynamicNTK(2.0, 8)),
                scoring=LinearScoring(features=Identity(), normalise=False),
            ),
            "do not depend on the text's length",
        ),
        (lambda: LinearAttention(16, 4)(X[..., :5]), r"query \(batch, length, 16\)"),
        (lambda: LinearAttention(16, 4)(X, mask=sliding_window(2)), "sliding_window.*MultiHeadAttention"),
        (lambda: LinearAttention(16, 4)(X, mask=prefix(2)), "prefix.*MultiHeadAttention"),
        (lambda: LinearAttention(16, 4)(X, mask=torch.ones(3, 3).bool()), "a boolean tensor"),
        (lambda: LinearAttention(16, 4)(X, mask=3), "mask"),
        (lambda: LinearAttention(16, 4)(X, mask=document(torch.zeros(3).long())), "without causal"),
        (lambda: LinearAttention(16, 4)(X, mask=padding(torch.ones(2).bool())), "which needs length 3"),
        (lambda: LinearAttention(16, 4)(X, Y, mask=causal()), r"query \(1, 3, 16\) and key \(1, 4, 16\)"),
        (lambda: LinearAttention.retnet(16, 4)(X), "a position that turns.*mask=causal"),
        (lambda: LinearAttention(16, 4)(X, cache=LinearAttention(16, 4).cache(batch=1)), "a cache.*mask=causal"),
        (lambda: LinearAttention(16, 4)(X, mask=causal(), cache=LinearAttention(16, 2).cache(batch=1)), "this module"),
        (lambda: LinearAttention(16, 4).cache(batch=0), "batch=0"),
        (lambda: GatedLinearAttention(16, 4)(X, mask=None), "gated linear attention.*LinearAttention"),
        (lambda: GatedLinearAttention(18, 4), "embed_dim=18"),
        (lambda: GatedLinearAttention(16, 4, divisor=0.0), "divisor"),
    ],
)
@pytest.mark.usefixtures("unhooked")
def test_what_does_not_fit_is_refused(use, told):
    with pytest.raises(MultiheadError, match=f"(?s){told}"):
        use()


def test_they_say_what_they_are():
    assert "EluPlusOne" in repr(LinearAttention(16, 4, scoring=LinearScoring(features=EluPlusOne())))
    assert "head_dim=2" in repr(GatedLinearAttention(16, 4))
    assert LinearAttention.SUPPORT.cross
    assert not GatedLinearAttention.SUPPORT.bidirectional


@pytest.mark.parametrize("kind", [LinearAttention, GatedLinearAttention, GatedDeltaNet])
def test_a_state_keeps_no_larger_tensor_alive(kind):
    """After a long text as after one token: neither the states of its chunks nor its whole input."""
    layer, sizes = kind(16, 2), []
    with torch.no_grad():
        for length in (1, 200):
            cache = layer.cache(batch=1)
            layer(torch.randn(1, length, 16), mask=causal(), cache=cache)
            held = sum(part.nbytes for part in cache._rows.parts)
            assert cache.nbytes == held
            sizes.append(held)
            layer(torch.randn(1, length, 16), mask=causal(), cache=cache)
            # That of before the last call is held as well: the cache can be cut to it.
            assert cache.nbytes == 2 * held
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize("index", [None, "x", [0.5], [2], []])
def test_rows_of_a_state_are_whole_numbers(index, unhooked):
    layer = LinearAttention(16, 4)
    cache = layer.cache(batch=2)
    layer(torch.randn(2, 3, 16), mask=causal(), cache=cache)
    with pytest.raises(MultiheadError, match="at least one whole number"):
        cache.select(index)
    assert cache.length == 3


@pytest.mark.parametrize("grad", [False, True])
def test_a_later_key_that_overflows_is_nothing_to_earlier_tokens(grad):
    layer = LinearAttention.retnet(16, 4)
    x = torch.randn(1, 9, 16)
    huge = x.clone()
    huge[:, 6:] *= 1e18  # products of queries and keys beyond float32
    with torch.set_grad_enabled(grad):
        near, far = layer(x, mask=causal()), layer(huge, mask=causal())
    assert torch.equal(near[:, :6], far[:, :6])
