"""`multihead checkup` as a person runs it: a real process, a real model, real files."""

import json
import os
import signal
import subprocess
import sys
import time

import pyarrow.parquet as pq
import pytest

import multihead as mh
from forked import command, forked

ONE_THREAD = dict(os.environ, OMP_NUM_THREADS="1")


def spawned(*arguments, cwd, timeout=240):
    return subprocess.run(
        [sys.executable, "-m", "multihead", *map(str, arguments)],
        cwd=cwd,
        env=ONE_THREAD,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory, minilm_folder):
    folder = tmp_path_factory.mktemp("checkup")
    return folder, spawned("checkup", "minilm", cwd=folder)


def test_it_leaves_the_page_and_the_records(finished):
    folder, done = finished
    assert done.returncode == 0, done.stderr
    names = sorted(p.name for p in (folder / "checkup").iterdir())
    assert names == ["heads.parquet", "index.html", "record.json", "record.safetensors"]
    assert "72 heads; texts: 8, " in done.stdout


def test_the_files_agree_with_each_other(finished):
    folder, _ = finished
    report = mh.load_checkup(folder / "checkup")
    data = json.loads((folder / "checkup" / "record.json").read_text())
    rows = [r for r in pq.read_table(folder / "checkup" / "heads.parquet").to_pylist() if r["part"] == "texts"]
    assert len(rows) == len(data["texts"]["heads"]) == len(report.statistics) == 72
    for row, told in zip(rows, data["texts"]["heads"], strict=True):
        assert row["head"] == told["head"]
        assert row["entropy"] == told["entropy"] == report.statistics[row["head"]].entropy
    assert report.record.complete
    assert report.record.model.causal is False
    assert report.record.model.parameters > 22_000_000


def test_heads_of_minilm_look_where_they_are_known_to_look(finished):
    """What the mock of the page found on other texts: 0.2 reads the token before, 1.8 the token after."""
    statistics = mh.load_checkup(finished[0] / "checkup").statistics
    assert statistics["L0.H2"].previous > 0.4
    assert statistics["L1.H8"].next > 0.4


def test_ctrl_c_keeps_what_was_measured(tmp_path, tmp_path_factory, minilm_folder):
    folder = tmp_path_factory.mktemp("told")
    for i in range(300):
        (tmp_path / f"{i:03}.txt").write_text("A sentence with enough words to be worth measuring. " * 40)
    arguments = ["checkup", "minilm", "--text", tmp_path, "--out", tmp_path / "out"]
    err, out = folder / "err.txt", folder / "out.txt"
    with forked(command, arguments, tmp_path, folder=folder) as process:
        # Without a terminal the first line of progress comes with the first text; the others take minutes.
        while process.exitcode is None and not (err.exists() and "tokens/s" in err.read_text()):
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGINT)
        process.join(60)
    assert process.exitcode == 130, err.read_text()
    report = mh.load_checkup(tmp_path / "out")
    assert not report.record.complete
    assert 0 < len(report.statistics.documents) < 300
    assert "interrupted" in out.read_text()
    assert (tmp_path / "out" / "index.html").exists()


def bad(folder):
    """Arguments that cannot work, with what the message must say."""
    (folder / "empty.txt").write_text(" \n")
    (folder / "one.txt").write_text("word")
    (folder / "binary.txt").write_bytes(b"\xff\xfe\x00\x01" * 10)
    (folder / "in-the-way").write_text("a file")
    (folder / "no-texts").mkdir()
    return {
        "unknown model": (["no/such-model"], "models"),
        "unknown packaged name": (["minilmm"], "minilm"),
        "empty text": (["minilm", "--text", folder / "empty.txt"], "empty.txt"),
        "one token": (["minilm", "--text", folder / "one.txt"], "at least 2 tokens"),
        "binary": (["minilm", "--text", folder / "binary.txt"], "binary.txt"),
        "no such text": (["minilm", "--text", folder / "nowhere.txt"], "nowhere.txt"),
        "folder without texts": (["minilm", "--text", folder / "no-texts"], "no-texts"),
        "too long": (["minilm", "--max-length", "100000"], "512"),
        "negative length": (["minilm", "--max-length", "-1"], "max_length=-1"),
        "not a number": (["minilm", "--max-length", "many"], "max-length"),
        "unwritable": (["minilm", "--out", folder / "in-the-way" / "out"], "--out"),
        "no model": ([], "MODEL"),
        "unknown option": (["minilm", "--colour", "red"], "--colour"),
        "half a token": (["minilm", "--max-length", "16.9"], "16.9"),
        "no texts named": (["minilm", "--text"], "--text"),
        "nameless model": ([""], "multihead models"),
        "endless name": (["minilm", "--out", folder / ("z" * 300)], "name too long"),
        "meta device": (["minilm", "--device", "meta"], "meta"),
        "negative repeats": (["minilm", "--repeats", "-1"], "repeats=-1"),
        "no such device": (["minilm", "--device", "gameboy"], "gameboy"),
    }


@pytest.mark.parametrize(
    "fault",
    [
        "unknown model",
        "unknown packaged name",
        "empty text",
        "one token",
        "binary",
        "no such text",
        "folder without texts",
        "too long",
        "negative length",
        "not a number",
        "unwritable",
        "no model",
        "unknown option",
        "half a token",
        "no texts named",
        "nameless model",
        "endless name",
        "meta device",
        "negative repeats",
        "no such device",
    ],
)
def test_bad_input_is_one_message_exit_2_and_nothing_written(fault, tmp_path, capfd, monkeypatch):
    from multihead.cli import run

    arguments, says = bad(tmp_path)[fault]
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert run(["checkup", *map(str, arguments)]) == 2
    told = capfd.readouterr()
    assert says in " ".join(told.err.split())
    assert "Traceback" not in told.err
    assert sorted(tmp_path.rglob("*")) == before


def test_ctrl_c_within_the_first_text_says_so(tmp_path, monkeypatch, capfd):
    from multihead.cli import checkup as door
    from multihead.cli import run

    def stop(*given, **named):
        raise KeyboardInterrupt

    monkeypatch.setattr(door, "run_checkup", stop)
    assert run(["checkup", "minilm", "--out", str(tmp_path / "out")]) == 130
    assert "interrupted before anything was measured" in capfd.readouterr().err
    assert not (tmp_path / "out").exists()


def test_help_teaches_without_loading_torch(tmp_path):
    start = time.monotonic()
    done = spawned("checkup", "--help", cwd=tmp_path)
    assert done.returncode == 0
    for word in ("MODEL", "--text", "--max-length", "--out", "index.html", "Ctrl-C"):
        assert word in done.stdout
    assert time.monotonic() - start < 60
    probe = "import sys, multihead.cli as c; c.run(['--help']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", probe], capture_output=True, check=False).returncode == 0


def test_models_lists_what_can_be_had(capfd):
    from multihead.cli import run

    assert run(["models"]) == 0
    out = capfd.readouterr().out
    for name in ("minilm", "smollm2", "rxnmapper"):
        assert name in out
    assert run(["models", "--get", "nonsense"]) == 2
    assert "minilm" in capfd.readouterr().err
