"""The checkup: a model and texts in, statistics of every head out."""

import inspect
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import PurePath
from typing import cast

import torch
from torch import nn

from multihead.corpus import (
    Text,
    Tokenizer,
    default_texts,
    frame_of,
    ordinary_tokens,
    repeated_tokens,
    token_classes,
)
from multihead.error import MultiheadError
from multihead.hooks import locate
from multihead.interop import check_weights
from multihead.measure import Interrupted, observe
from multihead.record import CheckupRecord, HeadStatistics, ModelFacts
from multihead.workflow.encode import Encoded, encode_runs, encode_texts
from multihead.workflow.limits import checked_length, length_limits
from multihead.workflow.report import Report

PACKAGES = ("multihead", "torch", "transformers", "tokenizers", "numpy")
# The stimulus: blocks of 20 to 60 tokens, four times over (Olsson et al. 2022, arXiv:2209.11895, with random periods).
COPIES, SHORTEST_BLOCK, LONGEST_BLOCK = 4, 4, 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a checkup is.

    Args:
        done: Tokens measured so far.
        total: Tokens to measure in all.
        doing: What was measured last, e.g. the name of a text.
    """

    done: int
    total: int
    doing: str


def checkup(
    model: nn.Module,
    tokenizer: Tokenizer | None,
    texts: Sequence[Text | str] | None = None,
    *,
    name: str = "",
    max_length: int | None = None,
    repeats: int = 8,
    on_progress: Callable[[Progress], None] | None = None,
) -> Report:
    """Measure every attention head of a model on real text, exactly, without storing an n x n matrix.

    The model runs as it is (its own kernels, its own outputs, unchanged); memory grows with the length of the text,
    not with its square.

    Args:
        model: A transformers model, or one built on `MultiHeadAttention`.
        tokenizer: Its tokenizer: `tokenizer(text, add_special_tokens=...)["input_ids"]`.
        texts: What to read; None for the default texts that ship with the library.
        name: How the page calls the model; None takes it from the model.
        max_length: Tokens a chunk, special tokens included; 512 or the model's limit where not given.
        repeats: Runs of random tokens repeated four times, which show induction heads; 0 for none.
        on_progress: Called after every document.

    Returns:
        The report. After Ctrl-C it holds the documents finished until then and `report.record.complete` is False.

    Raises:
        MultiheadError: No tokenizer, no text, a text with fewer than 2 tokens, weights that are not finite, or no
            attention to be seen.

    Example:
        >>> report = mh.checkup(model, tokenizer, ["A text to read."])  # doctest: +SKIP
    """
    if tokenizer is None:
        raise MultiheadError(
            asked="a tokenizer to turn texts into tokens",
            arrived="tokenizer=None",
            remedy="pass the tokenizer of the model, e.g. AutoTokenizer.from_pretrained(folder)",
        )
    if repeats < 0:
        raise MultiheadError(
            asked="how many runs of repeated random tokens to measure",
            arrived=f"repeats={repeats}",
            remedy="pass 0 or more",
        )
    locate(model)  # raises where there is no attention to be seen
    _check_reads_tokens(model)
    check_weights(model)
    limits = length_limits(model, tokenizer)
    length = checked_length(max_length, limits)
    named = _named(texts if texts is not None else default_texts())
    name = name or _name_of(model)
    reading = encode_texts(model, tokenizer, named, max_length=length)
    stimulus = _stimulus(model, tokenizer, runs=repeats, max_length=length)
    run = _Run(model=model, tokenizer=tokenizer, name=name, total=reading.tokens + stimulus.tokens, report=on_progress)
    measured = run.measure(reading)
    repeated = run.measure(stimulus) if stimulus.documents and run.complete else None
    return Report(
        CheckupRecord(
            model=_facts(model, tokenizer, name, limits.stated, measured),
            texts=measured,
            repeats=repeated,
            created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            versions=_versions(),
            settings=_settings(model, length, len(stimulus.documents)),
            complete=run.complete,
        )
    )


def _check_reads_tokens(model: nn.Module) -> None:
    parameters = inspect.signature(model.forward).parameters
    wants = str(getattr(model, "main_input_name", "input_ids"))
    sees = [name for name in ("pixel_values", "input_features") if name in parameters]
    # CLIP and its kin name no input of their own, but none of theirs may be left out.
    if wants != "input_ids" or (sees and not hasattr(model, "generate")):
        raise MultiheadError(
            asked="a model that reads text alone",
            arrived=f"{type(model).__name__}, which takes {sees[0] if sees else wants}",
            remedy="run it yourself on its own inputs: with mh.watch(model) as watched: model(...)",
        )
    if "input_ids" not in parameters and not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        raise MultiheadError(
            asked="a model that reads tokens: forward(input_ids, ...)",
            arrived=f"{type(model).__name__}.forward({', '.join(parameters)})",
            remedy="run it yourself on its own inputs: with mh.watch(model) as watched: model(...)",
        )


class _Run:
    """One checkup under way: it counts tokens for the progress and remembers an interruption."""

    def __init__(
        self,
        *,
        model: nn.Module,
        tokenizer: Tokenizer,
        name: str,
        total: int,
        report: Callable[[Progress], None] | None,
    ) -> None:
        self.model, self.name, self.total, self.report = model, name, total, report
        self.classes = token_classes(tokenizer)
        self.done = 0
        self.complete = True

    def measure(self, encoded: Encoded) -> HeadStatistics:
        def tell(index: int) -> None:
            document = encoded.documents[index]
            self.done += document.tokens
            if self.report is not None:
                self.report(Progress(done=self.done, total=self.total, doing=document.name))

        try:
            return observe(
                self.model,
                encoded.batches,
                documents=encoded.documents,
                classes=self.classes,
                name=self.name,
                on_document=tell,
            )
        except Interrupted as interrupted:
            self.complete = False
            return interrupted.statistics


def _name_of(model: nn.Module) -> str:
    """The last part of where it came from: a page that is shown around need not tell folders."""
    place = str(getattr(getattr(model, "config", None), "name_or_path", "") or "")
    return PurePath(place).name or type(model).__name__


def _named(texts: Sequence[Text | str]) -> list[Text]:
    if isinstance(texts, str):
        raise MultiheadError(
            asked="a list of texts",
            arrived=f"one string of {len(texts)} characters",
            remedy="wrap it in a list: texts=[text]",
        )
    return [text if isinstance(text, Text) else Text(f"text {i}", text) for i, text in enumerate(texts)]


def _stimulus(model: nn.Module, tokenizer: Tokenizer, *, runs: int, max_length: int) -> Encoded:
    """Random tokens repeated four times; none where the vocabulary or the length has no room for a block of them."""
    before, after = frame_of(tokenizer)
    room = (max_length - len(before) - len(after)) // COPIES
    longest = min(LONGEST_BLOCK, room, len(ordinary_tokens(tokenizer)))
    if not runs or longest < SHORTEST_BLOCK:
        return encode_runs(model, tokenizer, ())
    periods = (max(SHORTEST_BLOCK, longest // 3), longest)
    return encode_runs(model, tokenizer, repeated_tokens(tokenizer, runs=runs, periods=periods, repeats=COPIES))


def _facts(
    model: nn.Module, tokenizer: Tokenizer, name: str, limit: int | None, measured: HeadStatistics
) -> ModelFacts:
    special = cast(Sequence[str], getattr(tokenizer, "all_special_tokens", ()))
    return ModelFacts(
        name=name,
        architecture=type(model).__name__,
        parameters=sum(p.numel() for p in model.parameters()),
        causal=_looks_back_only(measured),
        max_length=limit,
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


def _settings(model: nn.Module, max_length: int, repeats: int) -> dict[str, str]:
    parameter = next(model.parameters())
    return {
        "max_length": str(max_length),
        "repeats": str(repeats),
        "device": str(parameter.device),
        "dtype": str(parameter.dtype).removeprefix("torch."),
        "threads": str(torch.get_num_threads()),
        "attention": str(getattr(getattr(model, "config", None), "_attn_implementation", "own")),
    }
