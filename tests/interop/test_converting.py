"""Attention modules of transformers: what a model's layers compute, ours compute from copies of their weights."""

import pytest
import torch
import transformers as hf

from multihead.error import MultiheadError
from multihead.interop.convert import READERS, from_transformers
from multihead.layer import LatentAttention, MultiHeadAttention
from multihead.pattern import causal, padding

TINY = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "vocab_size": 50,
    "max_position_embeddings": 64,
}
ENDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
GROUPED = TINY | ENDS | {"num_key_value_heads": 2, "head_dim": 8}
BOTH = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "vocab_size": 50,
}
LAYERS = ["full_attention", "sliding_attention"]
MODELS = {
    "bert": lambda: hf.BertModel(hf.BertConfig(**TINY)),
    "gpt2": lambda: hf.GPT2Model(
        hf.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=50, scale_attn_by_inverse_layer_idx=True, **ENDS)
    ),
    "llama": lambda: hf.LlamaModel(
        hf.LlamaConfig(
            **GROUPED,
            attention_bias=True,
            rope_parameters={
                "rope_type": "llama3",
                "rope_theta": 500.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 16,
            },
        )
    ),
    "mistral": lambda: hf.MistralModel(hf.MistralConfig(**GROUPED, sliding_window=4)),
    "qwen3": lambda: hf.Qwen3Model(hf.Qwen3Config(**GROUPED)),
    "gemma2": lambda: hf.Gemma2Model(
        hf.Gemma2Config(**GROUPED, sliding_window=4, attn_logit_softcapping=1.5, query_pre_attn_scalar=24)
    ),
    "gemma3": lambda: hf.Gemma3TextModel(hf.Gemma3TextConfig(**GROUPED, sliding_window=4, layer_types=LAYERS)),
    "gpt-oss": lambda: hf.GptOssModel(
        hf.GptOssConfig(
            **GROUPED | {"max_position_embeddings": 4096 * 32},
            num_local_experts=2,
            num_experts_per_tok=1,
            sliding_window=4,
            layer_types=LAYERS,
        )
    ),
    "deepseek-v3": lambda: hf.DeepseekV3Model(
        hf.DeepseekV3Config(
            **TINY | ENDS,
            attention_bias=True,
            num_key_value_heads=4,
            n_routed_experts=2,
            num_experts_per_tok=1,
            n_group=1,
            topk_group=1,
            moe_intermediate_size=16,
            kv_lora_rank=12,
            q_lora_rank=10,
            qk_rope_head_dim=4,
            qk_nope_head_dim=6,
            v_head_dim=5,
            first_k_dense_replace=2,
        )
    ),
    "t5": lambda: hf.T5Model(hf.T5Config(d_model=32, d_kv=8, num_heads=4, num_layers=2, d_ff=48, vocab_size=50)),
    "bart": lambda: hf.BartModel(hf.BartConfig(**BOTH, max_position_embeddings=64)),
    "vit": lambda: hf.ViTModel(
        hf.ViTConfig(
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=48,
            image_size=16,
            patch_size=8,
        )
    ),
    "clip": lambda: hf.CLIPTextModel(hf.CLIPTextConfig(**TINY, **ENDS)),
    "whisper": lambda: hf.WhisperModel(
        hf.WhisperConfig(**BOTH, **ENDS, num_mel_bins=8, max_source_positions=10, decoder_start_token_id=1)
    ),
}


def inputs_of(name, ids, keep):
    """What a model is fed; ids that end a text are left out."""
    if name == "vit":
        return {"pixel_values": torch.randn(2, 3, 16, 16)}
    if name == "whisper":
        return {"input_features": torch.randn(2, 8, 20), "decoder_input_ids": ids}
    given = {"input_ids": ids, "attention_mask": keep.long()}
    return given | ({"decoder_input_ids": ids[:, :5]} if name in {"t5", "bart"} else {})


def random_model(name):
    """A model all of whose numbers are random, norms and biases too."""
    model = MODELS[name]().eval()
    model.set_attn_implementation("eager")
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.copy_(torch.randn(parameter.shape) * 0.3 + ("norm" in path.lower() and "gemma" not in name))
            elif "embed" not in path:
                parameter.copy_(torch.randn(parameter.shape) * parameter.shape[-1] ** -0.5)
    return model


def watched(model, kinds):
    """Every call of attention modules: (module, query, keys, output)."""
    calls = []

    def told(module, args, kwargs, result):
        hidden = args[0] if args else kwargs["hidden_states"]
        names = ("key_value_states", "encoder_hidden_states")
        keys = next((kwargs[key] for key in names if isinstance(kwargs.get(key), torch.Tensor)), None)
        calls.append((module, hidden, keys, result[0] if isinstance(result, tuple) else result))

    for module in model.modules():
        if type(module).__name__ in kinds:
            module.register_forward_hook(told, with_kwargs=True)
    return calls


@pytest.mark.parametrize("name", [name for name in MODELS if name != "bert"])
def test_a_layer_of_ours_gives_what_the_models_layer_gives(name):
    model = random_model(name)
    lengths = torch.tensor([[9], [6]])
    keep = torch.arange(9) < lengths
    calls = watched(model, {*READERS, "DeepseekV3Attention"})
    with torch.no_grad():
        model(**inputs_of(name, torch.randint(3, 50, (2, 9)), keep))
    assert len(calls) >= 2
    tables = {}
    for module, query, keys, want in calls:
        layer = from_transformers(module)
        assert isinstance(layer, LatentAttention if name == "deepseek-v3" else MultiHeadAttention)
        given = {}
        if name == "t5" and keys is None:
            table = layer.parts[0].position_bias
            tables.setdefault(module.is_decoder, table)
            given = {} if table is not None else {"bias": tables[module.is_decoder]}
        length = query.shape[1] if keys is None else keys.shape[1]
        mask = padding(keep) if length == 9 and name not in {"whisper", "vit"} else None
        mask = mask if name not in {"clip", "deepseek-v3"} else causal() & mask
        with torch.no_grad():
            got = layer(query, *([] if keys is None else [keys]), mask=mask, **given)
        real = keep if query.shape[1] == 9 and mask is not None else torch.ones(query.shape[:2], dtype=torch.bool)
        torch.testing.assert_close(got[real], want[real], rtol=1e-5, atol=1e-5)


def test_bert_with_its_output_projection():
    model = random_model("bert")
    module, keep = model.encoder.layer[1].attention, torch.arange(7) < torch.tensor([[7], [4]])
    layer, x = from_transformers(module), torch.randn(2, 7, 32)
    with torch.no_grad():
        want = module(x, attention_mask=torch.where(keep[:, None, None], 0.0, -torch.inf))[0]
        got = module.output.LayerNorm(layer(x, mask=padding(keep)) + x)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def test_dropout_mode_and_dtype_are_the_modules():
    module = hf.LlamaModel(hf.LlamaConfig(**GROUPED, attention_dropout=0.25)).bfloat16().train().layers[0].self_attn
    layer = from_transformers(module, backend="tiled")
    assert (layer.dropout, layer.training, layer.q_proj.weight.dtype, layer.backend) == (
        0.25,
        True,
        torch.bfloat16,
        "tiled",
    )
    assert layer.q_proj.weight.data_ptr() != module.q_proj.weight.data_ptr()


def test_other_modules_are_refused_with_those_that_are_known():
    with pytest.raises(MultiheadError, match=r"(?s)Linear.*LlamaAttention.*register_transformers"):
        from_transformers(torch.nn.Linear(3, 3))
