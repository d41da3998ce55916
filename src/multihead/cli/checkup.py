"""`multihead checkup MODEL`: from a name and texts to a page."""

import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter, Token
from rich.console import Console
from rich.markup import escape

from multihead.cli.facts import of_checkup
from multihead.cli.notes import lines_of
from multihead.cli.output import Folder, Json, Paths, check_out, tell_json
from multihead.cli.progress import PlaceProgress
from multihead.corpus import read_images, read_sounds, read_texts
from multihead.corpus.files import shown_name
from multihead.corpus.reading import Reading
from multihead.error import MultiheadError, remedy_of
from multihead.measure import discard_journal, has_journal, held
from multihead.record import HeadStatistics
from multihead.workflow import UNITS, Material, Report, open_model
from multihead.workflow import checkup as run_checkup

INTERRUPTED = 130
JOURNAL = "unfinished"
"""Folder within the output that keeps what was measured until the records are written."""
WRITTEN = ("index.html", "record.json", "record.safetensors", "heads.parquet")
# What a reader looks for first: title, statistic, and whether it is read from the repeats.
_SEQUENCE = (
    ("looks at the token before", "previous", False),
    ("looks at the token after", "next", False),
    ("rests on the first token", "first_token", False),
    ("continues a repeat", "induction", True),
    ("finds the same token", "same_token", True),
    ("spreads wide", "entropy_share", False),
)
_STRONGEST = {
    "text": _SEQUENCE,
    "audio": _SEQUENCE,
    "images": (
        ("looks at patches beside it", "neighbour", False),
        ("reads along its row", "same_row", False),
        ("reads along its column", "same_column", False),
        ("rests on [CLS], registers", "sink", False),
        ("spreads wide", "entropy_share", False),
    ),
}
_SHOWN, _MUCH = 6, 2_000_000
_REPEATS = 8
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
    repeats: Annotated[int | None, Parameter(converter=_whole)] = None,
    out: Folder = Path("checkup"),
    resume: Annotated[bool, Parameter(negative="")] = False,
    lang: Literal["en", "zh"] = "en",
    device: str = "cpu",
    as_json: Json = False,
) -> int:
    """Measure every attention head of MODEL (the command's help is in `multihead.cli`).

    Parameters
    ----------
    model
        A packaged name (`multihead models`), a folder with a transformers model, a .gguf file, or a hub name.
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
        Measure so many query rows (64 or more) of every longer chunk, drawn evenly, and give every number an interval;
        all rows if not given: every number is exact then.
    repeats
        Runs of random tokens repeated four times, which show induction heads: up to 1000, 0 for none; default 8. For
        models that read text.
    out
        Folder for the page and the records; one run at a time writes there.
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
    check_out(out, files=WRITTEN)
    start = time.monotonic()
    with held(out / JOURNAL):
        material = _read({"text": text, "images": images, "audio": audio}, console)
        with console.status(f"loading {escape(model)}"):
            opened = open_model(model, device=device)
        runs = _runs(repeats, reads=opened.reads if text is None else "text")
        _begin(out, console, resume=resume)
        _say_size(material, console)
        with PlaceProgress(console) as progress:
            report = run_checkup(
                opened,
                material=material,
                max_length=max_length,
                rows=rows,
                repeats=runs,
                journal=out / JOURNAL,
                on_progress=progress.update,
            )
        if not report.statistics.documents:
            return _none_finished(out / JOURNAL, console, as_json=as_json)
        page = _save(report, out, lang=lang)
    seconds = time.monotonic() - start
    if as_json:
        tell_json(of_checkup(report, page=page, seconds=seconds))
    else:
        _tell(report, page, seconds)
    return 0 if report.record.complete else INTERRUPTED


def _runs(repeats: int | None, *, reads: str) -> int:
    """How many runs of repeated tokens; what could only be ignored is refused, as --max-length is."""
    if repeats and reads != "text":
        raise MultiheadError(
            asked=f"repeats, the runs of random tokens, for a model that reads {reads}",
            arrived=f"repeats={repeats}",
            remedy="leave it out: only a model that reads text is shown tokens",
        )
    return _REPEATS if repeats is None else repeats


def _begin(out: Path, console: Console, *, resume: bool) -> None:
    """Go on with what is there, or clear it away."""
    if has_journal(out / JOURNAL) and not resume:
        console.print(f"note: an unfinished run in {out} is begun anew; --resume would go on with it", markup=False)
    if not resume:
        discard_journal(out / JOURNAL)


def _say_size(material: Material | None, console: Console) -> None:
    """A sign of life: much text takes a while to be cut into tokens, before anything is measured."""
    size = sum(len(text.content) for text in material.texts) if isinstance(material, Reading) else 0
    if size >= _MUCH:
        console.print(f"cutting {size:,} characters into tokens", markup=False, highlight=False)


def _save(report: Report, out: Path, *, lang: str) -> Path:
    """Write the page and the records; what was measured is kept until they are written."""
    try:
        page = report.save(out, lang=lang)
    except (MultiheadError, OSError) as problem:
        known = isinstance(problem, MultiheadError)
        raise MultiheadError(
            asked=problem.asked if known else f"to write the page and the records to {out}",
            arrived=problem.arrived if known else str(problem),
            remedy=f"{problem.remedy if known else remedy_of(problem)}; nothing that was measured is lost: then run "
            "the same command with --resume",
        ) from problem
    if report.record.complete:
        discard_journal(out / JOURNAL)
    return page


def _none_finished(journal: Path, console: Console, *, as_json: bool) -> int:
    """There is nothing for a page, and what was measured of the first document is not lost."""
    console.print(
        "interrupted before one document was finished; the same command with --resume goes on where it ended",
        markup=False,
    )
    if as_json:
        tell_json({"complete": False, "unfinished": str(journal)})
    return INTERRUPTED


def _read(named: Mapping[str, list[Path] | None], console: Console) -> Material | None:
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
        found = {"text": read_texts, "images": read_images, "audio": read_sounds}[name](paths)
        for skipped in found.skipped[:_SHOWN]:
            console.print(f"note: left out {shown_name(str(skipped.path))}: {skipped.reason}", markup=False)
        if len(found.skipped) > _SHOWN:
            console.print(f"note: and {len(found.skipped) - _SHOWN} more were left out", markup=False)
        return found
    return None


def _tell(report: Report, page: Path, seconds: float) -> None:
    console = Console(soft_wrap=True, highlight=False)
    record, texts = report.record, report.statistics
    tokens = sum(d.tokens for d in texts.documents)
    random_tokens = sum(d.tokens for d in report.repeats.documents) if report.repeats else 0
    if not record.complete:
        console.print("interrupted: what follows is what was measured until then; --resume goes on", markup=False)
    things, unit = UNITS[record.reads]
    repeated = f"repeated random tokens: {random_tokens:,}; " if record.reads == "text" else ""
    console.print(
        f"{record.model.name}: {len(texts)} heads; {things}: {len(texts.documents)}, {tokens:,} {unit}; "
        f"{repeated}{seconds:.1f} s",
        markup=False,
    )
    for words, name, on_repeats in _STRONGEST[record.reads]:
        part = report.repeats if on_repeats else texts
        if part is not None and name in {q.name for q in part.quantities}:
            heads = "  ".join(_top(part, name)) or f"no head at {_WORTH_TELLING:g} or more"
            console.print(f"{words:26} {heads}", markup=False)
    if texts.drawn < 2:
        console.print("note: too little was read for intervals: what a head looks like may be chance; read more")
    for line in lines_of(record):
        console.print(f"note: {line}", markup=False)
    console.print(f"\npage: {page}", markup=False)


def _top(part: HeadStatistics, name: str, count: int = 3) -> list[str]:
    values = part.value(name)
    ranked = sorted((i for i in range(len(values)) if values[i] >= _WORTH_TELLING), key=lambda i: -values[i])
    return [f"{part.heads[i]!s:8} {values[i]:.2f}" for i in ranked[:count]]
