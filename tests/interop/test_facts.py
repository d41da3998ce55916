import json

import pytest
import transformers as hf
from torch import nn

from hooks.families import FAMILIES, PICTURE
from multihead.error import MultiheadError
from multihead.interop import (
    load_model,
    picture_facts,
    picture_part,
    quiet_transformers,
    reads_images,
    reads_sounds,
    sound_facts,
)

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
HALF = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
TEXT = {"vocab_size": 20, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 8}
TEXT |= {"max_position_embeddings": 8, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
WAVES = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 8,
    "conv_dim": (8, 8),
    "conv_kernel": (10, 3),
    "conv_stride": (5, 2),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
    "feat_extract_norm": "layer",
    "do_stable_layer_norm": True,
}
SEERS = {
    "vit": lambda: hf.ViTModel(hf.ViTConfig(**PICTURE)),
    "vit_classes": lambda: hf.ViTForImageClassification(hf.ViTConfig(**PICTURE)),
    "deit": lambda: hf.DeiTModel(hf.DeiTConfig(**PICTURE)),
    "beit": lambda: hf.BeitModel(hf.BeitConfig(**PICTURE)),
    "dinov2": lambda: hf.Dinov2Model(hf.Dinov2Config(**PICTURE)),
    "registers": lambda: hf.Dinov2WithRegistersModel(hf.Dinov2WithRegistersConfig(**PICTURE, num_register_tokens=3)),
    "clip_vision": lambda: hf.CLIPVisionModel(hf.CLIPVisionConfig(**PICTURE)),
    "siglip_vision": lambda: hf.SiglipVisionModel(hf.SiglipVisionConfig(**PICTURE)),
    "clip": lambda: hf.CLIPModel(hf.CLIPConfig(text_config=TEXT, vision_config=PICTURE)),
    "swin": lambda: hf.SwinModel(
        hf.SwinConfig(image_size=32, patch_size=4, embed_dim=16, depths=[1, 1], num_heads=[2, 2], window_size=4)
    ),
    "reader": lambda: hf.VisionEncoderDecoderModel(
        encoder=hf.ViTModel(hf.ViTConfig(**PICTURE)),
        decoder=hf.BertLMHeadModel(hf.BertConfig(**TEXT, is_decoder=True, add_cross_attention=True)),
    ),
}
HEARERS = {
    "whisper": FAMILIES["whisper"].build,
    "wav2vec2": lambda: hf.Wav2Vec2Model(hf.Wav2Vec2Config(**WAVES)),
    "wav2vec2_letters": lambda: hf.Wav2Vec2ForCTC(hf.Wav2Vec2Config(**WAVES, vocab_size=9)),
    "hubert": lambda: hf.HubertModel(hf.HubertConfig(**WAVES)),
}


