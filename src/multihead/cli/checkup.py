"""`multihead checkup MODEL`: from a name and texts to a page."""

import re
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter, Token
from rich.console import Console

from multihead.cli.facts import of_checkup
from multihead.cli.notes import lines_of
from multihead.cli.output import Json, tell_json
from multihead.cli.progress import TokenProgress
from multihead.corpus import read_images, read_sounds, read_texts
from multihead.error import MultiheadError
from multihead.measure import discard_journal
from multihead.record import HeadStatistics
from multihead.workflow import Material, Report, open_model
from multihead.workflow import checkup as run_checkup

INTERRUPTED = 130
JOURNAL = "unfinished"
"""Folder within the output that keeps what was measured until the records are written."""
Paths = Annotated[list[Path] | None, Parameter(negative="", consume_multiple=True)]
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


def checkup(  # noqa: PLR0913 - options of a command, each with its own line of help
    model: str,
    /,
    *,
    text: Paths = None,
    images: Paths = None,
    audio: Paths = None,
    max_length: Annotated[int | None, Parameter(converter=_whole)] = None,
    rows: Annotated[int | None, Parameter(converter=_whole)] = None,
    repeats: Annotated[int, Parameter(converter=_whole)] = 8,
    out: Path = Path("checkup"),
    resume: Annotated[bool, Parameter(negative="")] = False,
    lang: Literal["en", "zh"] = "en",
    device: str = "cpu",
    as_json: Json = False,
) -> int:
    """Measure every attention head of MODEL (the command's help is in `multihead.cli`).

    Parameters
    ----------
    model
        A packaged name (`multihead models`), a folder with a transformers model, or a hub name.
    text
        Files or folders with text (.txt, .md, .jsonl with a "text" field); the default texts if not given.
    images
        Files or folders with pictures, for models that read pictures.
    audio
        Files or folders with recordings, for models that read sound.
    max_length
        Tokens a chunk of text, special tokens included; default 512 or the model's limit. Models without a table of
        positions go beyond the length they state.
    rows
        Measure so many query rows of every longer chunk, drawn evenly, and give every number an interval; all rows if
        not given: every number is exact then.
    repeats
        Runs of random tokens repeated four times, which show induction heads; 0 for none.
    out
        Folder for the page and the records.
    resume
        Go on with the run that was ended by force (kill -9, a power cut) in the same folder with the same options; the
        record is the same bit for bit.
    lang
        Language of the page: en or zh.
    device
        Where to run, e.g. cpu or cuda.
    as_json
        Print one JSON document.
    """
    console = Console(stderr=True, soft_wrap=True)
    _check_folder(out)
    material = _read({"text": text, "images": images, "audio": audio})
    start = time.monotonic()
    with console.status(f"loading {model}"):
        opened = open_model(model, device=device)
    journal = out / JOURNAL
    if journal.exists() and not resume:
        console.print(f"note: an unfinished run in {out} is begun anew; --resume would go on with it", markup=False)
        discard_journal(journal)
    with TokenProgress(console) as progress:
        report = run_checkup(
            opened,
            material=material,
            max_length=max_length,
            rows=rows,
            repeats=repeats,
            journal=journal,
            on_progress=lambda p: progress.update(p.done, p.total, p.doing),
        )
    if not report.statistics.documents:
        return _none_finished(journal, console, as_json=as_json)
    page = report.save(out, lang=lang)
    if report.record.complete:
        discard_journal(journal)
    seconds = time.monotonic() - start
    if as_json:
        tell_json(of_checkup(report, page=page, seconds=seconds))
    else:
        _tell(report, page, seconds)
    return 0 if report.record.complete else INTERRUPTED


def _none_finished(journal: Path, console: Console, *, as_json: bool) -> int:
    """There is nothing for a page, and what was measured of the first document is not lost."""
    console.print(
        "interrupted before one document was finished; the same command with --resume goes on where it ended",
        markup=False,
    )
    if as_json:
        tell_json({"complete": False, "unfinished": str(journal)})
    return INTERRUPTED


def _read(named: Mapping[str, list[Path] | None]) -> Material | None:
    given = {name: paths for name, paths in named.items() if paths is not None}
    if len(given) > 1:
        raise MultiheadError(
            asked="one kind of thing to read",
            arrived=f"--{' and --'.join(given)}",
            remedy="name texts, pictures or sound",
        )
    for name, paths in given.items():
        if not paths:
            raise MultiheadError(
                asked=f"files or folders after --{name}",
                arrived="nothing",
                remedy=f"name some, or leave --{name} out",
            )
        return {"text": read_texts, "images": read_images, "audio": read_sounds}[name](paths)
    return None


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
        console.print("interrupted: what follows is what was measured until then; --resume goes on", markup=False)
    console.print(
        f"{record.model.name}: {len(texts)} heads; texts: {len(texts.documents)}, {tokens:,} tokens; "
        f"repeated random tokens: {random_tokens:,}; {seconds:.1f} s",
        markup=False,
    )
    for words, name, on_repeats in _STRONGEST:
        part = report.repeats if on_repeats else texts
        if part is not None and name in {q.name for q in part.quantities}:
            heads = "  ".join(_top(part, name)) or f"no head at {_WORTH_TELLING:g} or more"
            console.print(f"{words:26} {heads}", markup=False)
    for line in lines_of(record):
        console.print(f"note: {line}", markup=False)
    console.print(f"\npage: {page}", markup=False)


def _top(part: HeadStatistics, name: str, count: int = 3) -> list[str]:
    values = part.value(name)
    ranked = sorted((i for i in range(len(values)) if values[i] >= _WORTH_TELLING), key=lambda i: -values[i])
    return [f"{part.heads[i]!s:8} {values[i]:.2f}" for i in ranked[:count]]
