"""The checkup: a model and something to read in, statistics of every head out."""

import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePath
from typing import cast

import torch
from torch import nn

from multihead.corpus import Tokenizer
from multihead.error import MultiheadError
from multihead.hooks import locate
from multihead.interop import check_weights
from multihead.measure import Interrupted, Run, observe
from multihead.measure.given import given_whole
from multihead.measure.sample import LEAST_ROWS
from multihead.record import CheckupRecord, HeadStatistics, ModelFacts
from multihead.workflow.folder import needed_folder
from multihead.workflow.given import Readable, check_callable, given_material, given_model
from multihead.workflow.opening import OpenedModel, called
from multihead.workflow.plan import UNITS, Course, Material, Plan, make_plan
from multihead.workflow.report import Report

MOST_REPEATS = 1000
PACKAGES = ("multihead", "torch", "transformers", "tokenizers", "numpy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a checkup is.

    Args:
        done: Tokens (positions of pictures and recordings) measured so far.
        total: Tokens to measure in all.
        doing: What was measured last, e.g. the name of a text.
        unit: What `done` and `total` count: `"tokens"` or `"positions"`.
    """

    done: int
    total: int
    doing: str
    unit: str = "tokens"


def checkup(
    model: nn.Module | OpenedModel | str | Path,
    tokenizer: Tokenizer | None = None,
    material: Material | Readable | Iterable[Readable] | None = None,
    *,
    max_length: int | None = None,
    rows: int | None = None,
    repeats: int = 8,
    journal: str | Path | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Report:
    """Measure every attention head of a model on real texts, pictures or recordings, without storing an n x n matrix.

    The model runs as it is (its own kernels, its own outputs, unchanged); memory grows with the length of the text,
    not with its square. Every number is exact unless `rows` is given.

    Args:
        model: A transformers model, one built on `MultiHeadAttention`, or any whose attention `locate` finds; or what
            `open_model` returned, which brings its name, tokenizer and settings; or a name or folder for `open_model`.
        tokenizer: Its tokenizer: `tokenizer(text, add_special_tokens=...)["input_ids"]`; None for models of pictures.
        material: Texts (strings or `Text`), pictures (`read_images`) or recordings (`read_sounds`): a sequence, any
            other iterable, or one by itself. A `pathlib.Path` is read from the disk. None for the default texts that
            ship with the library.
        max_length: Tokens a chunk of text, special tokens included; 512 or the model's limit where not given.
        rows: Query rows to measure of every longer chunk, drawn evenly; every number then has an interval
            (`statistics.sampling_interval`). None measures all of them.
        repeats: Runs of random tokens repeated four times, which show induction heads; 0 for none. Text only.
        journal: Folder that keeps what was measured, chunk by chunk: after a crash the same call goes on where it
            ended, and its record is the same bit for bit. One run at a time may use it. It is deleted by
            `discard_journal`.
        on_progress: Called after every chunk.

    Returns:
        The report. After Ctrl-C it holds the documents finished until then and `report.record.complete` is False.

    Raises:
        MultiheadError: No tokenizer, nothing to read, a text with fewer than 2 tokens, weights that are not finite, a
            journal of another run, or no attention to be seen.

    Example:
        >>> report = mh.checkup(model, tokenizer, ["A text to read."])  # doctest: +SKIP
    """
    opened = given_model(model, tokenizer)
    opened = replace(opened, tokenizer=tokenizer or opened.tokenizer, name=opened.name or _name_of(opened.model))
    max_length = given_whole("max_length", max_length, remedy="pass the tokens of a chunk of text, or leave it out")
    rows, repeats = _checked_rows(rows), _checked_repeats(repeats)
    check_callable("on_progress", on_progress)
    folder = None if journal is None else needed_folder("a folder as the journal, or None", journal)
    locate(opened.model)  # raises where there is no attention to be seen
    check_weights(opened.model)
    plan = make_plan(opened, given_material(material, opened.reads), max_length=max_length, repeats=repeats)
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    checking = _Checking(plan, name=opened.name, rows=rows, journal=folder, report=on_progress)
    parts = checking.measure()
    return Report(
        CheckupRecord(
            model=_facts(opened, plan, parts["texts"]),
            texts=parts["texts"],
            repeats=parts.get("repeats"),
            created=created,
            versions=_versions(),
            settings=_settings(opened.model, plan.settings, rows),
            complete=checking.complete,
            reads=plan.reads,
        )
    )


def _checked_rows(rows: object) -> int | None:
    """All rows, or so many that groups of them tell how far off an estimate may be."""
    remedy = f"pass rows={LEAST_ROWS} or more, or leave it out (None) for all of them"
    whole = given_whole("rows", rows, remedy=remedy)
    if whole is not None and whole < LEAST_ROWS:
        raise MultiheadError(
            asked=f"to measure {LEAST_ROWS} or more query rows of every longer chunk",
            arrived=f"rows={whole}",
            remedy=remedy,
        )
    return whole


def _checked_repeats(repeats: object) -> int:
    remedy = f"pass 0 to {MOST_REPEATS}; 8 tell what there is to tell"
    whole = given_whole("repeats", repeats, remedy=remedy)
    if whole is None or not 0 <= whole <= MOST_REPEATS:
        raise MultiheadError(
            asked="how many runs of repeated random tokens to measure", arrived=f"repeats={repeats}", remedy=remedy
        )
    return whole


class _Checking:
    """One checkup under way: it counts tokens for the progress and remembers an interruption."""

    def __init__(
        self,
        plan: Plan,
        *,
        name: str,
        rows: int | None,
        journal: Path | None,
        report: Callable[[Progress], None] | None,
    ) -> None:
        self.plan, self.name, self.rows, self.journal, self.report = plan, name, rows, journal, report
        self.total = sum(sum(course.lengths) for course in plan.courses)
        self.done = 0
        self.complete = True

    def measure(self) -> dict[str, HeadStatistics]:
        """The statistics of each course; those after an interruption are left out."""
        parts: dict[str, HeadStatistics] = {}
        for course in self.plan.courses:
            if self.complete:
                parts[course.name] = self._measure(course)
        return parts

    def _measure(self, course: Course) -> HeadStatistics:
        def tell(batch: int) -> None:
            self.done += course.lengths[batch]
            if self.report is not None:
                document = course.documents[course.batches[batch].document[0]]
                unit = UNITS[self.plan.reads][1]
                self.report(Progress(done=self.done, total=self.total, doing=document.name, unit=unit))

        journal = None if self.journal is None else self.journal / course.name
        run = Run(rows=self.rows, journal=journal, settings=self.plan.settings, on_batch=tell)
        try:
            statistics = observe(
                course.model,
                course.batches,
                documents=course.documents,
                targets=course.targets,
                classes=course.classes,
                name=self.name,
                run=run,
            )
        except Interrupted as interrupted:
            self.complete = False
            statistics = interrupted.statistics
        return replace(statistics, notes=course.notes + statistics.notes)


def _name_of(model: nn.Module) -> str:
    """The last part of where it came from: a page that is shown around need not tell folders."""
    place = str(getattr(getattr(model, "config", None), "name_or_path", "") or "")
    return PurePath(called(place)).name if place else type(model).__name__


def _facts(opened: OpenedModel, plan: Plan, measured: HeadStatistics) -> ModelFacts:
    special = cast(Sequence[str], getattr(opened.tokenizer, "all_special_tokens", ()))
    return ModelFacts(
        name=opened.name,
        architecture=type(opened.model).__name__,
        parameters=sum(p.numel() for p in opened.model.parameters()),
        causal=_looks_back_only(measured),
        max_length=plan.limit,
        special_tokens=tuple(str(s) for s in special),
    )


def _looks_back_only(measured: HeadStatistics) -> bool | None:
    """True if no head puts weight ahead, False if every layer can, None where stacks differ."""
    quantity = measured.quantity("offsets")
    ahead = [i for i, label in enumerate(quantity.labels) if int(label) < 0]
    layers: dict[tuple[str, int], float] = {}
    for address, values in zip(measured.heads, measured.value("offsets"), strict=True):
        key = (address.stack, address.layer)
        layers[key] = max(layers.get(key, 0.0), float(values[ahead].max(initial=0.0)))
    backward = [weight == 0.0 for weight in layers.values()]
    return backward[0] if len(set(backward)) == 1 else None


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def _settings(model: nn.Module, planned: Mapping[str, str], rows: int | None) -> dict[str, str]:
    parameter = next(model.parameters())
    return dict(planned) | {
        "rows": "all" if rows is None else str(rows),
        "device": str(parameter.device),
        "dtype": str(parameter.dtype).removeprefix("torch."),
        "threads": str(torch.get_num_threads()),
        "attention": str(getattr(getattr(model, "config", None), "_attn_implementation", "own")),
    }
