"""What the kernels of transformers compute, case by case, against the kernels themselves."""

import pytest
import torch
from torch import nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.models.bert.modeling_bert import eager_attention_forward as eager
from transformers.models.gemma2.modeling_gemma2 import eager_attention_forward as capped
from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward as sinking
from transformers.models.granite_swa.modeling_granite_swa import eager_attention_forward as sunk_after
from transformers.models.t5.modeling_t5 import eager_attention_forward as biased

from hooks.oracle import output_of
from multihead.error import MultiheadError
from multihead.hooks import watching
from multihead.pattern import causal


class Attention(nn.Module):
    """A module that calls whatever is registered, with what it is told."""

    def __init__(self, kernel="sdpa", default=eager, is_causal=False):
        super().__init__()
        self.kernel, self.default, self.is_causal = kernel, default, is_causal
        self.num_key_value_groups, self.head_dim = 2, 8
        self.sinks = nn.Parameter(torch.randn(4))

    def forward(self, q, k, v, mask, **options):
        function = AttentionInterface().get_interface(self.kernel, self.default)
        return function(self, q, k, v, mask, **options)[0]


def call_of(module, q_len=5, kv_len=5, mask=None, **options):
    """The problem of one call, after a check that it gives what the kernel gave."""
    q, k, v = (torch.randn(2, heads, n, 8) for heads, n in ((4, q_len), (2, kv_len), (2, kv_len)))
    if module.default in (eager, biased) and module.kernel == "eager":
        k, v = (t.repeat_interleave(2, dim=1) for t in (k, v))
    calls = []
    with torch.no_grad(), watching(module.eval(), calls.append):
        out = module(q, k, v, mask, **({"scaling": 0.3} | options))
    (call,) = calls
    torch.testing.assert_close(output_of(call.problem), out.double(), atol=1e-5, rtol=0)
    assert torch.equal(call.output, out)
    return call


def lowest(allowed):
    return torch.where(allowed, 0.0, torch.finfo(torch.float32).min)


def some_mask(q_len=5, kv_len=5):
    mask = torch.rand(2, 1, q_len, kv_len) > 0.4
    mask[..., 0] = True
    return mask


@pytest.mark.parametrize(
    ("module_says", "call_says", "want"),
    [(True, None, True), (False, None, False), (True, False, False), (False, True, True)],
)
def test_sdpa_without_a_mask_is_causal_as_the_call_says_or_else_the_module(module_says, call_says, want):
    problem = call_of(Attention(is_causal=module_says), is_causal=call_says).problem
    assert problem.mask == (causal() if want else None)


def test_eager_without_a_mask_sees_everything_whatever_the_module_says():
    assert call_of(Attention("eager", is_causal=True), is_causal=True).problem.mask is None


def test_a_single_query_sees_the_whole_cache():
    assert call_of(Attention(is_causal=True), q_len=1, kv_len=7).problem.mask is None


def test_a_static_cache_is_cut_to_the_queries():
    problem = call_of(Attention(is_causal=True), kv_len=9).problem
    assert (problem.kv_len, problem.q_offset, str(problem.mask)) == (5, 0, "causal")


def test_a_boolean_mask_is_the_mask():
    mask = some_mask()
    assert torch.equal(call_of(Attention(is_causal=True), mask=mask).problem.mask, mask)


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
def test_an_additive_mask_is_taken_apart(kernel):
    mask = some_mask()
    problem = call_of(Attention(kernel), mask=lowest(mask)).problem
    assert torch.equal(problem.mask, mask)
    assert problem.bias is None
    bias = torch.randn(2, 1, 5, 5)
    problem = call_of(Attention(kernel), mask=torch.where(mask, bias, -torch.inf)).problem
    assert torch.equal(problem.mask, mask)
    assert torch.equal(problem.bias, torch.where(mask, bias, 0.0))
    problem = call_of(Attention(kernel), mask=bias).problem
    assert problem.mask is None
    assert torch.equal(problem.bias, bias)


