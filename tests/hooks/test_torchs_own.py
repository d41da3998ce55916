"""torch's own attention modules, with the fast path that no one can look into."""

import pytest
import torch
from torch import nn

from hooks.oracle import weights_of
from hooks.own import HEADS, LENGTH, WIDTH, ready, states, told
from multihead.error import MultiheadError
from multihead.hooks import addresses, gated, locate, watching

MASKS = ["none", "padding", "causal", "floats", "both"]


def masks(kind, length):
    padding = torch.zeros(2, length, dtype=torch.bool)
    padding[1, -2:] = True
    causal = torch.ones(length, length).triu(1).bool()
    return {
        "none": {},
        "padding": {"key_padding_mask": padding},
        "causal": {"attn_mask": causal},
        "floats": {"attn_mask": torch.randn(length, length)},
        "both": {"key_padding_mask": padding, "attn_mask": causal},
    }[kind]


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("kind", MASKS)
def test_torchs_multihead_attention(batch_first, need_weights, kind, grad):
    model, x = ready(nn.MultiheadAttention(WIDTH, HEADS, batch_first=batch_first)), states()
    turned = x if batch_first else x.transpose(0, 1)
    options = masks(kind, LENGTH) | {"need_weights": need_weights, "average_attn_weights": False}
    calls = []
    with torch.set_grad_enabled(grad):
        plain, _ = model(turned, turned, turned, **options)
        with watching(model, calls.append) as watched:
            got, _ = model(turned, turned, turned, **options)
        _, want = model(turned, turned, turned, **(options | {"need_weights": True}))
    assert torch.equal(got, plain)
    (call,) = calls
    assert list(addresses(watched.sites).values()) == [("", 0)]
    torch.testing.assert_close(weights_of(call.problem), want.double(), atol=1e-5, rtol=0)
    assert call.projection.weight is model.out_proj.weight
    projected = call.output.flatten(2) @ model.out_proj.weight.T + model.out_proj.bias
    torch.testing.assert_close(projected, plain if batch_first else plain.transpose(0, 1), atol=1e-5, rtol=1e-5)


def test_torchs_multihead_attention_over_other_keys():
    model = ready(nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, kdim=6, vdim=5))
    ((place, call),) = told(model, states(), torch.randn(2, 9, 6), torch.randn(2, 9, 5))
    assert place == ("cross", 0)
    assert (call.problem.q_len, call.problem.kv_len) == (LENGTH, 9)


@pytest.mark.filterwarnings("ignore:.*[Nn]ested.tensor")
@pytest.mark.parametrize("kind", ["none", "padding", "causal"])
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
def test_torchs_encoder_keeps_its_fast_path(batch_first, norm_first, kind, monkeypatch):
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 24, batch_first=batch_first, norm_first=norm_first)
    model = ready(nn.TransformerEncoder(layer, 2, enable_nested_tensor=not norm_first))
    x = states() if batch_first else states().transpose(0, 1)
    given = {"key_padding_mask": "src_key_padding_mask", "attn_mask": "mask"}
    options = {given[name]: mask for name, mask in masks(kind, LENGTH).items()}
    fast = []
    kernel = torch._transformer_encoder_layer_fwd
    monkeypatch.setattr(torch, "_transformer_encoder_layer_fwd", lambda *a, **k: fast.append(1) or kernel(*a, **k))
    calls = told(model, x, **options)
    # Without watch, under watch, and after.
    assert len(fast) == (6 if batch_first else 0)
    assert [place for place, _ in calls] == [("", 0), ("", 1)]
    for (_, n), call in calls:
        attention = model.layers[n].self_attn
        assert call.projection.weight is attention.out_proj.weight
        assert call.residual.shape == (2, LENGTH, WIDTH)
        with torch.no_grad():
            hidden = call.residual if batch_first else call.residual.transpose(0, 1)
            hidden = model.layers[n].norm1(hidden) if norm_first else hidden
            _, want = attention(
                hidden, hidden, hidden, **masks(kind, LENGTH), need_weights=True, average_attn_weights=False
            )
        torch.testing.assert_close(weights_of(call.problem), want.double(), atol=1e-5, rtol=0)
    assert torch.equal(calls[0][1].residual, x if batch_first else x.transpose(0, 1))
    assert [entry.site for entry in locate(model)] == [call.site for _, call in calls]


