import copy
import webbrowser

import pytest
import torch

import multihead as mh
from hooks.families import FAMILIES
from multihead.corpus import Text
from multihead.report import render_page
from multihead.workflow import Progress
from workflow.fakes import LetterTokenizer, bert, t5

TEXTS = ["the cat sat on the mat. the cat slept.", "a dog, a hen, a dog."]


def test_report_has_every_head_and_can_be_saved_and_read_again(tmp_path):
    report = mh.checkup(bert(), LetterTokenizer(), TEXTS, name="tiny", repeats=2)
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


def test_progress_counts_to_the_end():
    told = []
    mh.checkup(bert(), LetterTokenizer(), TEXTS, repeats=2, on_progress=told.append)
    assert [p.doing for p in told] == ["text 0", "text 1", "repeated-00", "repeated-01"]
    assert (
        told[-1].done
        == told[-1].total
        == sum(map(len, TEXTS)) + 4 + sum(p.done - q.done for p, q in [(told[3], told[1])])
    )
    assert all(isinstance(p, Progress) for p in told)


@pytest.mark.parametrize("after", [1, 2, 3])
def test_ctrl_c_keeps_the_finished_documents(after, tmp_path):
    def stop(progress):
        seen.append(progress)
        if len(seen) == after:
            raise KeyboardInterrupt

    seen = []
    model = bert()
    texts = [*TEXTS, "one more text to read."]
    report = mh.checkup(model, LetterTokenizer(), texts, repeats=0, on_progress=stop)
    whole = mh.checkup(model, LetterTokenizer(), texts, repeats=0)
    assert not report.record.complete
    assert [d.name for d in report.statistics.documents] == [f"text {i}" for i in range(after)]
    for name in ("entropy", "offsets"):
        kept = report.statistics.sums[name]
        assert (kept == whole.statistics.sums[name][:after]).all()
    report.save(tmp_path)
    assert mh.load_checkup(tmp_path).record == report.record


def test_open_shows_the_page(monkeypatch):
    shown = []
    monkeypatch.setattr(webbrowser, "open", shown.append)
    page = mh.checkup(bert(), LetterTokenizer(), TEXTS, repeats=0).open()
    assert shown == [page.as_uri()]
    assert page.exists()


def test_what_cannot_be_checked_is_refused_before_anything_runs():
    with pytest.raises(mh.MultiheadError, match="tokenizer=None"):
        mh.checkup(bert(), None, TEXTS)
    with pytest.raises(mh.MultiheadError, match="wrap it in a list"):
        mh.checkup(bert(), LetterTokenizer(), "one string")
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
    report = mh.checkup(bert(), LetterTokenizer(), TEXTS, name="zwölf \U0001f642", repeats=0)
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


def test_texts_may_carry_names():
    report = mh.checkup(bert(), LetterTokenizer(), [Text("poem.txt", TEXTS[0])], repeats=0)
    assert report.statistics.documents[0].name == "poem.txt"
