import json
import os
import re
import shutil

import numpy as np
import pytest
import torch
from torch import nn

import multihead as mh
from cli.tiny import save_tiny
from multihead.cli import checkup as door
from multihead.cli import run
from multihead.workflow import OpenedModel


def test_checkup_tells_one_document(told, tiny, prose, tmp_path):
    code, data, _ = told("checkup", tiny, "--text", prose, "--repeats", 2, "--out", tmp_path / "out")
    assert code == 0
    report = mh.load_checkup(tmp_path / "out")
    assert data["model"]["heads"] == len(data["heads"]) == len(data["repeats"]) == 6
    assert data["complete"] is True
    assert data["reads"] == "text"
    assert data["page"] == str(tmp_path / "out" / "index.html")
    assert [d["name"] for d in data["documents"]] == ["one.txt", "two.txt"]
    for row in data["heads"]:
        assert row["entropy"] == report.statistics[row["head"]].entropy
        assert row["looks_like"]["word"]
    assert {note["measured_on"] for note in data["notes"]} <= {"texts", "repeats"}
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "heads.parquet",
        "index.html",
        "record.json",
        "record.safetensors",
    ]


def test_checkup_tells_people(tiny, prose, tmp_path, capfd):
    assert run(["checkup", str(tiny), "--text", str(prose), "--repeats", "0", "--out", str(tmp_path)]) == 0
    out, err = capfd.readouterr()
    assert "tiny: 6 heads; texts: 2, " in out
    assert "looks at the token before" in out
    assert f"page: {tmp_path / 'index.html'}" in out
    assert "tokens/s" in err
    assert "may be chance" not in out
    assert run(["checkup", str(tiny), "--text", str(prose / "one.txt"), "--repeats", "0", "--out", str(tmp_path)]) == 0
    assert "too little was read for intervals: what a head looks like may be chance" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (["checkup", "no/such-model"], "remedy"),
        (["checkup"], "arrived"),
        (["checkup", "{tiny}", "--colour", "red"], "arrived"),
        (["checkup", "{tiny}", "--text", "nowhere.txt"], "arrived"),
        (["checkup", "{tiny}", "--images", "{pictures}", "--out", "{out}"], "arrived"),
        (["checkup", "{tiny}", "--text", "{pictures}", "--audio", "{pictures}"], "arrived"),
        (["checkup", "{tiny}", "--rows", "3", "--text", "{prose}", "--out", "{out}"], "arrived"),
        (["checkup", "{tiny}", "--rows", "many"], "arrived"),
        (["checkup", "{tiny}", "--lang", "tlh"], "arrived"),
        (["compare", "nowhere", "elsewhere"], "arrived"),
        (["compare", "one"], "arrived"),
        (["locate", "no/such-model"], "arrived"),
        (["locate"], "arrived"),
        (["models", "--get", "nonsense"], "remedy"),
        (["models", "--colour"], "arrived"),
        (["nonsense"], "arrived"),
    ],
)
def test_errors_are_one_document_too(fault, says, told, tiny, prose, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "noise.png").write_bytes(png())
    named = {"tiny": tiny, "prose": prose, "pictures": tmp_path / "pictures", "out": tmp_path / "out"}
    code, data, err = told(*(part.format(**named) for part in fault))
    assert code == 2
    assert data.keys() == {"error"}
    assert data["error"].keys() == {"asked", "arrived", "remedy"}
    assert data["error"][says]
    assert "Traceback" not in err


def png():
    from io import BytesIO

    from PIL import Image

    held = BytesIO()
    Image.fromarray(np.zeros((8, 8, 3), dtype=np.uint8)).save(held, "png")
    return held.getvalue()


def test_ctrl_c_is_one_document_and_130(told, tiny, tmp_path, monkeypatch):
    def stop(*given, **named):
        raise KeyboardInterrupt

    monkeypatch.setattr(door, "run_checkup", stop)
    code, data, err = told("checkup", tiny, "--out", tmp_path)
    assert (code, data) == (130, {"complete": False})
    assert "interrupted" in err


