"""Tiny random models of more families whose attention passes through AttentionInterface; run once each."""

import transformers as hf

from hooks.families import DECODER, ENCODER, PAIR, PICTURE, VOCAB, cross_bert
from hooks.tail import POSITIONS, SPEECH, Tail

_DISTIL = {"vocab_size": VOCAB, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 40, "max_position_embeddings": 64}

SEEN = {
    family.name: family
    for family in (
        Tail("roberta", hf.RobertaModel, lambda: hf.RobertaConfig(**ENCODER)),
        Tail("xlm-roberta", hf.XLMRobertaModel, lambda: hf.XLMRobertaConfig(**ENCODER)),
        Tail("electra", hf.ElectraModel, lambda: hf.ElectraConfig(**ENCODER, embedding_size=16)),
        Tail("distilbert", hf.DistilBertModel, lambda: hf.DistilBertConfig(**_DISTIL)),
        Tail(
            "modernbert",
            hf.ModernBertModel,
            lambda: hf.ModernBertConfig(
                **ENCODER, local_attention=4, global_attn_every_n_layers=2, cls_token_id=1, sep_token_id=2
            ),
        ),
        Tail("qwen2", hf.Qwen2ForCausalLM, lambda: hf.Qwen2Config(**DECODER)),
        Tail("qwen3", hf.Qwen3ForCausalLM, lambda: hf.Qwen3Config(**DECODER)),
        Tail(
            "gemma3",
            hf.Gemma3ForCausalLM,
            lambda: hf.Gemma3TextConfig(
                **DECODER, sliding_window=4, layer_types=["sliding_attention", "full_attention"]
            ),
        ),
        Tail(
            "deepseek-v3",
            hf.DeepseekV3ForCausalLM,
            lambda: hf.DeepseekV3Config(
                **(ENCODER | {"num_key_value_heads": 4}),
                kv_lora_rank=8,
                q_lora_rank=8,
                qk_nope_head_dim=8,
                qk_rope_head_dim=4,
                v_head_dim=6,
                n_routed_experts=4,
                n_group=2,
                topk_group=1,
                num_experts_per_tok=2,
                moe_intermediate_size=8,
                first_k_dense_replace=1,
            ),
        ),
        Tail("phi", hf.PhiForCausalLM, lambda: hf.PhiConfig(**ENCODER)),
        Tail("phi3", hf.Phi3ForCausalLM, lambda: hf.Phi3Config(**(ENCODER | {"num_key_value_heads": 2}))),
        Tail(
            "gpt-j",
            hf.GPTJForCausalLM,
            lambda: hf.GPTJConfig(
                vocab_size=VOCAB,
                n_embd=32,
                n_layer=2,
                n_head=4,
                n_positions=64,
                rotary_dim=4,
                bos_token_id=1,
                eos_token_id=2,
            ),
        ),
        Tail("gpt-neox", hf.GPTNeoXForCausalLM, lambda: hf.GPTNeoXConfig(**ENCODER)),
        Tail(
            "opt",
            hf.OPTForCausalLM,
            lambda: hf.OPTConfig(
                vocab_size=VOCAB,
                hidden_size=32,
                word_embed_proj_dim=32,
                ffn_dim=40,
                num_hidden_layers=2,
                num_attention_heads=4,
                max_position_embeddings=64,
                pad_token_id=0,
            ),
        ),
        Tail("deit", hf.DeiTModel, lambda: hf.DeiTConfig(**PICTURE), reads="pictures"),
        Tail(
            "beit",
            hf.BeitModel,
            lambda: hf.BeitConfig(**PICTURE, vocab_size=VOCAB, use_relative_position_bias=True),
            reads="pictures",
        ),
        Tail("dinov2", hf.Dinov2Model, lambda: hf.Dinov2Config(**PICTURE, mlp_ratio=2), reads="pictures"),
        Tail(
            "swin",
            hf.SwinModel,
            lambda: hf.SwinConfig(
                image_size=16, patch_size=2, embed_dim=16, depths=[2], num_heads=[2], window_size=4, mlp_ratio=2.0
            ),
            reads="pictures",
        ),
        Tail(
            "segformer",
            hf.SegformerModel,
            lambda: hf.SegformerConfig(
                image_size=16,
                num_encoder_blocks=2,
                depths=[1, 1],
                sr_ratios=[2, 1],
                hidden_sizes=[16, 16],
                patch_sizes=[7, 3],
                strides=[4, 2],
                num_attention_heads=[2, 2],
                mlp_ratios=[2, 2],
            ),
            reads="pictures",
        ),
        Tail(
            "clip",
            hf.CLIPModel,
            lambda: hf.CLIPConfig(text_config=ENCODER, vision_config=PICTURE, projection_dim=8),
            reads="words and pictures",
        ),
        Tail(
            "siglip",
            hf.SiglipModel,
            lambda: hf.SiglipConfig(text_config=ENCODER, vision_config=PICTURE),
            reads="words and pictures",
        ),
        Tail(
            "llava",
            hf.LlavaForConditionalGeneration,
            lambda: hf.LlavaConfig(
                text_config=hf.LlamaConfig(**(DECODER | {"vocab_size": VOCAB + 1})),
                vision_config=hf.CLIPVisionConfig(**PICTURE),
                image_token_id=VOCAB,
                vision_feature_layer=-1,
            ),
            reads="pictures in words",
        ),
        Tail(
            "detr",
            hf.DetrModel,
            lambda: hf.DetrConfig(
                **{k: v for k, v in PAIR.items() if "token" not in k and k != "vocab_size"},
                num_queries=5,
                use_timm_backbone=False,
                use_pretrained_backbone=False,
                backbone=None,
                backbone_config=hf.ResNetConfig(
                    embedding_size=8, hidden_sizes=[8, 8], depths=[1, 1], out_features=["stage2"]
                ),
            ),
            reads="pictures",
        ),
        Tail("wav2vec2", hf.Wav2Vec2Model, lambda: hf.Wav2Vec2Config(**SPEECH), reads="waves"),
        Tail("hubert", hf.HubertModel, lambda: hf.HubertConfig(**SPEECH), reads="waves"),
        Tail("mbart", hf.MBartModel, lambda: hf.MBartConfig(**PAIR, **POSITIONS), reads="pairs"),
        Tail("pegasus", hf.PegasusModel, lambda: hf.PegasusConfig(**PAIR, **POSITIONS), reads="pairs"),
        Tail("marian", hf.MarianModel, lambda: hf.MarianConfig(**PAIR, **POSITIONS), reads="pairs"),
        Tail("nllb", hf.M2M100Model, lambda: hf.M2M100Config(**PAIR, **POSITIONS), reads="pairs"),
        Tail(
            "nllb-moe",
            hf.NllbMoeModel,
            lambda: hf.NllbMoeConfig(**PAIR, **POSITIONS, num_experts=2),
            reads="pairs",
        ),
        Tail("bert2bert", hf.EncoderDecoderModel, cross_bert, reads="pairs"),
        Tail(
            "qwen3-next",
            hf.Qwen3NextForCausalLM,
            lambda: hf.Qwen3NextConfig(
                **DECODER,
                layer_types=["linear_attention", "full_attention"],
                linear_num_key_heads=2,
                linear_num_value_heads=2,
                linear_key_head_dim=8,
                linear_value_head_dim=8,
                num_experts=2,
                num_experts_per_tok=1,
                moe_intermediate_size=8,
                shared_expert_intermediate_size=8,
            ),
        ),
    )
}
