"""Attention that has no seam: written out by hand, or torch's own modules."""

import pytest
import torch
from torch import nn

from hooks.families import randomise
from hooks.oracle import output_of, weights_of
from hooks.own import (
    HEADS,
    LENGTH,
    WIDTH,
    ManyHeads,
    MultiHeadedAttention,
    NanoGPT,
    OneModule,
    Tutorial,
)
from hooks.tail_fallback import FALLBACK
from multihead.error import MultiheadError
from multihead.hooks import addresses, gated, locate, watching
from multihead.layer import MultiHeadAttention


def ready(model):
    randomise(model)
    return model.eval()


def states(length=LENGTH, batch=2):
    return torch.randn(batch, length, WIDTH)


def told(model, *given, **named):
    """Calls of a model with their addresses, after a check that watching changes nothing."""
    calls = []
    with torch.no_grad():
        plain = model(*given, **named)
        with watching(model, calls.append) as watched:
            got = model(*given, **named)
        after = model(*given, **named)
    for other in (got, after):
        first = [t for t in other if t is not None] if isinstance(other, tuple) else [other]
        want = [t for t in plain if t is not None] if isinstance(plain, tuple) else [plain]
        assert all(torch.equal(a, b) for a, b in zip(first, want, strict=True))
    assert not any("forward" in vars(module) for module in model.modules())
    places = addresses(watched.sites)
    for call in calls:
        rows = torch.isfinite(weights_of(call.problem)).all(-1).transpose(1, 2)[..., None]
        out = torch.where(rows, output_of(call.problem), 0.0)
        torch.testing.assert_close(out, torch.where(rows, call.output.double(), 0.0), atol=1e-5, rtol=0)
    return [(places[call.site], call) for call in calls]


