"""A run that was ended by force goes on where it was, to the very same record."""

import errno
import json
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hooks.families import FAMILIES, ids
from measure.killed import ended_by_force, plan
from multihead.error import MultiheadError
from multihead.measure import DEFAULT, Batch, Interrupted, Run, discard_journal, held, lock, observe
from multihead.measure.header import check_same
from multihead.measure.lock import LOCK
from multihead.pattern import distance
from multihead.record import Document


class Stop(Exception):
    pass


def stopping(at):
    def stop(place):
        if place == at:
            raise Stop

    return stop


def sheets(folder):
    # Not what a kill left half written beside its place, under a name that begins with no number.
    return sorted(folder.glob("[0-9]*.safetensors"))


def run(folder, plan_seed, **given):
    model, batches, documents = plan(plan_seed)
    return observe(model, batches, documents=documents, run=Run(journal=folder, **given))


@pytest.fixture(scope="module")
def plan_seed(request):
    """One plan for all of this file, so that what every test compares with is measured once."""
    return request.config.run_seed


@pytest.fixture(scope="module")
def plain(plan_seed):
    """The record of the run without a journal."""
    model, batches, documents = plan(plan_seed)
    return observe(model, batches, documents=documents)


@pytest.fixture(scope="module")
def begun(plan_seed, tmp_path_factory):
    """The journal of a run that was stopped after three of its seven batches; to be copied, not to be changed."""
    folder = tmp_path_factory.mktemp("begun")
    with pytest.raises(Stop):
        run(folder, plan_seed, on_batch=stopping(2))
    return folder


@pytest.fixture
def journal(begun, tmp_path):
    """A copy of that journal."""
    return Path(shutil.copytree(begun, tmp_path / "journal"))


@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_a_run_that_was_killed_goes_on_to_the_same_record(plan_seed, plain, tmp_path, kills):
    assert ended_by_force(tmp_path, plan_seed, kills=kills), "the run was over before it was killed"
    model, batches, documents = plan(plan_seed)
    ran = []
    model.register_forward_hook(lambda *_: ran.append(1))
    kept = len(sheets(tmp_path / "journal"))
    record = observe(model, batches, documents=documents, run=Run(journal=tmp_path / "journal"))
    assert len(ran) == len(batches) - kept
    assert record == plain


@pytest.mark.parametrize("at", [0, 6])
def test_what_is_kept_is_not_measured_again(plan_seed, plain, tmp_path, at):
    with pytest.raises(Stop):
        run(tmp_path, plan_seed, on_batch=stopping(at))
    assert len(sheets(tmp_path)) == at + 1
    told = []
    model, batches, documents = plan(plan_seed)
    ran = []
    model.register_forward_hook(lambda *_: ran.append(1))
    record = observe(model, batches, documents=documents, run=Run(journal=tmp_path, on_document=told.append))
    assert len(ran) == 6 - at
    assert told == [0, 1, 2, 3]
    assert record == plain
    assert record.units, "few documents have units"


def test_a_journal_changes_nothing(plan_seed, plain, tmp_path):
    assert run(tmp_path, plan_seed) == plain
    assert run(tmp_path, plan_seed) == plain, "and holds the whole run"


@pytest.mark.parametrize(("name", "padding"), [("t5", "left"), ("gpt_oss", "none")])
def test_every_field_comes_back(name, padding, tmp_path):
    family = FAMILIES[name]
    model, inputs = family.build(family.kernels[0]), family.inputs(padding)
    batches = [Batch(inputs=inputs, document=(0, 1)), Batch(inputs=family.inputs(padding), document=(1, 1))]
    documents = [Document(name=n, digest=n, tokens=9) for n in "ab"]
    want = observe(model, batches, documents=documents, targets={"two": distance(2)})
    for _ in range(2):
        assert (
            observe(model, batches, documents=documents, targets={"two": distance(2)}, run=Run(journal=tmp_path))
            == want
        )


def test_sampled_rows_are_the_same_after_going_on(tmp_path):
    model = FAMILIES["llama"].build()
    batches = [Batch(inputs={"input_ids": torch.randint(5, 90, (1, 150))}, document=(d,)) for d in (0, 1, 0)]
    documents = [Document(name=n, digest=n, tokens=150) for n in "ab"]
    with pytest.raises(Stop):
        observe(model, batches, documents=documents, run=Run(rows=64, journal=tmp_path, on_batch=stopping(1)))
    again = observe(model, batches, documents=documents, run=Run(rows=64, journal=tmp_path))
    assert again == observe(model, batches, documents=documents, run=Run(rows=64))
    assert again.sampling, "some rows were left out"


