"""Tiny random models of families that compute attention by themselves; run once each."""

import transformers as hf

from hooks.families import ENCODER, PAIR, PICTURE, VOCAB
from hooks.tail import POSITIONS, SPEECH, Tail
from hooks.tail_pictures import PICTURED

FALLBACK = {
    family.name: family
    for family in (
        Tail(
            "deberta-v2",
            hf.DebertaV2Model,
            lambda: hf.DebertaV2Config(
                **ENCODER, relative_attention=True, pos_att_type=["p2c", "c2p"], position_biased_input=False
            ),
        ),
        Tail(
            "deberta",
            hf.DebertaModel,
            lambda: hf.DebertaConfig(**ENCODER, relative_attention=True, pos_att_type=["p2c", "c2p"]),
        ),
        Tail("mpnet", hf.MPNetModel, lambda: hf.MPNetConfig(**ENCODER)),
        Tail(
            "gpt-neo",
            hf.GPTNeoForCausalLM,
            lambda: hf.GPTNeoConfig(
                vocab_size=VOCAB,
                hidden_size=32,
                num_layers=2,
                num_heads=4,
                attention_types=[[["global", "local"], 1]],
                window_size=4,
                max_position_embeddings=64,
                bos_token_id=1,
                eos_token_id=2,
            ),
        ),
        Tail(
            "bloom",
            hf.BloomForCausalLM,
            lambda: hf.BloomConfig(
                vocab_size=VOCAB, hidden_size=32, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=2, pad_token_id=0
            ),
        ),
        Tail(
            "falcon",
            hf.FalconForCausalLM,
            lambda: hf.FalconConfig(
                vocab_size=VOCAB,
                hidden_size=32,
                num_hidden_layers=2,
                num_attention_heads=4,
                bos_token_id=1,
                eos_token_id=2,
            ),
        ),
        Tail(
            "falcon-alibi",
            hf.FalconForCausalLM,
            lambda: hf.FalconConfig(
                vocab_size=VOCAB,
                hidden_size=32,
                num_hidden_layers=2,
                num_attention_heads=4,
                alibi=True,
                multi_query=False,
                bos_token_id=1,
                eos_token_id=2,
            ),
            # Under sdpa it adds the biases without the scale: other weights than its eager ones.
            kernel="eager",
        ),
        Tail(
            "mpt",
            hf.MptForCausalLM,
            lambda: hf.MptConfig(
                vocab_size=VOCAB,
                d_model=32,
                n_layers=2,
                n_heads=4,
                max_seq_len=64,
                use_cache=True,
                bos_token_id=1,
                eos_token_id=2,
            ),
        ),
        Tail("longformer", hf.LongformerModel, lambda: hf.LongformerConfig(**ENCODER, attention_window=4)),
        Tail(
            "led",
            hf.LEDModel,
            lambda: hf.LEDConfig(
                **PAIR, attention_window=4, max_encoder_position_embeddings=64, max_decoder_position_embeddings=64
            ),
            reads="pairs",
        ),
        Tail("bigbird", hf.BigBirdModel, lambda: hf.BigBirdConfig(**ENCODER, attention_type="original_full")),
        Tail(
            "xlnet",
            hf.XLNetModel,
            lambda: hf.XLNetConfig(vocab_size=VOCAB, d_model=32, n_layer=2, n_head=4, d_inner=40),
        ),
        Tail(
            "blip",
            hf.BlipForConditionalGeneration,
            lambda: hf.BlipConfig(
                text_config=ENCODER | {"encoder_hidden_size": 32, "bos_token_id": 1, "sep_token_id": 2},
                vision_config=PICTURE,
            ),
            reads="words and pictures",
        ),
        Tail(
            "wavlm",
            hf.WavLMModel,
            lambda: hf.WavLMConfig(**SPEECH, num_buckets=8, max_bucket_distance=16),
            reads="waves",
            gives="mean",
        ),
        Tail("luke", hf.LukeModel, lambda: hf.LukeConfig(**ENCODER, entity_vocab_size=20, entity_emb_size=16)),
        Tail("roformer", hf.RoFormerModel, lambda: hf.RoFormerConfig(**ENCODER)),
        Tail("rembert", hf.RemBertModel, lambda: hf.RemBertConfig(**ENCODER, input_embedding_size=16)),
        Tail(
            "squeezebert",
            hf.SqueezeBertModel,
            lambda: hf.SqueezeBertConfig(**ENCODER, embedding_size=32),
            gives="scores",
        ),
        Tail("tapas", hf.TapasModel, lambda: hf.TapasConfig(**ENCODER, type_vocab_sizes=[3, 4, 4, 2, 4, 4, 4])),
        Tail(
            "prophetnet",
            hf.ProphetNetModel,
            lambda: hf.ProphetNetConfig(
                vocab_size=VOCAB,
                hidden_size=32,
                encoder_ffn_dim=40,
                decoder_ffn_dim=40,
                num_encoder_layers=2,
                num_decoder_layers=2,
                num_encoder_attention_heads=4,
                num_decoder_attention_heads=2,
                max_position_embeddings=64,
            ),
            reads="pairs",
            gives="some scores",
        ),
        Tail(
            "xglm",
            hf.XGLMForCausalLM,
            lambda: hf.XGLMConfig(
                vocab_size=VOCAB, d_model=32, ffn_dim=40, num_layers=2, attention_heads=4, max_position_embeddings=64
            ),
        ),
        Tail(
            "xlm",
            hf.XLMModel,
            lambda: hf.XLMConfig(
                vocab_size=VOCAB, emb_dim=32, n_layers=2, n_heads=4, max_position_embeddings=64, pad_index=0
            ),
        ),
        Tail(
            "flaubert",
            hf.FlaubertModel,
            lambda: hf.FlaubertConfig(
                vocab_size=VOCAB, emb_dim=32, n_layers=2, n_heads=4, max_position_embeddings=64, pad_index=0
            ),
        ),
        Tail(
            "canine",
            hf.CanineModel,
            lambda: hf.CanineConfig(
                **(ENCODER | {"vocab_size": 1000}),
                num_hash_buckets=50,
                local_transformer_stride=16,
                downsampling_rate=2,
            ),
        ),
        Tail(
            "funnel",
            hf.FunnelModel,
            lambda: hf.FunnelConfig(
                vocab_size=VOCAB, block_sizes=[1, 1], num_decoder_layers=1, d_model=32, n_head=4, d_head=8, d_inner=40
            ),
        ),
        Tail("megatron-bert", hf.MegatronBertModel, lambda: hf.MegatronBertConfig(**ENCODER)),
        Tail("ibert", hf.IBertModel, lambda: hf.IBertConfig(**ENCODER)),
        Tail(
            "convbert",
            hf.ConvBertModel,
            lambda: hf.ConvBertConfig(**ENCODER, embedding_size=32, head_ratio=2, conv_kernel_size=3),
        ),
        Tail(
            "nystromformer",
            hf.NystromformerModel,
            lambda: hf.NystromformerConfig(**ENCODER, num_landmarks=3, segment_means_seq_len=9),
        ),
        Tail(
            "openai-gpt",
            hf.OpenAIGPTLMHeadModel,
            lambda: hf.OpenAIGPTConfig(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=64),
        ),
        Tail(
            "gpt-neox-japanese",
            hf.GPTNeoXJapaneseForCausalLM,
            lambda: hf.GPTNeoXJapaneseConfig(
                vocab_size=VOCAB,
                hidden_size=32,
                num_hidden_layers=2,
                num_attention_heads=4,
                intermediate_multiple_size=2,
                max_position_embeddings=64,
            ),
        ),
        Tail(
            "speecht5",
            hf.SpeechT5ForSpeechToText,
            lambda: hf.SpeechT5Config(
                vocab_size=VOCAB,
                hidden_size=32,
                encoder_layers=2,
                encoder_attention_heads=4,
                encoder_ffn_dim=40,
                decoder_layers=2,
                decoder_ffn_dim=40,
                decoder_attention_heads=2,
                conv_dim=(8, 8),
                conv_stride=(4, 2),
                conv_kernel=(8, 3),
                num_feat_extract_layers=2,
                num_conv_pos_embeddings=8,
                num_conv_pos_embedding_groups=4,
                pad_token_id=0,
                decoder_start_token_id=2,
            ),
            reads="waves to words",
        ),
        Tail(
            "trocr",
            hf.TrOCRForCausalLM,
            lambda: hf.TrOCRConfig(
                vocab_size=VOCAB,
                d_model=32,
                decoder_layers=2,
                decoder_attention_heads=4,
                decoder_ffn_dim=40,
                max_position_embeddings=64,
            ),
        ),
        Tail("mvp", hf.MvpModel, lambda: hf.MvpConfig(**PAIR, **POSITIONS), reads="pairs"),
        Tail(
            "fsmt",
            hf.FSMTModel,
            lambda: hf.FSMTConfig(
                **(PAIR | {"pad_token_id": 1}),
                **POSITIONS,
                langs=["a", "b"],
                src_vocab_size=VOCAB,
                tgt_vocab_size=VOCAB,
            ),
            reads="pairs",
        ),
    )
} | PICTURED
