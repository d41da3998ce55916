import math
from itertools import pairwise

import pytest
import torch
from transformers.models.diffllama.configuration_diffllama import DiffLlamaConfig
from transformers.models.diffllama.modeling_diffllama import DiffLlamaAttention, DiffLlamaRotaryEmbedding

from multihead.error import MultiheadError
from multihead.layer import (
    DifferentialAttention,
    HeadGroup,
    Int8,
    LayerLambda,
    MultiHeadAttention,
    Sliding,
    Static,
    TokenLambda,
)
from multihead.pattern import causal, padding, per_head, sliding_window
from multihead.position import ALiBi, Rotary, alibi_slopes

WIDE = torch.float64
KINDS = [LayerLambda(depth=2), TokenLambda(bias=True)]


def build(randomise, lambdas, **given):
    given = {"kv_heads": 2, "head_dim": 6, "position": Rotary(), "bias": True} | given
    layer = randomise(DifferentialAttention(16, 4, lambdas=lambdas, **given)).double()
    with torch.no_grad():
        if isinstance(lambdas, LayerLambda):
            layer.vectors.mul_(0.3)
    return layer


def softmax_rows(q, k, allowed):
    """Weights of one map, row by row; zeros where nothing is allowed."""
    weights = torch.zeros(len(q), len(k), dtype=q.dtype)
    for i in range(len(q)):
        seen = allowed[i].nonzero()[:, 0]
        if len(seen):
            weights[i, seen] = torch.stack([q[i] @ k[j] / math.sqrt(q.shape[1]) for j in seen]).softmax(0)
    return weights


def by_hand(layer, x, allowed):
    """The definition, head by head, for one sequence without positions; allowed (heads, q_len, kv_len)."""
    w, d = {name: p.detach() for name, p in layer.named_parameters()}, layer.head_dim
    q, k, v = (x @ w[f"{name}_proj.weight"].T + w[f"{name}_proj.bias"] for name in "qkv")
    rows = []
    for h in range(layer.heads):
        g = h * layer.kv_heads // layer.heads
        q1, q2 = q[:, 2 * h * d : (2 * h + 1) * d], q[:, (2 * h + 1) * d : (2 * h + 2) * d]
        if isinstance(layer.lambdas, LayerLambda):
            k1, k2 = k[:, 2 * g * d : (2 * g + 1) * d], k[:, (2 * g + 1) * d : (2 * g + 2) * d]
            value = v[:, 2 * g * d : 2 * (g + 1) * d]
            (a1, b1), (a2, b2) = w["vectors"]
            start = 0.8 - 0.6 * math.exp(-0.3 * layer.lambdas.depth)
            lam = torch.exp(a1 @ b1) - torch.exp(a2 @ b2) + start
        else:
            k1 = k2 = k[:, g * d : (g + 1) * d]
            value = v[:, g * d : (g + 1) * d]
            lam = 1 / (1 + torch.exp(-(x @ w["lambda_proj.weight"][h] + w["lambda_proj.bias"][h])))[:, None]
        out = (softmax_rows(q1, k1, allowed[h]) - lam * softmax_rows(q2, k2, allowed[h])) @ value
        if isinstance(layer.lambdas, LayerLambda):
            out = w["norm.weight"] * out / torch.sqrt((out * out).mean(-1, keepdim=True) + 1e-5) * (1 - start)
        rows.append(out)
    return torch.cat(rows, -1) @ w["out_proj.weight"].T + w["out_proj.bias"]


