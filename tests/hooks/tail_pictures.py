"""Tiny random models that compute attention by themselves and read pictures, films or sound, and a few more."""

import transformers as hf

from hooks.families import ENCODER, PICTURE, VOCAB
from hooks.tail import SPEECH, Tail

PICTURED = {
    family.name: family
    for family in (
        Tail("vilt", hf.ViltModel, lambda: hf.ViltConfig(**(ENCODER | PICTURE)), reads="words and pictures"),
        Tail("visual-bert", hf.VisualBertModel, lambda: hf.VisualBertConfig(**ENCODER, visual_embedding_dim=16)),
        Tail(
            "swinv2",
            hf.Swinv2Model,
            lambda: hf.Swinv2Config(
                image_size=16, patch_size=2, embed_dim=16, depths=[2], num_heads=[2], window_size=4, mlp_ratio=2.0
            ),
            reads="pictures",
        ),
        Tail(
            "pvt",
            hf.PvtModel,
            lambda: hf.PvtConfig(
                image_size=16,
                num_encoder_blocks=2,
                depths=[1, 1],
                sequence_reduction_ratios=[2, 1],
                hidden_sizes=[16, 16],
                patch_sizes=[4, 2],
                strides=[4, 2],
                num_attention_heads=[2, 2],
                mlp_ratios=[2, 2],
            ),
            reads="pictures",
        ),
        Tail(
            "pvt-v2",
            hf.PvtV2Model,
            lambda: hf.PvtV2Config(
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
            "mobilevit",
            hf.MobileViTModel,
            lambda: hf.MobileViTConfig(
                image_size=32, hidden_sizes=[16, 16, 16], neck_hidden_sizes=[8, 8, 8, 8, 8, 8, 8], num_attention_heads=2
            ),
            reads="pictures",
        ),
        Tail(
            "hiera",
            hf.HieraModel,
            lambda: hf.HieraConfig(
                image_size=[16, 16],
                patch_size=[3, 3],
                patch_stride=[2, 2],
                patch_padding=[1, 1],
                embed_dim=8,
                depths=[1, 1],
                num_heads=[2, 2],
                num_query_pool=1,
                masked_unit_size=[4, 4],
            ),
            reads="pictures",
        ),
        Tail("data2vec-vision", hf.Data2VecVisionModel, lambda: hf.Data2VecVisionConfig(**PICTURE), reads="pictures"),
        Tail(
            "vitdet",
            hf.VitDetModel,
            lambda: hf.VitDetConfig(
                **{k: v for k, v in PICTURE.items() if k != "intermediate_size"}, pretrain_image_size=16
            ),
            reads="pictures",
        ),
        Tail("timesformer", hf.TimesformerModel, lambda: hf.TimesformerConfig(**PICTURE, num_frames=2), reads="films"),
        Tail("flava-text", hf.FlavaTextModel, lambda: hf.FlavaTextConfig(**ENCODER)),
        Tail("flava-image", hf.FlavaImageModel, lambda: hf.FlavaImageConfig(**PICTURE), reads="pictures"),
        Tail(
            "cvt",
            hf.CvtModel,
            lambda: hf.CvtConfig(
                embed_dim=[16],
                num_heads=[2],
                depth=[2],
                patch_sizes=[3],
                patch_stride=[2],
                patch_padding=[1],
                mlp_ratio=[2.0],
                attention_drop_rate=[0.0],
                drop_rate=[0.0],
                drop_path_rate=[0.0],
                qkv_bias=[True],
                cls_token=[True],
                qkv_projection_method=["dw_bn"],
                kernel_qkv=[3],
                padding_kv=[1],
                stride_kv=[2],
                padding_q=[1],
                stride_q=[1],
            ),
            reads="pictures",
        ),
        Tail(
            "levit",
            hf.LevitModel,
            lambda: hf.LevitConfig(
                image_size=64,
                num_channels=3,
                kernel_size=3,
                stride=2,
                padding=1,
                patch_size=16,
                hidden_sizes=[16, 16, 16],
                num_attention_heads=[2, 2, 2],
                depths=[1, 1, 1],
                key_dim=[4, 4, 4],
                mlp_ratio=[2, 2, 2],
                attention_ratio=[2, 2, 2],
            ),
            reads="pictures",
            size=64,
        ),
        Tail("groupvit-text", hf.GroupViTTextModel, lambda: hf.GroupViTTextConfig(**ENCODER)),
        Tail(
            "sew-d",
            hf.SEWDModel,
            lambda: hf.SEWDConfig(**SPEECH, squeeze_factor=2, max_position_embeddings=64, position_buckets=8),
            reads="waves",
        ),
        Tail(
            "vits-text",
            hf.VitsModel,
            lambda: hf.VitsConfig(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=4),
        ),
        Tail(
            "lxmert",
            hf.LxmertModel,
            lambda: hf.LxmertConfig(
                vocab_size=VOCAB,
                hidden_size=32,
                num_attention_heads=4,
                intermediate_size=40,
                l_layers=2,
                x_layers=1,
                r_layers=1,
                visual_feat_dim=16,
            ),
            reads="words and boxes",
        ),
        Tail(
            "reformer",
            hf.ReformerModel,
            lambda: hf.ReformerConfig(
                vocab_size=VOCAB,
                hidden_size=32,
                num_attention_heads=2,
                attention_head_size=16,
                feed_forward_size=40,
                attn_layers=["local"],
                axial_pos_shape=[3, 3],
                axial_pos_embds_dim=[16, 16],
                local_attn_chunk_length=3,
            ),
        ),
    )
}
