import copy
import itertools
import re
import webbrowser
from dataclasses import replace

import numpy as np
import pytest
import torch

import multihead as mh
from hooks.families import FAMILIES
from interop.test_facts import SEERS
from multihead.corpus import Text
from multihead.interop import quiet_transformers
from multihead.measure import discard_journal
from multihead.report import render_page
from multihead.workflow import OpenedModel, Progress, plan
from workflow.fakes import LetterTokenizer, Pieces, bert, hearer, noise, picture, t5, viewer

TEXTS = ["the cat sat on the mat. the cat slept.", "a dog, a hen, a dog."]


def tiny(name):
    return OpenedModel(model=bert(), tokenizer=LetterTokenizer(), name=name)


def test_report_has_every_head_and_can_be_saved_and_read_again(tmp_path):
    report = mh.checkup(tiny("tiny"), None, TEXTS, repeats=2)
    assert [str(h) for h in report.statistics.heads] == [f"L{i}.H{j}" for i in range(2) for j in range(3)]
    assert [d.name for d in report.statistics.documents] == ["text 0", "text 1"]
    assert len(report.repeats.documents) == 2
    assert 0 < report.statistics["L1.H2"].entropy < 4
    assert report.table().column_names[:2] == ["head", "stack"]
    assert report.table().num_rows == 6
    page = report.save(tmp_path / "out")
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert mh.load_checkup(tmp_path / "out") == report
    assert "tiny" in repr(report)


def test_the_model_is_left_as_it_was():
    model = bert().train()
    ids = torch.tensor([[1, 5, 6, 7, 2]])
    state = copy.deepcopy(model.state_dict())
    model.eval()
    before = model(ids).last_hidden_state
    model.train()
    mh.checkup(model, LetterTokenizer(), TEXTS, repeats=0)
    assert model.training
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    assert torch.equal(model.eval()(ids).last_hidden_state, before)


def test_same_run_same_record_but_for_the_clock():
    model = bert()
    one, two = (mh.checkup(model, LetterTokenizer(), TEXTS, repeats=1).record for _ in range(2))
    assert one.texts == two.texts
    assert one.repeats == two.repeats


def test_an_encoder_decoder_has_three_stacks():
    tokenizer = LetterTokenizer(frame=((), (2,)))
    report = mh.checkup(t5(), tokenizer, TEXTS, repeats=1)
    assert {h.stack for h in report.statistics.heads} == {"encoder", "decoder", "cross"}
    assert report.record.model.causal is None


def test_facts_say_which_way_the_model_looks():
    assert mh.checkup(bert(), LetterTokenizer(), TEXTS, repeats=0).record.model.causal is False
    assert mh.checkup(bert(), LetterTokenizer(), TEXTS, repeats=0).repeats is None


def test_progress_counts_every_chunk_to_the_end():
    told = []
    mh.checkup(bert(), LetterTokenizer(), TEXTS, repeats=2, max_length=24, on_progress=told.append)
    assert all(isinstance(p, Progress) for p in told)
    # 38 letters of 22 a chunk (24 less [CLS] and [SEP]) are 2 chunks or more, as words are left whole; 20 are one.
    names = [p.doing for p in told]
    assert list(dict.fromkeys(names)) == ["text 0", "text 1", "repeated-00", "repeated-01"]
    chunks = {name: names.count(name) for name in names}
    assert chunks["text 0"] >= 2
    assert chunks["text 1"] == 1
    done = [0, *(p.done for p in told)]
    steps = [b - a for a, b in itertools.pairwise(done)]
    assert all(0 < step <= 24 for step in steps)
    places = dict.fromkeys(names, 0)
    for name, step in zip(names, steps, strict=True):
        places[name] += step
    assert places["text 0"] == len(TEXTS[0]) + 2 * chunks["text 0"]
    assert places["text 1"] == len(TEXTS[1]) + 2 * chunks["text 1"]
    assert {p.total for p in told} == {told[-1].done}