@pytest.mark.parametrize("lambdas", KINDS)
def test_the_definition_by_hand(randomise, lambdas):
    layer, x = build(randomise, lambdas, position=None), torch.randn(2, 6, 16, dtype=WIDE)
    allowed = torch.rand(2, 4, 6, 6) < 0.6
    allowed[1, :, 3] = False
    got = layer(x, mask=allowed)
    for b in range(2):
        torch.testing.assert_close(got[b], by_hand(layer, x[b], allowed[b]), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(got[1, 3], layer.out_proj.bias)


def test_without_the_second_map_it_is_plain_attention_with_wide_values(randomise):
    """lambda = 0: the first queries and keys, in a module whose values are twice as wide; the norm is its own."""
    layer = randomise(DifferentialAttention(48, 4, kv_heads=2, head_dim=6, lambdas=LayerLambda(start=0.0))).double()
    plain = MultiHeadAttention(48, HeadGroup(4, 6, kv_heads=2, v_head_dim=12), bias=False).double()
    with torch.no_grad():
        layer.vectors.zero_()
        for name in ("q_proj", "k_proj"):
            first = getattr(layer, name).weight.unflatten(0, (-1, 2, 6))[:, 0].flatten(0, 1)
            getattr(plain, name).weight.copy_(first)
        plain.v_proj.load_state_dict(layer.v_proj.state_dict())
        for each in (plain, layer):
            each.out_proj.weight.copy_(torch.eye(48))
    x = torch.randn(2, 7, 48, dtype=WIDE)
    assert float(layer.lambda_of(x).detach()) == 0
    heads = plain(x, mask=causal()).detach().unflatten(2, (4, 12))
    want = layer.norm.weight * heads / torch.sqrt(heads.square().mean(-1, keepdim=True) + 1e-5)
    torch.testing.assert_close(layer(x, mask=causal()), want.flatten(2), rtol=1e-10, atol=1e-10)


def test_two_equal_maps_cancel(randomise):
    layer, x = build(randomise, LayerLambda(start=0.3)), torch.randn(2, 7, 16, dtype=WIDE)
    with torch.no_grad():
        for each in (layer.q_proj, layer.k_proj):
            for p in each.parameters():
                pairs = p.unflatten(0, (-1, 2, 6))
                pairs[:, 1] = pairs[:, 0]
        layer.vectors[1] = 0  # lambda = exp(ln 1.7) - 1 + 0.3 = 1
        layer.vectors[0].fill_(math.sqrt(math.log(1.7) / 6))
    torch.testing.assert_close(layer.lambda_of(x), torch.ones(1, 1, 1, 1, dtype=WIDE))
    want = layer.out_proj.bias.expand(2, 7, 16)
    torch.testing.assert_close(layer(x, mask=causal()), want, rtol=0, atol=1e-10)


@pytest.mark.parametrize("lambdas", KINDS)
def test_any_split_with_a_cache_equals_one_pass(randomise, lambdas):
    layer, x = build(randomise, lambdas), torch.randn(2, 11, 16, dtype=WIDE)
    for kind, mask in ((None, causal()), (Static(11), causal()), (Sliding(3), sliding_window(3))):
        lengths = torch.randint(1, 4, (11,)).cumsum(0)
        edges = [0, *(int(edge) for edge in lengths if edge < 11), 11]
        cache = layer.cache(batch=2, kind=kind)
        got = [layer(x[:, a:b], mask=mask, cache=cache) for a, b in pairwise(edges)]
        torch.testing.assert_close(torch.cat(got, 1), layer(x, mask=mask), rtol=1e-10, atol=1e-10)
    cache = layer.cache(batch=2, kind=Int8())
    near = torch.cat([layer(part, mask=causal(), cache=cache) for part in x.split(4, 1)], 1)
    want = layer(x, mask=causal())
    assert 0 < (near - want).abs().max() < 0.2 * want.abs().max()


@pytest.mark.parametrize("lambdas", KINDS)
def test_a_call_that_fails_leaves_the_cache_as_it_was(randomise, lambdas):
    layer, x = build(randomise, lambdas), torch.randn(2, 6, 16, dtype=WIDE)
    cache = layer.cache(batch=2)
    layer(x[:, :4], mask=causal(), cache=cache)
    with pytest.raises(MultiheadError, match="a mask of shape"):
        layer(x[:, 4:], mask=torch.ones(3, 3, dtype=torch.bool), cache=cache)
    assert cache.length == 4
    torch.testing.assert_close(layer(x[:, 4:], mask=causal(), cache=cache), layer(x, mask=causal())[:, 4:])


@pytest.mark.parametrize("lambdas", KINDS)
def test_biases_and_masks_of_each_head_reach_both_maps(randomise, lambdas):
    layer, x = build(randomise, lambdas), torch.randn(2, 6, 16, dtype=WIDE)
    slopes = ALiBi(alibi_slopes(4).double())
    places = torch.arange(6)
    want = layer(x, bias=slopes.scores(places, places))
    torch.testing.assert_close(layer(x, bias=slopes), want, rtol=1e-10, atol=1e-10)
    allowed = torch.rand(1, 4, 6, 6) < 0.6
    hidden = torch.zeros(1, 4, 6, 6, dtype=WIDE).masked_fill(~allowed, -torch.inf)
    torch.testing.assert_close(layer(x, mask=allowed), layer(x, bias=hidden), rtol=1e-10, atol=1e-10)
    keep = torch.arange(6) < torch.tensor([[6], [4]])
    padded = layer(x, mask=padding(keep))
    torch.testing.assert_close(padded[1, :4], layer(x[1:, :4])[0], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("lambdas", KINDS)
def test_cross_attention(randomise, lambdas):
    layer = build(randomise, lambdas, position=None)
    query, key, value = (torch.randn(2, n, 16, dtype=WIDE) for n in (3, 5, 5))
    whole = layer(torch.cat([query, key], 1)[:, :3], key, value)
    alone = torch.cat([layer(query[:, i : i + 1], key, value) for i in range(3)], 1)
    torch.testing.assert_close(whole, alone, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(layer(key, key), layer(key))


@pytest.mark.parametrize("lambdas", KINDS)
def test_gradients_reach_everything(randomise, lambdas):
    layer, x = build(randomise, lambdas), torch.randn(1, 4, 16, dtype=WIDE, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, *_: layer(x, mask=causal()), (x, *layer.parameters()), fast_mode=True)
    layer(x, mask=causal()).square().sum().backward()
    assert {name for name, p in layer.named_parameters() if p.grad is None or not p.grad.any()} <= {"k_proj.bias"}


def pairs(rows, width):
    """Heads in halves (all first maps, all second maps) as heads in pairs, and the way back is not needed."""
    heads = rows.unflatten(0, (2, -1, width))
    return heads.transpose(0, 1).flatten(0, 2)


@pytest.mark.parametrize("kv_heads", [2, 4, 8])
def test_equals_diffllama_of_transformers(randomise, kv_heads):
    config = DiffLlamaConfig(
        hidden_size=32,
        num_attention_heads=8,
        num_key_value_heads=kv_heads,
        head_dim=6,
        attention_bias=True,
        rope_parameters={"rope_type": "default", "rope_theta": 3000.0},
        attn_implementation="eager",
    )
    theirs = randomise(DiffLlamaAttention(config, 3)).eval()
    with torch.no_grad():
        for name in ("q1", "k1", "q2", "k2"):
            getattr(theirs, f"lambda_{name}").mul_(0.3)
    lambdas = LayerLambda(depth=3, eps=config.rms_norm_eps)
    rotary = Rotary.from_config(config.to_dict(), head_dim=6)
    ours = DifferentialAttention(32, 4, kv_heads=kv_heads // 2, head_dim=6, position=rotary, lambdas=lambdas, bias=True)
    given = theirs.state_dict()
    state = {
        f"{name}_proj.{kind}": pairs(given[f"{name}_proj.{kind}"], 6) for name in "qkv" for kind in ("weight", "bias")
    }
    state |= {f"out_proj.{kind}": given[f"o_proj.{kind}"] for kind in ("weight", "bias")}
    vectors = [torch.stack([given[f"lambda_q{n}"], given[f"lambda_k{n}"]]) for n in (1, 2)]
    # Their norm has no factor.
    ours.load_state_dict(state | {"vectors": torch.stack(vectors), "norm.weight": torch.ones(12)})
    x, places = torch.randn(2, 20, 32), torch.arange(20)[None]
    seen = torch.where(causal().mask(20, 20), 0.0, torch.finfo(torch.float32).min).expand(2, 1, 20, 20)
    with torch.no_grad():
        want, _ = theirs(x, DiffLlamaRotaryEmbedding(config)(x, places), seen)
        torch.testing.assert_close(ours(x, mask=causal()), want, rtol=1e-6, atol=1e-6 * max(1, float(want.abs().max())))


def test_it_starts_as_the_paper_says():
    layer = DifferentialAttention(32, 2, lambdas=LayerLambda(depth=5))
    assert (layer.head_dim, layer.v_proj.out_features, layer.out_proj.in_features) == (8, 32, 32)
    assert abs(layer.lambdas.initial - (0.8 - 0.6 * math.exp(-1.5))) < 1e-12
    assert torch.equal(layer.norm.weight, torch.ones(16))
    assert 0 < layer.vectors.abs().max() < 1
    second = DifferentialAttention(32, 4, kv_heads=2, lambdas=TokenLambda())
    assert (second.head_dim, second.q_proj.out_features, second.k_proj.out_features) == (8, 64, 16)
    assert "depth=5" in repr(layer)
    assert "kv_heads=2" in repr(second)


@pytest.mark.parametrize(
    ("use", "told"),
    [
        (lambda: DifferentialAttention(16, 3), "embed_dim=16, heads=3.*heads=1, 2, 4 or 8"),
        (lambda: DifferentialAttention(15, 3), "say head_dim="),
        (lambda: DifferentialAttention(16, 0), "heads=0"),
        (lambda: DifferentialAttention(16, 4, kv_heads=3), "heads=4, kv_heads=3"),
        (lambda: DifferentialAttention(16, 4, head_dim=0), "head_dim=0"),
        (lambda: LayerLambda(depth=-1), "depth: a whole number of at least 0"),
        (lambda: LayerLambda(start=1.0), "start=1.0"),
        (lambda: LayerLambda(eps=0.0), "eps=0.0"),
        (lambda: call(mask=per_head([causal(), causal(), causal(), sliding_window(2)])), "for heads=4.*pattern.mask"),
        (lambda: call(mask=torch.ones(1, 8, 5, 5, dtype=torch.bool)), "for each of 4 heads.*1, 8, 5, 5"),
        (lambda: call(bias=torch.zeros(1, 3, 5, 5)), "for each of 4 heads"),
        (lambda: call(cache=DifferentialAttention(16, 2).cache(batch=2)), "a cache of this module"),
        (lambda: DifferentialAttention(16, 4)(torch.randn(2, 5, 15)), r"query \(batch, length, 16\)"),
    ],
)
@pytest.mark.usefixtures("unhooked")
def test_what_does_not_fit_is_refused(use, told):
    with pytest.raises(MultiheadError, match=f"(?s){told}"):
        use()


def call(**given):
    return DifferentialAttention(16, 4)(torch.randn(2, 5, 16), **given)
