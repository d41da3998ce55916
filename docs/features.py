# ruff: noqa: T201 - it tells what it found
"""Runs every cell of the feature table; writes docs/reference/features.md and docs/reference/features.json.

    python docs/features.py              # all columns; libraries that are not installed keep what the JSON file says
    python docs/features.py --only ours  # one column
    python docs/features.py --check      # writes nothing, fails if the page would change

A cell does the thing, by the best way its library has, on small random numbers; what it returns is held against a
definition in float64. It says yes, wrong (with how far it is off), no (with the reason), or by hand, where the user
makes the thing and hands it over; a dash where it is not the library's job.
"""

import argparse
import importlib
import importlib.metadata
import json
import sys
import warnings
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import torch  # noqa: E402 - the cells are found only now
from cells.law import TOLERANCE, Lacking, Setting, Wrong  # noqa: E402
from cells.rows import SECTIONS  # noqa: E402

PAGE, FILE = HERE / "reference/features.md", HERE / "reference/features.json"
COLUMNS = {
    "ours": "multihead",
    "torch_layer": "`nn.MultiheadAttention`",
    "sdpa": "SDPA",
    "flex": "FlexAttention",
    "x_transformers": "x-transformers",
    "transformers_layers": "transformers",
}
DASH = "–"
HEAD = """# Features

What each library does, found by doing it: `docs/features.py` runs every cell on small random numbers (float32, on a
CPU) and holds the result, and the gradient where one is asked for, against a definition in float64. Each library is
used by the best way it has.

- **yes**: the numbers are right.
- **by hand**: right, with something the user makes and hands over, such as a mask of every pair.
- **wrong**: it gives other numbers.
- **no**: there is no such thing.
- **not run**: there is, but not so that it could be compared here.
- {dash}: not its job. A function of queries, keys and values has no projections and no caches.

Numbers lead to the [notes](#notes). {versions}
"""


def main():
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=COLUMNS, default=list(COLUMNS))
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--tell", action="store_true", help="print what the cells say as JSON; write nothing")
    options = parser.parse_args()
    told = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {"versions": {}, "cells": {}}
    if options.tell:
        print(json.dumps({column: run_column(column)[0] for column in options.only}))
        return
    for column in options.only:
        found = run_column(column)
        if found is None:
            print(f"{column}: not installed, kept as it was", flush=True)
        else:
            told["cells"][column], told["versions"][column] = found
    page = render(told)
    if options.check:
        sys.exit(PAGE.read_text(encoding="utf-8") != page)
    PAGE.write_text(page, encoding="utf-8")
    told["cells"] = {column: told["cells"][column] for column in COLUMNS if column in told["cells"]}
    FILE.write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    for column, cells in told["cells"].items():
        tally = {
            state: sum(cell["state"] == state for cell in cells.values())
            for state in ("yes", "by hand", "wrong", "no", "not run", DASH)
        }
        print(column, tally)


def run_column(column, keys=None):
    """(what each cell says, version), or None where the library is not installed."""
    try:
        module = importlib.import_module(f"cells.{column}")
    except ImportError:
        return None
    cells = {}
    for row in (row for rows in SECTIONS.values() for row in rows):
        if keys is None or row.key in keys:
            cells[row.key] = run_cell(module, row)
    return cells, importlib.metadata.version(module.PACKAGE)


def run_cell(module, row):
    """One cell: {"state": ..., "note": ...}."""
    cell = getattr(module, row.key, getattr(getattr(module, "MORE", None), row.key, None))
    if cell is None:
        return absent(module.NO.get(row.key, ""))
    torch.manual_seed(sum(map(ord, row.key)))
    setting, note, hand = Setting(), getattr(cell, "note", ""), getattr(cell, "by_hand", "")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            off = difference(cell(setting), row.want(setting))
        if not off <= TOLERANCE:  # NaN is not within it either
            raise Wrong(f"{note}: {far(off)}" if note else far(off))
        state = "by hand" if hand else "yes"
        return {"state": state, "note": hand or note}
    except Wrong as reason:
        return {"state": "wrong", "note": str(reason)}
    except Lacking as reason:
        return {"state": "no", "note": str(reason)}
    except Exception as fault:  # whatever a library raises is the reason why it cannot
        return {"state": "no", "note": words_of(fault)}


def absent(reason):
    """What is said where there is no cell."""
    if reason == DASH:
        return {"state": DASH, "note": ""}
    return {"state": "not run" if reason.startswith("not compared") else "no", "note": reason}


def difference(got, want):
    """The largest difference of all that is returned, infinite where a number is missing or another one is."""
    got, want = ((x,) if isinstance(x, torch.Tensor) else x for x in (got, want))
    worst = 0.0
    for ours, theirs in zip(got, want, strict=True):
        ours, theirs = ours.detach().double(), theirs.detach().double()
        if ours.shape != theirs.shape:
            raise Wrong(f"shape {tuple(ours.shape)}, not {tuple(theirs.shape)}")
        finite = torch.isfinite(theirs)
        if not torch.equal(torch.isfinite(ours), finite) or not torch.equal(ours[~finite], theirs[~finite]):
            return float("inf") if not ours.isnan().any() else float("nan")
        worst = max(worst, float((ours - theirs)[finite].abs().max())) if finite.any() else worst
    return worst


def far(off):
    """A difference in words."""
    return "NaN" if off != off else f"off by {off:.1g}"


def words_of(fault):
    """The first line of what was raised, short, without paths."""
    line = (str(fault).strip().splitlines() or [""])[0]
    return f"{type(fault).__name__}: {line}"[:110].rstrip()


def render(told):
    """The page."""
    columns = [column for column in COLUMNS if column in told["cells"]]
    names = {
        "ours": "multihead",
        "torch_layer": "torch",
        "x_transformers": "x-transformers",
        "transformers_layers": "transformers",
    }
    versions = ", ".join(f"{name} {told['versions'][column]}" for column, name in names.items() if column in columns)
    lines = [HEAD.format(versions=f"Versions: {versions}.", dash=DASH)]
    notes: dict[str, int] = {}
    for section, rows in SECTIONS.items():
        lines += [
            f"## {section}",
            "",
            "| | " + " | ".join(COLUMNS[c] for c in columns) + " |",
            "|---" * (len(columns) + 1) + "|",
        ]
        for row in rows:
            shown = [show(told["cells"][column].get(row.key, {"state": "", "note": ""}), notes) for column in columns]
            lines.append(f"| {row.title} | " + " | ".join(shown) + " |")
        lines.append("")
    lines += ["## Notes", ""]
    lines += [f"{number}. {plain(words)}" for words, number in notes.items()]
    return "\n".join(lines).rstrip() + "\n"


def show(cell, notes):
    """A state and the number of its note."""
    state = f"**{cell['state']}**" if cell["state"] == "wrong" else cell["state"]
    if not cell["note"]:
        return state
    number = notes.setdefault(cell["note"], len(notes) + 1)
    return f"{state} {number}"


def plain(words):
    """Words that Markdown shows as they are."""
    return (
        words.replace("<", "&lt;").replace("[", "\\[").replace("_", "\\_").replace("*", "\\*")
        if "`" not in words
        else words
    )


if __name__ == "__main__":
    main()