@pytest.mark.parametrize("after", [1, 2, 3])
def test_ctrl_c_keeps_the_finished_documents(after, tmp_path):
    model = bert()
    texts = [*TEXTS, "one more text to read."]
    report = mh.checkup(model, LetterTokenizer(), texts, repeats=0, on_progress=stopping(after))
    whole = mh.checkup(model, LetterTokenizer(), texts, repeats=0)
    kept = len(report.statistics.documents)
    assert not report.record.complete
    assert "interrupted" in repr(report)
    # It comes while the document is being told: that one may be in or not.
    assert kept in (after - 1, after)
    assert [d.name for d in report.statistics.documents] == [f"text {i}" for i in range(kept)]
    for name in ("entropy", "offsets"):
        assert (report.statistics.sums[name] == whole.statistics.sums[name][:kept]).all()
    if kept:
        report.save(tmp_path)
        assert mh.load_checkup(tmp_path).record == report.record


def test_ctrl_c_among_the_repeats_keeps_the_texts():
    model = bert()
    report = mh.checkup(model, LetterTokenizer(), TEXTS, repeats=3, on_progress=stopping(4))
    whole = mh.checkup(model, LetterTokenizer(), TEXTS, repeats=3)
    assert not report.record.complete
    assert report.statistics == whole.statistics
    assert len(report.repeats.documents) in (1, 2)


def stopping(after):
    """A progress that presses Ctrl-C at the so-manieth chunk."""
    seen = []

    def stop(progress):
        seen.append(progress)
        if len(seen) == after:
            raise KeyboardInterrupt

    return stop


@pytest.mark.parametrize(("after", "rows"), [(1, 64), (2, None), (4, None)])
def test_a_journal_goes_on_bit_for_bit(after, rows, tmp_path):
    tokenizer, texts = LetterTokenizer(), [TEXTS[0] * 3, TEXTS[1]]
    model = bert(layers=1, length=96)
    asked = {"repeats": 2, "rows": rows, "max_length": 96}
    whole = mh.checkup(model, tokenizer, texts, **asked)
    cut = mh.checkup(model, tokenizer, texts, **asked, journal=tmp_path / "j", on_progress=stopping(after))
    assert not cut.record.complete
    runs = []
    with model.register_forward_pre_hook(lambda *_: runs.append(1)):
        told = []
        again = mh.checkup(model, tokenizer, texts, **asked, journal=tmp_path / "j", on_progress=told.append)
    assert len(runs) == len(told) - after
    assert replace(again.record, created=whole.record.created) == whole.record
    discard_journal(tmp_path / "j")
    assert not (tmp_path / "j").exists()


def test_a_journal_of_another_checkup_is_refused_and_kept(tmp_path):
    model = bert()
    asked = {"repeats": 0, "journal": tmp_path}
    mh.checkup(model, LetterTokenizer(), TEXTS, **asked, on_progress=stopping(1))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert len(before) == 2  # the header and one chunk
    for other, says in (({"max_length": 8}, "max_length was 64 and is 8"), ({"rows": 64}, "rows was all")):
        with pytest.raises(mh.MultiheadError, match=rf"go on with the run(.|\n)*{says}(.|\n)*begin anew"):
            mh.checkup(model, LetterTokenizer(), TEXTS, **asked, **other)
    with pytest.raises(mh.MultiheadError, match="weights"):
        mh.checkup(bert(), LetterTokenizer(), TEXTS, **asked)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_some_rows_bring_intervals_around_the_exact_numbers():
    model, text = bert(layers=1, length=192), "the cat sat on the mat. a dog, a hen. " * 4
    exact = mh.checkup(model, LetterTokenizer(), [text], repeats=0).record
    drawn = mh.checkup(model, LetterTokenizer(), [text], repeats=0, rows=64).record
    assert exact.settings["rows"] == "all"
    assert drawn.settings["rows"] == "64"
    assert not exact.texts.sampling
    assert "entropy" in drawn.texts.sampling
    ends = drawn.texts.sampling_interval("entropy", level=0.9999)
    value = exact.texts.value("entropy")
    assert all(low <= v <= high for v, (low, high) in zip(value, np.stack(ends, -1), strict=True))
    assert (ends[1] > ends[0]).all()
    with pytest.raises(mh.MultiheadError, match="rows"):
        mh.checkup(model, LetterTokenizer(), [text], repeats=0, rows=3)