def test_an_eager_function_adds_a_boolean_mask_like_numbers():
    mask = some_mask()
    problem = call_of(Attention("eager"), mask=mask).problem
    assert problem.mask is None
    assert torch.equal(problem.bias, mask.float())


@pytest.mark.parametrize("given", ["none", "bool", "float"])
@pytest.mark.parametrize("is_causal", [True, False])
def test_a_position_bias_under_sdpa(given, is_causal):
    mask = {"none": None, "bool": some_mask(), "float": lowest(some_mask())}[given]
    bias = torch.randn(1, 4, 5, 5)
    problem = call_of(Attention(is_causal=is_causal), mask=mask, position_bias=bias).problem
    assert torch.equal(problem.bias, bias)
    assert (problem.mask is None) == (given == "none" and not is_causal)


def test_a_position_bias_under_sdpa_with_a_static_cache():
    bias = torch.randn(1, 4, 5, 9)
    problem = call_of(Attention(is_causal=True), kv_len=9, position_bias=bias).problem
    assert torch.equal(problem.bias, bias[..., :5])


@pytest.mark.parametrize("is_causal", [True, False])
def test_a_position_bias_with_a_mask_folded_in(is_causal):
    mask = some_mask()
    bias = torch.where(mask, torch.randn(2, 4, 5, 5), torch.finfo(torch.float32).min)
    problem = call_of(Attention(is_causal=is_causal), position_bias=bias).problem
    want = mask & torch.ones(5, 5).tril().bool() if is_causal else mask
    assert torch.equal(problem.mask.expand(2, 4, 5, 5), want.expand(2, 4, 5, 5))


@pytest.mark.parametrize("masked", [True, False])
def test_a_position_bias_under_eager(masked):
    bias = torch.randn(1, 4, 5, 5)
    mask = lowest(some_mask()) if masked else None
    assert torch.equal(call_of(Attention("eager", biased), mask=mask, position_bias=bias).problem.bias, bias)


def test_a_position_bias_of_zeros_is_none():
    assert call_of(Attention("eager", biased), position_bias=torch.zeros(1, 4, 5, 5)).problem.bias is None


def test_an_eager_function_without_the_parameter_ignores_a_position_bias():
    assert call_of(Attention("eager"), position_bias=torch.randn(1, 4, 5, 5)).problem.bias is None


def test_a_softcap_counts_where_the_function_takes_it():
    assert call_of(Attention("eager", capped), softcap=1.5).problem.softcap == 1.5
    assert call_of(Attention("eager"), softcap=1.5).problem.softcap is None


@pytest.mark.parametrize("default", [sinking, sunk_after])
def test_sinks_count_where_the_function_reads_them(default):
    module = Attention("eager", default)
    assert torch.equal(call_of(module, s_aux=module.sinks).problem.normaliser.sinks, module.sinks)


def test_sdpa_is_given_sinks_and_computes_without():
    module = Attention("sdpa")
    assert call_of(module, s_aux=module.sinks).problem.normaliser.sinks is None


def test_a_function_of_the_users_own_heeds_what_it_names():
    def mine(module, query, key, value, attention_mask, s_aux=None, softcap=None, **options):
        return sinking(module, query, key, value, attention_mask, **options)

    AttentionInterface.register("of_my_own", mine)
    try:
        module = Attention("of_my_own")
        call = call_of(module, s_aux=module.sinks)
    finally:
        del AttentionInterface._global_mapping["of_my_own"]
    assert torch.equal(call.problem.normaliser.sinks, module.sinks)
    assert call.kernel == "of_my_own"


def test_the_default_scale_is_that_of_the_head():
    assert call_of(Attention("eager"), scaling=None).problem.scale == 8**-0.5


def test_dropout_is_recorded_where_it_acts():
    for kernel, training, want in (("sdpa", False, 0.25), ("eager", False, 0.0), ("eager", True, 0.25)):
        module = Attention(kernel).train(training)
        q = torch.randn(2, 4, 5, 8)
        calls = []
        with watching(module, calls.append):
            module(q, q[:, :2] if kernel == "sdpa" else q, q[:, :2] if kernel == "sdpa" else q, None, dropout=0.25)
        assert calls[0].problem.dropout == want


