import math

import pytest
import torch
from transformers.cache_utils import DynamicCache
from transformers.models.qwen3_next.configuration_qwen3_next import Qwen3NextConfig
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

from multihead.error import MultiheadError
from multihead.layer.delta import GatedDeltaNet
from multihead.pattern import causal, document, padding, sliding_window

WIDE = torch.float64


def qwen(key_heads=2, heads=4):
    config = Qwen3NextConfig(
        hidden_size=24,
        num_hidden_layers=1,
        layer_types=["linear_attention"],
        linear_num_key_heads=key_heads,
        linear_num_value_heads=heads,
        linear_key_head_dim=6,
        linear_value_head_dim=5,
        rms_norm_eps=1e-3,
    )
    theirs = Qwen3NextGatedDeltaNet(config, 0)
    with torch.no_grad():
        for weight in theirs.parameters():
            weight.copy_(torch.randn(weight.shape) * (1.0 if weight.ndim == 1 else 0.5))
    ours = GatedDeltaNet.from_qwen(theirs.state_dict(), key_heads=key_heads, eps=1e-3)
    return theirs.eval(), ours.eval(), config


@pytest.mark.parametrize(("key_heads", "heads"), [(2, 4), (1, 3), (3, 3)])
@torch.no_grad()
def test_it_is_the_layer_of_qwen(key_heads, heads):
    theirs, ours, _ = qwen(key_heads, heads)
    x = torch.randn(2, 70, 24)
    want = theirs(x)
    torch.testing.assert_close(ours(x), want, rtol=1e-3, atol=1e-4)
    assert want.abs().mean() > 0.1


@torch.no_grad()
def test_prefill_in_chunks_and_steps_are_those_of_qwen():
    theirs, ours, config = qwen()
    x = torch.randn(2, 20, 24)
    cache, past = ours.cache(batch=2), DynamicCache(config=config)
    for part in x.split([9, 1, 1, 6, 1, 1, 1], 1):
        torch.testing.assert_close(ours(part, cache=cache), theirs(part, cache=past), rtol=1e-3, atol=1e-4)
    assert cache.length == 20


@torch.no_grad()
def test_padding_on_the_left_is_that_of_qwen():
    theirs, ours, _ = qwen()
    x, keep = torch.randn(2, 12, 24), torch.arange(12) >= torch.tensor([[0], [5]])
    got, want = ours(x, mask=causal() & padding(keep)), theirs(x, attention_mask=keep.long())
    torch.testing.assert_close(got[keep], want[keep], rtol=1e-3, atol=1e-4)


def test_a_state_dict_without_a_tensor_is_refused():
    theirs, _, _ = qwen()
    state = theirs.state_dict()
    del state["A_log"]
    with pytest.raises(MultiheadError, match=r"(?s)a Qwen3NextGatedDeltaNet.*without A_log"):
        GatedDeltaNet.from_qwen(state, key_heads=2)


def by_hand(layer, x):
    """The definition for one sequence, token by token and head by head."""
    w = {name: p.detach() for name, p in layer.named_parameters()}
    raw = torch.cat([x @ w[f"{name}_proj.weight"].T for name in "qkv"], -1)
    width, out = layer.conv_width, []
    states = [torch.zeros(layer.head_dim, layer.v_head_dim, dtype=x.dtype) for _ in range(layer.heads)]
    for t in range(len(x)):
        mixed = sum(raw[t - s] * w["conv"][:, width - 1 - s] for s in range(width) if t >= s)
        mixed = mixed * torch.sigmoid(mixed)
        keys = layer.key_heads * layer.head_dim
        parts, heads = mixed.split([keys, keys, len(mixed) - 2 * keys]), []
        for h in range(layer.heads):
            g = h * layer.key_heads // layer.heads
            q, k = (part[g * layer.head_dim : (g + 1) * layer.head_dim] for part in parts[:2])
            q, k = (part / (part @ part + 1e-6).sqrt() for part in (q, k))
            v = parts[2][h * layer.v_head_dim : (h + 1) * layer.v_head_dim]
            beta = torch.sigmoid(w["beta_proj.weight"][h] @ x[t]) * (2 if layer.negative_eigenvalues else 1)
            step = torch.log1p(torch.exp(w["decay_proj.weight"][h] @ x[t] + w["dt_bias"][h]))
            kept = torch.exp(-torch.exp(w["log_rate"][h]) * step) * states[h]
            states[h] = kept + beta * torch.outer(k, v - kept.T @ k)
            read = states[h].T @ q / layer.head_dim**0.5
            read = read / (read.square().mean() + 1e-6).sqrt() * w["norm.weight"]
            gate = w["gate_proj.weight"][h * layer.v_head_dim : (h + 1) * layer.v_head_dim] @ x[t]
            heads.append(read * gate * torch.sigmoid(gate))
        out.append(torch.cat(heads) @ w["out_proj.weight"].T)
    return torch.stack(out)


@pytest.fixture
def layer(randomise):
    return randomise(GatedDeltaNet(16, heads=4, key_heads=2, head_dim=5, v_head_dim=3, conv_width=3)).double()


@pytest.mark.parametrize("negative", [False, True])
def test_the_definition_by_hand(randomise, negative):
    layer = randomise(GatedDeltaNet(16, heads=2, key_heads=1, head_dim=4, negative_eigenvalues=negative)).double()
    x = torch.randn(2, 7, 16, dtype=WIDE)
    got = layer(x)
    for b in range(2):
        torch.testing.assert_close(got[b], by_hand(layer, x[b]), rtol=1e-9, atol=1e-9)


