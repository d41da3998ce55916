import copy
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.deepseek_v3.configuration_deepseek_v3 import DeepseekV3Config
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention, DeepseekV3RotaryEmbedding

from multihead.attend import Softmax
from multihead.error import MultiheadError
from multihead.layer import (
    Full,
    Int8,
    Latent,
    LatentAttention,
    MultiHeadAttention,
    QKNorm,
    Scoring,
    Sliding,
    Static,
)
from multihead.pattern import causal, padding, sliding_window
from multihead.position import ALiBi, Rotary, YaRN, alibi_slopes

SIZES = {"nope_dim": 6, "rope_dim": 4, "v_dim": 5}
WIDE = torch.float64


def build(randomise, form="auto", *, q_rank=7, **given):
    given = {"position": Rotary(layout="interleaved"), "bias": True} | given
    layer = LatentAttention(12, 3, Latent(8, **SIZES, q_rank=q_rank, form=form), **given)
    return randomise(layer).double()


def twin(layer, form):
    """The same module with another computation."""
    latent = Latent(8, **SIZES, q_rank=layer.latent.q_rank, form=form)
    other = LatentAttention(12, 3, latent, position=layer.position, scoring=layer.groups[0].scoring, bias=True)
    other.to(WIDE).load_state_dict(layer.state_dict())
    return other


def norm(x, weight, eps=1e-6):
    return weight * x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps)


