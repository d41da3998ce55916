"""What is refused at the door, what a run leaves behind, and what it says of itself."""

import errno
import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import multihead as mh
from multihead.cli import checkup as door
from multihead.cli import run
from multihead.cli.progress import PlaceProgress
from multihead.measure import held
from multihead.workflow import Progress, Report


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "short.txt"
    path.write_text("The cat sat on the mat.")
    return path


@pytest.fixture
def asked(tiny, text):
    """A run that takes little time."""
    return ["checkup", tiny, "--text", text, "--repeats", "0"]


def said(capfd, *arguments):
    capfd.readouterr()
    code = run([*map(str, arguments)])
    out, err = capfd.readouterr()
    return code, out, err


@pytest.mark.parametrize(
    "fault",
    [
        ["checkup"],
        ["checkup", "m", "--colour", "red"],
        ["checkup", "m", "--rows", "many"],
        ["checkup", "m", "--lang", "tlh"],
        ["checkup", "m", "--out", ""],
        ["checkup", "m", "--repeats", "nan"],
        ["compare", "a"],
        ["locate"],
        ["models", "--get"],
        ["nonsense"],
    ],
)
def test_with_json_a_usage_error_is_one_document_and_nothing_else(told, fault):
    code, data, err = told(*fault)
    assert code == 2
    assert data["error"]["arrived"]
    assert err == ""


@pytest.mark.parametrize("asked", ["--json=true", "--json=1", "--json=YES"])
def test_json_may_be_asked_for_in_other_words(capfd, asked):
    code, out, err = said(capfd, "locate", "./nowhere", asked)
    assert code == 2
    assert json.loads(out)["error"]["remedy"]
    assert "error" not in err
    assert said(capfd, "locate", "./nowhere", "--json=false")[1] == ""


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (["checkup", "m", "--colour", "red"], ["--colour"]),
        (["frobnicate"], ["Available commands: ", "checkup", "compare", "locate", "models"]),
        (["checkup", "tiny", "--lang", "x" * 100], ["x" * 100, 'Choose from: "en", "zh".']),
        (["checkup", "tiny", "--out", ""], ["not an empty text; . is the working directory"]),
        (["checkup", "m", "--rows", "[b]"], ["'[b]' is not a whole number"]),
    ],
)
def test_without_json_a_usage_error_is_told_to_people_in_full(capfd, monkeypatch, fault, says):
    monkeypatch.setenv("COLUMNS", "40")
    code, out, err = said(capfd, *fault)
    assert (code, out) == (2, "")
    assert all(words in err for words in says)
    # Lines are left to the terminal to wrap: no box, and nothing cut off.
    first, second = err.splitlines()
    assert first.startswith("error: ")
    assert second == "  fix: multihead COMMAND --help lists what a command takes"