@pytest.mark.parametrize("name", SEERS)
def test_models_of_pictures(name):
    with quiet_transformers():
        model = SEERS[name]()
    assert reads_images(model)
    assert not reads_sounds(model)
    part = picture_part(model)
    assert (part is model) == (name not in ("clip", "reader"))
    facts = picture_facts(model)
    size = 32 if name == "swin" else 16
    assert (facts.height, facts.width, facts.patch) == (size, size, (4, 4))
    assert facts.grid == (size // 4, size // 4)
    assert facts.registers == (3 if name == "registers" else 0)


@pytest.mark.parametrize("name", HEARERS)
def test_models_of_sound(name):
    model = HEARERS[name]()
    assert reads_sounds(model)
    assert not reads_images(model)
    facts = sound_facts(model)
    assert facts.rate == 16000
    if name == "whisper":
        assert (facts.kind, facts.stride, facts.longest, facts.bins) == ("mel", 320, 20 * 160, 8)
    else:
        assert (facts.kind, facts.stride, facts.longest, facts.normalise) == ("samples", 10, 480_000, True)


@pytest.mark.parametrize("name", ["bert", "gpt2", "t5"])
def test_models_of_text_read_neither(name):
    model = FAMILIES[name].build()
    assert not reads_images(model)
    assert not reads_sounds(model)
    with pytest.raises(MultiheadError, match=f"got: {type(model).__name__}, which takes attention_mask"):
        picture_facts(model)
    with pytest.raises(MultiheadError, match=f"got: {type(model).__name__}, which takes attention_mask"):
        sound_facts(model)
    assert not reads_images(nn.Linear(2, 2))


def test_pictures_without_patches_are_not_for_us():
    class Convolution(nn.Module):
        def forward(self, pixel_values):
            return pixel_values

    assert not reads_images(Convolution())


def facts_of(folder, told, name="preprocessor_config.json", model="vit"):
    (folder / name).write_text(told if isinstance(told, str) else json.dumps(told))
    return picture_facts(SEERS[model](), folder)


def test_the_usual_settings_of_families():
    usual = {name: picture_facts(SEERS[name]()) for name in ("vit", "deit", "dinov2", "siglip_vision", "swin")}
    assert {name: (facts.mean, facts.std) for name, facts in usual.items()} == {
        "vit": HALF,
        "deit": IMAGENET,
        "dinov2": IMAGENET,
        "siglip_vision": HALF,
        "swin": IMAGENET,
    }
    assert [facts.resize for facts in usual.values()] == [(16, 16), (18, 18), 18, (16, 16), (32, 32)]
    assert [facts.filter for facts in usual.values()] == ["bilinear", *["bicubic"] * 4]
    large = hf.Dinov2Model(hf.Dinov2Config(**(PICTURE | {"image_size": 518, "patch_size": 14})))
    assert (picture_facts(large).grid, picture_facts(large).resize) == ((16, 16), 256)


def test_the_processors_file_decides(tmp_path):
    told = {
        "size": {"height": 20, "width": 24},
        "resample": 1,
        "rescale_factor": 0.5,
        "image_mean": [0.1, 0.2, 0.3],
        "image_std": [1, 2, 3],
    }
    facts = facts_of(tmp_path, told)
    assert (facts.height, facts.width, facts.resize) == (20, 24, (20, 24))
    assert (facts.filter, facts.scale) == ("lanczos", 0.5)
    assert (facts.mean, facts.std) == ((0.1, 0.2, 0.3), (1.0, 2.0, 3.0))
    facts = facts_of(tmp_path, {"do_normalize": False, "do_rescale": False, "size": 12})
    assert (facts.mean, facts.std, facts.scale, facts.resize) == ((0, 0, 0), (1, 1, 1), 1.0, (12, 12))


@pytest.mark.parametrize(
    ("told", "resize", "size"),
    [
        ({"size": {"shortest_edge": 18}, "crop_size": {"height": 16, "width": 12}}, 18, (16, 12)),
        ({"size": {"shortest_edge": 18}, "do_center_crop": True, "crop_size": 16}, 18, (16, 16)),
        ({"size": 18, "do_center_crop": True, "crop_size": 16}, 18, (16, 16)),
        ({"size": {"shortest_edge": 18}}, 18, (18, 18)),
        ({"size": 20, "do_center_crop": False, "crop_size": 16}, (20, 20), (20, 20)),
        ({"do_resize": False, "size": 9, "crop_size": 8}, None, (8, 8)),
        ({"do_resize": False, "size": 9}, None, (16, 16)),
        ({"resample": 99, "image_mean": [1], "rescale_factor": "x", "size": "big"}, (16, 16), (16, 16)),
        ({"resample": 3}, (16, 16), (16, 16)),
    ],
)
def test_sizes_in_all_their_spellings(tmp_path, told, resize, size):
    facts = facts_of(tmp_path, told)
    assert facts.resize == resize
    assert (facts.height, facts.width) == size


def test_processors_that_are_kept_together(tmp_path):
    facts = facts_of(tmp_path, {"image_processor": {"size": 8}, "tokenizer": {}}, name="processor_config.json")
    assert facts.height == 8


@pytest.mark.parametrize(("told", "match"), [("{", "Expecting"), ("[1]", "a list")])
def test_a_damaged_file_is_told(tmp_path, told, match):
    with pytest.raises(MultiheadError, match=rf"preprocessor_config\.json: a JSON object\n  got: {match}"):
        facts_of(tmp_path, told)


def test_sound_settings_are_read(tmp_path):
    (tmp_path / "preprocessor_config.json").write_text('{"sampling_rate": 8000, "do_normalize": false}')
    facts = sound_facts(HEARERS["wav2vec2"](), tmp_path)
    assert (facts.rate, facts.longest, facts.normalise) == (8000, 240_000, False)
    (tmp_path / "preprocessor_config.json").write_text('{"hop_length": 80, "n_fft": 200}')
    facts = sound_facts(HEARERS["whisper"](), tmp_path)
    assert (facts.hop, facts.window, facts.longest, facts.stride) == (80, 200, 1600, 160)


def test_loading_a_folder_reads_its_processor(tmp_path):
    with quiet_transformers():
        SEERS["clip"]().save_pretrained(tmp_path)
        FAMILIES["whisper"].build().save_pretrained(tmp_path / "w")
        HEARERS["hubert"]().save_pretrained(tmp_path / "h")
    (tmp_path / "preprocessor_config.json").write_text('{"size": {"shortest_edge": 20}, "crop_size": 16}')
    loaded = load_model(tmp_path, tokenizer=str)
    assert type(loaded.model) is hf.CLIPModel
    assert (loaded.pictures.resize, loaded.pictures.height, loaded.sounds) == (20, 16, None)
    assert load_model(tmp_path / "w").sounds.bins == 8
    assert load_model(tmp_path / "h").sounds.kind == "samples"