def test_the_page_is_in_the_language_asked_for(tiny, prose, tmp_path):
    arguments = ["checkup", str(tiny), "--text", str(prose), "--repeats", "0", "--out", str(tmp_path), "--lang", "zh"]
    assert run(arguments) == 0
    assert re.search(r'<html[^>]* lang="zh', (tmp_path / "index.html").read_text(encoding="utf-8"))


def test_rows_are_drawn_and_told(told, tiny, prose, tmp_path):
    code, data, _ = told("checkup", tiny, "--text", prose, "--rows", 64, "--repeats", 0, "--out", tmp_path)
    assert code == 0
    assert data["settings"]["rows"] == "64"
    assert mh.load_checkup(tmp_path).statistics.sampling


def test_a_checkup_against_itself_has_no_flips(told, checked, tmp_path):
    code, data, _ = told("compare", checked["tiny"], checked["tiny"], "--out", tmp_path, "--fail-on-flips")
    assert code == 0
    assert data["flips"] == []
    assert data["heads"] == 6
    assert data["same_documents"] is True
    assert all(drift["root_mean_square"] in (0, None) and not drift["heads_apart"] for drift in data["drift"])
    assert (tmp_path / "index.html").exists()


def test_flips_are_told_and_fail_where_asked(told, checked, tmp_path, capfd):
    asked = ["compare", checked["tiny"], checked["back"], "--out", tmp_path]
    code, data, _ = told(*asked)
    assert code == 0
    flips = {flip["head"]: flip for flip in data["flips"]}
    assert flips["L0.H1"]["after"]["key"] == "previous"
    assert not flips["L0.H1"]["after"]["unsure"]
    moved = {drift["statistic"]: drift for drift in data["drift"] if drift["measured_on"] == "texts"}
    assert moved["previous"]["most_moved"][0]["head"] == "L0.H1"
    assert moved["previous"]["most_moved"][0]["after"] > 0.9
    # What the random head looked like before may be near a threshold: such a flip fails nothing.
    assert told(*asked, "--fail-on-flips")[0] == int(any(flip["sure"] for flip in data["flips"]))
    assert run([*map(str, asked), "--lang", "zh"]) == 0
    out = capfd.readouterr().out
    assert f"{len(data['flips'])} of 6 heads look like something else" in out
    assert re.search(rf"L0\.H1 .*-> *{re.escape(flips['L0.H1']['after']['word'])}", out)
    assert re.search(r'<html[^>]* lang="zh', (tmp_path / "index.html").read_text(encoding="utf-8"))


def test_other_layouts_and_documents_are_said(told, checked, tiny, tmp_path, capfd):
    other = save_tiny(tmp_path / "other", layers=1, heads=2)
    (tmp_path / "text.txt").write_text("A dog sat on a cat. The cat slept.")
    common = ["--text", str(tmp_path / "text.txt"), "--repeats", "0", "--out"]
    assert run(["checkup", str(other), *common, str(tmp_path / "1")]) == 0
    code, data, _ = told("compare", checked["tiny"], tmp_path / "1")
    assert code == 2
    assert data["error"]["asked"] == "two checkups of models with the same heads"
    assert run(["checkup", str(tiny), *common, str(tmp_path / "2")]) == 0
    assert run(["compare", str(checked["tiny"]), str(tmp_path / "2"), "--out", str(tmp_path / "3")]) == 0
    assert "note: they were measured on different documents" in capfd.readouterr().out


def test_compare_wants_whole_records(told, checked, tmp_path):
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "record.json").write_text("{")
    code, data, _ = told("compare", checked["tiny"], tmp_path / "torn")
    assert code == 2
    assert "torn" in data["error"]["asked"] + data["error"]["arrived"]


def test_locate_lists_the_layers(told, tiny, capfd):
    code, data, _ = told("locate", tiny)
    assert code == 0
    assert data["architecture"] == "BertModel"
    assert [(layer["module"], layer["heads"]) for layer in data["layers"]] == [
        (f"encoder.layer.{i}.attention.self", 3) for i in range(2)
    ]
    assert {layer["how"] for layer in data["layers"]} == {"seen"}
    assert run(["locate", str(tiny)]) == 0
    out = capfd.readouterr().out
    assert "encoder.layer.1.attention.self" in out
    assert "seen" in out


