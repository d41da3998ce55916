"""The README's Python blocks run as they stand."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def blocks():
    return re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL)


def test_first_block_checks_a_model_up(minilm_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    block = blocks()[0].replace("path/to/a/model", str(minilm_folder))
    names = {}
    exec(compile(block, "README", "exec"), names)
    assert 0 < names["report"].statistics["L3.H7"].entropy < 10
    assert (tmp_path / "checkup" / "index.html").stat().st_size > 10_000


def test_second_block_builds(capsys):
    names = {}
    exec(compile(blocks()[1], "README", "exec"), names)
    assert names["y"].shape == (2, 300, 512)
    printed = capsys.readouterr().out
    assert "query 290 -> key 3: outside sliding_window(256)" in printed
    assert names["attended"].backend in printed


def test_third_block_watches(capsys):
    import torch
    from transformers import BertConfig, BertModel

    config = BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    names = {
        "mh": pytest.importorskip("multihead"),
        "model": BertModel(config).eval(),
        "inputs": {"input_ids": torch.randint(0, 50, (1, 12))},
    }
    exec(compile(blocks()[2], "README", "exec"), names)
    assert 0 < float(capsys.readouterr().out) < 1


@pytest.mark.parametrize("name", [p.name for p in (ROOT / "examples").glob("*.py")])
def test_examples_run_and_are_short(name, tmp_path, monkeypatch, capsys):
    path = ROOT / "examples" / name
    source = path.read_text(encoding="utf-8")
    assert len(source.splitlines()) < 60
    monkeypatch.chdir(tmp_path)
    exec(compile(source, str(path), "exec"), {"__name__": "__main__", "sys": None} | {})
    assert capsys.readouterr().out.strip()


def test_links_of_the_readme_lead_somewhere():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)#]+)\)", text)
    assert targets
    assert [t for t in targets if not t.startswith("http") and not (ROOT / t).exists()] == []
