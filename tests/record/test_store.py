import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from multihead.error import RecordError
from multihead.record import load_checkup, save_checkup, shrunk
from record.samples import checkup, everything


@pytest.fixture
def rng(seed):
    return np.random.default_rng(seed)


@pytest.mark.parametrize("repeats", [True, False])
def test_load_gives_back_what_was_saved(rng, tmp_path, repeats):
    record = checkup(rng, repeats=repeats)
    save_checkup(record, tmp_path / "new" / "folder")
    assert load_checkup(tmp_path / "new" / "folder") == record
    assert load_checkup(tmp_path / "new" / "folder" / "record.json") == record
    assert sorted(p.name for p in (tmp_path / "new" / "folder").iterdir()) == [
        "heads.parquet",
        "record.json",
        "record.safetensors",
    ]


def test_equal_counts_take_no_room(rng, tmp_path):
    record = checkup(rng)
    counts = {k: np.full(v.shape, 7.0) for k, v in record.texts.counts.items()}
    even = replace(record, texts=replace(record.texts, counts=counts))
    odd = {k: rng.random(v.shape) for k, v in record.texts.counts.items()}
    record = replace(record, texts=replace(record.texts, counts=odd))
    for name, each in (("uneven", record), ("even", even)):
        save_checkup(each, tmp_path / name)
        assert load_checkup(tmp_path / name) == each
    size = {name: (tmp_path / name / "record.safetensors").stat().st_size for name in ("uneven", "even")}
    entries = sum(v[0].size * len(v) - len(v) for v in counts.values())
    assert size["even"] <= size["uneven"] - 8 * entries + 100


def test_same_record_same_bytes(rng, tmp_path):
    record = checkup(rng)
    for folder in ("a", "b"):
        save_checkup(record, tmp_path / folder)
    for name in ("record.json", "record.safetensors", "heads.parquet"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_parquet_has_the_values_of_every_head(rng, tmp_path):
    record = checkup(rng)
    save_checkup(record, tmp_path)
    rows = pq.read_table(tmp_path / "heads.parquet").to_pylist()
    assert [r["part"] for r in rows] == ["texts"] * 4 + ["repeats"] * 4
    for row, wanted in zip(rows, record.texts.table(), strict=False):
        assert {k: row[k] for k in wanted} == wanted
    got = np.array([r["pooled_map"] for r in rows[:4]], dtype=float).reshape(4, 2, 2)
    assert np.array_equal(got, record.texts.value("pooled_map"), equal_nan=True)


def test_json_is_for_people(rng, tmp_path):
    record = checkup(rng)
    save_checkup(record, tmp_path)
    data = json.loads((tmp_path / "record.json").read_text())
    assert data["texts"]["heads"] == record.texts.table()
    assert data["model"]["special_tokens"] == ["[CLS]", "[SEP]"]


def damage_json(folder, change):
    path = folder / "record.json"
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (lambda f: (f / "record.json").unlink(), "No such file"),
        (lambda f: (f / "record.safetensors").unlink(), "No such file"),
        (lambda f: (f / "record.json").write_text("{"), "give the folder"),
        (lambda f: (f / "record.json").write_text("[1]"), "got: a JSON list"),
        (lambda f: (f / "record.json").write_bytes(b"\xff\xfe"), "give the folder"),
        (lambda f: damage_json(f, lambda d: d.update(format_version=99)), "version 99"),
        (lambda f: damage_json(f, lambda d: d.update(format="other")), "format 'other'"),
        (lambda f: (f / "record.safetensors").write_bytes(b"x" * 100), "another SHA-256"),
        (lambda f: damage_json(f, lambda d: d["texts"].pop("documents")), "KeyError: 'documents'"),
        (lambda f: damage_json(f, lambda d: d["texts"]["documents"].pop()), "sums of entropy for 2 documents"),
        (lambda f: damage_json(f, lambda d: d.update(sums="x")), "another SHA-256"),
        (lambda f: damage_json(f, lambda d: d.update(texts=[])), "fix: the file was changed by hand"),
    ],
)
def test_damaged_records_are_refused_with_the_reason(rng, tmp_path, fault, message):
    save_checkup(checkup(rng), tmp_path)
    fault(tmp_path)
    with pytest.raises(RecordError, match=message):
        load_checkup(tmp_path)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"reads": "x"},
            r'one of text, images, audio as "reads" in .*record\.json\n  got: reads is \'x\'\n  fix: .*put back',
        ),
        ({"reads": ["text"]}, r'as "reads" .*\n  got: reads is \[\'text\'\]'),
        ({"settings": 7}, r'an object of strings as "settings" in .*\n  got: settings is 7\n'),
        ({"settings": "x"}, r'"settings" .*\n  got: settings is \'x\''),
        ({"settings": {"max_length": 5}}, r'"settings" .*\n  got: settings is \{\'max_length\': 5\}'),
        ({"versions": 7}, r'"versions" .*\n  got: versions is 7'),
        ({"created": None}, r'a string as "created" .*\n  got: created is None'),
        ({"complete": 1}, r'true or false as "complete" .*\n  got: complete is 1'),
        ({"model": "z" * 100}, r'an object as "model" .*\n  got: model is \'z{70}\.\.\.\n'),
    ],
)
def test_a_field_of_another_kind_is_named_with_what_it_holds(rng, tmp_path, change, says):
    save_checkup(checkup(rng), tmp_path)
    damage_json(tmp_path, lambda d: d.update(change))
    with pytest.raises(RecordError, match=says):
        load_checkup(tmp_path)