class Home(nn.Module):
    """Attention that only torch's own function shows."""

    def __init__(self):
        super().__init__()
        self.inner = nn.MultiheadAttention(8, 2, batch_first=True)
        self.attention = Own()

    def forward(self, x):
        return self.attention(self.inner(x, x, x)[0])


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (2, 4)).transpose(1, 2) for f in (self.q_proj, self.k_proj, self.v_proj))
        return torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


def test_locate_says_which_layers_are_seen_through_a_fallback(told, monkeypatch, capfd):
    from multihead.cli import locate as door_of_locate

    opened = OpenedModel(model=Home(), tokenizer=None, name="home")
    monkeypatch.setattr(door_of_locate, "open_model", lambda name: opened)
    code, data, _ = told("locate", "home")
    assert code == 0
    assert {layer["module"]: layer["how"] for layer in data["layers"]} == {"inner": "fallback", "attention": "fallback"}
    assert run(["locate", "home"]) == 0
    assert "fallback" in capfd.readouterr().out


def test_models_are_listed(told):
    code, data, _ = told("models")
    assert code == 0
    assert {"minilm", "smollm2", "rxnmapper", "dinov2", "whisper-tiny"} <= {model["name"] for model in data}
    assert all(isinstance(model["installed"], bool) for model in data)


def test_compare_does_not_write_over_a_checkup(told, checked):
    before = (checked["tiny"] / "index.html").read_bytes()
    code, data, _ = told("compare", checked["tiny"], checked["back"], "--out", checked["tiny"])
    assert code == 2
    assert "which holds one of the checkups" in data["error"]["arrived"]
    assert (checked["tiny"] / "index.html").read_bytes() == before


def test_compare_names_settings_that_differ(told, checked, tiny, prose, tmp_path, capfd):
    other = tmp_path / "short"
    assert (
        run(["checkup", str(tiny), "--text", str(prose), "--repeats", "2", "--max-length", "24", "--out", str(other)])
        == 0
    )
    _, data, _ = told("compare", checked["tiny"], other, "--out", tmp_path / "page")
    assert set(data["different_settings"]) == {"max_length"}
    assert data["different_settings"]["max_length"][1] == "24"
    capfd.readouterr()
    run(["compare", str(checked["tiny"]), str(other), "--out", str(tmp_path / "page")])
    assert "note: max_length was" in capfd.readouterr().out


def test_pipes_and_endless_repeats_are_refused(told, tiny, prose, tmp_path):
    os.mkfifo(tmp_path / "pipe.txt")
    code, data, _ = told("checkup", tiny, "--text", tmp_path / "pipe.txt", "--out", tmp_path / "out")
    assert (code, data["error"]["arrived"]) == (2, "a pipe, a socket or a device")
    code, data, _ = told("checkup", tiny, "--text", prose, "--repeats", "1000000000", "--out", tmp_path / "out")
    assert (code, data["error"]["arrived"]) == (2, "repeats=1000000000")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: d["model"].update(name=5), "name is 5"),
        (lambda d: d.update(complete="no"), "complete is 'no'"),
        (lambda d: d.update(reads=5), "reads is 5"),
        (lambda d: d["texts"].update(kv_heads="x"), "kv_heads is no list"),
        (lambda d: d["texts"].update(kv_heads=[[1]]), "kv_heads is no list"),
    ],
)
def test_compare_refuses_records_changed_by_hand(change, says, told, checked, tmp_path):
    shutil.copytree(checked["tiny"], tmp_path / "changed")
    path = tmp_path / "changed" / "record.json"
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    code, answer, _ = told("compare", tmp_path / "changed", checked["back"], "--out", tmp_path / "page")
    assert code == 2
    assert says in answer["error"]["arrived"]
    assert "changed by hand" in answer["error"]["remedy"]


def test_compare_refuses_json_nested_without_end(told, checked, tmp_path):
    shutil.copytree(checked["tiny"], tmp_path / "changed")
    (tmp_path / "changed" / "record.json").write_text("[" * 100_000)
    assert told("compare", tmp_path / "changed", checked["back"], "--out", tmp_path / "page")[0] == 2