def test_any_split_with_a_cache_equals_one_pass(layer):
    x = torch.randn(2, 11, 16, dtype=WIDE)
    ids, keep = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 2, 2, 3]), torch.rand(2, 11) < 0.8
    for mask in (causal(), causal() & document(ids) & padding(keep)):
        want = layer(x, mask=mask)
        for lengths in ([11], [1] * 11, [4, 1, 6], [2, 9]):
            cache = layer.cache(batch=2)
            got = [layer(part, mask=mask, cache=cache) for part in x.split(lengths, 1)]
            torch.testing.assert_close(torch.cat(got, 1), want, rtol=1e-9, atol=1e-9)


def test_documents_in_a_row_are_documents_by_themselves(layer):
    x, ids = torch.randn(1, 12, 16, dtype=WIDE), torch.tensor([5] * 4 + [2] + [7] * 7)
    got = layer(x, mask=causal() & document(ids))
    want = torch.cat([layer(part) for part in x.split([4, 1, 7], 1)], 1)
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)


def test_beams_are_reordered_and_a_state_goes_back(layer):
    x = torch.randn(3, 8, 16, dtype=WIDE)
    want, cache = layer(x), layer.cache(batch=3)
    layer(x[:, :5], cache=cache)
    cache.select([2, 0])
    torch.testing.assert_close(layer(x[[2, 0], 5:6], cache=cache), want[[2, 0], 5:6])
    cache.cut(5)
    torch.testing.assert_close(layer(x[[2, 0], 5:], cache=cache), want[[2, 0], 5:])
    with pytest.raises(MultiheadError, match=r"(?s)cut to 3 tokens.*8 tokens in it.*cut to 0 or 5 or 8"):
        cache.cut(3)
    cache.cut(0)
    assert (cache.length, cache.nbytes) == (0, 0)


def test_gradients_reach_everything(layer):
    x = torch.randn(1, 6, 16, dtype=WIDE, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, *_: layer(x), (x, *layer.parameters()), fast_mode=True)
    layer(x).square().sum().backward()
    assert all(p.grad.any() for p in layer.parameters())


@pytest.mark.parametrize(
    ("use", "told"),
    [
        (lambda: GatedDeltaNet(16, 3), "embed_dim=16, heads=3"),
        (lambda: GatedDeltaNet(16, 4, key_heads=3), "kv_heads=3"),
        (lambda: GatedDeltaNet(16, 4)(torch.randn(1, 3, 15)), r"query \(batch, length, 16\)"),
        (lambda: GatedDeltaNet(16, 4)(torch.randn(1, 3, 16), mask=None), "without causal.*LinearAttention"),
        (lambda: GatedDeltaNet(16, 4)(torch.randn(1, 3, 16), mask=sliding_window(2)), "sliding_window.*Attention"),
        (lambda: GatedDeltaNet(16, 4)(torch.randn(1, 3, 16), mask=torch.ones(3, 3).bool()), "a boolean tensor"),
        (lambda: GatedDeltaNet(16, 4)(torch.randn(1, 3, 16), cache=3), "cache=3"),
        (
            lambda: GatedDeltaNet(16, 4)(torch.randn(1, 3, 16), cache=GatedDeltaNet(16, 2).cache(batch=1)),
            "a cache of this module",
        ),
        (
            lambda: GatedDeltaNet(16, 4)(torch.randn(1, 3, 16), cache=GatedDeltaNet(16, 4).cache(batch=2)),
            "a batch of 1.*cache.select",
        ),
        (lambda: GatedDeltaNet(16, 4).cache(batch=2).select([2]), "rows of a batch of 2"),
        (
            lambda: GatedDeltaNet(16, 4)(torch.randn(1, 3, 16), mask=causal() & document(torch.tensor([0, 1, 0]))),
            "back",
        ),
    ],
)
@pytest.mark.usefixtures("unhooked")
def test_what_does_not_fit_is_refused(use, told):
    with pytest.raises(MultiheadError, match=f"(?s){told}"):
        use()


def test_a_state_is_of_one_layer(randomise):
    first, second = (randomise(GatedDeltaNet(16, 4)) for _ in range(2))
    cache, x = first.cache(batch=1), torch.randn(1, 3, 16)
    first(x, cache=cache)
    with pytest.raises(MultiheadError, match=r"3 tokens of another GatedDeltaNet"):
        second(x, cache=cache)


def test_it_says_what_it_is():
    assert "key_heads=2" in repr(GatedDeltaNet(16, heads=4, key_heads=2, v_head_dim=3))
    assert not GatedDeltaNet.SUPPORT.bidirectional


def test_a_new_layer_remembers():
    """Steps as Mamba begins: most heads keep a token for more than a few others; so they can learn to."""
    layer = GatedDeltaNet(64, heads=64)
    step = torch.log1p(torch.exp(layer.dt_bias.double()))
    assert (step >= 0.999e-3).all()
    assert (step <= 1.001e-1).all()
    assert step.min() < 3e-3, "they are spread like their logarithms"
    assert step.max() > 3e-2
    with torch.no_grad():
        kept = layer.log_decay(torch.zeros(1, 1, 64)).double().flatten()
    torch.testing.assert_close(kept, -(layer.log_rate.double().exp() * step), rtol=1e-5, atol=1e-9)
    assert (math.log(0.5) / kept).median() > 2
