"""The feature table says what its cells do: our column runs again, and the page is what the script writes."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))

import features
from cells.law import by_hand
from cells.rows import SECTIONS

ROWS = {row.key: row for rows in SECTIONS.values() for row in rows}


@pytest.fixture(scope="module")
def told():
    return json.loads(features.FILE.read_text(encoding="utf-8"))


def test_our_column_is_what_the_page_says(told):
    # In a process of its own: checked types do not go into a graph.
    command = [sys.executable, features.__file__, "--only", "ours", "--tell"]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    cells = json.loads(run.stdout.splitlines()[-1])["ours"]
    assert cells == told["cells"]["ours"]
    assert {cell["state"] for cell in cells.values()} == {"yes"}


def test_the_page_is_what_the_script_writes(told):
    assert features.PAGE.read_text(encoding="utf-8") == features.render(told)
    assert list(told["cells"]) == list(features.COLUMNS)
    assert all(set(cells) == set(ROWS) for cells in told["cells"].values())


def test_a_cell_says_how_it_failed():
    row = ROWS["causal"]

    def said(cell):
        return features.run_cell(SimpleNamespace(causal=cell, NO={}), row)

    assert said(row.want) == {"state": "yes", "note": ""}
    assert said(by_hand("a mask")(lambda s: row.want(s))) == {"state": "by hand", "note": "a mask"}
    assert said(lambda s: row.want(s) + 0.5) == {"state": "wrong", "note": "off by 0.5"}
    assert said(lambda s: row.want(s) * torch.nan) == {"state": "wrong", "note": "NaN"}
    assert said(lambda s: row.want(s)[:1])["note"].startswith("shape (1, ")
    assert said(lambda s: s.nothing)["state"] == "no"
    assert features.run_cell(SimpleNamespace(NO={"causal": features.DASH}), row) == {"state": "–", "note": ""}
