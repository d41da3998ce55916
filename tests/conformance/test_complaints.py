"""What users of attention libraries complained of, on every backend; the numbers are those of one survey of reports.

Most of them have their tests in tests/attend and tests/layer. Here are those that were left: other backends for some,
and the drop-ins, whose masks and names are torch's.
"""

import math

import jaxtyping
import pytest
import torch
from torch import nn

from attend.oracle import attend_slowly, full, near, qkv
from conformance.forcing import attempt, every_backend, only
from hooks.families import FAMILIES, twin
from multihead.attend import Softmax, attention, attention_lse, explain_backend
from multihead.error import MultiheadError
from multihead.interop import compat, register_transformers
from multihead.layer import MultiHeadAttention
from multihead.pattern import causal, document, padding, sliding_window

SUITE = "38 complaints, those of tests/conformance"


@pytest.fixture
def claims(tally):
    """Whether the backend says that it can run a call; counted either way."""

    def asked(backend, q, k, v, **options):
        explained = explain_backend(q, k, v, backend=backend, **options)
        reasons = () if explained.chosen else next(v.reasons for v in explained.verdicts if v.backend == backend)
        tally(SUITE, backend, reasons)
        return not reasons

    return asked


@every_backend
def test_01_a_sample_of_padding_alone_in_inference(backend, claims):
    q, k, v = qkv(kv_len=6)
    keep = torch.tensor([[1, 1, 1, 1, 0, 0], [0, 0, 0, 0, 0, 0]]).bool()
    assert claims(backend, q, k, v, mask=padding(keep))
    attended = attention_lse(q, k, v, mask=padding(keep), backend=backend)
    assert not attended.out[1].any()
    assert (attended.lse[1] == -math.inf).all()
    assert near(attended.out[:1], attention(q[:1], k[:1], v[:1], mask=padding(keep[:1]), backend=backend), 1e-6)


@every_backend
def test_02_a_head_shut_by_torchs_mask_in_the_drop_in(backend):
    module = compat.MultiheadAttention(12, 3, batch_first=True).eval()
    x = torch.randn(2, 5, 12)
    hidden = torch.tensor([False, True, False]).repeat(2)[:, None, None].expand(6, 5, 5)
    with torch.no_grad(), only(backend):
        out, weights = module(x, x, x, attn_mask=hidden, average_attn_weights=False)
        same, _ = module(x, x, x, attn_mask=hidden, need_weights=False)
        _, plain = module(x, x, x, average_attn_weights=False)
    assert torch.equal(out, same)
    assert out.isfinite().all()
    assert not weights[:, 1].any()
    assert torch.equal(weights[:, [0, 2]], plain[:, [0, 2]])


@every_backend
def test_05_torchs_names_mean_what_they_mean_in_torch(backend):
    """True masks out under torch's names, and attends under ours; neither takes the other's."""
    own = MultiHeadAttention(6, heads=1, backend=backend)
    for parameter in own.parameters():
        nn.init.normal_(parameter, std=0.4)
    module = compat.MultiheadAttention(6, 1, batch_first=True)
    module.load_state_dict(
        {
            "in_proj_weight": torch.cat([own.q_proj.weight, own.k_proj.weight, own.v_proj.weight]),
            "in_proj_bias": torch.cat([own.q_proj.bias, own.k_proj.bias, own.v_proj.bias]),
            "out_proj.weight": own.out_proj.weight,
            "out_proj.bias": own.out_proj.bias,
        }
    )
    x, padded = torch.randn(2, 6, 6), torch.arange(6) > torch.tensor([[5], [2]])
    diagonal = torch.eye(6).bool()
    with torch.no_grad(), only(backend):
        assert near(module(x, x, x, key_padding_mask=padded)[0], own(x, mask=padding(~padded)))
        assert near(module(x, x, x, attn_mask=~diagonal)[0], own(x, mask=diagonal))
    with pytest.raises(TypeError, match="key_padding_mask"):
        own(x, mask=padding(~padded), key_padding_mask=padded)
    with pytest.raises(TypeError, match="'mask'"):
        module(x, x, x, key_padding_mask=padded, mask=padding(~padded))


@every_backend
def test_08_a_hint_is_a_rule_in_the_drop_in(backend):
    module = compat.MultiheadAttention(12, 4, batch_first=True).eval()
    x = torch.randn(2, 6, 12)
    with torch.no_grad(), only(backend):
        want, _ = module(x, x, x, attn_mask=torch.ones(6, 6).triu(1).bool())
        for need_weights in (True, False):
            for mask in (None, torch.zeros(6, 6).bool(), torch.zeros(6, 6)):
                got, _ = module(x, x, x, attn_mask=mask, is_causal=True, need_weights=need_weights)
                assert near(got, want)


OPTIONS = {
    "weights": {},
    "softcap": {"softcap": 0.7},
    "bias": {"bias": torch.zeros(1, 1)},
    "sinks": {"normaliser": Softmax(sinks=torch.zeros(4))},
    "window": {"mask": sliding_window(3)},
}


