"""What people asked of other tools in public: words, pictures, sinks, likeness. See `test_public_complaints`."""

import numpy as np
import pytest
import torch
import transformers as hf
from tokenizers import Tokenizer, models, pre_tokenizers

import multihead as mh
from hooks.families import FAMILIES, PICTURE, ids, randomise, twin
from journeys.watched import eager, seen_calls, watched_record, weights_of
from multihead.corpus import Picture
from multihead.interop import picture_facts
from multihead.measure.role import label_heads
from multihead.workflow.pictures import encode_pictures

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "gp", "##u", "is", "fa", "##st", "##er", "."]
SENTENCE = "a gpu is faster ."


def pieces_tokenizer():
    plain = Tokenizer(models.WordPiece({piece: n for n, piece in enumerate(PIECES)}, unk_token="[UNK]"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=plain, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    )


@pytest.fixture(scope="module")
def read():
    """A model that has read a sentence of words in pieces, and what it tells."""
    model = FAMILIES["bert"].build()
    return model, mh.checkup(model, pieces_tokenizer(), [SENTENCE], repeats=0).statistics


def test_transformers_interpret_72_words_in_place_of_pieces(read):
    model, statistics = read
    (example,) = statistics.examples
    assert example.queries == example.keys == ("a", "gpu", "is", "faster", ".")
    row = torch.tensor([pieces_tokenizer()(SENTENCE)["input_ids"]])
    words = [[4], [5, 6], [7], [8, 9, 10], [11]]
    assert row[0].tolist() == [n for word in words for n in word]
    matrices = torch.cat(eager(FAMILIES["bert"], model, {"input_ids": row}).attentions, 1)[0]
    places = [[n - 4 for n in word] for word in words]
    want = torch.stack([torch.stack([matrices[:, q][:, :, k].sum(2).mean(1) for k in places], 1) for q in places], 1)
    want[:, :, 0] = 0  # the first token is the sink, told apart
    kept = np.zeros(want.shape)
    heads, queries, links = np.nonzero(example.places >= 0)
    kept[heads, queries, example.places[heads, queries, links]] = example.weights[heads, queries, links]
    shown = kept > 0
    np.testing.assert_allclose(kept[shown], want.numpy()[shown], rtol=1e-4)
    assert shown.sum(2).min() >= 1


def test_bertviz_23_every_word_with_its_numbers(read):
    _, statistics = read
    (example,) = statistics.examples
    lines = [
        f"{word}: "
        + ", ".join(f"{example.keys[at]} {share:.3f}" for at, share in zip(where, much, strict=True) if at >= 0)
        for word, where, much in zip(example.queries, example.places[5], example.weights[5], strict=True)
    ]
    assert [line.split(":")[0] for line in lines] == list(example.queries)
    told = np.where(example.places >= 0, example.weights, 0).sum(2) + example.sink + example.elsewhere
    assert (told <= 1 + 1e-5).all()
    assert (np.diff(example.weights, axis=2) <= 0)[example.places[:, :, 1:] >= 0].all()  # the strongest first


def test_transformers_17327_generate_under_watch_is_one_document():
    """Prompt and steps are added up as one text, whatever the shapes of the pieces; so generated tokens are seen."""
    family = FAMILIES["llama"]
    model, prompt = family.build(), ids(1, 6)
    model.generation_config.eos_token_id = None
    with torch.no_grad(), mh.watch(model) as watched:
        made = model.generate(prompt, max_new_tokens=5, do_sample=False, pad_token_id=0)
    steps = watched.statistics()
    whole = watched_record(twin(family, model, "sdpa"), {"input_ids": made[:, :-1]})
    assert [document.tokens for document in steps.documents] == [10]
    for name in ("entropy", "first_token", "previous", "offsets", "sink"):
        np.testing.assert_allclose(steps.value(name), whole.value(name), rtol=1e-3, atol=1e-5, err_msg=name)


def test_llama3_155_the_first_token_set_aside():
    """What is left beside the first token is a share of its own, equal to that of the renormalised matrices."""
    family = FAMILIES["llama"]
    model, row = family.build(), ids(1, 24)
    record = watched_record(model, {"input_ids": row})
    matrices = torch.cat(eager(family, model, {"input_ids": row}).attentions, 1)[0].double()
    np.testing.assert_allclose(record.value("sink"), matrices[:, 1:, 0].mean(1), rtol=1e-4)
    before = matrices.diagonal(offset=-1, dim1=1, dim2=2)[:, 1:].sum(1)  # of row 1 the token before is the sink
    left = (1 - matrices[:, 2:, 0]).sum(1)
    np.testing.assert_allclose(record.value("previous_content"), before / left, rtol=1e-3)


def test_attention_viz_44_heads_that_look_alike():
    """A head that was copied is found, by its pattern and by its label."""
    family = FAMILIES["bert"]
    model = family.build()
    own = model.encoder.layer[0].attention.self
    with torch.no_grad():
        for part in (own.query, own.key):
            part.weight[16:24] = part.weight[0:8]
            part.bias[16:24] = part.bias[0:8]
    report = mh.checkup(model, pieces_tokenizer(), [SENTENCE * 4], repeats=0)
    alike = report.statistics.value("similarity")
    assert alike[0, 2] == pytest.approx(1, abs=1e-4)
    assert alike[0, 1] < 0.9999
    assert "L0.H2" in [str(head) for head in label_heads(report.record)[0].twins]


def seer(registers):
    if registers:
        config = hf.Dinov2WithRegistersConfig(**PICTURE, num_register_tokens=registers)
        kind = hf.Dinov2WithRegistersModel
    else:
        config, kind = hf.ViTConfig(**PICTURE), hf.ViTModel
    config._attn_implementation = "sdpa"
    model = kind(config).eval()
    randomise(model)
    return model


def picture():
    return Picture("p", torch.randint(0, 256, (16, 16, 3), dtype=torch.uint8))


def test_dinov2_285_registers_apart_from_patches():
    """[CLS], registers and patches are classes of their own, and the grid holds patches alone."""
    model, seen = seer(4), picture()
    statistics = mh.checkup(model, material=[seen]).statistics
    labels = statistics.quantity("token_class").labels
    share = dict(zip(labels, statistics.value("token_class").T, strict=True))
    calls, _ = seen_calls(model, encode_pictures(model, picture_facts(model), [seen]).batches[0].inputs)
    received = torch.cat([weights_of(call.problem) for call in calls], 1)[0].mean(1)
    assert received.shape == (8, 1 + 4 + 16)
    np.testing.assert_allclose(share["special"], received[:, 0], rtol=1e-4)
    np.testing.assert_allclose(share["register"], received[:, 1:5].sum(1), rtol=1e-4)
    np.testing.assert_allclose(share["patch"], received[:, 5:].sum(1), rtol=1e-4)
    assert statistics.examples[0].grid == (4, 4)
    assert len(statistics.examples[0].keys) == 16


def test_bertviz_118_patches_on_the_picture(tmp_path):
    report = mh.checkup(seer(0), material=[picture()])
    (example,) = report.statistics.examples
    assert example.grid == (4, 4)
    assert example.picture.startswith(b"\x89PNG")
    assert report.record.reads == "images"
    assert report.save(tmp_path).stat().st_size > 10_000
