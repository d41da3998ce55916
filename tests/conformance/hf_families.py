"""Tiny random models of the families that tests elsewhere do not need."""

import transformers as hf

from hooks.families import DECODER, ENCODER, FAMILIES, PICTURE, Family

_MIXED = ["sliding_attention", "full_attention"]
MORE = (
    Family("qwen3", hf.Qwen3ForCausalLM, lambda: hf.Qwen3Config(**DECODER)),
    Family(
        "gemma3",
        hf.Gemma3ForCausalLM,
        lambda: hf.Gemma3TextConfig(**DECODER, sliding_window=4, query_pre_attn_scalar=5, layer_types=_MIXED),
    ),
    Family(
        "deepseek_v3",
        hf.DeepseekV3ForCausalLM,
        lambda: hf.DeepseekV3Config(
            **ENCODER,
            num_key_value_heads=4,
            q_lora_rank=12,
            kv_lora_rank=10,
            qk_nope_head_dim=8,
            qk_rope_head_dim=4,
            v_head_dim=6,
            moe_intermediate_size=12,
            n_routed_experts=4,
            num_experts_per_tok=2,
            n_group=2,
            topk_group=1,
            first_k_dense_replace=1,
        ),
    ),
    Family("clip, texts", hf.CLIPTextModel, lambda: hf.CLIPTextConfig(**ENCODER), projection="out_proj"),
    Family(
        "clip, pictures",
        hf.CLIPVisionModel,
        lambda: hf.CLIPVisionConfig(**PICTURE),
        reads="pictures",
        projection="out_proj",
    ),
)
_KNOWN = ("bert", "gpt2", "llama", "mistral", "gemma2", "gpt_oss", "t5", "bart", "vit", "whisper", "albert")
PARITY = {family.name: family for family in (*(FAMILIES[name] for name in _KNOWN), *MORE)}
WRITERS = ("gpt2", "llama", "mistral", "qwen3", "gemma2", "gemma3", "gpt_oss", "deepseek_v3", "t5", "bart", "whisper")