@every_backend
@pytest.mark.parametrize("name", OPTIONS)
def test_09_no_option_lets_the_future_in_in_float16_and_in_the_weights(name, backend, claims):
    q, k, v = qkv(q_len=8, kv_len=8, dtype=torch.float16)
    given = {"mask": causal()} | OPTIONS[name]
    if claims(backend, q, k, v, **given):
        before = attention_lse(q, k, v, **given, backend=backend)
        changed = [torch.cat([x[:, :, :5], torch.full_like(x[:, :, 5:], 99.0)], 2) for x in (q, k, v)]
        after = attention_lse(*changed, **given, backend=backend)
        assert torch.equal(before.out[:, :, :5], after.out[:, :, :5])
        for attended in (before, after):
            assert torch.equal(attended.weights(), attended.weights().tril())


@every_backend
def test_09_three_dimensions_and_dropout_do_not_let_it_in_either(backend):
    q, k, v = (torch.randn(4, 8, 16) for _ in range(3))
    changed = [torch.cat([x[:, :5], torch.full_like(x[:, 5:], 99.0)], 1) for x in (q, k, v)]
    for dropout in (0.0, 0.4) if backend in ("auto", "tiled") else (0.0,):
        out = []
        for inputs in ((q, k, v), changed):
            torch.manual_seed(1)
            with only(backend):
                out.append(compat.scaled_dot_product_attention(*inputs, is_causal=True, dropout_p=dropout))
        assert torch.equal(out[0][:, :5], out[1][:, :5])


@every_backend
def test_12_a_left_padded_model_keeps_its_mask(backend):
    family = FAMILIES["llama"]
    model, inputs = family.build("eager"), family.inputs("left")
    ours = twin(family, model)
    ours.set_attn_implementation(register_transformers())
    real = inputs["attention_mask"].bool()
    with torch.no_grad(), only(backend):
        torch.testing.assert_close(ours(**inputs)[0][real], model(**inputs)[0][real], atol=1e-5, rtol=1e-5)


@every_backend
def test_14_more_queries_than_keys_aligned_at_the_end(backend, claims):
    q, k, v = qkv(q_len=5, kv_len=2)
    assert claims(backend, q, k, v, mask=causal(), q_offset=-3)
    out = attention(q, k, v, mask=causal(), q_offset=-3, backend=backend)
    allowed = full(causal().mask(5, 2, q_offset=-3), 2, 4, 5, 2)
    assert not out[:, :, :3].any()
    assert near(out, attend_slowly(q, k, v, allowed=allowed)[0])
    with only(backend):
        flash = compat.flash_attn_func(*(x.transpose(1, 2) for x in (q, k, v)), causal=True)
    assert torch.equal(flash.transpose(1, 2), out)


@every_backend
def test_16_softcap_does_not_let_forbidden_keys_back_in(backend, claims):
    q, k, v = qkv()
    keep = torch.ones(6, 7).bool()
    keep[:, 3] = False
    poisoned = v.clone()
    poisoned[:, :, 3] = 1e6
    for options in ({"mask": keep}, {"bias": torch.zeros(6, 7).masked_fill(~keep, -math.inf)}):
        given = options | {"softcap": 0.5, "backend": backend}
        if claims(backend, q, k, v, **options, softcap=0.5):
            assert torch.equal(attention(q, k, v, **given), attention(q, k, poisoned, **given))
            assert near(
                attention(q, k, v, **given), attend_slowly(q, k, v, allowed=full(keep, 2, 4, 6, 7), softcap=0.5)[0]
            )


@every_backend
def test_17_sinks_are_one_more_column_that_is_dropped(backend, claims):
    q, k, v = qkv(q_len=7)
    sinks = torch.randn(4)
    options = {"mask": causal(), "normaliser": Softmax(sinks=sinks)}
    assert claims(backend, q, k, v, **options)
    scores = (q @ k.repeat_interleave(2, 1).mT * 8**-0.5).masked_fill(~torch.ones(7, 7).tril().bool(), -math.inf)
    column = sinks[None, :, None, None].expand(2, 4, 7, 1)
    want = torch.softmax(torch.cat([scores, column], -1), -1)[..., :-1] @ v.repeat_interleave(2, 1)
    assert near(attention(q, k, v, **options, backend=backend), want)
    chunks = [
        attention(q[:, :, a:b], k[:, :, :b], v[:, :, :b], **options, q_offset=a, backend=backend)
        for a, b in ((0, 3), (3, 4), (4, 7))
    ]
    assert near(torch.cat(chunks, 2), want)


