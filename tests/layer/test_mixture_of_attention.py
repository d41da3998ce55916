import math

import pytest
import torch
from transformers import DynamicCache, JetMoeConfig
from transformers.models.jetmoe.modeling_jetmoe import JetMoeAttention, JetMoeRotaryEmbedding

from multihead.attend import Softmax
from multihead.error import MultiheadError
from multihead.layer import (
    HeadGroup,
    MoAAttention,
    MultiHeadAttention,
    OutputGate,
    QKNorm,
    Scoring,
    Static,
)
from multihead.pattern import causal, from_callable, padding
from multihead.position import ALiBi, Rotary, alibi_slopes

WIDE = torch.float64
GROUPS = [4, HeadGroup(4, 6, kv_heads=2, v_head_dim=5), HeadGroup(2, 6, kv_heads=1)]


def run_all(layer, query, memory, allowed):
    """Every expert for every token as attention by itself, weighted, summed; allowed (batch, q_len, kv_len)."""
    heads, kv_heads, d, e = layer.expert.sizes
    w = dict(layer.named_parameters())
    logits = query @ w["router.weight"].T
    keep = logits.topk(layer.chosen, -1)
    gates = torch.zeros_like(logits).scatter(-1, keep.indices, keep.values.softmax(-1))
    out = torch.zeros_like(query)
    for number in range(layer.experts):
        joined = []
        for h in range(heads):
            g = h * kv_heads // heads
            q = query @ w["q_experts"][number, h * d : (h + 1) * d].T
            k = memory @ w["k_proj.weight"][g * d : (g + 1) * d].T
            v = memory @ w["v_proj.weight"][g * e : (g + 1) * e].T
            scores = (q @ k.mT / math.sqrt(d)).masked_fill(~allowed, -1e300)
            joined.append(scores.softmax(-1) * allowed @ v)
        out = out + gates[..., number, None] * (torch.cat(joined, -1) @ w["out_experts"][number].T)
    return out + w.get("bias", 0)


def layer_of(randomise, group, **options):
    return randomise(MoAAttention(16, group, **{"experts": 5, "chosen": 2, **options})).double()


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("cross", [False, True])
def test_what_was_chosen_equals_all_computed_and_weighted(randomise, group, cross):
    layer = layer_of(randomise, group, bias=not cross)
    x = torch.randn(2, 7, 16, dtype=WIDE, requires_grad=True)
    memory = torch.randn(2, 9, 16, dtype=WIDE, requires_grad=True) if cross else x
    allowed = torch.rand(2, 7, memory.shape[1]) < 0.6
    allowed[0, 3] = False
    leaves = [x, memory, *layer.parameters()][0 if cross else 1 :]
    pull = torch.randn(2, 7, 16, dtype=WIDE)
    both = layer(x, memory if cross else None, mask=allowed[:, None]), run_all(layer, x, memory, allowed)
    results = [(made, torch.autograd.grad((made * pull).sum(), leaves)) for made in both]
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(results[0][0][0, 3], torch.zeros(16, dtype=WIDE) if cross else layer.bias)
    assert all(grad.any() for grad in results[0][1])


def test_only_what_was_chosen_is_computed(randomise):
    layer = layer_of(randomise, 4, bias=False)
    with torch.no_grad():
        layer.router.weight[3:] = layer.router.weight[:1] - 1
    x = torch.rand(1, 9, 16, dtype=WIDE)
    layer.router.weight.data[:3, :] += 1
    want = layer(x)
    assert layer.router.load()[0, 3:].tolist() == [0.0, 0.0]
    layer.q_experts.data[3:], layer.out_experts.data[3:] = torch.nan, torch.nan
    assert torch.equal(layer(x), want)


def test_gradcheck(randomise):
    layer, x = layer_of(randomise, GROUPS[1]), torch.randn(1, 6, 16, dtype=WIDE, requires_grad=True)
    inputs = (x, *layer.parameters())
    assert torch.autograd.gradcheck(lambda x, *_: layer(x, mask=causal()), inputs, fast_mode=True)


