"""The module in place of nn.MultiheadAttention: where it must give the same, and where it must not."""

import copy
import io

import pytest
import torch
from torch import nn

from multihead.error import MultiheadError
from multihead.hooks import gated, locate, watching
from multihead.interop.compat import MultiheadAttention, multi_head_attention_forward
from multihead.layer import MultiHeadAttention
from multihead.pattern import padding

CLOSE = {"rtol": 1e-5, "atol": 1e-5}
BUILDS = [
    {},
    {"bias": False},
    {"add_bias_kv": True, "add_zero_attn": True},
    {"kdim": 10, "vdim": 14},
    {"batch_first": True},
    {"kdim": 10, "batch_first": True, "add_zero_attn": True},
]


def pair(heads=4, **options):
    """torch's module and ours, with the same random weights, biases and learned keys."""
    theirs, ours = nn.MultiheadAttention(12, heads, **options), MultiheadAttention(12, heads, **options)
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.4)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def inputs(module, q_len=5, kv_len=7, batch=2):
    made = [torch.randn(batch, q_len, 12), torch.randn(batch, kv_len, module.kdim)]
    made.append(torch.randn(batch, kv_len, module.vdim))
    return made if module.batch_first else [x.transpose(0, 1) for x in made]


def close(got, want):
    for mine, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(mine, theirs, **CLOSE)


@pytest.mark.parametrize("options", BUILDS, ids=str)
def test_the_same_seed_gives_the_same_parameters_in_the_same_order(options):
    made = []
    for kind in (nn.MultiheadAttention, MultiheadAttention):
        torch.manual_seed(3)
        made.append(kind(12, 4, **options).state_dict())
    assert list(made[0]) == list(made[1])
    assert all(torch.equal(made[0][name], made[1][name]) for name in made[0])


def masks(kind, batch=2, heads=4, q_len=5, kv_len=7):
    padded = torch.arange(kv_len) >= torch.randint(1, kv_len + 1, (batch, 1))
    hidden = torch.rand(q_len, kv_len) < 0.5
    each = torch.rand(batch * heads, q_len, kv_len) < 0.5
    padded[:, 0] = hidden[:, 0] = each[..., 0] = False  # torch gives NaN to rows that see nothing
    floating = torch.where(padded, -torch.inf, torch.randn(batch, kv_len))
    return {
        "none": {},
        "padding": {"key_padding_mask": padded},
        "pairs": {"attn_mask": hidden},
        "pairs of each head": {"attn_mask": each},
        "both": {"key_padding_mask": padded, "attn_mask": each},
        "numbers": {"attn_mask": torch.randn(batch * heads, q_len, kv_len)},
        "numbers twice": {"key_padding_mask": floating, "attn_mask": torch.randn(q_len, kv_len)},
    }[kind]


MASKS = ["none", "padding", "pairs", "pairs of each head", "both", "numbers", "numbers twice"]


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("options", BUILDS, ids=str)
@pytest.mark.parametrize("average", [True, False])
def test_outputs_and_weights_are_torchs(options, kind, average):
    theirs, ours = pair(**options)
    given = inputs(ours)
    named = masks(kind) | {"average_attn_weights": average}
    want = theirs(*given, **named)
    close(ours(*given, **named), want)
    out, none = ours(*given, **named, need_weights=False)
    assert none is None
    torch.testing.assert_close(out, want[0], **CLOSE)


def test_one_tensor_in_three_places_and_one_sequence_without_a_batch():
    theirs, ours = pair()
    x = torch.randn(5, 2, 12)
    close(ours(x, x, x), theirs(x, x, x))
    lone, keys = torch.randn(5, 12), torch.randn(7, 12)
    named = {"key_padding_mask": torch.arange(7) > 4, "attn_mask": torch.randn(4, 5, 7), "average_attn_weights": False}
    named["key_padding_mask"] = torch.zeros(7).masked_fill(named["key_padding_mask"], -torch.inf)
    close(ours(lone, keys, keys, **named), theirs(lone, keys, keys, **named))


def test_gradients_are_torchs():
    theirs, ours = pair(add_bias_kv=True, dropout=0.0)
    given = [x.requires_grad_() for x in inputs(ours)]
    results, masks_given = [], masks("numbers twice")
    for module in (theirs, ours):
        out, weights = module(*given, **masks_given)
        results.append(torch.autograd.grad((out**2).sum() + (weights**2).sum(), [*given, *module.parameters()]))
    for got, want in zip(*reversed(results), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("graded", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_a_sequence_of_padding_alone_gives_0_and_harms_nobody(need_weights, graded, training):
    _, ours = pair(batch_first=True)
    ours.train(training)
    x = torch.randn(2, 5, 12)
    padded = torch.tensor([[False] * 5, [True] * 5])
    for mask in (padded, torch.zeros(2, 5).masked_fill(padded, -torch.inf)):
        with torch.set_grad_enabled(graded):
            out, weights = ours(x, x, x, key_padding_mask=mask, need_weights=need_weights)
            alone, _ = ours(x[:1], x[:1], x[:1], need_weights=need_weights)
        torch.testing.assert_close(out[:1], alone, **CLOSE)
        torch.testing.assert_close(out[1], ours.out_proj.bias.expand(5, 12), rtol=0, atol=0)
        if need_weights:
            assert not weights[1].any()
        if graded:
            grads = torch.autograd.grad(out[0].sum(), ours.parameters(), retain_graph=True)
            for got, want in zip(grads, torch.autograd.grad(alone.sum(), ours.parameters()), strict=True):
                torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"add_bias_kv": True}, {"add_zero_attn": True}], ids=str)
