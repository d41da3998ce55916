"""What users of other tools asked for in public, one test a complaint.

`docs/explanation/other-tools.md` holds the links and says what each thread is about. The number in a name is that of
the thread. Where our weights are judged, transformers' own eager attention is the judge.
"""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers as hf
from tokenizers import Tokenizer, models, pre_tokenizers

import multihead as mh
from forked import forked
from hooks.families import FAMILIES, PICTURE, ids, randomise, twin
from journeys.memory import measure_memory
from journeys.watched import eager, seen_calls, shut_in, watched_record, weights_of
from workflow.fakes import LetterTokenizer, bert


@pytest.fixture(scope="module")
def memory(tmp_path_factory):
    folder = tmp_path_factory.mktemp("memory")
    with forked(measure_memory, folder, folder=folder) as process:
        process.join()
    assert process.exitcode == 0, (folder / "err.txt").read_text()
    return SimpleNamespace(**json.loads((folder / "told.json").read_text()))


def test_transformerlens_479_memory(memory):
    """One matrix of one head of 4096 tokens takes 64 MiB, those of this layer 256 MiB."""
    assert memory.grown < 128


def test_transformerlens_490_a_long_context_costs_nothing_until_it_is_used(memory):
    """A model that could read a million tokens is watched without a mask of that size."""
    assert memory.buffers < 1_000


def test_inseq_279_memory_on_a_long_context(memory):
    assert memory.grown < 128


def test_transformerlens_378_the_fast_kernel_stays(monkeypatch):
    family = FAMILIES["llama"]
    model, inputs = family.build("sdpa"), family.inputs()
    fast, counted = torch.nn.functional.scaled_dot_product_attention, []

    def counting(*given, **named):
        counted.append(1)
        return fast(*given, **named)

    with torch.no_grad():
        plain = model(**inputs).logits
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", counting)
    with torch.no_grad(), mh.watch(model):
        watched = model(**inputs).logits
    assert len(counted) == 2  # once a layer: what is measured is worked out beside it
    assert torch.equal(plain, watched)


@pytest.mark.parametrize("side", ["left", "right"])
def test_transformerlens_240_padding(side):
    """A padded row is measured as if it stood alone."""
    model, row = FAMILIES["llama"].build(), ids(1, 8)
    filling, keep = torch.zeros(1, 5, dtype=torch.long), torch.ones(1, 8, dtype=torch.long)
    parts = (filling, row) if side == "left" else (row, filling)
    padded = {
        "input_ids": torch.cat(parts, 1),
        "attention_mask": torch.cat([keep if part is row else filling for part in parts], 1),
    }
    alone, filled = watched_record(model, {"input_ids": row}), watched_record(model, padded)
    assert filled.documents[0].tokens == 8
    for quantity in alone.quantities:
        if quantity.name != "rows_padded":
            got, want = filled.value(quantity.name), alone.value(quantity.name)
            np.testing.assert_allclose(got, want, rtol=2e-3, atol=2e-5, err_msg=quantity.name)


def test_transformers_31990_weights_under_sdpa():
    """The model stays on sdpa, and the weights are those of eager attention."""
    family = FAMILIES["llama"]
    model, inputs = family.build("sdpa"), family.inputs()
    calls, _ = seen_calls(model, inputs)
    assert {call.kernel for call in calls} == {"sdpa"}
    assert model.config._attn_implementation == "sdpa"
    for call, want in zip(calls, eager(family, model, inputs).attentions, strict=True):
        torch.testing.assert_close(weights_of(call.problem), want, rtol=1e-4, atol=1e-5)


def test_multitalk_54_nobody_has_to_ask_for_attentions():
    """transformers refuses the setting under sdpa; it is not needed."""
    model = FAMILIES["bert"].build("sdpa")
    assert not model.config.output_attentions
    assert np.isfinite(watched_record(model, FAMILIES["bert"].inputs()).value("entropy")).all()


def test_pytorch_119811_weights_of_fused_attention():
    q, k, v = torch.randn(1, 4, 50, 16), torch.randn(1, 2, 50, 16), torch.randn(1, 2, 50, 8)
    attended = mh.attention_lse(q, k, v, mask=mh.causal())
    fused = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    torch.testing.assert_close(attended.out, fused, rtol=1e-4, atol=1e-5)
    weights = attended.weights(rows=slice(40, 50), heads=[3])
    assert weights.shape == (1, 1, 10, 50)
    torch.testing.assert_close(weights @ v[:, 1:], fused[:, 3:, 40:], rtol=1e-4, atol=1e-5)


def test_flash_attention_159_column_sums_without_the_matrix():
    """What N x N weights are mostly wanted for is added up along the way."""
    family = FAMILIES["gpt2"]
    model, row = family.build(), ids(1, 32)
    record = watched_record(model, {"input_ids": row})
    matrices = torch.cat(eager(family, model, {"input_ids": row}).attentions, 1)
    np.testing.assert_allclose(record.value("received"), matrices[0, :, 1:].sum(1), rtol=1e-4, atol=1e-6)