@every_backend
def test_18_weights_are_those_of_each_head_and_averaged_on_request_only(backend, claims):
    q, k, v = qkv(q_len=6, kv_len=6)
    assert claims(backend, q, k, v, mask=causal())
    attended = attention_lse(q, k, v, mask=causal(), backend=backend)
    assert attended.weights().shape == (2, 4, 6, 6)
    assert near(attended.weights() @ v.repeat_interleave(2, 1), attended.out, 1e-6)
    module = compat.MultiheadAttention(12, 3, batch_first=True).eval()
    x = torch.randn(2, 5, 12)
    with torch.no_grad(), only(backend):
        _, each = module(x, x, x, average_attn_weights=False)
        _, mean = module(x, x, x)
    assert each.shape == (2, 3, 5, 5)
    assert near(each.mean(1), mean, 1e-6)


@every_backend
def test_20_weights_of_some_rows_and_heads(backend, claims):
    q, k, v = qkv(heads=6, kv_heads=2, q_len=9, kv_len=9)
    options = {"mask": sliding_window(4), "bias": torch.randn(1, 6, 9, 9)}
    assert claims(backend, q, k, v, **options)
    attended = attention_lse(q, k, v, **options, backend=backend)
    allowed = full(sliding_window(4).mask(9, 9), 2, 6, 9, 9)
    want = attend_slowly(q, k, v, allowed=allowed, bias=options["bias"].expand(2, 6, 9, 9))[2]
    assert near(attended.weights(rows=[2, -1], heads=[5, 1]), want[:, [5, 1]][:, :, [2, 8]])
    scores = attended.problem.scores()
    assert near(torch.exp(scores - attended.lse[..., None]), want)


LAYOUTS = {
    "heads inside": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "last first": lambda x: x.mT.contiguous().mT,
    "offset": lambda x: torch.cat([x[:, :, :1], x], 2)[:, :, 1:],
    "every second": lambda x: torch.stack([x, x], -1)[..., 0],
    "one batch row": lambda x: x[:1].expand(2, -1, -1, -1),
    "one token": lambda x: x[:, :, :1].expand_as(x),
}


@every_backend
@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("q_len", [1, 6])
def test_30_layouts_in_inference(name, q_len, backend, claims):
    change = LAYOUTS[name]
    q, k, v = map(change, qkv(q_len=q_len, kv_len=33))
    options = {"mask": change(torch.rand(2, 4, q_len, 33) < 0.6), "bias": change(torch.randn(2, 4, q_len, 33))}
    assert claims(backend, q, k, v, **options)
    plain = {key: value.contiguous() for key, value in options.items()}
    want = attention(q.contiguous(), k.contiguous(), v.contiguous(), **plain, backend=backend)
    assert near(attention(q, k, v, **options, backend=backend), want, 1e-6)


@every_backend
@pytest.mark.parametrize("name", ["batch", "q_len", "kv_len", "head_dim", "v_head_dim"])
def test_32_empty_inputs_in_inference(name, backend, claims):
    q, k, v = qkv(**{name: 0})
    if claims(backend, q, k, v, mask=causal(), q_offset=0):
        attended = attention_lse(q, k, v, mask=causal(), q_offset=0, backend=backend)
        assert attended.out.shape == (*q.shape[:3], v.shape[3])
        assert attended.weights().shape == (*q.shape[:3], k.shape[2])
        if name == "kv_len":
            assert not attended.out.any()
            assert (attended.lse == -math.inf).all()
        if name == "head_dim":
            assert near(attended.out[:, :, 1], v[:, :, :2].mean(2).repeat_interleave(2, 1))


@every_backend
def test_32_an_empty_sequence_among_others(backend, claims):
    """As a row of padding, and as a document of no tokens in flash-attn's form."""
    q, k, v = (torch.randn(9, 4, 8) for _ in range(3))
    bounds = torch.tensor([0, 4, 4, 9])
    ids = torch.arange(3).repeat_interleave(bounds.diff())
    rows = [x[None].transpose(1, 2) for x in (q, k, v)]
    assert claims(backend, *rows, mask=document(ids))
    with only(backend):
        out = compat.flash_attn_varlen_func(q, k, v, bounds, bounds, 5, 5)
    allowed = full(ids[:, None] == ids, 1, 4, 9, 9)
    assert near(out.transpose(0, 1)[None], attend_slowly(*rows, allowed=allowed)[0])
    without_keys = torch.tensor([0, 0, 4, 9])
    lopsided, refused = attempt(backend, compat.flash_attn_varlen_func, q, k, v, bounds, without_keys, 5, 5)
    if not refused:
        assert not lopsided[:4].any()
        assert near(lopsided[4:], out[4:])


def test_31_keys_and_values_of_different_length_are_refused_by_the_drop_ins(monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # the messages behind the annotations
    q, k, v = torch.randn(2, 4, 6, 8), torch.randn(2, 4, 5, 8), torch.randn(2, 4, 6, 8)
    with pytest.raises(MultiheadError, match="kv_len 5 and 6"):
        compat.scaled_dot_product_attention(q, k, v)
    module = compat.MultiheadAttention(8, 2, batch_first=True)
    with pytest.raises(MultiheadError, match=r"key \(2, 5, 8\), value \(2, 6, 8\)"):
        module(q[:, 0], k[:, 0], v[:, 0])