@pytest.mark.parametrize("padded", [False, True])
def test_is_causal_is_a_rule_beside_the_masks_with_and_without_weights(options, padded):
    theirs, ours = pair(**options)
    given = inputs(ours, q_len=6, kv_len=6)
    triangle = torch.ones(6, 6).triu(1).bool()
    named = {"key_padding_mask": torch.tensor([[False] * 6, [False] * 4 + [True] * 2])} if padded else {}
    want = theirs(*given, attn_mask=triangle, **named)
    close(ours(*given, is_causal=True, **named), want)
    close(ours(*given, is_causal=True, attn_mask=triangle, **named), want)
    everything = torch.zeros(6, 6, dtype=torch.bool)
    close(ours(*given, is_causal=True, attn_mask=everything, **named), want)
    out, _ = ours(*given, is_causal=True, attn_mask=everything, need_weights=False, **named)
    torch.testing.assert_close(out, want[0], **CLOSE)


def test_dropout_is_of_training_alone_and_the_weights_are_clean():
    _, ours = pair(dropout=0.5, batch_first=True)
    x = torch.randn(1, 6, 12).expand(600, -1, -1)
    exact, weights = ours.eval()(x[:1], x[:1], x[:1])
    assert torch.equal(*(ours(x, x, x)[0] for _ in range(2)))
    out, told = ours.train()(x, x, x)
    torch.testing.assert_close(told, weights.expand_as(told), **CLOSE)
    assert not torch.equal(out[0], out[1])
    assert ((out.mean(0) - exact[0]).abs() <= 6 * out.std(0) / 600**0.5 + 1e-4).all()


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
def test_inside_of_torchs_encoder_layer(norm_first, batch_first, monkeypatch):
    layer = nn.TransformerEncoderLayer(12, 4, 20, dropout=0.0, batch_first=batch_first, norm_first=norm_first)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.3)
    swapped = copy.deepcopy(layer)
    swapped.self_attn = MultiheadAttention(12, 4, batch_first=batch_first)
    swapped.load_state_dict(layer.state_dict())
    ran = []
    plain = MultiheadAttention.attend
    monkeypatch.setattr(MultiheadAttention, "attend", lambda self, problem: ran.append(1) or plain(self, problem))
    x = torch.randn(2, 6, 12) if batch_first else torch.randn(6, 2, 12)
    padded = torch.tensor([[False] * 6, [False] * 4 + [True] * 2])
    order = nn.Transformer.generate_square_subsequent_mask(6)
    for named in (
        {},
        {"src_key_padding_mask": padded},
        {"src_mask": order, "is_causal": True},
        {"src_mask": order, "src_key_padding_mask": torch.zeros(2, 6).masked_fill(padded, -torch.inf)},
    ):
        want = layer.train()(x, **named)
        for training in (True, False):
            for graded in (True, False):
                with torch.set_grad_enabled(graded):
                    torch.testing.assert_close(swapped.train(training)(x, **named), want, **CLOSE)
    assert len(ran) == 16


def test_inside_of_torchs_decoder_layer():
    layer = nn.TransformerDecoderLayer(12, 4, 20, dropout=0.0, batch_first=True)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.3)
    swapped = copy.deepcopy(layer)
    for name in ("self_attn", "multihead_attn"):
        setattr(swapped, name, MultiheadAttention(12, 4, batch_first=True))
    swapped.load_state_dict(layer.state_dict())
    x, memory = torch.randn(2, 6, 12), torch.randn(2, 9, 12)
    order = nn.Transformer.generate_square_subsequent_mask(6)
    named = {"tgt_mask": order, "memory_key_padding_mask": torch.arange(9).expand(2, 9) > 6}
    torch.testing.assert_close(swapped(x, memory, **named), layer(x, memory, **named), **CLOSE)