def test_one_expert_is_plain_attention(randomise):
    group = HeadGroup(4, 6, kv_heads=1, position=Rotary(), scoring=Scoring(norm=QKNorm(), softcap=4.0))
    layer, plain = layer_of(randomise, group, experts=1, chosen=1), randomise(MultiHeadAttention(16, group)).double()
    with torch.no_grad():
        layer.q_experts[0], layer.out_experts[0] = plain.q_proj.weight, plain.out_proj.weight
        layer.bias.copy_(plain.out_proj.bias)
        for name in ("q_proj", "k_proj", "v_proj"):
            plain.get_submodule(name).bias.zero_()
    for name in ("k_proj", "v_proj", "parts"):
        layer.get_submodule(name).load_state_dict(plain.get_submodule(name).state_dict(), strict=False)
    x, memory = torch.randn(2, 9, 16, dtype=WIDE), torch.randn(2, 5, 16, dtype=WIDE)
    for mask in (None, causal(), causal() & padding(torch.rand(2, 9) < 0.7)):
        torch.testing.assert_close(layer(x, mask=mask), plain(x, mask=mask), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(layer(x, memory), plain(x, memory), rtol=1e-10, atol=1e-10)


def test_the_order_of_experts_is_nothing(randomise):
    layer, x = layer_of(randomise, 4), torch.randn(2, 9, 16, dtype=WIDE)
    want, order = layer(x, mask=causal()), torch.randperm(5)
    load = layer.router.load()
    with torch.no_grad():
        for weight in (layer.q_experts, layer.out_experts, layer.router.weight):
            weight.copy_(weight[order])
    torch.testing.assert_close(layer(x, mask=causal()), want, rtol=1e-11, atol=1e-11)
    assert torch.equal(layer.router.load(), load[:, order])


@pytest.mark.parametrize("kv_heads", [1, 3])
def test_equals_jetmoe_of_transformers(randomise, kv_heads):
    """Prefill and decoding with a cache."""
    config = JetMoeConfig(
        hidden_size=16,
        num_key_value_heads=kv_heads,
        kv_channels=6,
        num_experts_per_tok=2,
        num_local_experts=5,
        num_hidden_layers=1,
        attn_implementation="eager",
    )
    theirs = randomise(JetMoeAttention(config, 0)).double().eval()
    ours = MoAAttention(16, HeadGroup(kv_heads, 6, position=Rotary()), experts=5, chosen=2).double()
    state = theirs.state_dict()
    k, v = state["kv_proj.weight"].chunk(2)
    ours.load_state_dict(
        {
            "q_experts": state["experts.input_linear.weight"],
            "out_experts": state["experts.output_linear.weight"],
            "router.weight": state["experts.router.layer.weight"],
            "bias": state["experts.bias"],
            "k_proj.weight": k,
            "v_proj.weight": v,
        }
    )
    x, turn = torch.randn(2, 11, 16, dtype=WIDE), JetMoeRotaryEmbedding(config)
    future = torch.ones(11, 11, dtype=torch.bool).triu(1)
    hidden = torch.zeros(1, 1, 11, 11, dtype=WIDE).masked_fill(future, -1e30)
    where = torch.arange(11)[None]
    # Their router chooses in float32.
    want = theirs(x, hidden, turn(x, where))[0]
    torch.testing.assert_close(ours(x, mask=causal()), want, rtol=1e-5, atol=1e-5)
    mine, other, start = ours.cache(batch=2), DynamicCache(), 0
    for part in x.split([5, 1, 1, 4], 1):
        stop = start + part.shape[1]
        step = theirs(part, hidden[:, :, start:stop, :stop], turn(part, where[:, start:stop]), cache=other)[0]
        torch.testing.assert_close(ours(part, mask=causal(), cache=mine), step, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(step, want[:, start:stop], rtol=1e-5, atol=1e-5)
        start = stop


def test_any_split_with_a_cache_equals_one_pass(randomise):
    layer = layer_of(randomise, HeadGroup(4, 6, kv_heads=2, position=Rotary()))
    x = torch.randn(2, 11, 16, dtype=WIDE)
    want = layer(x, mask=causal())
    for lengths in ([11], [1] * 11, [4, 1, 6]):
        for kind in (None, Static(11)):
            cache = layer.cache(batch=2, kind=kind)
            got = [layer(part, mask=causal(), cache=cache) for part in x.split(lengths, 1)]
            torch.testing.assert_close(torch.cat(got, 1), want, rtol=1e-10, atol=1e-10)
    assert cache.nbytes == 2 * 2 * 2 * 11 * 6 * 8  # of the shared keys and values, however many experts
    cache.cut(4)
    with pytest.raises(MultiheadError, match="a mask of shape"):
        layer(x[:, 4:], mask=torch.ones(3, 3, dtype=torch.bool), cache=cache)
    torch.testing.assert_close(layer(x[:, 4:], mask=causal(), cache=cache), want[:, 4:], rtol=1e-10, atol=1e-10)


@pytest.mark.usefixtures("unhooked")
def test_what_it_cannot_do():
    for chosen in (0, 9):
        with pytest.raises(MultiheadError, match=r"(?s)of the 8 experts.*pass 1 to 8"):
            MoAAttention(16, chosen=chosen)
    with pytest.raises(MultiheadError, match="heads that divide embed_dim"):
        MoAAttention(16, 5)
    for group, told in (
        (HeadGroup(4, scoring=Scoring(sinks=True)), "sinks=True"),
        (HeadGroup(4, gate=OutputGate()), "gate="),
        (HeadGroup(4, position=ALiBi(alibi_slopes(4))), "position=ALiBi"),
        (HeadGroup(4, scoring=Scoring(norm=QKNorm(over="all"))), "norm=QKNorm"),
        (HeadGroup(4, scoring=Scoring(normaliser=Softmax(sinks=torch.zeros(4)))), "normaliser="),
        (HeadGroup(4, mask=from_callable(lambda q, k: q == k, name="own", heads=4)), "mask=callable"),
    ):
        with pytest.raises(MultiheadError, match=rf"(?s)all heads of a call are alike.*got: {told}.*MoHAttention"):
            MoAAttention(16, group)
    layer, x = MoAAttention(16), torch.randn(2, 4, 16)
    for mask in (torch.ones(2, 16, 4, 4) > 0, from_callable(lambda q, k: q == k, name="own", heads=16)):
        with pytest.raises(MultiheadError, match="an expert differs by token"):
            layer(x, mask=mask)
    with pytest.raises(MultiheadError, match=r"query \(batch, length, 16\)"):
        layer(torch.randn(2, 4, 8))
    for heads in (True, [HeadGroup(4)], 2.0):
        with pytest.raises(MultiheadError, match="heads"):
            MoAAttention(16, heads)
    assert str(MoAAttention(16)).startswith("MoAAttention(\n  16, 8 x 2, experts=8, chosen=2")