def test_learned_queries_are_spread_over_the_batch():
    module, calls = Attention(), []
    q, k = torch.randn(1, 4, 3, 8), torch.randn(2, 2, 5, 8)
    with torch.no_grad(), watching(module, calls.append):
        out = module(q, k, k, None)
    torch.testing.assert_close(output_of(calls[0].problem), out.double(), atol=1e-5, rtol=0)


def test_queries_left_wider_than_the_values():
    module, calls = Attention("eager"), []
    q, v = torch.randn(2, 4, 5, 8), torch.randn(2, 4, 5, 8)

    def upcast(module, query, key, value, attention_mask, **options):
        return eager(module, query, key, value.to(query.dtype), attention_mask, **options)

    module.default = upcast
    with torch.no_grad(), watching(module, calls.append):
        module(q, q, v.bfloat16(), None)
    assert {t.dtype for t in (calls[0].problem.q, calls[0].problem.v)} == {torch.float32}


@pytest.mark.parametrize("kernel", ["flash_attention_2", "flex_attention", "paged|eager"])
def test_kernels_with_masks_of_their_own_are_refused(kernel):
    def stand_in(*args, **options):
        return eager(*args[:4], None)

    kept = AttentionInterface._global_mapping[kernel]
    AttentionInterface._global_mapping[kernel] = stand_in
    q = torch.randn(2, 4, 5, 8)
    try:
        with (
            pytest.raises(MultiheadError, match="masks by lengths, blocks or pages"),
            watching(module := Attention(kernel), lambda call: None),
        ):
            module(q, q, q, None)
    finally:
        AttentionInterface._global_mapping[kernel] = kept


def test_a_flat_mask_is_refused():
    q = torch.randn(2, 4, 5, 8)
    with (
        pytest.raises(MultiheadError, match=r"shape \(5, 5\) for Attention under 'sdpa'"),
        watching(module := Attention(), lambda call: None),
    ):
        module(q, q[:, :2], q[:, :2], torch.ones(5, 5, dtype=torch.bool))


def test_a_sink_for_every_query_is_refused():
    def with_sinks(module, query, key, value, attention_mask, sinks=None, **options):
        return eager(module, query, key, value, attention_mask, **options)

    q = torch.randn(2, 4, 5, 8)
    with (
        pytest.raises(MultiheadError, match="a sink for every query"),
        watching(module := Attention("eager", with_sinks), lambda call: None),
    ):
        module(q, q, q, None, sinks=torch.zeros(2, 4, 5, 1))


def test_calls_by_keyword_and_by_table():
    class Keyed(Attention):
        def forward(self, q, k, v, mask, **options):
            table = AttentionInterface()
            return table["sdpa"](module=self, query=q, key=k, value=v, attention_mask=mask, **options)[0]

    call = call_of(Keyed(is_causal=True))
    assert str(call.problem.mask) == "causal"
    assert call.kernel == "sdpa"


def test_head_outputs_changed_before_the_projection_have_none():
    class Gated(Attention):
        def __init__(self):
            super().__init__()
            self.o_proj = nn.Linear(32, 32)

        def forward(self, q, k, v, mask, **options):
            out = super().forward(q, k, v, mask, **options)
            self.o_proj(torch.sigmoid(out).flatten(2))
            return out

    call = call_of(Gated())
    assert call.projection.weight is None
    assert "gated" in call.projection.reason


def test_a_packed_projection_has_a_reason():
    class Packed(nn.Linear):
        def __init__(self):
            super().__init__(32, 32)
            self.weight = nn.Parameter(torch.zeros(32, 16))

        def forward(self, x):
            return x

    class Quantised(Attention):
        def __init__(self):
            super().__init__()
            self.o_proj = Packed()

        def forward(self, q, k, v, mask, **options):
            out = super().forward(q, k, v, mask, **options)
            self.o_proj(out.flatten(2))
            return out

    assert "Packed is packed" in call_of(Quantised()).projection.reason


def test_sdpa_is_the_function_that_was_read():
    assert AttentionInterface()["sdpa"] is sdpa_attention_forward
