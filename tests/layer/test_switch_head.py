import math

import pytest
import torch

from multihead.error import MultiheadError
from multihead.layer import (
    HeadGroup,
    MultiHeadAttention,
    OutputGate,
    QKNorm,
    Router,
    Scoring,
    Static,
    SwitchHeadAttention,
)
from multihead.pattern import causal, padding, sliding_window
from multihead.position import RelativeTable, Rotary

WIDE = torch.float64
GROUPS = [2, HeadGroup(4, 6, kv_heads=2, v_head_dim=5), HeadGroup(2, 6, kv_heads=1)]


def run_all(layer, query, key, value, allowed):
    """Every expert of each head computed for every token, weighted, summed; allowed (batch, q_len, kv_len)."""
    heads, kv_heads, d, _ = layer.groups[0].sizes
    w, n = dict(layer.named_parameters()), layer.experts

    def gated(x, weight):
        """(batch, length, experts): the sigmoids of the largest, 0 elsewhere."""
        gates = torch.sigmoid(x @ weight.T)
        least = gates.sort(-1).values[..., -layer.chosen, None]
        return gates * (gates >= least)

    values = []
    for g in range(kv_heads):
        gates = gated(key, w["v_router.weight"][g * n : (g + 1) * n])
        every = [gates[..., e, None] * (value @ w["v_experts"][g * n + e].T) for e in range(n)]
        values.append(sum(every))
    out = torch.zeros_like(query)
    for h in range(heads):
        g = h * kv_heads // heads
        q, k = query @ w["q_proj.weight"][h * d : (h + 1) * d].T, key @ w["k_proj.weight"][g * d : (g + 1) * d].T
        scores = (q @ k.mT / math.sqrt(d)).masked_fill(~allowed, -1e300)
        head = scores.softmax(-1) * allowed @ values[g]
        gates = gated(query, w["out_router.weight"][h * n : (h + 1) * n])
        for e in range(n):
            out = out + gates[..., e, None] * (head @ w["out_experts"][h * n + e].T)
    return out


def layer_of(randomise, group, **options):
    return randomise(SwitchHeadAttention(16, group, **{"experts": 4, "chosen": 2, **options})).double()


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("cross", [False, True])
def test_what_was_chosen_equals_all_computed_and_weighted(randomise, group, cross):
    """Across sequences, keys and values of two of them: the keys' tokens choose."""
    layer, x = layer_of(randomise, group), torch.randn(2, 7, 16, dtype=WIDE, requires_grad=True)
    other = [torch.randn(2, 9, 16, dtype=WIDE, requires_grad=True) for _ in range(2)] if cross else []
    key, value = other or (x, x)
    allowed = torch.rand(2, 7, key.shape[1]) < 0.6
    allowed[0, 3] = False
    leaves, pull = [x, *other, *layer.parameters()], torch.randn(2, 7, 16, dtype=WIDE)
    both = layer(x, *other, mask=allowed[:, None]), run_all(layer, x, key, value, allowed)
    results = [(made, torch.autograd.grad((made * pull).sum(), leaves)) for made in both]
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-10)
    assert not results[0][0][0, 3].any()
    assert all(grad.any() for grad in results[0][1])


def test_only_what_was_chosen_is_computed(randomise):
    layer, x = layer_of(randomise, 2, chosen=1), torch.rand(1, 9, 16, dtype=WIDE)
    with torch.no_grad():
        for router in (layer.v_router, layer.out_router):
            router.weight[[1, 6]] += 10
    want = layer(x)
    assert layer.out_router.load().tolist() == [[0, 1, 0, 0], [0, 0, 1, 0]]
    for weight in (layer.v_experts, layer.out_experts):
        weight.data[[0, 2, 3, 4, 5, 7]] = torch.nan
    assert torch.equal(layer(x), want)