@pytest.mark.parametrize(("which", "harm"), [(0, "cut"), (2, "empty"), (0, "changed"), (2, "changed"), (2, "renamed")])
def test_a_torn_file_is_as_if_it_were_not_there(plan_seed, plain, journal, harm, which):
    path = sheets(journal)[which]
    content = path.read_bytes()
    if harm == "renamed":
        path.rename(journal / f".writing-{path.name}")
    else:
        torn = {"cut": content[:-100], "empty": b"", "changed": content[:-1] + bytes([content[-1] ^ 1])}[harm]
        path.write_bytes(torn)
    assert run(journal, plan_seed) == plain
    assert len(sheets(journal)) == 7
    assert not list(journal.glob(".writing-*"))


def test_ctrl_c_keeps_the_batches_and_going_on_ends_the_run(plan_seed, plain, tmp_path):
    def stop(place):
        if place == 2:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted) as stopped:
        run(tmp_path, plan_seed, on_batch=stop)
    assert [d.name for d in stopped.value.statistics.documents] == ["d0", "d1"]
    assert len(sheets(tmp_path)) == 3
    assert run(tmp_path, plan_seed) == plain


def _other_weights(given):
    with torch.no_grad():
        next(given["model"].parameters())[-1, -1] += 1e-3


def _other_input(given):
    given["batches"][-1].inputs["input_ids"][0, -1] = 1


def _other_documents(change):
    return lambda given: given.update(documents=change(given["documents"]))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (_other_weights, "the model's weights are others"),
        (_other_input, r"the documents are cut into other tokens or batches \(another tokenizer, .*\)"),
        (lambda g: g.update(statistics=DEFAULT[:-1]), "the statistics are now without [a-z_, 0-9]+"),
        (lambda g: g.update(run=Run(rows=64)), "rows was all and is 64, seed 0"),
        (lambda g: g.update(run=Run(settings={"max_length": "9"})), "max_length was not told and is 9"),
        (lambda g: g.update(targets={"two": distance(2)}), "the targets are now with two: .*"),
        (lambda g: g.update(name="other"), "the model's name was not told and is other"),
        (lambda g: g["model"].double(), "dtype was torch.float32 and is torch.float64"),
        (
            _other_documents(lambda d: [replace(d[0], digest="x"), *d[1:]]),
            "of the documents d0 is not as it was",
        ),
        (
            _other_documents(lambda d: [replace(d[0], name="e"), replace(d[1], name="f"), *d[2:]]),
            "of the documents d0, d1 are gone; of the documents e, f are new",
        ),
    ],
)
def test_the_journal_of_another_run_is_refused(plan_seed, journal, change, told):
    model, batches, documents = plan(plan_seed)
    given = {"model": model, "batches": batches, "documents": documents}
    change(given)
    given["run"] = replace(given.get("run", Run()), journal=journal)
    before = {p.name: p.read_bytes() for p in journal.iterdir()}
    says = rf"got: another run: {told}\n  fix: run it as it was begun, or begin anew: leave --resume out, or delete"
    with pytest.raises(MultiheadError, match=says):
        observe(given.pop("model"), given.pop("batches"), **given)
    assert {p.name: p.read_bytes() for p in journal.iterdir()} == before


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"{", "Expecting property name"),
        (b"", "Expecting value"),
        (b"\xff", "can't decode byte 0xff"),
        (b"[1]", "it holds a list"),
        (b"{}", "it does not tell the model"),
        (b"[" * 100_000, "recursion"),
    ],
)
def test_a_damaged_header_is_said_to_be_damaged(plan_seed, journal, content, told):
    (journal / "run.json").write_bytes(content)
    with pytest.raises(
        MultiheadError, match=rf"got: a damaged run.json: .*{told}.*\n  fix: begin anew: leave --resume"
    ):
        run(journal, plan_seed)


def test_a_header_whose_facts_are_no_texts_is_damaged(plan_seed, journal):
    kept = json.loads((journal / "run.json").read_text())
    (journal / "run.json").write_text(json.dumps(kept | {"rows": 5}))
    with pytest.raises(MultiheadError, match=r"got: a damaged run\.json: its rows is no text"):
        run(journal, plan_seed)


def test_other_versions_and_lengths_are_told_each(tmp_path):
    kept = {"model": "m", "weights": "w", "batches": "b", "documents": "[]", "version of multihead": "1"}
    (tmp_path / "run.json").write_text(json.dumps(kept | {"max_length": "9"}))
    now = kept | {"max_length": "8", "batches": "c", "version of multihead": "2"}
    with pytest.raises(MultiheadError, match=r"run: version of multihead was 1 and is 2; max_length was 9 and is 8\n"):
        check_same(tmp_path / "run.json", now)
    check_same(tmp_path / "run.json", kept | {"max_length": "9"})


