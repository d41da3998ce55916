import math

import pytest
import torch

from multihead.error import MultiheadError
from multihead.hooks import gated, watching
from multihead.layer import (
    HeadGroup,
    MoHAttention,
    MultiHeadAttention,
    OutputGate,
    QKNorm,
    Scoring,
    Static,
    mixture_of_heads,
)
from multihead.pattern import causal, from_callable, padding, sliding_window
from multihead.position import ALiBi, Rotary, alibi_slopes

WIDE = torch.float64
LEARNED = Scoring(norm=QKNorm(), sinks=True, softcap=5.0)
GROUPS = [
    HeadGroup(4),
    HeadGroup(6, 6, kv_heads=3, v_head_dim=5, position=Rotary(), scoring=LEARNED, gate=OutputGate()),
    HeadGroup(6, 6, kv_heads=2),
]


@pytest.fixture(params=["masks", "patterns"])
def _rows(request, monkeypatch):
    """Rows are taken out at any length, with a stored mask or a pattern."""
    monkeypatch.setattr(mixture_of_heads, "_LEAST", 1)
    monkeypatch.setattr(mixture_of_heads, "_STORED", 2**24 if request.param == "masks" else 0)


def run_all(layer, query, memory, allowed):
    """Every head for every token, weighted, summed; allowed (batch, heads | 1, q_len, kv_len)."""
    heads, kv_heads, d, e = layer.groups[0].sizes
    w, s = dict(layer.named_parameters()), layer.shared
    routed = (query @ w["router.weight"].T).softmax(-1)
    keep = routed.topk(layer.chosen, -1)
    routed = torch.zeros_like(routed).scatter(-1, keep.indices, keep.values / keep.values.sum(-1, keepdim=True))
    gates = layer.chosen * routed
    if s:
        share = 2 * (query @ w["balance.weight"].T).softmax(-1)
        always = s * (query @ w["shared_gate.weight"].T).softmax(-1)
        gates = torch.cat([share[..., :1] * always, share[..., 1:] * gates], -1)
    out = torch.zeros_like(query) + w["out_proj.bias"]
    for h in range(heads):
        g = h * kv_heads // heads

        def part(name, x, number, width):
            rows = slice(number * width, (number + 1) * width)
            return x @ w[f"{name}_proj.weight"][rows].T + w[f"{name}_proj.bias"][rows]

        q, k, v = part("q", query, h, d), part("k", memory, g, d), part("v", memory, g, e)
        seen = allowed[:, h % allowed.shape[1]]
        head = (q @ k.mT / math.sqrt(d)).masked_fill(~seen, -1e300).softmax(-1) * seen @ v
        out = out + gates[..., h, None] * (head @ w["out_proj.weight"][:, h * e : (h + 1) * e].T)
    return out


def layer_of(randomise, group, **options):
    return randomise(MoHAttention(24, group, **{"shared": 2, "chosen": 1, **options})).double()


@pytest.mark.usefixtures("_rows")
@pytest.mark.parametrize(
    ("group", "shared"), [(GROUPS[0], 0), (GROUPS[2], 1), (HeadGroup(6, 4, kv_heads=1, v_head_dim=5), 2)]
)
def test_what_was_chosen_equals_all_computed_and_weighted(randomise, group, shared):
    layer = layer_of(randomise, group, shared=shared, chosen=2)
    x = torch.randn(2, 7, 24, dtype=WIDE, requires_grad=True)
    memory = torch.randn(2, 9, 24, dtype=WIDE, requires_grad=True)
    future = torch.arange(7)[:, None] >= torch.arange(7)
    keep, by_head = torch.rand(2, 7) < 0.7, torch.rand(2, layer.heads, 7, 9) < 0.6
    by_head[0, :, 3] = False
    cases = [
        ((x,), None, torch.ones(1, 1, 7, 7, dtype=torch.bool)),
        ((x,), causal() & padding(keep), (future & keep[:, None])[:, None]),
        ((x, memory), by_head, by_head),
    ]
    for given, mask, allowed in cases:
        leaves, pull = [*given, *layer.parameters()], torch.randn(2, 7, 24, dtype=WIDE)
        both = layer(*given, mask=mask), run_all(layer, x, given[-1], allowed)
        results = [(made, torch.autograd.grad((made * pull).sum(), leaves)) for made in both]
        torch.testing.assert_close(*results, rtol=1e-9, atol=1e-10)
        # A bias of the keys is the same for all keys of a row, and one shared head has all of its share.
        idle = {"k_proj.bias", "shared_gate.weight"} if shared == 1 else {"k_proj.bias"}
        named = zip(
            ["x", "memory"][: len(given)] + [n for n, _ in layer.named_parameters()], results[0][1], strict=True
        )
        assert {name for name, grad in named if grad.abs().max() < 1e-12} <= idle