def test_it_is_seen_and_gated_inside_of_torchs_layer_once_a_call():
    layer = nn.TransformerEncoderLayer(12, 4, 20, batch_first=True)
    layer.self_attn = MultiheadAttention(12, 4, batch_first=True)
    model, x, calls = nn.Sequential(layer).eval(), torch.randn(2, 6, 12), []
    assert [(entry.site.module, entry.how, entry.heads) for entry in locate(model)] == [("0.self_attn", "seen", 4)]
    with torch.no_grad():
        plain = model(x)
        with watching(model, calls.append):
            assert torch.equal(model(x), plain)
        (call,) = calls
        projected = call.output.flatten(2) @ layer.self_attn.out_proj.weight.T + layer.self_attn.out_proj.bias
        torch.testing.assert_close(projected, layer.self_attn(x, x, x)[0], **CLOSE)
        with gated(model, {f"L0.H{head}": 0.0 for head in range(4)}):
            shut = layer.self_attn(x, x, x)[0]
    torch.testing.assert_close(shut, layer.self_attn.out_proj.bias.expand(2, 6, 12), rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:.*[Nn]ested.tensor")  # once a process
def test_an_encoder_of_swapped_layers_says_what_to_do_with_nested_tensors():
    layer = nn.TransformerEncoderLayer(12, 4, 20, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2).eval()
    for each in encoder.layers:
        each.self_attn = MultiheadAttention(12, 4, batch_first=True)
    padded = torch.tensor([[False] * 6, [False] * 4 + [True] * 2])
    x = torch.randn(2, 6, 12)
    with torch.no_grad():
        with pytest.raises(MultiheadError, match="use_nested_tensor = False"):
            encoder(x, src_key_padding_mask=padded)
        encoder.use_nested_tensor = False
        assert encoder(x, src_key_padding_mask=padded).isfinite().all()


def test_it_is_saved_copied_and_moved():
    theirs, ours = pair(add_bias_kv=True)
    twin = copy.deepcopy(ours)
    held = io.BytesIO()
    torch.save(twin.state_dict(), held)
    held.seek(0)
    theirs.load_state_dict(torch.load(held, weights_only=True))
    given = inputs(ours)
    close(twin(*given), theirs(*given))
    short = ours.to(torch.bfloat16)
    out, weights = short(*[x.bfloat16() for x in given])
    assert out.dtype == weights.dtype == torch.bfloat16
    made = MultiheadAttention(12, 4, device="meta", dtype=torch.float64)
    assert {(p.dtype, p.device.type) for p in made.parameters()} == {(torch.float64, "meta")}
    assert str(MultiheadAttention(12, 4, batch_first=True)).startswith("MultiheadAttention(\n  12, 4, batch_first=True")


def test_the_function_takes_fixed_keys_and_values():
    _, ours = pair()
    query, key, value = inputs(ours)
    weights = (ours.in_proj_weight, ours.in_proj_bias, None, None, False, 0.0, ours.out_proj.weight, ours.out_proj.bias)
    fixed = torch.randn(2 * 4, 7, 3), torch.randn(2 * 4, 7, 3)
    named = {"static_k": fixed[0], "static_v": fixed[1]}
    want = nn.functional.multi_head_attention_forward(query, key, value, 12, 4, *weights, **named)
    close(multi_head_attention_forward(query, key, value, 12, 4, *weights, **named), want)


def test_our_own_module_converted_from_it_gives_the_same():
    theirs, ours = pair(batch_first=True)
    x = torch.randn(2, 6, 12)
    padded = torch.arange(6) >= torch.tensor([[6], [3]])
    own = MultiHeadAttention.from_torch(theirs)
    torch.testing.assert_close(ours(x, x, x, key_padding_mask=padded)[0], own(x, mask=padding(~padded)), **CLOSE)


def test_message_sizes():
    with pytest.raises(MultiheadError, match=r"divide.*\n  got: embed_dim=10, num_heads=3\n  fix: .*1, 2, 5, 10"):
        MultiheadAttention(10, 3)
    with pytest.raises(MultiheadError, match="embed_dim=0, num_heads=1"):
        MultiheadAttention(0, 1)
    x = torch.randn(3, 2, 12)
    with pytest.raises(MultiheadError, match=r"embed_dim_to_check=8, num_heads=2"):
        multi_head_attention_forward(x, x, x, 8, 2, None, None, None, None, False, 0.0, x, None)


def test_message_inputs():
    module = MultiheadAttention(12, 4)
    q, k = torch.randn(5, 2, 12), torch.randn(7, 2, 12)
    for given in ((q, k, k[..., :6]), (q, k[:, 0], k[:, 0]), (q[None], k[None], k[None])):
        with pytest.raises(MultiheadError, match=r"\(length, batch, width\).*12, 12, 12"):
            module(*given)
    for given in ((q, k[:, :1], k[:, :1]), (q, k, k[:6])):
        with pytest.raises(MultiheadError, match=r"one batch size.*\n.*\n  fix: .*batch_first=True"):
            module(*given)


def test_message_masks():
    module = MultiheadAttention(12, 4, batch_first=True)
    x = torch.randn(2, 5, 12)
    with pytest.raises(MultiheadError, match=r"key_padding_mask.*kv_len\) = \(2, 5\)\n  got: .*\(5, 2\)"):
        module(x, x, x, key_padding_mask=torch.zeros(5, 2).bool())
    with pytest.raises(MultiheadError, match=r"attn_mask.*\(5, 5\) or .* = \(8, 5, 5\)\n  got: .*\(2, 5, 5\)"):
        module(x, x, x, attn_mask=torch.zeros(2, 5, 5).bool())
    with pytest.raises(MultiheadError, match=r"int64\n  fix: .*bool\(\)"):
        module(x, x, x, attn_mask=torch.zeros(5, 5).long())