@pytest.mark.parametrize(
    "command",
    [
        ["checkup", "m", "--out", " "],
        ["checkup", "m", "--text", ""],
        ["compare", "a", "b", "--out", ""],
        ["compare", "", "b"],
    ],
)
def test_an_empty_name_is_not_the_working_directory(told, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, data, _ = told(*command)
    assert code == 2
    assert "the name of a file or folder is needed" in data["error"]["arrived"]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("place", "arrived", "remedy"),
    [
        ("file", "file is a file", "choose a folder: a file is there in its place"),
        ("file/deeper", "file is a file", "choose a folder: a file is there in its place"),
        ("full", "index.html is a folder", "a folder is there where a file is needed"),
        ("x" * 300, "File name too long", "choose a shorter name"),
    ],
)
def test_an_output_that_cannot_be_is_refused_before_the_work(told, place, arrived, remedy, tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full" / "index.html").mkdir(parents=True)
    for command in (["checkup", "no/such-model"], ["compare", "no", "none"]):
        code, data, _ = told(*command, "--out", tmp_path / place)
        assert code == 2
        assert arrived in data["error"]["arrived"]
        assert remedy in data["error"]["remedy"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "full"]


def test_links_in_a_circle_are_refused(told, tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    for command in (
        ["compare", tmp_path / "loop", "b"],
        ["compare", "a", "b", "--out", tmp_path / "loop"],
        ["checkup", "m", "--out", tmp_path / "loop"],
    ):
        code, data, _ = told(*command)
        assert code == 2
        assert data["error"]["remedy"]
    code, data, _ = told("checkup", "m", "--text", tmp_path / "loop", "--out", tmp_path / "out")
    assert data["error"]["arrived"] == "a link that leads nowhere, or in a circle"


@pytest.mark.parametrize(
    "problem",
    [MemoryError(), torch.OutOfMemoryError("CUDA out of memory. Tried"), RuntimeError("can't allocate memory")],
)
def test_memory_that_is_used_up_is_told(told, problem, monkeypatch, tmp_path):
    def fail(*_, **__):
        raise problem

    monkeypatch.setattr(door, "open_model", fail)
    code, data, _ = told("checkup", "m", "--out", tmp_path / "out")
    assert code == 2
    assert data["error"]["asked"] == "memory for the run"
    assert "--max-length" in data["error"]["remedy"]
    monkeypatch.setattr(door, "open_model", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run(["checkup", "m", "--out", str(tmp_path / "out")])


def test_an_output_that_is_full_or_closed_is_no_traceback(capsys, monkeypatch):
    class Full(io.StringIO):
        def write(self, _):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sys, "stdout", Full())
    assert run(["models", "--json"]) == 2
    assert "make room on that disk" in capsys.readouterr().err
    monkeypatch.setattr(sys, "stdout", None)
    assert run(["models", "--json"]) == 0


@pytest.mark.parametrize(
    "command", [["--help"], ["variants", "--help"], ["models"], ["variants", "--json"], ["variants"]]
)
def test_an_output_that_is_closed_before_its_end_ends_quietly(command):
    # The reader is gone before the first word, as after `| true`; `| head` differs in when.
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "multihead", *command], stdout=writer, stderr=subprocess.PIPE, check=False
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


def test_an_error_that_nobody_reads_still_has_its_code():
    reader, writer = os.pipe()
    os.close(reader)
    try:
        command = [sys.executable, "-m", "multihead", "variants", "--length", "0"]
        done = subprocess.run(command, stdout=writer, stderr=writer, check=False)
    finally:
        os.close(writer)
    assert done.returncode == 2


def test_the_journals_place_taken_by_a_file_is_refused(told, tmp_path):
    (tmp_path / "unfinished").write_text("mine")
    code, data, _ = told("checkup", "no/such-model", "--out", tmp_path)
    assert code == 2
    assert data["error"]["remedy"] == "choose a folder: a file is there in its place"


def test_a_second_run_into_one_folder_is_refused_and_writes_nothing(told, asked, tmp_path):
    out = tmp_path / "out"
    with held(out / "unfinished"):
        before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
        for more in ([], ["--resume"]):
            code, data, _ = told(*asked, "--out", out, *more)
            assert code == 2
            assert data["error"]["arrived"] == f"one that goes on there now, process {os.getpid()}"
            assert "a folder of its own with --out" in data["error"]["remedy"]
        assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    assert told(*asked, "--out", out)[0] == 0
    assert not (out / "unfinished").exists()


@pytest.mark.parametrize("fault", [["no/such-model"], ["{tiny}", "--rows", "3"], ["{tiny}", "--text", "nowhere"]])
def test_a_run_that_is_refused_leaves_no_folder(told, fault, tiny, tmp_path):
    assert told("checkup", *(part.format(tiny=tiny) for part in fault), "--out", tmp_path / "a" / "b")[0] == 2
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("known", [True, False])
def test_a_disk_that_is_full_at_the_end_loses_nothing(told, known, asked, tmp_path, monkeypatch):
    out = tmp_path / "out"

    def full(*_, **__):
        problem = OSError(errno.ENOSPC, "No space left on device")
        raise mh.RecordError(asked="to write", arrived="x", remedy="make room on that disk") if known else problem

    with monkeypatch.context() as patch:
        patch.setattr(Report, "save", full)
        code, data, _ = told(*asked, "--out", out)
    assert code == 2
    assert data["error"]["remedy"].startswith("make room on that disk")
    assert data["error"]["remedy"].endswith("then run the same command with --resume")
    assert list((out / "unfinished").glob("*/*.safetensors"))

    def model_runs(*_, **__):
        raise AssertionError("all of it was kept")

    monkeypatch.setattr(sys.modules["multihead.measure.observe"], "_run", model_runs)
    assert told(*asked, "--out", out, "--resume")[0] == 0
    assert not (out / "unfinished").exists()


@pytest.mark.parametrize(
    ("number", "remedy"),
    [(errno.ENOSPC, "make room on that disk"), (errno.EACCES, "give yourself the right"), (errno.EIO, "the disk")],
)
def test_faults_of_the_system_have_their_own_remedy(told, capfd, number, remedy, monkeypatch):
    def fail(*_, **__):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("multihead.cli.compare.check_out", fail)
    code, data, _ = told("compare", "a", "b")
    assert code == 2
    assert remedy in data["error"]["remedy"]
    assert f"fix: {mh.error.remedy_of(OSError(number, ''))}" in said(capfd, "compare", "a", "b")[2]


def test_a_torn_header_and_another_length_are_told_apart(told, asked, tmp_path, monkeypatch):
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(Report, "save", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run([*map(str, asked), "--out", str(out)])
    again = [*asked, "--out", out, "--resume"]
    _, data, _ = told(*again, "--max-length", "9")
    assert data["error"]["arrived"] == "another run: max_length was 128 and is 9"
    _, data, _ = told(*[1 if part == "0" else part for part in again])
    assert data["error"]["arrived"] == "another run: repeats was 0 and is 1"
    asked[3].write_text("The hen sat on the mat.")
    _, data, _ = told(*again)
    assert data["error"]["arrived"] == "another run: of the documents short.txt is not as it was"
    (out / "unfinished" / "texts" / "run.json").write_text("{")
    _, data, _ = told(*again)
    assert "a damaged run.json" in data["error"]["arrived"]
    assert f"leave --resume out, or delete {out / 'unfinished'}" in data["error"]["remedy"]
    assert told(*again[:-1])[0] == 0


def test_no_page_and_no_document_names_a_folder_of_this_machine(told, tiny, tmp_path, monkeypatch):
    home = tmp_path / "home" / "private"
    shutil.copytree(tiny, home / "hub" / "models--org--small" / "snapshots" / "0f3c")
    (home / "notes").mkdir()
    for name in ("one", "two"):
        (home / name).mkdir()
        (home / name / "x.txt").write_text(f"The {'cat' if name == 'one' else 'dog'} sat on the mat.")
    model = home / "hub" / "models--org--small" / "snapshots" / "0f3c"
    texts = ["--text", home / "one" / "x.txt", home / "two" / "x.txt"]
    monkeypatch.chdir(home)
    code, data, _ = told("checkup", model, *texts, "--repeats", 0, "--out", "out")
    assert code == 0
    assert data["model"]["name"] == "org/small"
    assert [d["name"] for d in data["documents"]] == ["one/x.txt", "two/x.txt"]
    for path in (home / "out").iterdir():
        assert b"private" not in path.read_bytes(), path.name
    monkeypatch.chdir(model)
    assert told("locate", ".")[1]["model"] == "org/small"


def test_what_was_left_out_is_said(capfd, tiny, text, tmp_path):
    (tmp_path / "picture.png").write_bytes(b"")
    code, _, err = said(
        capfd, "checkup", tiny, "--text", text, tmp_path, text, "--repeats", "0", "--out", tmp_path / "out"
    )
    assert code == 0
    assert f"note: left out {tmp_path / 'picture.png'}: not one of .txt, .md, .jsonl" in err
    assert f"note: left out {text}: it was read already" in err


def test_help_tells_the_limits(capfd):
    _, out, _ = said(capfd, "checkup", "--help")
    out = re.sub(r"[\s│]+", " ", out)
    assert "query rows (64 or more)" in out
    assert "up to 1000, 0 for none" in out


def test_a_row_whose_text_is_no_string_is_told(told, tiny, tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"text": "The cat."}\n{"text": 3}\n')
    _, data, _ = told("checkup", tiny, "--text", tmp_path / "rows.jsonl", "--out", tmp_path / "out")
    assert "line 2" in data["error"]["asked"]
    assert data["error"]["arrived"] == 'a "text" that is 3, not a string'


@pytest.mark.parametrize("unit", ["tokens", "positions"])
def test_the_progress_counts_what_is_read(capfd, unit):
    from rich.console import Console

    for terminal in (False, True):
        with PlaceProgress(Console(stderr=True, force_terminal=terminal, width=120)) as progress:
            progress.update(Progress(done=1, total=2, doing="[a] picture", unit=unit))
        err = capfd.readouterr().err
        assert unit in err
        assert "[a] picture" in err
        assert unit == "tokens" or "tokens" not in err


def test_pictures_are_told_as_pictures(capfd):
    from workflow.fakes import picture, viewer

    report = mh.checkup(viewer(), None, [picture("a")])
    capfd.readouterr()
    door._tell(report, door.Path("page"), 1.0)
    out = capfd.readouterr().out
    assert "pictures: 1, 17 positions; 1.0 s" in out
    assert "random" not in out


@pytest.mark.parametrize("command", ["checkup", "locate"])
def test_help_names_all_that_model_may_be(capfd, command):
    _, out, _ = said(capfd, command, "--help")
    assert "transformers model, a .gguf file, or a hub name" in re.sub(r"[\s│]+", " ", out)


def test_repeats_for_pictures_are_refused_where_they_are_given(told, tmp_path):
    from PIL import Image

    from workflow.fakes import viewer

    Image.new("RGB", (40, 30), "red").save(tmp_path / "red.png")
    viewer().save_pretrained(tmp_path / "viewer")
    asked = ["checkup", tmp_path / "viewer", "--images", tmp_path / "red.png", "--out", tmp_path / "out"]
    code, data, _ = told(*asked, "--repeats", 4)
    assert (code, data["error"]["arrived"]) == (2, "repeats=4")
    assert data["error"]["asked"] == "repeats, the runs of random tokens, for a model that reads images"
    assert "leave it out" in data["error"]["remedy"]
    assert not (tmp_path / "out").exists()
    # None asked for and none run: nothing is ignored.
    for given in ([], ["--repeats", "0"]):
        code, data, _ = told(*asked, *given)
        assert (code, data["repeats"]) == (0, None)


def test_repeats_of_text_are_eight_where_none_are_given():
    assert [door._runs(given, reads="text") for given in (None, 0, 3)] == [8, 0, 3]
    assert door._runs(None, reads="audio") == 8
    with pytest.raises(mh.MultiheadError, match="reads audio"):
        door._runs(1, reads="audio")


def test_the_documents_fields_are_in_the_reference(told, asked, checked, tmp_path):
    """Every name a document holds stands in the page that lists them."""
    reference = (Path(__file__).parents[2] / "docs" / "reference" / "commands.md").read_text(encoding="utf-8")
    _, one, _ = told(*asked, "--out", tmp_path / "out")
    _, two, _ = told("compare", checked["tiny"], checked["back"], "--out", tmp_path / "page")
    names = {*one, *two, *one["model"], *one["heads"][0]["looks_like"], *two["drift"][0], *two["flips"][0]}
    names |= {name for note in one["notes"] for name in note}
    names |= {"head", "stack", "layer", "index"} & set(one["heads"][0])
    assert not [name for name in names if f"`{name}`" not in reference]