@pytest.mark.parametrize("key", ["name", "architecture", "parameters"])
def test_a_fact_of_another_kind_is_named_with_what_it_holds(rng, tmp_path, key):
    save_checkup(checkup(rng), tmp_path)
    damage_json(tmp_path, lambda d: d["model"].update({key: [1]}))
    with pytest.raises(RecordError, match=rf'as "model\.{key}" in .*\n  got: {key} is \[1\]\n'):
        load_checkup(tmp_path)


def test_unwritable_folder_is_named_and_nothing_is_left(rng, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(RecordError, match="choose a folder: a file is there"):
        save_checkup(checkup(rng), tmp_path / "file" / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("obstacle", ["record.json", "heads.parquet", "index.html"])
def test_a_failed_save_leaves_the_old_checkup_whole(rng, tmp_path, obstacle):
    old, new = checkup(rng), checkup(rng)
    save_checkup(old, tmp_path)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    (tmp_path / obstacle).unlink(missing_ok=True)
    (tmp_path / obstacle).mkdir()
    with pytest.raises(RecordError, match="is a folder"):
        save_checkup(new, tmp_path, beside={"index.html": b"page"})
    (tmp_path / obstacle).rmdir()
    left = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    before.pop(obstacle, None)
    assert left == before


@pytest.mark.parametrize("stop", [OSError(28, "disk full"), KeyboardInterrupt()])
@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_a_save_that_stops_while_writing_changes_nothing(rng, tmp_path, monkeypatch, stop, at):
    old, new = checkup(rng), checkup(rng)
    save_checkup(old, tmp_path, beside={"index.html": b"old"})
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    calls = []
    real = Path.chmod

    def chmod(path, mode):
        calls.append(path)
        if len(calls) == at:
            raise stop
        return real(path, mode)

    monkeypatch.setattr(Path, "chmod", chmod)
    with pytest.raises((RecordError, KeyboardInterrupt)):
        save_checkup(new, tmp_path, beside={"index.html": b"new"})
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before
    assert load_checkup(tmp_path) == old


def test_every_field_comes_back(rng, tmp_path):
    record = replace(checkup(rng), texts=everything(rng), reads="images")
    save_checkup(record, tmp_path)
    loaded = load_checkup(tmp_path)
    assert loaded == record
    assert loaded.texts.examples[1].picture == record.texts.examples[1].picture
    assert loaded.texts.sampling["offsets"].sums.dtype == np.float64
    assert loaded.reads == "images"


def test_records_of_the_first_version_are_read(rng, tmp_path):
    record = checkup(rng)
    save_checkup(record, tmp_path)

    def old(data):
        data["format_version"] = 1
        del data["reads"], data["texts"]["examples"]
        for quantity in data["texts"]["quantities"]:
            for name in ("pairs", "content_of", "even"):
                del quantity[name]

    damage_json(tmp_path, old)
    assert load_checkup(tmp_path) == record


def test_numbers_that_a_narrow_type_holds_take_its_room(rng):
    for array, want in (
        (np.array([[0.0, 255.0]]), np.uint8),
        (np.array([[0.0, 256.0]]), np.uint16),
        (np.array([[0.5, np.inf]]), np.float32),
        (np.array([[0.5, -np.nan]]), np.float32),
        (np.array([[-0.0, 1.0]]), np.float64),
        (np.array([[0.1, 1.0]]), np.float64),
        (np.array([[1e300, 1.0]]), np.float64),
    ):
        got = shrunk(array)
        assert got.dtype == want
        assert np.array_equal(got.astype(float), array, equal_nan=True)
    assert shrunk(np.full((3, 4, 5), 0.1)).shape == (3, 1, 1)
    assert shrunk(np.zeros((0, 4))).shape == (0, 1)
