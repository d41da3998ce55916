"""What a checkup will run: which model reads what, in which batches, against which classes and targets."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from multihead.corpus import (
    Files,
    Picture,
    Sound,
    Text,
    TokenClasses,
    Tokenizer,
    default_texts,
    frame_of,
    ordinary_tokens,
    repeated_tokens,
    token_classes,
)
from multihead.error import MultiheadError
from multihead.interop import picture_facts, reads_images, reads_sounds, sound_facts
from multihead.measure import Batch, Target
from multihead.record import Document, Note
from multihead.workflow.encode import Encoded, encode_runs, encode_texts
from multihead.workflow.limits import beyond, checked_length, length_limits
from multihead.workflow.media import EncodedMedia
from multihead.workflow.opening import OpenedModel
from multihead.workflow.pictures import encode_pictures
from multihead.workflow.sounds import encode_sounds

# The stimulus: blocks of 20 to 60 tokens, four times over (Olsson et al. 2022, arXiv:2209.11895, with random periods).
COPIES, SHORTEST_BLOCK, LONGEST_BLOCK = 4, 4, 60

Reads = Literal["text", "images", "audio"]
UNITS: Mapping[str, tuple[str, str]] = {
    "text": ("texts", "tokens"),
    "images": ("pictures", "positions"),
    "audio": ("recordings", "positions"),
}
"""What documents and their places are called, by what a model reads."""
_KINDS: Mapping[type, Reads] = {str: "text", Text: "text", Picture: "images", Sound: "audio"}
_NAMED: Mapping[Reads, str] = {
    "text": "texts (--text)",
    "images": "pictures (--images)",
    "audio": "recordings (--audio)",
}
Material = Sequence[Text | str] | Sequence[Picture] | Sequence[Sound] | Files[Picture] | Files[Sound]
"""What a checkup reads: texts, pictures or recordings."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Course:
    """One list of documents, ready to be run.

    Args:
        name: `"texts"` or `"repeats"`.
        model: What is run: the model, or the part of it that reads pictures.
        documents: What is read.
        batches: In which pieces.
        lengths: Places in each batch, for the progress.
        classes: Classes of places, or None.
        targets: Patterns to measure against.
        notes: What the reader must know.
    """

    name: str
    model: nn.Module
    documents: tuple[Document, ...]
    batches: tuple[Batch, ...]
    lengths: tuple[int, ...]
    classes: TokenClasses | None
    targets: Mapping[str, Target]
    notes: tuple[Note, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Plan:
    """A whole checkup, before anything is run.

    Args:
        reads: What the model is given.
        courses: What is run: the material, then the repeats where the model reads text and they were asked for.
        limit: Longest input the model states, in tokens, or None.
        settings: What shaped the plan, as text.
    """

    reads: Reads
    courses: tuple[Course, ...]
    limit: int | None
    settings: Mapping[str, str]


def make_plan(
    opened: OpenedModel, material: Sequence[Any] | Files[Any] | None, *, max_length: int | None, repeats: int
) -> Plan:
    """Lay a checkup out; it depends on the model and the material alone.

    Args:
        opened: The model, with what it reads.
        material: What to read; None for the texts that come with the model or the library.
        max_length: Tokens a chunk of text; None for 512 or the model's limit.
        repeats: Runs of repeated random tokens, for models that read text.

    Raises:
        MultiheadError: The model does not read this, or there is nothing to read.
    """
    reads = _told(material) or opened.reads
    if material is not None and not len(material):
        raise MultiheadError(
            asked="at least one text, picture or recording to measure on",
            arrived="none",
            remedy="pass some, or leave them out for the default texts",
        )
    if reads == "text":
        return _plan_text(opened, _texts(opened, material), max_length=max_length, repeats=repeats)
    if max_length is not None:
        raise MultiheadError(
            asked=f"max_length, the tokens of a chunk of text, for a model that reads {reads}",
            arrived=f"max_length={max_length}",
            remedy="leave it out: pictures and recordings are cut as the model's own settings say",
        )
    if material is None:
        kind = "pictures: --images FOLDER" if reads == "images" else "recordings: --audio FOLDER"
        raise MultiheadError(
            asked=f"something to read for {type(opened.model).__name__}, which reads {reads}",
            arrived="nothing",
            remedy=f"give it {kind}, or material=read_{'images' if reads == 'images' else 'sounds'}(paths)",
        )
    return _plan_media(opened, material, reads)


def _told(material: Any) -> Reads | None:
    # Files are read when they are asked for, and are all of one kind.
    some = material[:1] if isinstance(material, Files) else material or ()
    found: set[Reads | None] = {_kind(one) for one in some}
    if len(found) > 1 or None in found:
        names = sorted({type(one).__name__ for one in some})
        raise MultiheadError(
            asked="a list of texts, or of pictures, or of recordings",
            arrived=f"a list of {', '.join(names)}",
            remedy="pass strings, paths (pathlib.Path), or Text, Picture or Sound objects, of one kind at a time",
        )
    return next(iter(found), None)


def _kind(one: object) -> Reads | None:
    return next((reads for kind, reads in _KINDS.items() if isinstance(one, kind)), None)


def _plan_text(opened: OpenedModel, texts: Sequence[Text], *, max_length: int | None, repeats: int) -> Plan:
    model, tokenizer = opened.model, opened.tokenizer
    check_reads_tokens(model)
    if tokenizer is None:
        raise MultiheadError(
            asked="a tokenizer to turn texts into tokens",
            arrived="tokenizer=None",
            remedy="pass the tokenizer of the model, e.g. AutoTokenizer.from_pretrained(folder)",
        )
    limits = length_limits(model, tokenizer)
    length = checked_length(max_length, limits)
    classes = token_classes(tokenizer)
    reading = encode_texts(model, tokenizer, texts, max_length=length)
    stimulus = _stimulus(model, tokenizer, runs=repeats, max_length=length)
    notes = beyond(limits, max(reading.lengths))
    if repeats and not stimulus.documents:
        notes += (_no_repeats(tokenizer, length),)
    courses = [_course("texts", model, reading, classes=classes, notes=notes)]
    if stimulus.documents:
        courses.append(_course("repeats", model, stimulus, classes=classes))
    settings = {"max_length": str(length), "repeats": str(len(stimulus.documents))}
    return Plan(reads="text", courses=tuple(courses), limit=limits.stated, settings=settings)


def _texts(opened: OpenedModel, material: Any) -> list[Text]:
    given: Sequence[Text | str] = material or opened.texts or default_texts()
    return [Text(f"text {i}", text) if isinstance(text, str) else text for i, text in enumerate(given)]


def _check_reads(model: nn.Module, reads: Reads) -> None:
    fits = {"images": reads_images(model), "audio": reads_sounds(model)}
    if not fits[reads]:
        other: Reads = "images" if fits["images"] else "audio" if fits["audio"] else "text"
        raise MultiheadError(
            asked=f"a model that reads {reads}",
            arrived=f"{type(model).__name__}, which reads {other}",
            remedy=f"give it {_NAMED[other]}, or another model",
        )


def _plan_media(opened: OpenedModel, material: Any, reads: Reads) -> Plan:
    _check_reads(opened.model, reads)
    encoded: EncodedMedia
    if reads == "images":
        facts = opened.pictures if opened.pictures is not None else picture_facts(opened.model)
        encoded = encode_pictures(opened.model, facts, material)
    else:
        heard = opened.sounds if opened.sounds is not None else sound_facts(opened.model)
        encoded = encode_sounds(opened.model, heard, material, tokenizer=opened.tokenizer)
    notes = tuple(Note(about="", quantity="", text=remark) for remark in encoded.remarks)
    course = _course("texts", encoded.model, encoded, classes=encoded.classes, targets=encoded.targets, notes=notes)
    return Plan(reads=reads, courses=(course,), limit=None, settings={})


def _course(
    name: str,
    model: nn.Module,
    encoded: Encoded,
    *,
    classes: TokenClasses | None,
    targets: Mapping[str, Target] | None = None,
    notes: tuple[Note, ...] = (),
) -> Course:
    return Course(
        name=name,
        model=model,
        documents=encoded.documents,
        batches=encoded.batches,
        lengths=encoded.lengths,
        classes=classes,
        targets=targets or {},
        notes=encoded.notes + notes,
    )


def check_reads_tokens(model: nn.Module) -> None:
    """Refuse a model that cannot be given text alone.

    Raises:
        MultiheadError: It wants pictures or sound as well, or takes no tokens.
    """
    parameters = inspect.signature(model.forward).parameters
    wants = str(getattr(model, "main_input_name", "input_ids"))
    sees = [name for name in ("pixel_values", "input_features") if name in parameters]
    run_it = "run it yourself on its own inputs: with mh.watch(model) as watched: model(...)"
    # CLIP and its kin name no input of their own, but none of theirs may be left out.
    if wants != "input_ids" or (sees and not hasattr(model, "generate")):
        raise MultiheadError(
            asked="a model that reads text alone",
            arrived=f"{type(model).__name__}, which takes {sees[0] if sees else wants}",
            remedy=f"give it pictures (--images) or recordings (--audio), or {run_it}",
        )
    if "input_ids" not in parameters and not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        raise MultiheadError(
            asked="a model that reads tokens: forward(input_ids, ...)",
            arrived=f"{type(model).__name__}.forward({', '.join(parameters)})",
            remedy=run_it,
        )


def _stimulus(model: nn.Module, tokenizer: Tokenizer, *, runs: int, max_length: int) -> Encoded:
    """Random tokens repeated four times; none where the vocabulary or the length has no room for a block of them."""
    room, ordinary = _room(tokenizer, max_length)
    longest = min(LONGEST_BLOCK, room, ordinary)
    if not runs or longest < SHORTEST_BLOCK:
        return encode_runs(model, tokenizer, ())
    periods = (max(SHORTEST_BLOCK, longest // 3), longest)
    return encode_runs(model, tokenizer, repeated_tokens(tokenizer, runs=runs, periods=periods, repeats=COPIES))


def _room(tokenizer: Tokenizer, max_length: int) -> tuple[int, int]:
    """Tokens of a block of which four go into a chunk, and how many different ones there are."""
    before, after = frame_of(tokenizer)
    return (max_length - len(before) - len(after)) // COPIES, len(ordinary_tokens(tokenizer))


def _no_repeats(tokenizer: Tokenizer, max_length: int) -> Note:
    room, ordinary = _room(tokenizer, max_length)
    if ordinary < SHORTEST_BLOCK:
        why = f"the vocabulary has {ordinary} ordinary token{'' if ordinary == 1 else 's'}"
    else:
        why = f"chunks of {max_length} tokens have room for {COPIES} blocks of {room}"
    wanted = f"blocks are {SHORTEST_BLOCK} different tokens or more"
    return Note(about="", quantity="", text=f"no repeated random tokens were run: {why}, and {wanted}")
