"""The long tail: tiny random models of families that are run once each, seen and seen by fallback."""

import transformers as hf

from hooks.families import DECODER, ENCODER, PAIR, PICTURE, VOCAB, Family, cross_bert

_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
_DISTIL = {"vocab_size": VOCAB, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 40, "max_position_embeddings": 64}
_POSITIONS = {"max_position_embeddings": 64}
_PAIRED = (("encoder", 2), ("decoder", 2), ("cross", 2))
_SPEECH = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "conv_dim": (8, 8),
    "conv_stride": (4, 2),
    "conv_kernel": (8, 3),
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 4,
    "num_feat_extract_layers": 2,
}


def _vision(**more):
    return PICTURE | more


SEEN = {
    family.name: family
    for family in (
        Family("roberta", hf.RobertaModel, lambda: hf.RobertaConfig(**ENCODER)),
        Family("xlm-roberta", hf.XLMRobertaModel, lambda: hf.XLMRobertaConfig(**ENCODER)),
        Family("electra", hf.ElectraModel, lambda: hf.ElectraConfig(**ENCODER, embedding_size=16)),
        Family("distilbert", hf.DistilBertModel, lambda: hf.DistilBertConfig(**_DISTIL)),
        Family(
            "modernbert",
            hf.ModernBertModel,
            lambda: hf.ModernBertConfig(**ENCODER, local_attention=4, global_attn_every_n_layers=2, cls_token_id=1, sep_token_id=2),
        ),
        Family("qwen2", hf.Qwen2ForCausalLM, lambda: hf.Qwen2Config(**DECODER)),
        Family("qwen3", hf.Qwen3ForCausalLM, lambda: hf.Qwen3Config(**DECODER)),
        Family(
            "gemma3",
            hf.Gemma3ForCausalLM,
            lambda: hf.Gemma3TextConfig(**DECODER, sliding_window=4, layer_types=["sliding_attention", "full_attention"]),
        ),
        Family(
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
        Family("phi", hf.PhiForCausalLM, lambda: hf.PhiConfig(**ENCODER)),
        Family("phi3", hf.Phi3ForCausalLM, lambda: hf.Phi3Config(**(ENCODER | {"num_key_value_heads": 2}))),
        Family(
            "gpt-j",
            hf.GPTJForCausalLM,
            lambda: hf.GPTJConfig(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=64, rotary_dim=4, bos_token_id=1, eos_token_id=2),
        ),
        Family("gpt-neox", hf.GPTNeoXForCausalLM, lambda: hf.GPTNeoXConfig(**ENCODER)),
        Family(
            "opt",
            hf.OPTForCausalLM,
            lambda: hf.OPTConfig(vocab_size=VOCAB, hidden_size=32, word_embed_proj_dim=32, ffn_dim=40, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=64, pad_token_id=0),
        ),
        Family("deit", hf.DeiTModel, lambda: hf.DeiTConfig(**PICTURE), reads="pictures"),
        Family("beit", hf.BeitModel, lambda: hf.BeitConfig(**PICTURE, vocab_size=VOCAB, use_relative_position_bias=True), reads="pictures"),
        Family("dinov2", hf.Dinov2Model, lambda: hf.Dinov2Config(**PICTURE, mlp_ratio=2), reads="pictures"),
        Family(
            "swin",
            hf.SwinModel,
            lambda: hf.SwinConfig(image_size=16, patch_size=2, embed_dim=16, depths=[2], num_heads=[2], window_size=4, mlp_ratio=2.0),
            reads="pictures",
        ),
        Family(
            "clip",
            hf.CLIPModel,
            lambda: hf.CLIPConfig(text_config=ENCODER, vision_config=PICTURE, projection_dim=8),
            reads="words and pictures",
            layers=(("text_model", 2), ("vision_model", 2)),
        ),
        Family(
            "siglip",
            hf.SiglipModel,
            lambda: hf.SiglipConfig(text_config=ENCODER, vision_config=PICTURE),
            reads="words and pictures",
            layers=(("text_model", 2), ("vision_model", 2)),
        ),
        Family(
            "llava",
            hf.LlavaForConditionalGeneration,
            lambda: hf.LlavaConfig(
                text_config=hf.LlamaConfig(**DECODER),
                vision_config=hf.CLIPVisionConfig(**PICTURE),
                image_token_id=VOCAB - 1,
                vision_feature_layer=-1,
            ),
            reads="words and pictures",
        ),
        Family(
            "detr",
            hf.DetrModel,
            lambda: hf.DetrConfig(
                **{k: v for k, v in PAIR.items() if "token" not in k and k != "vocab_size"},
                num_queries=5,
                use_timm_backbone=False,
                use_pretrained_backbone=False,
                backbone=None,
                backbone_config=hf.ResNetConfig(embedding_size=8, hidden_sizes=[8, 8], depths=[1, 1], out_features=["stage2"]),
            ),
            reads="pictures",
            layers=_PAIRED,
        ),
        Family("wav2vec2", hf.Wav2Vec2Model, lambda: hf.Wav2Vec2Config(**_SPEECH), reads="waves"),
        Family("hubert", hf.HubertModel, lambda: hf.HubertConfig(**_SPEECH), reads="waves"),
        Family("mbart", hf.MBartModel, lambda: hf.MBartConfig(**PAIR, **_POSITIONS), reads="pairs", layers=_PAIRED),
        Family("pegasus", hf.PegasusModel, lambda: hf.PegasusConfig(**PAIR, **_POSITIONS), reads="pairs", layers=_PAIRED),
        Family("marian", hf.MarianModel, lambda: hf.MarianConfig(**PAIR, **_POSITIONS), reads="pairs", layers=_PAIRED),
        Family("nllb", hf.M2M100Model, lambda: hf.M2M100Config(**PAIR, **_POSITIONS), reads="pairs", layers=_PAIRED),
        Family("nllb-moe", hf.NllbMoeModel, lambda: hf.NllbMoeConfig(**PAIR, **_POSITIONS, num_experts=2), reads="pairs", layers=_PAIRED),
        Family("bert2bert", hf.EncoderDecoderModel, cross_bert, reads="pairs", layers=_PAIRED),
        Family(
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
            layers=(("", 1),),
        ),
    )
}

FALLBACK = {
    family.name: family
    for family in (
        Family("deberta-v2", hf.DebertaV2Model, lambda: hf.DebertaV2Config(**ENCODER, relative_attention=True, pos_att_type=["p2c", "c2p"], position_biased_input=False)),
        Family("deberta", hf.DebertaModel, lambda: hf.DebertaConfig(**ENCODER, relative_attention=True, pos_att_type=["p2c", "c2p"])),
        Family("mpnet", hf.MPNetModel, lambda: hf.MPNetConfig(**ENCODER)),
        Family(
            "gpt-neo",
            hf.GPTNeoForCausalLM,
            lambda: hf.GPTNeoConfig(vocab_size=VOCAB, hidden_size=32, num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]], window_size=4, max_position_embeddings=64, bos_token_id=1, eos_token_id=2),
        ),
        Family("bloom", hf.BloomForCausalLM, lambda: hf.BloomConfig(vocab_size=VOCAB, hidden_size=32, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=2, pad_token_id=0)),
        Family("falcon", hf.FalconForCausalLM, lambda: hf.FalconConfig(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, bos_token_id=1, eos_token_id=2)),
        Family("falcon-alibi", hf.FalconForCausalLM, lambda: hf.FalconConfig(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, alibi=True, multi_query=False, bos_token_id=1, eos_token_id=2)),
        Family("mpt", hf.MptForCausalLM, lambda: hf.MptConfig(vocab_size=VOCAB, d_model=32, n_layers=2, n_heads=4, max_seq_len=64, bos_token_id=1, eos_token_id=2)),
        Family("longformer", hf.LongformerModel, lambda: hf.LongformerConfig(**ENCODER, attention_window=4)),
        Family("led", hf.LEDModel, lambda: hf.LEDConfig(**PAIR, attention_window=4, max_encoder_position_embeddings=64, max_decoder_position_embeddings=64), reads="pairs", layers=(("decoder", 2), ("cross", 2))),
        Family("bigbird", hf.BigBirdModel, lambda: hf.BigBirdConfig(**ENCODER, attention_type="original_full")),
        Family("xlnet", hf.XLNetModel, lambda: hf.XLNetConfig(vocab_size=VOCAB, d_model=32, n_layer=2, n_head=4, d_inner=40)),
        Family("blip", hf.BlipForConditionalGeneration, lambda: hf.BlipConfig(text_config=ENCODER | {"encoder_hidden_size": 32, "bos_token_id": 1, "sep_token_id": 2}, vision_config=PICTURE), reads="words and pictures", layers=(("text_decoder", 2), ("cross", 2), ("vision_model", 2))),
        Family("wavlm", hf.WavLMModel, lambda: hf.WavLMConfig(**_SPEECH, num_buckets=8, max_bucket_distance=16), reads="waves"),
        Family("luke", hf.LukeModel, lambda: hf.LukeConfig(**ENCODER, entity_vocab_size=20, entity_emb_size=16)),
        Family("roformer", hf.RoFormerModel, lambda: hf.RoFormerConfig(**ENCODER)),
        Family("rembert", hf.RemBertModel, lambda: hf.RemBertConfig(**ENCODER, input_embedding_size=16)),
        Family("squeezebert", hf.SqueezeBertModel, lambda: hf.SqueezeBertConfig(**ENCODER, embedding_size=32)),
        Family("tapas", hf.TapasModel, lambda: hf.TapasConfig(**ENCODER, type_vocab_sizes=[3, 4, 4, 2, 4, 4, 4])),
        Family("prophetnet", hf.ProphetNetModel, lambda: hf.ProphetNetConfig(vocab_size=VOCAB, hidden_size=32, encoder_ffn_dim=40, decoder_ffn_dim=40, num_encoder_layers=2, num_decoder_layers=2, num_encoder_attention_heads=4, num_decoder_attention_heads=2, max_position_embeddings=64), reads="pairs", layers=(("encoder", 2), ("cross", 2))),
        Family("xglm", hf.XGLMForCausalLM, lambda: hf.XGLMConfig(vocab_size=VOCAB, d_model=32, ffn_dim=40, num_layers=2, attention_heads=4, max_position_embeddings=64)),
        Family("xlm", hf.XLMModel, lambda: hf.XLMConfig(vocab_size=VOCAB, emb_dim=32, n_layers=2, n_heads=4, max_position_embeddings=64, pad_index=0)),
        Family("flaubert", hf.FlaubertModel, lambda: hf.FlaubertConfig(vocab_size=VOCAB, emb_dim=32, n_layers=2, n_heads=4, max_position_embeddings=64, pad_index=0)),
        Family("canine", hf.CanineModel, lambda: hf.CanineConfig(**(ENCODER | {"vocab_size": 1000}), num_hash_buckets=50, local_transformer_stride=16, downsampling_rate=2)),
        Family("funnel", hf.FunnelModel, lambda: hf.FunnelConfig(vocab_size=VOCAB, block_sizes=[1, 1], num_decoder_layers=1, d_model=32, n_head=4, d_head=8, d_inner=40)),
        Family("megatron-bert", hf.MegatronBertModel, lambda: hf.MegatronBertConfig(**ENCODER)),
        Family("ibert", hf.IBertModel, lambda: hf.IBertConfig(**ENCODER)),
        Family("convbert", hf.ConvBertModel, lambda: hf.ConvBertConfig(**ENCODER, embedding_size=32, head_ratio=2, conv_kernel_size=3)),
        Family("nystromformer", hf.NystromformerModel, lambda: hf.NystromformerConfig(**ENCODER, num_landmarks=3, segment_means_seq_len=9)),
        Family("openai-gpt", hf.OpenAIGPTLMHeadModel, lambda: hf.OpenAIGPTConfig(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=64)),
        Family("gpt-neox-japanese", hf.GPTNeoXJapaneseForCausalLM, lambda: hf.GPTNeoXJapaneseConfig(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_multiple_size=2, max_position_embeddings=64)),
        Family("speecht5", hf.SpeechT5ForSpeechToText, lambda: hf.SpeechT5Config(vocab_size=VOCAB, hidden_size=32, encoder_layers=2, encoder_attention_heads=4, encoder_ffn_dim=40, decoder_layers=2, decoder_ffn_dim=40, decoder_attention_heads=2, conv_dim=(8, 8), conv_stride=(4, 2), conv_kernel=(8, 3), num_feat_extract_layers=2, num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=4, pad_token_id=0, decoder_start_token_id=2), reads="waves to words", layers=_PAIRED),
        Family("trocr", hf.TrOCRForCausalLM, lambda: hf.TrOCRConfig(vocab_size=VOCAB, d_model=32, decoder_layers=2, decoder_attention_heads=4, decoder_ffn_dim=40, max_position_embeddings=64)),
        Family("mvp", hf.MvpModel, lambda: hf.MvpConfig(**PAIR, **_POSITIONS), reads="pairs", layers=_PAIRED),
        Family("fsmt", hf.FSMTModel, lambda: hf.FSMTConfig(**(PAIR | {"pad_token_id": 1}), **_POSITIONS, langs=["a", "b"], src_vocab_size=VOCAB, tgt_vocab_size=VOCAB), reads="pairs", layers=_PAIRED),
        Family("vilt", hf.ViltModel, lambda: hf.ViltConfig(**(ENCODER | PICTURE)), reads="words and pictures"),
        Family("visual-bert", hf.VisualBertModel, lambda: hf.VisualBertConfig(**ENCODER, visual_embedding_dim=16)),
        Family("swinv2", hf.Swinv2Model, lambda: hf.Swinv2Config(image_size=16, patch_size=2, embed_dim=16, depths=[2], num_heads=[2], window_size=4, mlp_ratio=2.0), reads="pictures"),
        Family("pvt", hf.PvtModel, lambda: hf.PvtConfig(image_size=16, num_encoder_blocks=2, depths=[1, 1], sequence_reduction_ratios=[2, 1], hidden_sizes=[16, 16], patch_sizes=[4, 2], strides=[4, 2], num_attention_heads=[2, 2], mlp_ratios=[2, 2]), reads="pictures"),
        Family("pvt-v2", hf.PvtV2Model, lambda: hf.PvtV2Config(image_size=16, num_encoder_blocks=2, depths=[1, 1], sr_ratios=[2, 1], hidden_sizes=[16, 16], patch_sizes=[7, 3], strides=[4, 2], num_attention_heads=[2, 2], mlp_ratios=[2, 2]), reads="pictures"),
        Family("mobilevit", hf.MobileViTModel, lambda: hf.MobileViTConfig(image_size=32, hidden_sizes=[16, 16, 16], neck_hidden_sizes=[8, 8, 8, 8, 8, 8, 8], num_attention_heads=2), reads="pictures"),
        Family("hiera", hf.HieraModel, lambda: hf.HieraConfig(image_size=[16, 16], patch_size=[3, 3], patch_stride=[2, 2], patch_padding=[1, 1], embed_dim=8, depths=[1, 1], num_heads=[2, 2], num_query_pool=1, masked_unit_size=[4, 4]), reads="pictures"),
        Family("data2vec-vision", hf.Data2VecVisionModel, lambda: hf.Data2VecVisionConfig(**PICTURE), reads="pictures"),
        Family("vitdet", hf.VitDetModel, lambda: hf.VitDetConfig(**{k: v for k, v in PICTURE.items() if k != "intermediate_size"}, pretrain_image_size=16), reads="pictures"),
        Family("timesformer", hf.TimesformerModel, lambda: hf.TimesformerConfig(**PICTURE, num_frames=2), reads="films"),
        Family("flava-text", hf.FlavaTextModel, lambda: hf.FlavaTextConfig(**ENCODER)),
        Family("flava-image", hf.FlavaImageModel, lambda: hf.FlavaImageConfig(**PICTURE), reads="pictures"),
        Family("segformer", hf.SegformerModel, lambda: hf.SegformerConfig(image_size=16, num_encoder_blocks=2, depths=[1, 1], sr_ratios=[2, 1], hidden_sizes=[16, 16], patch_sizes=[7, 3], strides=[4, 2], num_attention_heads=[2, 2], mlp_ratios=[2, 2]), reads="pictures"),
        Family("cvt", hf.CvtModel, lambda: hf.CvtConfig(embed_dim=[16], num_heads=[2], depth=[2], patch_sizes=[3], patch_stride=[2], patch_padding=[1], mlp_ratio=[2.0], attention_drop_rate=[0.0], drop_rate=[0.0], drop_path_rate=[0.0], qkv_bias=[True], cls_token=[True], qkv_projection_method=["dw_bn"], kernel_qkv=[3], padding_kv=[1], stride_kv=[2], padding_q=[1], stride_q=[1]), reads="pictures"),
        Family("levit", hf.LevitModel, lambda: hf.LevitConfig(image_size=16, num_channels=3, kernel_size=3, stride=2, padding=1, patch_size=4, hidden_sizes=[16, 16, 16], num_attention_heads=[2, 2, 2], depths=[1, 1, 1], key_dim=[4, 4, 4], mlp_ratio=[2, 2, 2], attention_ratio=[2, 2, 2]), reads="pictures"),
        Family("groupvit-text", hf.GroupViTTextModel, lambda: hf.GroupViTTextConfig(**ENCODER)),
        Family("sew-d", hf.SEWDModel, lambda: hf.SEWDConfig(**_SPEECH, squeeze_factor=2, max_position_embeddings=64, position_buckets=8), reads="waves"),
        Family("vits-text", hf.VitsModel, lambda: hf.VitsConfig(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=4)),
        Family("lxmert", hf.LxmertModel, lambda: hf.LxmertConfig(vocab_size=VOCAB, hidden_size=32, num_attention_heads=4, intermediate_size=40, l_layers=2, x_layers=1, r_layers=1, visual_feat_dim=16), reads="words and boxes"),
        Family("reformer", hf.ReformerModel, lambda: hf.ReformerConfig(vocab_size=VOCAB, hidden_size=32, num_attention_heads=2, attention_head_size=16, feed_forward_size=40, attn_layers=["local"], axial_pos_shape=[3, 3], axial_pos_embds_dim=[16, 16], local_attn_chunk_length=3)),
        Family("autoformer-ish patchtst", hf.PatchTSTModel, lambda: hf.PatchTSTConfig(d_model=32), reads="none"),
    )
}