@pytest.mark.filterwarnings("ignore:.*[Nn]ested.tensor")
@pytest.mark.parametrize("batch_first", [False, True])
def test_torchs_transformer_with_a_decoder(batch_first):
    model = ready(nn.Transformer(WIDTH, HEADS, 2, 2, 24, batch_first=batch_first))
    source, target = (states(n) if batch_first else states(n).transpose(0, 1) for n in (LENGTH, 5))
    causal = nn.Transformer.generate_square_subsequent_mask(5)
    calls = told(model, source, target, tgt_mask=causal, tgt_is_causal=True)
    assert [place for place, _ in calls] == [
        ("encoder", 0),
        ("encoder", 1),
        ("decoder", 0),
        ("cross", 0),
        ("decoder", 1),
        ("cross", 1),
    ]
    assert {entry.site for entry in locate(model)} == {call.site for _, call in calls}
    for (stack, _), call in calls:
        sizes = {"encoder": (LENGTH, LENGTH), "decoder": (5, 5), "cross": (5, LENGTH)}[stack]
        assert (call.problem.q_len, call.problem.kv_len) == sizes
        assert call.projection.weight is not None
        assert call.residual.shape == (2, sizes[0], WIDTH)
        if stack == "decoder":
            assert not weights_of(call.problem).triu(1).any()


def test_a_hook_of_the_users_own_runs_once_and_keeps_torchs_path():
    model = ready(nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, HEADS, 24, batch_first=True), 2))
    ran = []
    model.layers[1].linear1.register_forward_hook(lambda *_: ran.append(1))
    calls = told(model, states())
    assert len(ran) == 3
    assert [place for place, _ in calls] == [("", 0), ("", 1)]


@pytest.mark.filterwarnings("ignore:.*[Nn]ested.tensor")
def test_a_packed_input_that_meets_hooks_is_refused_and_goes_its_way():
    model = ready(nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, HEADS, 24, batch_first=True), 2))
    model.layers[1].register_forward_hook(lambda *_: None)
    x, options = states(), {"src_key_padding_mask": masks("padding", LENGTH)["key_padding_mask"]}
    passes = []
    with torch.no_grad():
        plain = model(x, **options)
        with (
            pytest.raises(MultiheadError, match="its input is a nested tensor"),
            watching(model, lambda call: None, on_pass=passes.append),
        ):
            assert torch.equal(model(x, **options), plain)
    assert passes == [True]


def test_training_and_gradients_of_torchs_encoder_are_the_same():
    model = ready(nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, HEADS, 24, 0.2, batch_first=True), 2)).train()
    x, results, calls = states(), [], []
    for watch in (False, True):
        torch.manual_seed(3)
        if watch:
            with watching(model, calls.append):
                loss = model(x).square().sum()
        else:
            loss = model(x).square().sum()
        results.append(torch.autograd.grad(loss, list(model.parameters())))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    assert [call.problem.dropout for call in calls] == [0.2, 0.2]


def test_gradients_of_a_gate_on_torchs_attention():
    model, x, gate = (
        ready(nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)),
        states(),
        torch.ones((), requires_grad=True),
    )
    with gated(model, {"L0.H1": gate}):
        (got,) = torch.autograd.grad(model(x, x, x)[0].square().sum(), gate)
    base = model(x, x, x)[0]
    with torch.no_grad(), gated(model, {"L0.H1": 0.0}):
        part = base - model(x, x, x)[0]
    torch.testing.assert_close(got, (2 * base * part).sum().detach(), rtol=1e-3, atol=1e-3)