def test_pictures_are_read_and_told(tmp_path):
    told = []
    report = mh.checkup(viewer(), None, [picture("a"), picture("b")], on_progress=told.append)
    record = report.record
    assert record.reads == "images"
    assert record.repeats is None
    assert [(d.name, d.tokens) for d in record.texts.documents] == [("a", 17), ("b", 17)]
    assert [(p.done, p.total, p.doing, p.unit) for p in told] == [
        (17, 34, "a", "positions"),
        (34, 34, "b", "positions"),
    ]
    assert "2 pictures, 34 positions" in repr(report)
    assert {"same_row", "same_column", "neighbour", "token_class"} <= {q.name for q in record.texts.quantities}
    assert record.texts.quantity("token_class").labels == ("special", "register", "patch")
    assert "rows" in record.settings
    assert "max_length" not in record.settings
    page = report.save(tmp_path)
    assert mh.load_checkup(tmp_path) == report
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_windows_are_said_in_a_note():
    with quiet_transformers():
        model = SEERS["swin"]()
    notes = mh.checkup(model.eval(), None, [picture()]).statistics.notes
    assert any("windows" in note.text for note in notes)


def test_sounds_are_read_and_told(tmp_path):
    units = []
    material = [noise(2.5, "a"), noise(0.5, "b")]
    report = mh.checkup(hearer(), Pieces(), material, on_progress=lambda p: units.append(p.unit))
    assert set(units) == {"positions"}
    assert report.record.reads == "audio"
    assert {h.stack for h in report.statistics.heads} == {"encoder", "decoder", "cross"}
    assert [d.name for d in report.statistics.documents] == ["a", "b"]
    assert report.repeats is None
    report.save(tmp_path)
    assert mh.load_checkup(tmp_path) == report


def test_an_opened_model_brings_its_name_and_what_it_reads():
    model, words = bert(), [Text("own", TEXTS[0])]
    opened = OpenedModel(model=model, tokenizer=LetterTokenizer(), name="mine", texts=words)
    report = mh.checkup(opened, repeats=0)
    assert report.record.model.name == "mine"
    assert [d.name for d in report.statistics.documents] == ["own"]
    assert mh.checkup(opened, material=TEXTS, repeats=0).statistics.documents[0].name == "text 0"
    bare = OpenedModel(model=model, tokenizer=None, name="")
    assert mh.checkup(bare, LetterTokenizer(), TEXTS, repeats=0).record.model.name == "BertModel"


def test_without_material_the_default_texts_are_read(monkeypatch):
    monkeypatch.setattr(plan, "default_texts", lambda: [Text("poem", TEXTS[0])])
    assert [d.name for d in mh.checkup(bert(), LetterTokenizer(), repeats=0).statistics.documents] == ["poem"]
    opened = OpenedModel(model=bert(), tokenizer=LetterTokenizer(), name="")
    assert plan.make_plan(opened, None, max_length=None, repeats=0).courses[0].documents[0].name == "poem"


def test_the_notes_of_the_encoding_and_of_the_length_are_kept():
    class Blind(LetterTokenizer):
        unk_token_id = 3
        unk_token = "a"

    told = mh.checkup(bert(), Blind(), ["a a a a b", TEXTS[0]], repeats=0).statistics.notes
    assert any("of the tokens of text 0" in note.text for note in told)

    class Short(LetterTokenizer):
        model_max_length = 24

    assert mh.checkup(bert(), Short(), [TEXTS[0]], repeats=0).record.model.max_length == 24
    far = mh.checkup(bert(), Short(), [TEXTS[0]], repeats=0, max_length=43)
    read = len(TEXTS[0]) + 2
    told = f"read at {read} tokens, {read / 24:.3g}x the 24 it states"
    assert any(told in note.text for note in far.statistics.notes)


def test_the_page_speaks_the_language_asked_for(tmp_path):
    report = mh.checkup(bert(), LetterTokenizer(), TEXTS, repeats=0)
    for lang in ("en", "zh"):
        page = report.save(tmp_path / lang, lang=lang)
        assert re.search(rf'<html[^>]* lang="{lang}', page.read_text(encoding="utf-8"))
    assert mh.load_checkup(tmp_path / "zh") == mh.load_checkup(tmp_path / "en")