def turn(x, position, base=10000.0):
    """Pairs (2 k, 2 k + 1) of one vector turned, pair by pair."""
    out = x.clone()
    for k in range(len(x) // 2):
        angle = torch.tensor(position * base ** (-2 * k / len(x)), dtype=WIDE)
        a, b = x[2 * k], x[2 * k + 1]
        out[2 * k], out[2 * k + 1] = a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()
    return out


def by_hand(layer, x, allowed):
    """The definition, head by head and query by query, for a batch of one."""
    w = {name: p.detach() for name, p in layer.named_parameters()}
    nope, rope, v_dim = SIZES["nope_dim"], SIZES["rope_dim"], SIZES["v_dim"]
    down = x @ w["kv_down.weight"].T + w["kv_down.bias"]
    c = norm(down[:, :8], w["kv_norm.weight"])
    shared = [turn(down[j, 8:], j) for j in range(len(x))]
    if "q_proj.weight" in w:
        q = x @ w["q_proj.weight"].T
    else:
        q = norm(x @ w["q_down.weight"].T + w["q_down.bias"], w["q_norm.weight"]) @ w["q_up.weight"].T
    heads = []
    for h in range(3):
        up = w["kv_up.weight"][h * (nope + v_dim) : (h + 1) * (nope + v_dim)]
        mine = q[:, h * (nope + rope) : (h + 1) * (nope + rope)]
        rows = []
        for i in range(len(x)):
            query = torch.cat([mine[i, :nope], turn(mine[i, nope:], i)])
            seen = [j for j in range(len(x)) if allowed[i, j]]
            if not seen:
                rows.append(torch.zeros(v_dim, dtype=WIDE))
                continue
            scores = [query @ torch.cat([up[:nope] @ c[j], shared[j]]) / (nope + rope) ** 0.5 for j in seen]
            weights = torch.stack(scores).softmax(0)
            rows.append(sum(weight * (up[nope:] @ c[j]) for weight, j in zip(weights, seen, strict=True)))
        heads.append(torch.stack(rows))
    return torch.cat(heads, -1) @ w["out_proj.weight"].T + w["out_proj.bias"]


@pytest.mark.parametrize("q_rank", [None, 7])
@pytest.mark.parametrize("form", ["expanded", "absorbed"])
def test_the_definition_by_hand(randomise, form, q_rank):
    layer, x = build(randomise, form, q_rank=q_rank), torch.randn(1, 6, 12, dtype=WIDE)
    allowed = torch.rand(6, 6) < 0.6
    allowed[2], allowed[:, 0] = False, torch.tensor([1, 1, 0, 1, 1, 1], dtype=torch.bool)
    want = by_hand(layer, x[0], allowed)
    torch.testing.assert_close(layer(x, mask=allowed)[0], want, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(layer(x, mask=allowed)[0, 2], layer.out_proj.bias)


@pytest.mark.parametrize(
    "scoring",
    [Scoring(), Scoring(softcap=1.5, sinks=True), Scoring(scale=0.9, normaliser=Softmax(off_by_one=True))],
)
def test_the_two_computations_are_one(randomise, scoring):
    expanded = build(randomise, "expanded", scoring=scoring)
    absorbed, x = twin(expanded, "absorbed"), torch.randn(2, 9, 12, dtype=WIDE)
    per_head = torch.rand(2, 3, 9, 9) < 0.6
    for mask in (None, causal(), per_head, causal() & padding(torch.arange(9) < torch.tensor([[9], [0]]))):
        for bias in (None, ALiBi(alibi_slopes(3).double()), torch.randn(1, 3, 9, 9, dtype=WIDE)):
            want = expanded(x, mask=mask, bias=bias)
            torch.testing.assert_close(absorbed(x, mask=mask, bias=bias), want, rtol=1e-12, atol=1e-12)


def test_the_two_have_the_same_gradients(randomise):
    grads = []
    layer = build(randomise, "expanded", scoring=Scoring(sinks=True))
    x, pull = torch.randn(2, 7, 12, dtype=WIDE, requires_grad=True), torch.randn(2, 7, 12, dtype=WIDE)
    for form in ("expanded", "absorbed"):
        each = twin(layer, form)
        (each(x, mask=causal()) * pull).sum().backward()
        grads.append([x.grad, *(p.grad for p in each.parameters())])
        x.grad = None
    for expanded, absorbed in zip(*grads, strict=True):
        assert expanded.abs().max() > 0
        torch.testing.assert_close(absorbed, expanded, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("form", ["expanded", "absorbed"])
def test_gradients_against_differences(randomise, form):
    layer, x = build(randomise, form), torch.randn(1, 3, 12, dtype=WIDE, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, *_: layer(x, mask=causal()), (x, *layer.parameters()), fast_mode=True)


def split(length):
    cuts = st.lists(st.integers(1, length), max_size=length)
    return cuts.map(lambda cut: [b - a for a, b in pairwise(sorted({0, length, *(c for c in cut if c < length)}))])


def in_chunks(layer, x, lengths, cache, **given):
    return torch.cat([layer(part, cache=cache, **given) for part in x.split(lengths, 1)], 1)


@settings(max_examples=20)
@given(
    lengths=split(11),
    kind=st.sampled_from([None, Full(), Static(11), Static(15), Sliding(4), Sliding(3, spare=2)]),
    form=st.sampled_from(["auto", "expanded", "absorbed"]),
)
def test_any_split_with_a_cache_equals_one_pass(randomise, lengths, kind, form):
    layer, x = build(randomise, form), torch.randn(2, 11, 12, dtype=WIDE)
    mask = sliding_window(3) if isinstance(kind, Sliding) else causal()
    got = in_chunks(layer, x, lengths, layer.cache(batch=2, kind=kind), mask=mask)
    torch.testing.assert_close(got, layer(x, mask=mask), rtol=1e-10, atol=1e-10)


@torch.no_grad()
def test_a_cache_goes_back_is_reordered_and_copied(randomise):
    layer, x = build(randomise), torch.randn(3, 8, 12, dtype=WIDE)
    order = [2, 0, 0]
    want = layer(x[order], mask=causal())
    for kind in (Full(), Static(20), Sliding(12)):
        cache = layer.cache(batch=3, kind=kind)
        layer(x[:, :5], mask=causal(), cache=cache)
        layer(torch.randn(3, 2, 12, dtype=WIDE), mask=causal(), cache=cache)
        cache.cut(5)
        cache.select(order)
        for each in (copy.deepcopy(cache), cache):
            got = layer(x[order, 5:], mask=causal(), cache=each)
            torch.testing.assert_close(got, want[:, 5:], rtol=1e-10, atol=1e-10)


def test_the_cache_is_as_small_as_it_says(randomise):
    layer = build(randomise).float()
    for kind, a_token in ((Static(40), (8 + 4) * 4), (Int8(Static(40)), 8 + 4 + 2 * 4)):
        cache = layer.cache(batch=2, kind=kind)
        with torch.no_grad():
            layer(torch.randn(2, 5, 12), mask=causal(), cache=cache)
        assert cache.nbytes == 2 * 40 * a_token
    window, held = layer.cache(batch=2, kind=Sliding(4)), set()
    with torch.no_grad():
        for _ in range(50):
            layer(torch.randn(2, 1, 12), mask=sliding_window(4), cache=window)
            held.add(window.nbytes)
    assert max(held) <= 2 * 2 * 4 * (8 + 4) * 4
    assert Latent(512, nope_dim=128, rope_dim=64, v_dim=128).cached == 576


def test_latent_vectors_as_bytes_are_off_by_little(randomise):
    layer, x = build(randomise).float(), torch.randn(2, 20, 12)
    with torch.no_grad():
        want = layer(x, mask=causal())
        got = in_chunks(layer, x, [7] * 2 + [1] * 6, layer.cache(batch=2, kind=Int8()), mask=causal())
    assert 0 < (got - want).abs().max() < 0.1 * want.abs().max()


def test_a_call_that_fails_leaves_the_cache_as_it_was(randomise):
    layer, x = build(randomise), torch.randn(2, 6, 12, dtype=WIDE)
    cache = layer.cache(batch=2)
    layer(x[:, :4], mask=causal(), cache=cache)
    with pytest.raises(MultiheadError, match="a mask of shape"):
        layer(x[:, 4:], mask=torch.ones(3, 3, dtype=torch.bool), cache=cache)
    assert cache.length == 4
    torch.testing.assert_close(layer(x[:, 4:], mask=causal(), cache=cache), layer(x, mask=causal())[:, 4:])


def test_padded_on_the_left_equals_alone(randomise):
    x, keep = torch.randn(2, 9, 12, dtype=WIDE), torch.arange(9) >= torch.tensor([[0], [4]])
    places = (keep.cumsum(1) - 1).clamp(min=0)
    layer = build(randomise)
    got = layer(x, mask=causal() & padding(keep), positions=places)
    torch.testing.assert_close(got[1:, 4:], layer(x[1:, 4:], mask=causal()), rtol=1e-10, atol=1e-10)


def test_the_cheaper_computation_runs_and_says_why(randomise):
    layer = build(randomise)
    calls = []
    for name in ("_expanded", "_absorbed"):
        vars(layer)[name] = lambda *given, name=name: (
            calls.append(name),
            getattr(LatentAttention, name)(layer, *given),
        )[1]
    cache = layer.cache(batch=1)
    layer(torch.randn(1, 30, 12, dtype=WIDE), mask=causal(), cache=cache)
    layer(torch.randn(1, 1, 12, dtype=WIDE), mask=causal(), cache=cache)
    assert calls == ["_expanded", "_absorbed"]
    # heads * (q r (nope + v) + 2 q n (r + rope)), heads * (n r (nope + v) + q n (nope + rope + v)), counted by hand.
    absorbed, expanded = 3 * (8 * 11 + 2 * 100 * 12), 3 * (100 * 8 * 11 + 100 * 15)
    assert layer.explain_form(1, 100) == (
        f"absorbed: {absorbed / 1e6:.3g} million multiply-adds a sequence, expanded {expanded / 1e6:.3g} million"
    )
    assert layer.explain_form(100, 100).startswith("expanded:")
    assert twin(layer, "absorbed").explain_form(100, 100).startswith("absorbed (asked for):")
    # Where the latent vector is narrow, absorbed is cheaper at any length.
    narrow = LatentAttention(12, 3, Latent(2, nope_dim=32, rope_dim=2, v_dim=32))
    assert narrow.explain_form(100, 100).startswith("absorbed:")


def test_what_watches_sees_the_heads_of_the_definition(randomise):
    layer, x = build(randomise), torch.randn(1, 6, 12, dtype=WIDE)
    cache, seen = layer.cache(batch=1), []
    layer(x[:, :5], mask=causal(), cache=cache)
    layer.attend = lambda problem: (seen.append(problem), LatentAttention.attend(layer, problem))[1]
    assert layer.explain_form(1, 6).startswith("expanded (watched):")
    got = layer(x[:, 5:], mask=causal(), cache=cache)
    assert (seen[0].k.shape, seen[0].v.shape) == ((1, 3, 6, 10), (1, 3, 6, 5))
    del layer.attend
    torch.testing.assert_close(got, layer(x, mask=causal())[:, 5:], rtol=1e-10, atol=1e-10)


ROPES = {
    "default": {"rope_type": "default", "rope_theta": 5000.0},
    "yarn": {
        "rope_type": "yarn",
        "rope_theta": 5000.0,
        "factor": 8.0,
        "original_max_position_embeddings": 64,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 0.7,
        "mscale_all_dim": 0.9,
    },
}


@pytest.mark.parametrize("q_rank", [None, 24])
@pytest.mark.parametrize("rope", ROPES)
@pytest.mark.parametrize("form", ["expanded", "absorbed"])
def test_equals_deepseek_v3_of_transformers(randomise, rope, q_rank, form):
    config = DeepseekV3Config(
        hidden_size=32,
        num_attention_heads=4,
        num_key_value_heads=4,
        kv_lora_rank=16,
        q_lora_rank=q_rank,
        qk_nope_head_dim=12,
        qk_rope_head_dim=8,
        v_head_dim=10,
        attention_bias=True,
        max_position_embeddings=512,
        rope_parameters=dict(ROPES[rope]),
        attn_implementation="eager",
    )
    theirs = randomise(DeepseekV3Attention(config, 0)).eval()
    latent = Latent(16, nope_dim=12, rope_dim=8, v_dim=10, q_rank=q_rank, form=form)
    rotary = Rotary.from_config(config.to_dict(), head_dim=8)
    assert rotary.layout == "interleaved"
    assert isinstance(rotary.scaling, YaRN) == (rope == "yarn")
    ours = LatentAttention(32, 4, latent, position=rotary, bias=True)
    names = {
        "q_a_proj": "q_down",
        "q_a_layernorm": "q_norm",
        "q_b_proj": "q_up",
        "kv_a_proj_with_mqa": "kv_down",
        "kv_a_layernorm": "kv_norm",
        "kv_b_proj": "kv_up",
        "o_proj": "out_proj",
    }
    renamed = {}
    for name, value in theirs.state_dict().items():
        module, kind = name.split(".")
        renamed[f"{names.get(module, module)}.{kind}"] = value
    ours.load_state_dict(renamed)
    x, places = torch.randn(2, 70, 32), torch.arange(70)[None]
    with torch.no_grad():
        seen = torch.where(causal().mask(70, 70), 0.0, torch.finfo(torch.float32).min)
        want, _ = theirs(x, DeepseekV3RotaryEmbedding(config)(x, places), seen.expand(2, 1, 70, 70))
        torch.testing.assert_close(ours(x, mask=causal()), want, rtol=1e-6, atol=1e-6 * float(want.abs().max()))


@pytest.mark.parametrize(
    ("use", "told"),
    [
        (lambda: Latent(0, nope_dim=1, rope_dim=2, v_dim=1), "kv_rank=0"),
        (lambda: Latent(4, nope_dim=1, rope_dim=2, v_dim=1, q_rank=0), "q_rank=0"),
        (lambda: Latent(4, nope_dim=1, rope_dim=2, v_dim=1, eps=0.0), "eps above 0"),
        (lambda: Latent(4, nope_dim=1, rope_dim=2, v_dim=1, form="folded"), "'auto', 'expanded', 'absorbed'.*'folded'"),
        (lambda: LatentAttention(12, 0, Latent(8, **SIZES)), "heads=0"),
        (lambda: LatentAttention(12, 2, Latent(8, **SIZES), dropout=1.0), "dropout=1.0"),
        (lambda: LatentAttention(12, 2, Latent(8, **SIZES), scoring=Scoring(norm=QKNorm())), "leave the norm out"),
        (lambda: plain()(torch.randn(2, 5, 11)), r"query \(batch, length, 12\)"),
        (lambda: plain()(torch.randn(2, 5, 12), cache=plain().cache(batch=3)), "the cache's batch of 3"),
        (lambda: plain()(torch.randn(2, 5, 12), cache=plain().cache(batch=2, kind=Static(4))), "5 more tokens"),
        (
            lambda: plain()(torch.randn(2, 5, 12), cache=other().cache(batch=2)),
            "width 8.*LatentCache of widths 9 and 4",
        ),
        (
            lambda: plain()(torch.randn(2, 5, 12), cache=MultiHeadAttention(12, 2).cache(batch=2)),
            "width 4.*AttentionCache",
        ),
        (lambda: plain()(torch.randn(2, 5, 12), positions=torch.arange(4)), r"\(batch, q_len\) = \(2, 5\)"),
        (lambda: plain().cache(batch=0), "batch=0"),
    ],
)
@pytest.mark.usefixtures("unhooked")
def test_what_does_not_fit_is_refused(use, told):
    with pytest.raises(MultiheadError, match=f"(?s){told}"):
        use()


def plain():
    return LatentAttention(12, 3, Latent(8, **SIZES))


def other():
    return LatentAttention(12, 3, Latent(9, **SIZES))


def test_it_says_what_it_is(randomise):
    shown = repr(build(randomise))
    for part in ("heads=3", "kv_rank=8", "q_rank=7", "position=Rotary"):
        assert part in shown