@pytest.mark.usefixtures("_rows")
@pytest.mark.parametrize("group", GROUPS)
def test_without_routing_it_is_plain_attention(randomise, group):
    """Zero weights of the routers and all heads chosen: every gate is 1."""
    plain = randomise(MultiHeadAttention(24, group)).double()
    layer = MoHAttention(24, group, shared=2, chosen=plain.heads - 2).double()
    missing = layer.load_state_dict(plain.state_dict(), strict=False)
    assert missing.unexpected_keys == []
    assert missing.missing_keys == ["router.weight", "shared_gate.weight", "balance.weight"]
    for name in missing.missing_keys:
        torch.nn.init.zeros_(layer.get_parameter(name))
    x, memory = torch.randn(2, 9, 24, dtype=WIDE), torch.randn(2, 5, 24, dtype=WIDE)
    torch.testing.assert_close(layer.gates(x, layer.router(x)), torch.ones(2, 9, plain.heads, dtype=WIDE))
    for mask in (None, causal(), causal() & padding(torch.rand(2, 9) < 0.7)):
        torch.testing.assert_close(layer(x, mask=mask), plain(x, mask=mask), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(layer(x, memory), plain(x, memory), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("mask", [None, causal(), causal() & sliding_window(5), "by head", "tensor"])
def test_taking_rows_out_changes_nothing(randomise, monkeypatch, mask):
    if mask == "by head":
        spans = torch.arange(1, 7).view(1, 6, 1, 1)
        mask = causal() & from_callable(lambda q, k: q - k < spans, name="spans", heads=6)
    mask = torch.rand(3, 1, 14, 14) < 0.7 if mask == "tensor" else mask
    layer, pull = layer_of(randomise, GROUPS[1], chosen=2), torch.randn(3, 14, 24, dtype=WIDE)
    x, results = torch.randn(3, 14, 24, dtype=WIDE, requires_grad=True), []
    for least, stored in ((2**24, 0), (1, 2**24), (1, 0)):
        monkeypatch.setattr(mixture_of_heads, "_LEAST", least)
        monkeypatch.setattr(mixture_of_heads, "_STORED", stored)
        made = layer(x, mask=mask)
        results.append((made, torch.autograd.grad((made * pull).sum(), [x, *layer.parameters()])))
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], rtol=1e-10, atol=1e-11)


@pytest.mark.usefixtures("_rows")
def test_only_rows_that_were_chosen_are_attended_for(randomise, monkeypatch):
    layer, x, seen = layer_of(randomise, GROUPS[2], chosen=1), torch.randn(2, 40, 24, dtype=WIDE), []
    ran = MoHAttention._ran

    def keep(self, problem):
        seen.append(tuple(problem.q.shape))
        return ran(self, problem)

    monkeypatch.setattr(MoHAttention, "_ran", keep)
    layer(x, mask=causal())
    most = int(layer.router(x).flags[:, :, 0].sum(1).max())
    assert most < 40
    assert sorted(seen) == sorted([(2, 2, 40, 6), (2, 4, most, 6)])


@pytest.mark.usefixtures("_rows")
def test_gradcheck(randomise):
    layer, x = layer_of(randomise, GROUPS[1], chosen=2), torch.randn(1, 6, 24, dtype=WIDE, requires_grad=True)
    inputs = (x, *layer.parameters())
    assert torch.autograd.gradcheck(lambda x, *_: layer(x, mask=causal()), inputs, fast_mode=True)


@pytest.mark.usefixtures("_rows")
def test_the_order_of_routed_heads_is_nothing(randomise):
    layer, x = layer_of(randomise, GROUPS[0]), torch.randn(2, 9, 24, dtype=WIDE)
    want, order = layer(x, mask=causal()), torch.tensor([0, 1, 3, 2])
    load = layer.router.load()
    rows = torch.cat([torch.arange(6) + 6 * h for h in order])
    with torch.no_grad():
        for linear in (layer.q_proj, layer.k_proj, layer.v_proj):
            linear.weight.copy_(linear.weight[rows])
            linear.bias.copy_(linear.bias[rows])
        layer.out_proj.weight.copy_(layer.out_proj.weight[:, rows])
        layer.router.weight.copy_(layer.router.weight.flip(0))
    torch.testing.assert_close(layer(x, mask=causal()), want, rtol=1e-11, atol=1e-11)
    assert torch.equal(layer.router.load(), load.flip(1))


