"""Odd arguments from Python: what is plainly meant works, the rest is refused in words."""

import inspect
import io
from pathlib import Path

import numpy as np
import pytest
import torch

import multihead as mh
from multihead.corpus import Text, read_images, read_texts
from multihead.workflow import Report
from multihead.workflow.checkup import checkup
from multihead.workflow.given import given_material, given_model
from multihead.workflow.opening import called
from workflow.fakes import LetterTokenizer, bert, noise, picture

PROSE = "the cat sat on the mat."


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text(PROSE)
    return path


def refused(says, *given, **named):
    # The type hook of the tests would speak first.
    with pytest.raises(mh.MultiheadError, match=says):
        inspect.unwrap(checkup)(*given, **named)


@pytest.mark.parametrize(
    ("named", "says"),
    [
        ({"rows": "64"}, "got: rows='64'\n  fix: pass rows=64 or more"),
        ({"rows": 3}, "got: rows=3\n"),
        ({"rows": -64}, "got: rows=-64\n"),
        ({"rows": True}, "got: rows='True'"),
        ({"rows": 64.0}, "got: rows='64.0'"),
        ({"max_length": "many"}, "got: max_length='many'"),
        ({"max_length": -1}, "got: max_length=-1"),
        ({"max_length": float("nan")}, "got: max_length='nan'"),
        ({"repeats": None}, "got: repeats=None"),
        ({"repeats": "8"}, "got: repeats='8'"),
        ({"repeats": 1001}, "got: repeats=1001\n  fix: pass 0 to 1000"),
        ({"journal": 5}, "a folder as the journal, or None\n  got: int '5'"),
        ({"journal": ""}, "a folder as the journal"),
        ({"on_progress": "yes"}, "a function as on_progress"),
        ({"material": 5}, "texts, pictures or recordings to read\n  got: int '5'"),
        ({"material": b"text"}, "got: bytes"),
        ({"material": {"a": PROSE}}, "got: dict"),
        ({"material": [PROSE, None]}, "a list of NoneType, str"),
        ({"material": [PROSE, picture()]}, "a list of Picture, str"),
        ({"material": [torch.ones(3)]}, "a list of Tensor"),
        ({"material": "letters.txt"}, r"looks like the name of a file .*\n  fix: pass pathlib\.Path"),
        ({"material": ""}, "a text of at least 2 tokens"),
        ({"material": iter(())}, "at least one text"),
        ({"material": []}, "at least one text"),
        ({"material": "bad \ud800 here"}, r"text 1 \('bad \\ud800 here'\): its character 5 is '\\ud800', half of one"),
        ({"material": [PROSE, PROSE + "\udfff"]}, r"text 2 .*its character 24 is '\\udfff'.*\n  fix: decode the text"),
        ({"material": io.StringIO(PROSE)}, "got: StringIO"),
        ({"tokenizer": [PROSE]}, "a tokenizer as the second argument"),
        ({"tokenizer": str}, r"and tokenizer\.get_vocab\(\)\n  got: type"),
    ],
)
def test_odd_arguments_are_refused_in_words(named, says):
    refused(says, bert(layers=1), **{"tokenizer": LetterTokenizer(), "material": [PROSE], **named})


@pytest.mark.parametrize("model", [None, 5, [], {}, torch.nn.Linear])
def test_what_is_no_model_is_refused(model):
    refused(r'a model to check.*\n  got: .*\n  fix: pass one, for example mh\.checkup\("minilm"\)', model)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("x" * 5000, r"got: 'x{80}\.\.\.', 5000 characters: File name too long\n  fix: name one"),
        (Path("y" * 300), r"got: 'y{80}\.\.\.', 300 characters: File name too long"),
        ("a\0b", r"got: 'a\\x00b', 3 characters: it holds a null byte"),
    ],
)
def test_a_name_that_cannot_be_looked_up_is_shown_cut(name, says):
    refused(says, name)
    with pytest.raises(mh.MultiheadError, match=says):
        mh.open_model(name)


def test_a_model_may_be_named():
    refused("did you mean minilm", "minilmm")
    with pytest.raises(mh.MultiheadError, match="no such folder"):
        given_model("./no-such-folder", None)


