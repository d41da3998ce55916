"""What is registered with transformers; that models give what they give on their own is held in tests/conformance."""

import pytest
import torch
import transformers as hf
from transformers import AttentionInterface, AttentionMaskInterface

from hooks.families import DECODER, FAMILIES, PAIR, Family, ids, twin
from multihead.error import MultiheadError
from multihead.interop import register_transformers
from multihead.interop.register import multihead_attention_forward, multihead_mask


def registered():
    return register_transformers()


def test_gradients_equal_eager():
    family = FAMILIES["llama"]
    model, inputs = family.build("eager"), family.inputs("right")
    ours = twin(family, model)
    ours.set_attn_implementation(registered())
    real = inputs["attention_mask"].bool()
    gradients = [
        torch.autograd.grad(each(**inputs)[0][real].square().mean(), list(each.parameters())) for each in (model, ours)
    ]
    for want, got in zip(*gradients, strict=True):
        torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize(
    ("model", "config"),
    [
        (hf.NllbMoeModel, lambda: hf.NllbMoeConfig(**PAIR, num_experts=2)),
        (hf.PegasusXModel, lambda: hf.PegasusXConfig(**PAIR, max_position_embeddings=64, block_size=4)),
        (
            hf.DeepseekV4ForCausalLM,
            lambda: hf.DeepseekV4Config(
                **DECODER | {"num_key_value_heads": 1},
                sliding_window=4,
                q_lora_rank=8,
                qk_rope_head_dim=4,
                moe_intermediate_size=12,
                n_routed_experts=4,
                num_experts_per_tok=2,
                o_groups=2,
                o_lora_rank=8,
                index_n_heads=2,
                index_head_dim=8,
                hc_mult=2,
                layer_types=["compressed_sparse_attention", "heavily_compressed_attention"],
                compress_rates={"compressed_sparse_attention": 2, "heavily_compressed_attention": 4},
            ),
        ),
    ],
)
def test_families_that_were_not_written_for_sdpa(model, config):
    """Their decoders are causal and do not say so, or they lengthen masks of numbers."""
    family = Family("", model, config, reads="tokens" if model is hf.DeepseekV4ForCausalLM else "pairs")
    theirs, inputs = family.build("eager"), family.inputs("left")
    ours = twin(family, theirs)
    ours.set_attn_implementation(registered())
    with torch.no_grad():
        want, got = theirs(**inputs)[0], ours(**inputs)[0]
    real = inputs["attention_mask"].bool() if family.reads == "tokens" else ...
    torch.testing.assert_close(got[real], want[real], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("config", "as_sdpa"),
    [(hf.LlamaConfig(), True), (hf.GptOssConfig(), True), (hf.NllbMoeConfig(), False), (object(), False)],
    ids=["written for sdpa", "but for sinks", "for eager", "unknown"],
)
def test_a_mask_is_left_out_only_where_the_family_runs_on_sdpa(config, as_sdpa):
    made = multihead_mask(batch_size=1, q_length=4, kv_length=4, config=config, dtype=torch.float32)
    assert made is None if as_sdpa else torch.equal(made == 0, torch.ones(1, 1, 4, 4).tril().bool())


def test_registering_twice_changes_nothing():
    name = register_transformers()
    before = AttentionInterface._global_mapping[name], AttentionMaskInterface._global_mapping[name]
    assert register_transformers() == name == "multihead"
    assert (AttentionInterface._global_mapping[name], AttentionMaskInterface._global_mapping[name]) == before


def test_the_left_padded_model_would_be_wrong_without_the_mask_function():
    family = FAMILIES["llama"]
    model, inputs = family.build("eager"), family.inputs("left")
    ours = twin(family, model)
    AttentionInterface.register("half_registered", multihead_attention_forward)
    try:
        ours.set_attn_implementation("half_registered")
        with torch.no_grad():
            apart = (ours(**inputs)[0] - model(**inputs)[0])[1, 3:].abs().max()
    finally:
        del AttentionInterface._global_mapping["half_registered"]
    assert apart > 1e-3


class Module(torch.nn.Module):
    is_causal = True


def test_a_mask_of_added_numbers_is_taken():
    q, bias = torch.randn(1, 2, 4, 8), torch.randn(1, 1, 4, 4)
    out, weights = multihead_attention_forward(Module(), q, q, q, bias, scaling=0.5)
    want = torch.softmax(0.5 * q @ q.mT + bias, dim=-1) @ q
    torch.testing.assert_close(out, want.transpose(1, 2), atol=1e-5, rtol=1e-5)
    assert weights is None
    assert out.is_contiguous()


def test_a_mask_of_the_lowest_numbers_shuts():
    q = torch.randn(1, 2, 4, 8)
    bias = torch.zeros(1, 1, 4, 4)
    bias[..., 0, :], bias[..., 1:, 3] = torch.finfo(torch.float32).min, torch.finfo(torch.float32).min
    out, _ = multihead_attention_forward(Module(), q, q, q, bias)
    assert not out[:, 0].any()
    want = torch.softmax(8**-0.5 * q[:, :, 1:] @ q[:, :, :3].mT, dim=-1) @ q[:, :, :3]
    torch.testing.assert_close(out[:, 1:], want.transpose(1, 2), atol=1e-5, rtol=1e-5)


def test_a_sink_for_every_query_is_refused():
    q = torch.randn(1, 2, 4, 8)
    with pytest.raises(MultiheadError, match="a sink for every query"):
        multihead_attention_forward(Module(), q, q, q, None, sinks=torch.zeros(1, 2, 4, 1))


def test_a_call_that_is_not_causal_and_a_single_query_see_everything():
    q = torch.randn(1, 2, 4, 8)
    free, _ = multihead_attention_forward(Module(), q, q, q, None, is_causal=False)
    want = torch.softmax(8**-0.5 * q @ q.mT, dim=-1) @ q
    torch.testing.assert_close(free, want.transpose(1, 2), atol=1e-5, rtol=1e-5)
    one, _ = multihead_attention_forward(Module(), q[:, :, :1], q, q, None)
    torch.testing.assert_close(one, want[:, :, :1].transpose(1, 2), atol=1e-5, rtol=1e-5)


def test_a_watched_model_may_run_on_it():
    from multihead.hooks import watching

    family = FAMILIES["gpt_oss"]
    model = family.build("eager")
    model.set_attn_implementation(registered())
    calls = []
    with torch.no_grad(), watching(model, calls.append):
        model(input_ids=ids(2, 5))
    assert [call.kernel for call in calls] == ["multihead"] * 2
    assert all(call.problem.normaliser.sinks is not None for call in calls)