def test_any_split_with_a_cache_equals_one_pass(randomise):
    layer, x = layer_of(randomise, GROUPS[1], chosen=2), torch.randn(2, 11, 24, dtype=WIDE)
    want = layer(x, mask=causal())
    for lengths in ([11], [1] * 11, [4, 1, 6]):
        for kind in (None, Static(11)):
            cache = layer.cache(batch=2, kind=kind)
            got = [layer(part, mask=causal(), cache=cache) for part in x.split(lengths, 1)]
            torch.testing.assert_close(torch.cat(got, 1), want, rtol=1e-10, atol=1e-10)


@pytest.mark.usefixtures("_rows")
def test_chunks_with_a_cache_take_rows_out_at_their_positions(randomise):
    layer, x = layer_of(randomise, GROUPS[1], chosen=2), torch.randn(2, 15, 24, dtype=WIDE)
    want, cache = layer(x, mask=causal() & sliding_window(6)), layer.cache(batch=2)
    got = [layer(part, mask=causal() & sliding_window(6), cache=cache) for part in x.split([6, 5, 4], 1)]
    torch.testing.assert_close(torch.cat(got, 1), want, rtol=1e-10, atol=1e-10)
    cache.cut(6)
    with pytest.raises(MultiheadError, match="a mask of shape"):
        layer(x[:, 6:], mask=torch.ones(3, 3, dtype=torch.bool), cache=cache)
    got = layer(x[:, 6:], mask=causal() & sliding_window(6), cache=cache)
    torch.testing.assert_close(got, want[:, 6:], rtol=1e-10, atol=1e-10)


@pytest.mark.usefixtures("_rows")
def test_watchers_see_every_head_and_change_what_they_gate(randomise):
    layer, x, calls = layer_of(randomise, GROUPS[1], chosen=2).eval(), torch.randn(2, 9, 24, dtype=WIDE), []
    want = layer(x, mask=causal())
    with watching(layer, calls.append):
        assert torch.equal(layer(x, mask=causal()), want)
    (call,) = calls
    seen = call.problem
    weights = seen.normaliser.weigh(seen.scores(), seen.normaliser.settle(seen.scores()))
    full = (weights @ seen.v.repeat_interleave(2, 1)).transpose(1, 2)
    taken = torch.cat([torch.ones(2, 9, 2, dtype=torch.bool), layer.router(x).flags[:, :, 0]], 2)
    torch.testing.assert_close(call.output, full * taken[..., None], rtol=1e-10, atol=1e-10)
    assert call.projection.weight is None
    with torch.no_grad(), gated(layer, {"L0.H3": 0.0}):
        got = layer(x, mask=causal())
    off = (got != want).any(-1)
    assert torch.equal(off, taken[..., 3])


@pytest.mark.usefixtures("unhooked")
def test_what_it_cannot_do():
    for options, told in (
        ({"chosen": 0}, r"the 6 heads that are not shared.*pass 1 to 6"),
        ({"chosen": 7}, r"the 6 heads that are not shared.*got: chosen=7.*pass 1 to 6"),
        ({"shared": 8}, r"got: shared=8 of heads=8.*pass shared=0 to 7.*MultiHeadAttention"),
        ({"shared": -1}, r"shared: a whole number of at least 0"),
    ):
        with pytest.raises(MultiheadError, match=f"(?s){told}"):
            MoHAttention(16, 8, **options)
    with pytest.raises(MultiheadError, match=r"pass shared=0$"):
        MoHAttention(16, 1, shared=1, chosen=1)
    with pytest.raises(MultiheadError, match=r"(?s)position=ALiBi.*Rotary\(\) or None.*SwitchHeadAttention"):
        MoHAttention(16, HeadGroup(4, position=ALiBi(alibi_slopes(4))), shared=1, chosen=1)
    with pytest.raises(MultiheadError, match="heads that divide embed_dim"):
        MoHAttention(16, 5)
    with pytest.raises(MultiheadError, match=r"query \(batch, length, 16\)"):
        MoHAttention(16)(torch.randn(2, 4, 8))
    with pytest.raises(MultiheadError, match="a number of heads, or one HeadGroup"):
        MoHAttention(16, [HeadGroup(4)])
    assert str(MoHAttention(16)).startswith("MoHAttention(\n  16, 8 x 2, shared=2, chosen=4")