@pytest.mark.parametrize(
    ("given", "says"), [((None,), "a packaged model, a folder"), ((5,), "got: int '5'"), (("m", None), "the device to")]
)
def test_what_names_no_model_or_device_is_refused(given, says):
    def opened(name, device="cpu"):
        return inspect.unwrap(mh.open_model)(name, device=device)

    with pytest.raises(mh.MultiheadError, match=says):
        opened(*given)


def test_one_text_a_generator_and_paths_are_what_they_seem(file, tmp_path):
    assert given_material(PROSE, "text") == [PROSE]
    assert given_material(Text("a", PROSE), "text") == [Text("a", PROSE)]
    assert given_material((text for text in (PROSE, PROSE)), "text") == [PROSE, PROSE]
    assert given_material({PROSE}, "text") == [PROSE]
    assert given_material(np.array([PROSE, PROSE]), "text") == [PROSE, PROSE]
    for paths in (file, [file], tmp_path, iter([file])):
        assert list(given_material(paths, "text")) == [Text("a.txt", PROSE)]
    sound, seen = noise(), picture()
    assert given_material(sound, "audio") == [sound]
    assert given_material(seen, "images")[0] is seen
    reading = read_texts(file)
    assert given_material(reading, "text") is reading
    assert given_material(None, "text") is None


def test_the_path_of_a_picture_is_read_for_a_model_of_pictures(tmp_path):
    from PIL import Image

    Image.fromarray(np.zeros((8, 8, 3), dtype=np.uint8)).save(tmp_path / "a.png")
    assert given_material(tmp_path, "images").names == read_images(tmp_path).names == ("a.png",)


def test_whole_numbers_of_numpy_are_whole_numbers():
    named = {"max_length": np.int64(16), "repeats": np.int32(0)}
    report = inspect.unwrap(checkup)(bert(layers=1), LetterTokenizer(), (t for t in [PROSE, PROSE]), **named)
    assert report.record.settings["max_length"] == "16"
    assert len(report.statistics.documents) == 2


@pytest.mark.parametrize("odd", [None, 5, [], mh.Report])
def test_what_is_no_report_is_refused(odd):
    with pytest.raises(mh.MultiheadError, match="two reports to compare"):
        inspect.unwrap(mh.Compared.__init__)(object.__new__(mh.Compared), odd, odd)
    with pytest.raises(mh.MultiheadError, match="a folder that holds a checkup"):
        inspect.unwrap(mh.load_checkup)(odd)


def test_records_and_folders_can_be_compared(tmp_path):
    report = mh.checkup(bert(layers=1), LetterTokenizer(), PROSE, repeats=0)
    report.save(tmp_path)
    compared = mh.compare(report.record, report)
    assert not compared.comparison.flips
    assert not mh.compare(str(tmp_path), tmp_path).comparison.flips
    for odd in (None, 5, ""):
        for one, save in ((report, Report.save), (compared, mh.Compared.save)):
            with pytest.raises(mh.MultiheadError, match="a folder to save to"):
                inspect.unwrap(save)(one, odd)


def test_a_model_is_called_by_its_own_name(tmp_path, monkeypatch):
    folder = tmp_path / "private" / "tiny"
    folder.mkdir(parents=True)
    assert called(folder) == called(f"{folder}/") == "tiny"
    (folder / "model.gguf").touch()
    assert called(folder / "model.gguf") == "model.gguf"
    monkeypatch.chdir(folder)
    assert called(".") == called("./") == called("../tiny") == "tiny"
    assert called("..") == "private"
    assert called("org/name") == "org/name"
    assert called("/nowhere/tiny") == "tiny"
    snapshot = tmp_path / "hub" / "models--org--small-bert" / "snapshots" / "0f3c"
    snapshot.mkdir(parents=True)
    assert called(snapshot) == called(f"{snapshot}/") == "org/small-bert"
    monkeypatch.chdir(snapshot)
    assert called(".") == "org/small-bert"
    (tmp_path / "link").symlink_to(folder)
    assert called(tmp_path / "link") == "link"
    monkeypatch.setenv("HOME", str(tmp_path / "private"))
    assert called("~/tiny") == "tiny"