@pytest.mark.parametrize("kv_heads", [4, 2])
def test_one_expert_is_plain_attention_with_a_gate_for_each_head(randomise, kv_heads):
    group = HeadGroup(4, 6, kv_heads=kv_heads, position=Rotary(), scoring=Scoring(norm=QKNorm(), sinks=True))
    gated = HeadGroup(4, 6, kv_heads=kv_heads, position=Rotary(), scoring=group.scoring, gate=OutputGate())
    plain = randomise(MultiHeadAttention(16, gated, bias=False)).double()
    layer = layer_of(randomise, group, experts=1, chosen=1)
    assert layer.v_router is None
    assert sum(isinstance(each, Router) for each in layer.modules()) == 1
    with torch.no_grad():
        layer.v_experts.copy_(plain.v_proj.weight.view(kv_heads, 6, 16))
        layer.out_experts.copy_(plain.out_proj.weight.view(16, 4, 6).transpose(0, 1))
        layer.out_router.weight.copy_(plain.parts[0].gate.weight)
    for name in ("q_proj", "k_proj", "parts"):
        layer.get_submodule(name).load_state_dict(plain.get_submodule(name).state_dict(), strict=False)
    x, memory = torch.randn(2, 9, 16, dtype=WIDE), torch.randn(2, 5, 16, dtype=WIDE)
    for mask in (None, causal() & padding(torch.rand(2, 9) < 0.7), torch.rand(2, 4, 9, 9) < 0.6):
        torch.testing.assert_close(layer(x, mask=mask), plain(x, mask=mask), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(layer(x, memory), plain(x, memory), rtol=1e-10, atol=1e-10)


def test_gates_without_choice_are_halves(randomise):
    """Zero router weights and all chosen: values and outputs are half the sums of their experts."""
    layer, x = layer_of(randomise, 2, experts=3, chosen=3), torch.randn(2, 9, 16, dtype=WIDE)
    for router in (layer.v_router, layer.out_router):
        torch.nn.init.zeros_(router.weight)
    plain = MultiHeadAttention(16, 2, bias=False).double()
    with torch.no_grad():
        plain.q_proj.weight.copy_(layer.q_proj.weight)
        plain.k_proj.weight.copy_(layer.k_proj.weight)
        plain.v_proj.weight.copy_(layer.v_experts.view(2, 3, 8, 16).sum(1).flatten(0, 1) / 2)
        plain.out_proj.weight.copy_(layer.out_experts.view(2, 3, 16, 8).sum(1).transpose(0, 1).flatten(1) / 2)
    torch.testing.assert_close(layer(x, mask=causal()), plain(x, mask=causal()), rtol=1e-10, atol=1e-10)


def test_gradcheck(randomise):
    group = HeadGroup(2, 4, scoring=Scoring(sinks=True), position=RelativeTable(torch.nn.Parameter(torch.randn(8, 2))))
    layer, x = layer_of(randomise, group), torch.randn(1, 6, 16, dtype=WIDE, requires_grad=True)
    inputs = (x, *layer.parameters())
    assert torch.autograd.gradcheck(lambda x, *_: layer(x, mask=causal()), inputs, fast_mode=True)
    layer(x, mask=causal()).square().sum().backward()
    assert all(parameter.grad.any() for parameter in layer.parameters())


def test_the_order_of_experts_is_nothing(randomise):
    layer, x = layer_of(randomise, HeadGroup(4, 6, kv_heads=2)), torch.randn(2, 9, 16, dtype=WIDE)
    want, load = layer(x, mask=causal()), layer.out_router.load()
    for heads, weights in (
        (4, (layer.out_experts, layer.out_router.weight)),
        (2, (layer.v_experts, layer.v_router.weight)),
    ):
        order = torch.cat([torch.randperm(4) + 4 * h for h in range(heads)])
        for weight in weights:
            weight.data.copy_(weight.data[order])
        if heads == 4:
            layer(x, mask=causal())
            assert torch.equal(layer.out_router.load().flatten(), load.flatten()[order])
    torch.testing.assert_close(layer(x, mask=causal()), want, rtol=1e-11, atol=1e-11)


def test_any_split_with_a_cache_equals_one_pass(randomise):
    layer = layer_of(randomise, HeadGroup(4, 6, kv_heads=2, mask=sliding_window(5), position=Rotary()))
    x = torch.randn(2, 11, 16, dtype=WIDE)
    want = layer(x, mask=causal())
    for lengths in ([11], [1] * 11, [4, 1, 6]):
        for kind in (None, Static(11)):
            cache = layer.cache(batch=2, kind=kind)
            got = [layer(part, mask=causal(), cache=cache) for part in x.split(lengths, 1)]
            torch.testing.assert_close(torch.cat(got, 1), want, rtol=1e-10, atol=1e-10)
    cache.cut(4)
    with pytest.raises(MultiheadError, match="a mask of shape"):
        layer(x[:, 4:], mask=torch.ones(3, 3, dtype=torch.bool), cache=cache)
    torch.testing.assert_close(layer(x[:, 4:], mask=causal(), cache=cache), want[:, 4:], rtol=1e-10, atol=1e-10)


@pytest.mark.usefixtures("unhooked")
def test_what_it_cannot_do():
    for chosen in (0, 5, True):
        with pytest.raises(MultiheadError, match=r"(?s)of the 4 experts.*pass 1 to 4"):
            SwitchHeadAttention(16, chosen=chosen)
    with pytest.raises(MultiheadError, match=r"(?s)of the 1 experts.*pass 1"):
        SwitchHeadAttention(16, experts=1)
    with pytest.raises(MultiheadError, match="heads that divide embed_dim"):
        SwitchHeadAttention(16, 5)
    with pytest.raises(MultiheadError, match="at least 1"):
        SwitchHeadAttention(16, experts=0)
    with pytest.raises(MultiheadError, match=r"query \(batch, length, 16\)"):
        SwitchHeadAttention(16)(torch.randn(2, 4, 8))
    for heads in (True, [HeadGroup(4)], "2"):
        with pytest.raises(MultiheadError, match="a number of heads, or one HeadGroup"):
            SwitchHeadAttention(16, heads)
    assert str(SwitchHeadAttention(16)).startswith("SwitchHeadAttention(\n  16, 2 x 8, experts=4, chosen=2")
