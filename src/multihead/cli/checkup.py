"""`multihead checkup MODEL`: from a name and texts to a page."""

import re
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter, Token
from rich.console import Console
from rich.table import Table

from multihead.cli.progress import TokenProgress
from multihead.corpus import read_texts
from multihead.error import MultiheadError
from multihead.record import HeadStatistics
from multihead.workflow import Report, open_model
from multihead.workflow import checkup as run_checkup

INTERRUPTED = 130
# What a reader looks for first: title, statistic, and whether it is read from the repeats.
_STRONGEST = (
    ("looks at the token before", "previous", False),
    ("looks at the token after", "next", False),
    ("rests on the first token", "first_token", False),
    ("continues a repeat", "induction", True),
    ("finds the same token", "same_token", True),
    ("spreads wide", "entropy_share", False),
)
# Below this share a ranking is one of noise.
_WORTH_TELLING = 0.3


def _whole(_: object, tokens: Sequence[Token]) -> int:
    """A whole number as it stands: 16.9 is no 17."""
    value = tokens[0].value
    if not re.fullmatch(r"[+-]?\d+", value):
        raise ValueError(f"{value!r} is not a whole number")
    return int(value)


def checkup(
    model: str,
    /,
    *,
    text: Annotated[list[Path] | None, Parameter(negative="", consume_multiple=True)] = None,
    max_length: Annotated[int | None, Parameter(converter=_whole)] = None,
    out: Path = Path("checkup"),
    repeats: Annotated[int, Parameter(converter=_whole)] = 8,
    device: str = "cpu",
) -> int:
    """Measure every attention head of MODEL on real text (the command's help is in `multihead.cli`).

    Parameters
    ----------
    model
        A packaged name (`multihead models`), a folder with a transformers model, or a hub name.
    text
        Files or folders with text (.txt, .md, .jsonl with a "text" field); the default texts if not given.
    max_length
        Tokens a chunk, special tokens included; default 512 or the model's limit.
    out
        Folder for the page and the records.
    repeats
        Runs of random tokens repeated four times, which show induction heads; 0 for none.
    device
        Where to run, e.g. cpu or cuda.
    """
    console = Console(stderr=True, soft_wrap=True)
    _check_folder(out)
    if text is not None and not text:
        raise MultiheadError(
            asked="files or folders after --text", arrived="nothing", remedy="name some, or leave --text out"
        )
    texts = read_texts(text) if text else None
    start = time.monotonic()
    with console.status(f"loading {model}"):
        opened = open_model(model, device=device)
    with TokenProgress(console) as progress:
        report = run_checkup(
            opened.model,
            opened.tokenizer,
            texts if texts is not None else opened.texts,
            name=opened.name,
            max_length=max_length,
            repeats=repeats,
            on_progress=lambda p: progress.update(p.done, p.total, p.doing),
        )
    if not report.statistics.documents:
        raise KeyboardInterrupt
    page = report.save(out)
    _tell(report, page, time.monotonic() - start)
    return 0 if report.record.complete else INTERRUPTED


def _check_folder(out: Path) -> None:
    """Fail before the long work, not after it: the nearest folder that exists must take a file."""
    nearest = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    try:
        with tempfile.NamedTemporaryFile(dir=nearest):
            pass
    except OSError as problem:
        raise MultiheadError(
            asked=f"a folder to write the page and records to: {out}",
            arrived=str(problem),
            remedy="choose a folder you may write to with --out",
        ) from problem


def _tell(report: Report, page: Path, seconds: float) -> None:
    console = Console(soft_wrap=True, highlight=False)
    record, texts = report.record, report.statistics
    tokens = sum(d.tokens for d in texts.documents)
    random_tokens = sum(d.tokens for d in report.repeats.documents) if report.repeats else 0
    if not record.complete:
        console.print("interrupted: what follows is what was measured until then", markup=False)
    console.print(
        f"{record.model.name}: {len(texts)} heads; texts: {len(texts.documents)}, {tokens:,} tokens; "
        f"repeated random tokens: {random_tokens:,}; {seconds:.1f} s",
        markup=False,
    )
    table = Table(box=None, pad_edge=False, show_header=False)
    for words, name, on_repeats in _STRONGEST:
        part = report.repeats if on_repeats else texts
        if part is not None and name in {q.name for q in part.quantities}:
            table.add_row(words, "  ".join(_top(part, name)) or f"no head at {_WORTH_TELLING:g} or more")
    console.print(table)
    for note in texts.notes:
        about = f"{note.about}: " if note.about else ""
        console.print(f"note: {about}{note.text}", markup=False)
    console.print(f"\npage: {page}", markup=False)


def _top(part: HeadStatistics, name: str, count: int = 3) -> list[str]:
    values = part.value(name)
    ranked = sorted((i for i in range(len(values)) if values[i] >= _WORTH_TELLING), key=lambda i: -values[i])
    return [f"{part.heads[i]!s:8} {values[i]:.2f}" for i in ranked[:count]]