def test_one_run_at_a_time_keeps_a_journal(plan_seed, plain, journal):
    before = {p.name: p.read_bytes() for p in journal.iterdir()}
    with held(journal):
        for meddle in (lambda: run(journal, plan_seed), lambda: discard_journal(journal)):
            with pytest.raises(MultiheadError, match=rf"got: one that goes on there now, process {os.getpid()}\n"):
                meddle()
        assert {p.name: p.read_bytes() for p in journal.iterdir() if p.name != LOCK} == before
    assert run(journal, plan_seed) == plain


def test_a_lock_left_by_a_killed_process_locks_nothing(plan_seed, plain, journal):
    (journal / LOCK).write_text("1")
    assert run(journal, plan_seed) == plain
    assert not (journal / LOCK).exists()
    (journal / LOCK).write_text("1")
    discard_journal(journal)
    assert not journal.exists()


def test_the_system_frees_the_lock_of_a_process_that_is_killed(tmp_path):
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            with held(tmp_path / "deep" / "run"):
                os.write(writer, b"x")
                signal.pause()
        finally:
            os._exit(1)
    os.read(reader, 1)
    with pytest.raises(MultiheadError, match=f"process {child}\n"), held(tmp_path / "deep" / "run"):
        pass
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with held(tmp_path / "deep" / "run"):
        pass
    assert list((tmp_path / "deep").iterdir()) == []


def test_folders_made_for_a_lock_go_with_it_if_they_stay_empty(tmp_path):
    with held(tmp_path / "a" / "b"):
        assert (tmp_path / "a" / "b" / LOCK).exists()
    assert not (tmp_path / "a").exists()
    with held(tmp_path / "a" / "b"):
        (tmp_path / "a" / "mine").write_text("kept")
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["mine"]
    with held(tmp_path / "a"):
        (tmp_path / "a" / "mine").unlink()
    assert not (tmp_path / "a").exists()
    (tmp_path / "a").mkdir()
    with held(tmp_path / "a"):
        pass
    assert (tmp_path / "a").exists()


def test_a_lock_taken_away_while_it_was_opened_is_tried_again(tmp_path, monkeypatch):
    real, taken = lock._take, []

    def take(handle):
        taken.append(handle)
        if len(taken) == 1:  # the run before ends now
            (tmp_path / LOCK).unlink()
        real(handle)

    monkeypatch.setattr(lock, "_take", take)
    with held(tmp_path):
        assert len(taken) == 2
        with pytest.raises(MultiheadError, match="goes on there now"), held(tmp_path):
            pass


def test_a_file_system_without_locks_is_named(tmp_path, monkeypatch):
    def take(_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(lock, "_take", take)
    with pytest.raises(MultiheadError, match="knows no locks: choose a folder on another one"), held(tmp_path):
        pass


def test_a_folder_that_cannot_be_written_is_named(plan_seed, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(
        MultiheadError, match=r"to keep the journal of a run in .*\n.*\n.*choose a folder: a file is there"
    ):
        run(tmp_path / "file" / "journal", plan_seed)


def test_a_disk_that_is_full_is_named(plan_seed, plain, tmp_path, monkeypatch):
    real = os.fsync
    calls = []

    def full(handle):
        calls.append(handle)
        if len(calls) > 4:
            raise OSError(28, "No space left on device")
        real(handle)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(MultiheadError, match=r"got: No space left on device\n  fix: make room on that disk"):
        run(tmp_path, plan_seed)
    monkeypatch.undo()
    assert run(tmp_path, plan_seed) == plain


def test_discarding_leaves_what_is_not_of_the_journal(begun, journal):
    discard_journal(journal / "none")
    (journal / "mine.txt").write_text("kept")
    discard_journal(journal)
    assert [p.name for p in journal.iterdir()] == ["mine.txt"]
    (journal / "mine.txt").unlink()
    shutil.copytree(begun, journal, dirs_exist_ok=True)
    discard_journal(journal)
    assert not journal.exists()


def test_batches_are_told_as_they_end():
    model = FAMILIES["bert"].build()
    plan = [Batch(inputs={"input_ids": ids(1, 7)}, document=(d,)) for d in (1, 0, 1)]
    told = []
    documents = [Document(name=n, digest=n, tokens=7) for n in "ab"]
    observe(
        model,
        plan,
        documents=documents,
        run=Run(on_batch=lambda b: told.append(("batch", b)), on_document=lambda d: told.append(("document", d))),
    )
    assert told == [("batch", 0), ("batch", 1), ("document", 0), ("batch", 2), ("document", 1)]
