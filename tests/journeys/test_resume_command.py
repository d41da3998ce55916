"""A run that is ended by force goes on with `--resume`, and nothing of its record tells that it was."""

import random
import signal
from dataclasses import replace

import pytest

import multihead as mh
from cli.tiny import PROSE, save_tiny
from journeys.killed import chunks, end
from multihead.cli import run

FEW, MANY = 8, 40


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return prepared(tmp_path_factory.mktemp("few"), FEW)


@pytest.fixture(scope="module")
def long_place(tmp_path_factory):
    return prepared(tmp_path_factory.mktemp("many"), MANY)


def prepared(folder, count):
    """A folder with a model and its texts, and the record of a run that nothing ended."""
    save_tiny(folder / "tiny")
    (folder / "texts").mkdir()
    for i in range(count):
        (folder / "texts" / f"{i:02}.txt").write_text(PROSE * (3 + i % 4))
    assert run(["checkup", *asked(folder), "--out", str(folder / "whole")]) == 0
    return folder, mh.load_checkup(folder / "whole").record


def asked(folder):
    return [str(folder / "tiny"), "--text", str(folder / "texts"), "--repeats", "2"]


def same_as_whole(folder, record):
    mine = mh.load_checkup(folder).record
    assert replace(mine, created=record.created) == record
    assert not (folder / "unfinished").exists()


def is_killed_and_goes_on(place, out, kills, capfd):
    folder, record = place
    arguments = ["checkup", *asked(folder), "--out", str(out)]
    ended = 0
    for _ in range(kills):
        code = end([*arguments, "--resume"], folder, out=out, more=random.randint(1, 2))
        ended += code == -signal.SIGKILL
        if code == 0:  # it was through before: begin anew
            same_as_whole(out, record)
            continue
        assert code == -signal.SIGKILL
        assert chunks(out)
    assert ended
    capfd.readouterr()
    assert run([*arguments, "--resume"]) == 0
    assert "begun anew" not in capfd.readouterr().err
    same_as_whole(out, record)


def test_killed_twice_the_record_is_the_same(place, tmp_path, capfd):
    is_killed_and_goes_on(place, tmp_path / "out", 2, capfd)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_twenty_times_the_record_is_the_same(long_place, tmp_path, capfd):
    is_killed_and_goes_on(long_place, tmp_path / "out", 20, capfd)


def stopped(place, out):
    """A run in this process that is ended by Ctrl-C in the middle: its journal is left."""
    from multihead.cli import checkup as door

    folder, _ = place
    real = door.run_checkup

    def press(*given, on_progress, **named):
        seen = []

        def tell(progress):
            on_progress(progress)
            seen.append(progress)
            if len(seen) == 5:
                raise KeyboardInterrupt

        return real(*given, on_progress=tell, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(door, "run_checkup", press)
        assert run(["checkup", *asked(folder), "--out", str(out)]) == 130


def test_after_ctrl_c_it_goes_on(place, tmp_path, capfd):
    folder, record = place
    stopped(place, tmp_path)
    assert "--resume goes on" in capfd.readouterr().out
    partial = mh.load_checkup(tmp_path).record
    assert not partial.complete
    assert 0 < len(partial.texts.documents) < FEW
    assert chunks(tmp_path) == 5
    assert run(["checkup", *asked(folder), "--out", str(tmp_path), "--resume"]) == 0
    same_as_whole(tmp_path, record)


def test_without_resume_it_begins_anew_and_says_so(place, tmp_path, capfd):
    folder, record = place
    stopped(place, tmp_path)
    capfd.readouterr()
    assert run(["checkup", *asked(folder), "--out", str(tmp_path)]) == 0
    assert "is begun anew; --resume would go on with it" in capfd.readouterr().err
    same_as_whole(tmp_path, record)


def test_other_options_are_refused_and_nothing_is_lost(place, tmp_path, capfd):
    folder, record = place
    stopped(place, tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for other, says in ((["--rows", "64"], "rows"), (["--max-length", "32"], "max_length")):
        capfd.readouterr()
        assert run(["checkup", *asked(folder), "--out", str(tmp_path), "--resume", *other]) == 2
        told = " ".join(capfd.readouterr().err.split())
        assert f"another run: {says} was" in told
        assert "run it as it was begun" in told
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert run(["checkup", *asked(folder), "--out", str(tmp_path), "--resume"]) == 0
    same_as_whole(tmp_path, record)


def test_with_nothing_to_go_on_with_it_just_runs(place, tmp_path, capfd):
    folder, record = place
    assert run(["checkup", *asked(folder), "--out", str(tmp_path), "--resume"]) == 0
    assert "anew" not in capfd.readouterr().err
    same_as_whole(tmp_path, record)