def test_open_shows_the_page(monkeypatch):
    shown = []
    monkeypatch.setattr(webbrowser, "open", shown.append)
    page = mh.checkup(bert(), LetterTokenizer(), TEXTS, repeats=0).open()
    assert shown == [page.as_uri()]
    assert page.exists()


def test_what_cannot_be_checked_is_refused_before_anything_runs():
    with pytest.raises(mh.MultiheadError, match="tokenizer=None"):
        mh.checkup(bert(), None, TEXTS)
    with pytest.raises(mh.MultiheadError, match="at least one text"):
        mh.checkup(bert(), LetterTokenizer(), [])
    with pytest.raises(mh.MultiheadError, match=r"got: repeats=-1"):
        mh.checkup(bert(), LetterTokenizer(), TEXTS, repeats=-1)
    broken = bert()
    with torch.no_grad():
        broken.encoder.layer[1].attention.self.query.weight[0, 0] = float("nan")
    with pytest.raises(mh.MultiheadError, match=r"layer\.1\.attention\.self\.query\.weight"):
        mh.checkup(broken, LetterTokenizer(), TEXTS)
    with pytest.raises(mh.MultiheadError, match="attention"):
        mh.checkup(torch.nn.Embedding(40, 8), LetterTokenizer(), TEXTS)
    with pytest.raises(mh.MultiheadError, match=r"MultiHeadAttention\.forward\(query, key, value"):
        mh.checkup(mh.MultiHeadAttention(8, heads=2), LetterTokenizer(), TEXTS)


def test_the_page_names_the_model_not_its_folder():
    model = bert()
    model.config.name_or_path = "some/private/folder/tiny-bert"
    assert mh.checkup(model, LetterTokenizer(), TEXTS, repeats=0).record.model.name == "tiny-bert"
    model.config.name_or_path = ""
    assert mh.checkup(model, LetterTokenizer(), TEXTS, repeats=0).record.model.name == "BertModel"


def test_the_page_is_saved_as_it_is_made(tmp_path):
    report = mh.checkup(tiny("zwölf \U0001f642"), None, TEXTS, repeats=0)
    assert report.save(tmp_path / "new").read_bytes() == render_page(report.record).encode()


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    report = mh.checkup(bert(), LetterTokenizer(), TEXTS, repeats=0)
    with pytest.raises(mh.RecordError, match=r"to write .*index.html\n  got: .*\n  fix: choose a folder"):
        report.save(tmp_path / "file" / "out")


@pytest.mark.parametrize("family", ["whisper", "vit"])
def test_models_that_read_no_text_are_told_how_to_be_watched(family):
    with pytest.raises(mh.MultiheadError, match=r"a model that reads text alone\n  got: .*\n  fix: .*mh\.watch"):
        mh.checkup(FAMILIES[family].build(), LetterTokenizer(), TEXTS)


def test_a_vocabulary_too_small_for_repeats_is_told():
    class Three(LetterTokenizer):
        def get_vocab(self):
            return {"[PAD]": 0, "[CLS]": 1, "[SEP]": 2, "a": 3, "b": 4, "c": 5}

        def __len__(self):
            return 6

    report = mh.checkup(bert(layers=1), Three(), ["abcabcab"])
    assert report.repeats is None
    told = "no repeated random tokens were run: the vocabulary has 3 ordinary tokens, and blocks are 4 different tokens"
    assert any(note.text.startswith(told) for note in report.statistics.notes)
    report = mh.checkup(bert(layers=1), LetterTokenizer(), ["abcabcab"], max_length=16)
    told = "no repeated random tokens were run: chunks of 16 tokens have room for 4 blocks of 3"
    assert any(note.text.startswith(told) for note in report.statistics.notes)
    report = mh.checkup(bert(layers=1), LetterTokenizer(), ["abcabcab"], max_length=16, repeats=0)
    assert not any("repeated" in note.text for note in report.statistics.notes)


def test_texts_may_carry_names():
    report = mh.checkup(bert(), LetterTokenizer(), [Text("poem.txt", TEXTS[0])], repeats=0)
    assert report.statistics.documents[0].name == "poem.txt"
