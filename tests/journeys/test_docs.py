"""The documentation does what it says: Python blocks run, commands and options exist, links lead somewhere."""

import re
import shlex
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM

import multihead as mh
from multihead.cli import run
from multihead.workflow import OpenedModel
from workflow.fakes import LetterTokenizer, bert, randomised

ROOT = Path(__file__).parents[2]
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [*DOCS, ROOT / "README.md"]
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
COMMANDS = ("checkup", "compare", "locate", "models", "variants")


def short(path):
    return str(path.relative_to(ROOT))


def told(page):
    """Command lines of a page: indented or in backticks, without what follows a pipe or a remark."""
    text = page.read_text(encoding="utf-8")
    lines = re.findall(r"^ {4}(?:\$ )?(multihead .+)$", text, re.MULTILINE)
    spans = [" ".join(span.split()) for span in re.findall(r"`(multihead [^`]+)`", text)]
    return [re.split(r" [#|>] ?", line)[0].strip() for line in lines + spans]


@pytest.fixture(scope="module")
def options():
    """Options each command tells of in its help; "" is the command itself."""
    found = {}
    for name in ("", *COMMANDS):
        out = StringIO()
        with redirect_stdout(out):
            assert run([*([name] if name else []), "--help"]) == 0
        found[name] = set(re.findall(r"^│ +(--[a-z][a-z-]*)", out.getvalue(), re.MULTILINE))
    return {name: told | {"--help"} for name, told in found.items()}


@pytest.fixture(scope="module")
def checkups(tmp_path_factory):
    """A folder in which `before` and `after` are checkups of a tiny model."""
    folder = tmp_path_factory.mktemp("docs")
    for name in ("before", "after"):
        mh.checkup(bert(), LetterTokenizer(), ["a short text to read, and read.\n" * 3], repeats=2).save(folder / name)
    return folder


@pytest.mark.parametrize("page", [p for p in DOCS if BLOCK.search(p.read_text(encoding="utf-8"))], ids=short)
def test_python_blocks_run(page, checkups, monkeypatch):
    """In the order of the page, each going on with the names of those before it."""
    monkeypatch.chdir(checkups)
    model, ids = twelve_heads(), torch.randint(3, 30, (1, 12))
    opened = OpenedModel(model=model, tokenizer=LetterTokenizer(), name="tiny")
    monkeypatch.setattr(mh, "open_model", lambda name: opened, raising=False)
    names = {"mh": mh, "model": model, "tokenizer": LetterTokenizer(), "inputs": {"input_ids": ids, "labels": ids}}
    for number, block in enumerate(BLOCK.findall(page.read_text(encoding="utf-8"))):
        exec(compile(block, f"{page.name}, block {number}", "exec"), names)


def twelve_heads():
    """A masked language model with a head L3.H7, as the pages take for granted."""
    config = BertConfig(
        vocab_size=40,
        hidden_size=24,
        num_hidden_layers=4,
        num_attention_heads=12,
        intermediate_size=16,
        max_position_embeddings=64,
    )
    return randomised(BertForMaskedLM(config))


@pytest.mark.parametrize("page", [p for p in PAGES if told(p)], ids=short)
def test_commands_and_options_exist(page, options):
    for line in told(page):
        _, *words = shlex.split(line)
        command = words[0] if words and not words[0].startswith("-") else ""
        if command == "COMMAND":
            continue
        assert command in options, line
        unknown = {word.split("=")[0] for word in words if word.startswith("--")} - options[command]
        assert not unknown - ({"--version"} if not command else set()), line


def test_the_reference_tells_every_option(options):
    """A command's section names each option of its help, and none that is not there."""
    text = (ROOT / "docs" / "reference" / "commands.md").read_text(encoding="utf-8")
    sections = re.split(r"^## ", text, flags=re.MULTILINE)
    for command in COMMANDS:
        (section,) = [s for s in sections if s.startswith(f"`multihead {command}")]
        rows = [row for row in section.splitlines() if row.startswith("| `--")]
        assert set(re.findall(r"--[a-z][a-z-]*", "".join(row.split("|")[1] for row in rows))) == options[command] - {
            "--help"
        }


@pytest.mark.parametrize("page", [*PAGES, *(ROOT / f"{n}.md" for n in ("ARCHITECTURE", "CONTRIBUTING"))], ids=short)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if not re.match(r"https?://|#", target):
            assert (page.parent / target.split("#")[0]).exists(), target


def test_every_page_is_in_the_index():
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^([a-z-]+/[\w-]+)$", index, re.MULTILINE))
    pages = {p.relative_to(ROOT / "docs").with_suffix("").as_posix() for p in DOCS} - {"index"}
    assert listed == {p for p in pages if not p.startswith("results/")}