def test_transformers_26174_one_record_for_a_generated_text():
    """The steps of `generate` come in pieces of different shapes; the finished text is one document of whole rows."""
    family = FAMILIES["gpt2"]
    model, prompt = family.build(), ids(1, 6)
    with torch.no_grad():
        made = twin(family, model).generate(
            prompt,
            max_new_tokens=4,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            output_attentions=True,
            return_dict_in_generate=True,
        )
    shapes = [tuple(step[0].shape[2:]) for step in made.attentions]
    assert shapes == [(6, 6), (1, 7), (1, 8), (1, 9)]
    record = watched_record(model, {"input_ids": made.sequences[:, :-1]})  # the last token was never fed back
    assert [document.tokens for document in record.documents] == [9]
    rows = [step[layer][0, :, i] for layer in (0,) for step in made.attentions for i in range(step[layer].shape[2])]
    want = torch.stack([row[:, 0] for row in rows[1:]]).mean(0)
    np.testing.assert_allclose(record.value("first_token")[:4], want, rtol=1e-4)


@pytest.mark.parametrize(("name", "side"), [("bert", "right"), ("llama", "left")])
def test_transformers_46132_a_registered_attention_keeps_the_mask(name, side):
    family = FAMILIES[name]
    model, inputs = family.build("sdpa"), family.inputs(side)
    own = twin(family, model, mh.register_transformers())
    real = inputs["attention_mask"].bool()
    with torch.no_grad():
        got, want = own(**inputs)[0][real], model(**inputs)[0][real]
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_transformers_45811_a_model_cannot_cheat():
    """With another last token everything before it stays as it was."""
    family = FAMILIES["llama"]
    own, row = family.build(mh.register_transformers()), ids(1, 9)
    changed = torch.cat([row[:, :-1], (row[:, -1:] + 1) % 90], 1)
    with torch.no_grad():
        assert torch.equal(own(row).logits[:, :-1], own(changed).logits[:, :-1])


@pytest.mark.parametrize("name", ["bert", "gpt2", "vit", "t5"])
def test_transformers_27044_head_mask_is_not_ignored_here(name):
    """A gate acts: closing every head leaves what the layer makes of nothing, its bias."""
    family = FAMILIES[name]
    model, inputs = family.build(), family.inputs()
    heads = watched_record(model, inputs).heads
    with torch.no_grad():
        plain = model(**inputs)[0]
        with mh.gated(model, dict.fromkeys(heads, 0.0)):
            calls, closed = seen_calls(model, inputs)
    assert all((call.output == 0).all() for call in calls)
    assert not torch.allclose(plain, closed[0])


def test_transformers_41620_a_gate_is_a_factor_and_no_score():
    """Half a gate is half of a head's output: nothing enters the softmax, nothing multiplies the mask."""
    family = FAMILIES["vit"]
    model, inputs = family.build(), family.inputs()
    calls, _ = seen_calls(model, inputs)
    with mh.gated(model, {"L0.H1": 0.5}):
        gated, _ = seen_calls(model, inputs)
    want = calls[0].output.clone()
    want[:, :, 1] *= 0.5
    assert torch.equal(gated[0].output, want)


# Models of one's own, pictures


def test_dinov2_90_register_tokens_are_part_of_the_picture():
    config = hf.Dinov2WithRegistersConfig(**PICTURE, num_register_tokens=4)
    config._attn_implementation = "sdpa"
    model = hf.Dinov2WithRegistersModel(config).eval()
    randomise(model)
    calls, _ = seen_calls(model, {"pixel_values": torch.randn(1, 3, 16, 16)})
    weights = weights_of(calls[-1].problem, rows=[0])
    assert weights.shape == (1, 4, 1, 1 + 4 + 16)
    assert weights[0, 0, 0, 5:].reshape(4, 4).shape == (4, 4)  # what follows [CLS] and the registers is the grid


def test_captum_916_attention_maps_of_a_vision_transformer():
    family = FAMILIES["vit"]
    model, inputs = family.build(), family.inputs()
    calls, _ = seen_calls(model, inputs)
    for call, want in zip(calls, eager(family, model, inputs).attentions, strict=True):
        torch.testing.assert_close(weights_of(call.problem), want, rtol=1e-4, atol=1e-5)


def test_exbert_20_a_model_of_ones_own_from_a_folder(tmp_path, monkeypatch):
    """A folder is enough: no corpus to prepare, no server, no network."""
    shut_in(monkeypatch)
    words = {word: n for n, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "short", "text", "."])}
    plain = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    FAMILIES["bert"].build().save_pretrained(tmp_path / "mine")
    hf.PreTrainedTokenizerFast(
        tokenizer_object=plain, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    ).save_pretrained(tmp_path / "mine")
    opened = mh.open_model(str(tmp_path / "mine"))
    report = mh.checkup(opened.model, opened.tokenizer, ["a short text . " * 5], repeats=0)
    assert len(report.statistics) == 8


def test_attention_viz_72_own_texts_in_one_call(tmp_path):
    report = mh.checkup(bert(), LetterTokenizer(), ["my first text", "and another one"], repeats=0)
    assert [document.name for document in report.statistics.documents] == ["text 0", "text 1"]
    assert report.save(tmp_path).exists()


def test_the_page_about_other_tools_names_tests_that_are_here():
    """Every row links its thread, and every complaint tested has its row."""
    page = (Path(__file__).parents[2] / "docs" / "explanation" / "other-tools.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| [")]
    files = Path(__file__).parent.glob("test_public_complaints*.py")
    own = set(re.findall(r"^def (test_\w+?_\d+_\w+)", "".join(map(Path.read_text, files)), re.MULTILINE))
    assert set(re.findall(r"`(test_\w+)`", "".join(rows))) == own
    assert all("](https://github.com/" in row for row in rows)