@pytest.mark.parametrize("style", ["functional", "torch", "method", "module"])
def test_the_usual_tutorial_module_without_an_output_projection(style):
    model = ready(Tutorial(style))
    ((place, call),) = told(model, states())
    assert place == ("", 0)
    assert call.kernel == "softmax (fallback)"
    assert call.problem.head_dim == WIDTH // HEADS
    assert call.problem.scale == pytest.approx((WIDTH // HEADS) ** -0.5)
    assert call.problem.mask is None
    assert call.problem.bias is None
    torch.testing.assert_close(weights_of(call.problem), model.seen.double(), atol=1e-6, rtol=0)
    assert call.projection.weight is None
    assert "no linear layer was fed" in call.projection.reason
    assert [(entry.how, entry.heads) for entry in locate(model)] == [("fallback", HEADS)]


def test_heads_that_are_modules_of_their_own_are_layers_of_one_head():
    model = ready(ManyHeads())
    # As many sequences as places: three dimensions are not to be taken apart the wrong way.
    for batch in (2, HEADS, LENGTH):
        calls = told(model, states(batch=batch))
        assert [place for place, _ in calls] == [("", n) for n in range(HEADS)]
        for (_, call), head in zip(calls, model.heads, strict=True):
            assert call.problem.q.shape == (batch, 1, LENGTH, WIDTH // HEADS)
            torch.testing.assert_close(weights_of(call.problem)[:, 0], head.seen.double(), atol=1e-6, rtol=0)
            assert torch.equal(call.problem.mask[0, 0], torch.ones(LENGTH, LENGTH).tril().bool())


@pytest.mark.parametrize("flash", [True, False])
def test_nanogpt_fused_or_by_hand(flash):
    model, ids = ready(NanoGPT(flash)), torch.randint(30, (2, LENGTH))
    calls = told(model, input_ids=ids)
    assert [place for place, _ in calls] == [("", 0), ("", 1)]
    for (_, layer), call in calls:
        block = model.h[layer]
        assert call.projection.weight is block.attn.c_proj.weight
        assert call.kernel == ("scaled_dot_product_attention (fallback)" if flash else "softmax (fallback)")
        assert call.residual.shape == (2, LENGTH, WIDTH)
        causal = torch.ones(LENGTH, LENGTH).tril()
        assert torch.equal(weights_of(call.problem) > 0, causal.bool().expand(2, HEADS, LENGTH, LENGTH))
    assert torch.equal(calls[0][1].residual, model.wte(ids))


def test_both_ways_of_nanogpt_tell_the_same():
    one, other, ids = ready(NanoGPT(True)), NanoGPT(False).eval(), torch.randint(30, (2, LENGTH))
    other.load_state_dict(one.state_dict())
    for (_, a), (_, b) in zip(told(one, ids), told(other, ids), strict=True):
        torch.testing.assert_close(weights_of(a.problem), weights_of(b.problem), atol=1e-5, rtol=0)


@pytest.mark.parametrize("crossed", [False, True])
def test_a_function_beside_the_module_and_a_mask_of_a_large_number(crossed):
    model, x = ready(MultiHeadedAttention()), states()
    memory = states(5) if crossed else x
    keep = torch.ones(2, 1, 1, memory.shape[1])
    keep[1, ..., -2:] = 0
    ((place, call),) = told(model, x, memory, memory, mask=keep)
    assert place == ("cross" if crossed else "", 0)
    assert torch.equal(call.problem.mask.expand(2, 1, 1, -1), keep.bool())
    assert call.problem.bias is None
    torch.testing.assert_close(weights_of(call.problem), model.attn.double(), atol=1e-6, rtol=0)
    assert call.projection.weight is model.linears[3].weight


def test_a_whole_transformer_in_one_forward_has_its_layers():
    model = ready(OneModule())
    calls = told(model, states())
    assert [(place, call.site.repeat) for place, call in calls] == [(("", n), n) for n in range(3)]
    for layer, (_, call) in enumerate(calls):
        assert call.projection.weight is model.out[layer].weight
        assert call.site.module == ""


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


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", ["bloom", "gpt-neo", "mpnet", "deberta-v2", "falcon", "openai-gpt"])
def test_other_dtypes(name, dtype):
    tail = FALLBACK[name]
    model, calls = tail.build("eager").to(dtype), []
    inputs = tail.inputs()
    with torch.no_grad():
        plain = model(**inputs, output_attentions=True)
        with watching(model, calls.append):
            assert torch.equal(model(**inputs)[0], plain[0])
    for call, want in zip(calls, plain.attentions, strict=True):
        # The model rounds scores and weights; what is told is worked out from what it has before or after.
        slack = 1e-6 if dtype == torch.float64 else 0.05
        torch.testing.assert_close(weights_of(call.problem), want.double(), atol=slack, rtol=0)


def test_watching_in_the_middle_of_a_mode_of_the_users_own():
    class Counted(torch.overrides.TorchFunctionMode):
        count = 0

        def __torch_function__(self, func, types, args=(), kwargs=None):
            Counted.count += func is torch.nn.functional.softmax
            return func(*args, **(kwargs or {}))

    model, calls = ready(Tutorial()), []
    with torch.no_grad(), Counted(), watching(model, calls.append):
        model(states())
    assert (Counted.count, len(calls)) == (1, 1)


def test_weights_that_are_changed_after_the_softmax_are_not_told():
    class Sharpened(Tutorial):
        def forward(self, x):
            q, k, v = (f(x).view(*x.shape[:2], HEADS, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
            weights = (q @ k.mT).softmax(-1) ** 2
            return weights @ v

    model = ready(Sharpened())
    with pytest.raises(MultiheadError, match="its weights go through pow after"), watching(model, lambda call: None):
        model(states())


def test_rows_that_are_emptied_after_the_softmax_are_masked():
    class Emptied(Tutorial):
        def forward(self, x, keep):
            q, k, v = (f(x).view(*x.shape[:2], HEADS, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
            shut = ~keep[:, None, None]
            weights = (q @ k.mT).masked_fill(shut, -torch.inf).softmax(-1).masked_fill(~keep[:, None, :, None], 0.0)
            return weights @ v

    model, calls = ready(Emptied()), []
    keep = torch.ones(2, LENGTH, dtype=torch.bool)
    keep[1, -2:] = False
    with torch.no_grad(), watching(model, calls.append):
        model(states(), keep)
    want = (keep[:, None, :, None] & keep[:, None, None]).expand(2, HEADS, LENGTH, LENGTH)
    assert torch.equal(calls[0].problem.mask.expand_as(want), want)


def test_attention_in_pieces_is_not_told():
    class Halves(Tutorial):
        def forward(self, x):
            q, k, v = (f(x).view(*x.shape[:2], HEADS, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
            return torch.cat([(part @ k.mT).softmax(-1) @ v for part in q.split(4, dim=2)], dim=2)

    model = ready(Halves())
    with pytest.raises(MultiheadError, match="in pieces, block by block"), watching(model, lambda call: None):
        model(states())
    with pytest.raises(MultiheadError, match="in pieces"), gated(model, {"L0.H0": 0.0}):
        model(states())


def test_both_kinds_in_one_model_are_seen():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([Tutorial(), MultiHeadAttention(WIDTH, HEADS), ManyHeads()])

        def forward(self, x):
            for layer in self.layers:
                x = x + layer(x)
            return x

    calls = told(ready(Both()), states())
    assert [call.kernel.partition(" ")[0] for _, call in calls] == ["softmax", "multihead", *["softmax"] * HEADS]


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


@pytest.mark.parametrize(
    ("model", "given"),
    [
        (Tutorial, 1),
        (lambda: NanoGPT(True), "ids"),
        (lambda: NanoGPT(False), "ids"),
        (ManyHeads, 1),
        (lambda: nn.MultiheadAttention(WIDTH, HEADS, batch_first=True), 3),
        (lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, HEADS, 24, batch_first=True), 2), 1),
    ],
)
def test_a_closed_gate_silences_a_head(model, given):
    model = ready(model())
    given = (torch.randint(30, (2, LENGTH)),) if given == "ids" else (states(),) * given
    calls = []
    with torch.no_grad():
        plain = model(*given)
        with gated(model, {"L0.H0": 0.0}), watching(model, calls.append):
            closed = model(*given)
        with gated(model, {"L0.H0": 1.0}):
            same = model(*given)
    plain, closed, same = (t[0] if isinstance(t, tuple) else t for t in (plain, closed, same))
    torch.testing.assert_close(same, plain, atol=1e-5, rtol=1e-5)
    assert (calls[0].output[:, :, 0] == 0).all()
    assert (closed - plain).abs().max() > 1e-3
    if calls[0].projection.weight is not None and len(calls) == 1:
        weight = calls[0].projection.weight
        lost = (plain - closed) if plain.shape[:2] == (2, LENGTH) else (plain - closed).transpose(0, 1)
        want = output_of(calls[0].problem)[:, :, 0] @ weight[:, : WIDTH // HEADS].T.double()
        torch.testing.assert_close(lost.double(), want, atol=1e-5, rtol=1e-5)


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
