import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from multihead.attend import Softmax
from multihead.error import MultiheadError
from multihead.layer import (
    HeadGroup,
    Int8,
    MultiHeadAttention,
    OutputGate,
    QKNorm,
    Scoring,
    Static,
    TalkingHeadsAttention,
    talking,
)
from multihead.pattern import causal, padding, sliding_window
from multihead.position import ALiBi, RelativeTable, Rotary, alibi_slopes

WIDE = torch.float64
GROUPS = [
    4,
    HeadGroup(4, 6, kv_heads=2, v_head_dim=5, mask=sliding_window(4), position=Rotary()),
    HeadGroup(4, 4, scoring=Scoring(norm=QKNorm(), sinks=True, softcap=3.0), gate=OutputGate(per="channel")),
    HeadGroup(2, 6, position=ALiBi(alibi_slopes(2))),
    HeadGroup(2, 6, kv_heads=1, scoring=Scoring(scale=0.7, normaliser=Softmax(off_by_one=True))),
]


@pytest.fixture(params=["whole", "blocks"])
def _height(request, monkeypatch):
    if request.param == "blocks":
        monkeypatch.setattr(talking, "_TARGET", 1)
        monkeypatch.setattr(talking, "_LEAST", 3)


def by_hand(layer, x, allowed, bias):
    """The definition for one sequence, one pair at a time; allowed and bias (heads, q_len, kv_len)."""
    w = {name: p.detach() for name, p in layer.named_parameters()}
    h, g, d, n = layer.heads, layer.kv_heads, layer.head_dim, len(x)
    q, k, v = (x @ w[f"{name}_proj.weight"].T + w[f"{name}_proj.bias"] for name in "qkv")
    e = v.shape[1] // g
    raw, weights, out = torch.zeros(h, n, n, dtype=WIDE), torch.zeros(h, n, n, dtype=WIDE), []
    for a in range(h):
        shared = a * g // h
        for i in range(n):
            for j in range(n):
                raw[a, i, j] = q[i, a * d : (a + 1) * d] @ k[j, shared * d : (shared + 1) * d] / math.sqrt(d)
    for a in range(h):
        mixed = sum(w["logit_mix"][a, b] * raw[b] for b in range(h)) + bias[a]
        for i in range(n):
            seen = [j for j in range(n) if allowed[a, i, j]]
            if seen:
                weights[a, i, seen] = mixed[i, seen].softmax(0)
    for a in range(h):
        mixed = sum(w["weight_mix"][a, b] * weights[b] for b in range(h))
        out.append(mixed @ v[:, a * g // h * e : (a * g // h + 1) * e])
    return torch.cat(out, -1) @ w["out_proj.weight"].T + w["out_proj.bias"]


@pytest.mark.usefixtures("_height")
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_the_definition_by_hand(randomise, kv_heads):
    layer = randomise(TalkingHeadsAttention(16, HeadGroup(4, 6, kv_heads=kv_heads, v_head_dim=5))).double()
    x, bias = torch.randn(2, 7, 16, dtype=WIDE), torch.randn(1, 4, 7, 7, dtype=WIDE)
    allowed = torch.rand(2, 4, 7, 7) < 0.6
    allowed[0, :, 2] = False
    got = layer(x, mask=allowed, bias=bias)
    for b in range(2):
        torch.testing.assert_close(got[b], by_hand(layer, x[b], allowed[b], bias[0]), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(got[0, 2], layer.out_proj.bias)


@pytest.mark.usefixtures("_height")
@pytest.mark.parametrize("group", GROUPS)
def test_heads_that_do_not_talk_are_plain_ones(randomise, group):
    layer = TalkingHeadsAttention(16, group)
    assert torch.equal(layer.logit_mix, torch.eye(layer.heads))
    assert torch.equal(layer.weight_mix, torch.eye(layer.heads))
    plain = randomise(MultiHeadAttention(16, group))
    missing = layer.load_state_dict(plain.state_dict(), strict=False)
    assert (missing.missing_keys, missing.unexpected_keys) == (["logit_mix", "weight_mix"], [])
    plain, layer, x = plain.double(), layer.double(), torch.randn(2, 9, 16, dtype=WIDE)
    keep = torch.arange(9) < torch.tensor([[9], [0]])
    for mask in (None, causal(), causal() & padding(keep), torch.rand(2, layer.heads, 9, 9) < 0.5):
        torch.testing.assert_close(layer(x, mask=mask), plain(x, mask=mask), rtol=1e-10, atol=1e-10)
    if group == 4:
        query = torch.randn(2, 3, 16, dtype=WIDE)
        torch.testing.assert_close(layer(query, x), plain(query, x), rtol=1e-10, atol=1e-10)


@pytest.mark.usefixtures("_height")
def test_no_head_tells_of_what_another_may_not_see(randomise):
    """Mixed, what is behind the mask must not count: the future is replaced by huge values."""
    layer, x = randomise(TalkingHeadsAttention(16, 4)).double(), torch.randn(1, 8, 16, dtype=WIDE)
    other = x.clone()
    other[:, 5:] = 1e6 * torch.randn(1, 3, 16, dtype=WIDE)
    assert torch.equal(layer(x, mask=causal())[:, :5], layer(other, mask=causal())[:, :5])


@pytest.mark.parametrize("group", GROUPS[:4])
def test_any_split_with_a_cache_equals_one_pass(randomise, group):
    layer, x = randomise(TalkingHeadsAttention(16, group)).double(), torch.randn(2, 11, 16, dtype=WIDE)
    want = layer(x, mask=causal())
    for lengths in ([11], [1] * 11, [4, 1, 6], [7, 4]):
        for kind in (None, Static(11)):
            cache = layer.cache(batch=2, kind=kind)
            got = [layer(part, mask=causal(), cache=cache) for part in x.split(lengths, 1)]
            torch.testing.assert_close(torch.cat(got, 1), want, rtol=1e-10, atol=1e-10)
    cache = layer.cache(batch=2, kind=Int8())
    near = torch.cat([layer(part, mask=causal(), cache=cache) for part in x.split(4, 1)], 1)
    assert 0 < (near - want).abs().max() < 0.2 * want.abs().max()


def test_a_call_that_fails_leaves_the_cache_as_it_was(randomise):
    layer, x = randomise(TalkingHeadsAttention(16, 4)).double(), torch.randn(2, 6, 16, dtype=WIDE)
    cache = layer.cache(batch=2)
    layer(x[:, :4], mask=causal(), cache=cache)
    with pytest.raises(MultiheadError, match="a mask of shape"):
        layer(x[:, 4:], mask=torch.ones(3, 3, dtype=torch.bool), cache=cache)
    torch.testing.assert_close(layer(x[:, 4:], mask=causal(), cache=cache), layer(x, mask=causal())[:, 4:])


@pytest.mark.usefixtures("_height")
def test_gradients_reach_everything(randomise):
    group = HeadGroup(2, 4, scoring=Scoring(sinks=True), position=RelativeTable(torch.nn.Parameter(torch.randn(8, 2))))
    layer, x = randomise(TalkingHeadsAttention(8, group)).double(), torch.randn(1, 7, 8, dtype=WIDE, requires_grad=True)
    inputs = (x, *layer.parameters())
    assert torch.autograd.gradcheck(lambda x, *_: layer(x, mask=causal()), inputs, fast_mode=True)
    layer(x, mask=causal()).square().sum().backward()
    # A bias of the keys counts: mixed with other heads' scores it is the same for all keys of a row still.
    assert {name for name, p in layer.named_parameters() if p.grad is None or not p.grad.any()} <= {"k_proj.bias"}


class Largest(TorchDispatchMode):
    """The largest tensor that is made."""

    size = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor):
            self.size = max(self.size, out.numel())
        return out


def test_memory_is_that_of_a_block(randomise, monkeypatch):
    monkeypatch.setattr(talking, "_TARGET", 2 * 2 * 300 * 20)
    layer, saved = randomise(TalkingHeadsAttention(8, 2)), []
    x = torch.randn(2, 300, 8)
    with Largest() as largest, torch.autograd.graph.saved_tensors_hooks(lambda t: (saved.append(t.numel()), t)[1], id_):
        layer(x, mask=causal()).sum().backward()
    assert largest.size <= 2 * 2 * 300 * 20
    assert largest.size < 2 * 2 * 300 * 300
    # 15 blocks, of which none keeps its weights.
    assert sum(saved) < 2 * 2 * 300 * 300


def id_(x):
    return x


def test_dropout_is_of_the_weights_and_only_in_training(randomise):
    layer, x = randomise(TalkingHeadsAttention(16, 4, dropout=0.5)), torch.randn(2, 9, 16)
    with torch.no_grad():
        layer.weight_mix.copy_(torch.eye(4))
        clean = layer.eval()(x)
        assert torch.equal(layer(x), clean)
        layer.train()
        assert not torch.equal(layer(x), layer(x))
        near = torch.stack([layer(x) for _ in range(600)])
    # Ten deviations of the mean of 600.
    assert bool(((near.mean(0) - clean).abs() <= 10 * near.std(0) / 600**0.5 + 1e-6).all())


def test_dropout_draws_the_same_when_blocks_are_computed_again(randomise, monkeypatch, seed):
    monkeypatch.setattr(talking, "_TARGET", 1)
    monkeypatch.setattr(talking, "_LEAST", 3)
    layer, x = randomise(TalkingHeadsAttention(8, 2, dropout=0.4)).double(), torch.randn(1, 7, 8, dtype=WIDE)
    x.requires_grad_()

    def drawn(x):
        torch.manual_seed(seed)
        return layer(x)

    assert torch.autograd.gradcheck(drawn, (x,), fast_mode=True)


@pytest.mark.parametrize(
    ("use", "told"),
    [
        (lambda: TalkingHeadsAttention(16, 3), "embed_dim=16, heads=3"),
        (lambda: TalkingHeadsAttention(0, 4), "embed_dim=0"),
        (lambda: TalkingHeadsAttention(16, [HeadGroup(2, 4), HeadGroup(2, 8)]), "2 groups"),
        (lambda: TalkingHeadsAttention(16, 4, dropout=1.5), "dropout=1.5"),
        (lambda: TalkingHeadsAttention(16, 4)(torch.randn(2, 5, 15)), r"query \(batch, length, 16\)"),
        (lambda: TalkingHeadsAttention(16, 4)(torch.randn(2, 5, 16), torch.randn(2, 4, 16), mask=causal()), "q_offset"),
        (
            lambda: TalkingHeadsAttention(16, 4)(torch.randn(2, 5, 16), cache=TalkingHeadsAttention(16).cache(batch=2)),
            "a cache of this module",
        ),
    ],
)
@pytest.mark.usefixtures("unhooked")
def test_what_does_not_fit_is_refused(use, told):
    with pytest.raises(MultiheadError, match=f"(?s){told}"):
        use()


def test_it_says_what_it_is():
    assert "kv_heads=2" in repr(TalkingHeadsAttention(16, HeadGroup(4, kv_heads=2), dropout=0.1))
