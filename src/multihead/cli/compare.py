"""`multihead compare A B`: two checkups held against each other."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from multihead.cli.facts import of_comparison
from multihead.cli.output import Folder, Json, check_out, tell_json
from multihead.error import MultiheadError
from multihead.measure.role import Comparison, Drift
from multihead.workflow import Compared, load_checkup
from multihead.workflow import compare as compare_reports

FLIPPED = 1
_SHOWN = 20


def compare(
    before: Folder,
    after: Folder,
    /,
    *,
    out: Folder = Path("comparison"),
    lang: Literal["en", "zh"] = "en",
    fail_on_flips: Annotated[bool, Parameter(negative="")] = False,
    as_json: Json = False,
) -> int:
    """Hold two checkups against each other (the command's help is in `multihead.cli`).

    Parameters
    ----------
    before
        Folder of the first checkup, as `multihead checkup --out` wrote it.
    after
        Folder of the second.
    out
        Folder for the page.
    lang
        Language of the page: en or zh.
    fail_on_flips
        Exit with 1 if a head looks like something else and neither of its labels is near a threshold.
    as_json
        Print one JSON document.
    """
    if os.path.realpath(out) in (os.path.realpath(before), os.path.realpath(after)):
        raise MultiheadError(
            asked="a folder of its own for the page of the comparison",
            arrived=f"--out {out}, which holds one of the checkups",
            remedy="choose another folder with --out: the page of the checkup would be lost",
        )
    check_out(out, files=["index.html"])
    compared = compare_reports(load_checkup(before), load_checkup(after))
    page = compared.save(out, lang=lang)
    if as_json:
        tell_json(of_comparison(compared, page=page))
    else:
        _tell(compared, page)
    return FLIPPED if fail_on_flips and any(flip.sure for flip in compared.comparison.flips) else 0


def _tell(compared: Compared, page: Path) -> None:
    console = Console(soft_wrap=True, highlight=False)
    found = compared.comparison
    names = f"{compared.before.record.model.name} and {compared.after.record.model.name}"
    console.print(f"{names}: {len(found.flips)} of {len(found.heads)} heads look like something else", markup=False)
    if not found.same_documents:
        console.print("note: they were measured on different documents", markup=False)
    for name, (first, second) in compared.different_settings.items():
        console.print(f"note: {name} was {first} and {second}: numbers may differ for that alone", markup=False)
    table = Table(box=None, pad_edge=False, show_header=False)
    for flip in found.flips[:_SHOWN]:
        near = "" if flip.sure else "(near a threshold)"
        table.add_row(str(flip.before.head), flip.before.word, "->", flip.after.word, near)
    console.print(table)
    if len(found.flips) > _SHOWN:
        console.print(f"and {len(found.flips) - _SHOWN} more on the page", markup=False)
    moved = _moved(found)
    if moved:
        console.print(_table(found, moved[:_SHOWN]))
    if len(moved) > _SHOWN:
        console.print(f"and {len(moved) - _SHOWN} more: the page and --json have them all", markup=False)
    console.print(f"\npage: {page}", markup=False)


def _moved(found: Comparison) -> list[Drift]:
    """The numbers of heads that moved, as the page has them."""
    return sorted((drift for drift in found.drifts if drift.of_heads() and drift.size() > 0), key=Drift.order)


def _table(found: Comparison, moved: Sequence[Drift]) -> Table:
    """Each number with the head that moved most."""
    table = Table(box=None, pad_edge=False)
    for column in ("statistic", "on the", "heads apart", "moved most", "from", "to"):
        table.add_column(column)
    for drift in moved:
        most = int(np.nan_to_num(np.abs(drift.change), nan=0.0).argmax())
        ends = (f"{drift.before[most]:.3g}", f"{drift.after[most]:.3g}")
        table.add_row(drift.quantity.name, drift.part, str(int(drift.apart.sum())), str(found.heads[most]), *ends)
    return table
