"""What callers hand to `observe`, brought into form: loose where it is plain what is meant, else refused in words."""

import operator
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, SupportsIndex, TypeVar, cast

from torch import Tensor

from multihead.corpus import TokenClasses
from multihead.error import MultiheadError, kind_and_text
from multihead.measure.batch import Batch
from multihead.measure.run import Run
from multihead.measure.statistic import Statistic
from multihead.pattern import Pattern
from multihead.record import Document

T = TypeVar("T")

_BATCH = 'batches: [mh.Batch(inputs={"input_ids": ids}, document=(0,)), ...]'
_DOCUMENT = 'documents: [Document(name="text", digest="", tokens=5), ...]'


def given_batches(batches: object) -> list[Batch]:
    """The batches as a list: one by itself and a generator will do.

    Raises:
        MultiheadError: There is none, or something else among them.
    """
    found = _listed(batches, Batch, f"`observe` a list of {_BATCH}")
    if not found:
        raise MultiheadError(
            asked="at least one batch to run the model on",
            arrived="none" if isinstance(batches, list | tuple) else f"a {type(batches).__name__} without any left",
            remedy=f"pass {_BATCH}; a generator gives its batches once",
        )
    for place, batch in enumerate(found):
        _check_rows(place, batch)
    return found


def given_documents(documents: object) -> list[Document]:
    """The documents as a list: one by itself and a generator will do.

    Raises:
        MultiheadError: There is something else among them.
    """
    return _listed(documents, Document, f"`observe` a list of {_DOCUMENT}")


def given_run(run: object) -> Run:
    """How the run goes: the default where None is given.

    Raises:
        MultiheadError: It is something else.
    """
    if run is None:
        return Run()
    found = _instance(run, Run, "`run`, how a run goes: Run(rows=..., journal=...)")
    given_whole("rows", found.rows, remedy="pass rows=64 or more, or None for all of them")
    given_whole("seed", found.seed, remedy="pass seed=0 or another")
    if found.journal is not None and not isinstance(found.journal, str | Path):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise _odd("the folder of a journal, or None: Run(journal=...)", found.journal, "name a folder")
    for name, told in (("on_batch", found.on_batch), ("on_document", found.on_document)):
        if told is not None and not callable(told):
            raise _odd(f"a function as {name}, called with a number", told, f"pass {name}=lambda place: ...")
    return found


def given_statistics(statistics: object, *, targets: object, classes: object) -> tuple[Statistic, ...]:
    """The statistics to measure, once it is known that targets and classes are of the right kind too.

    Raises:
        MultiheadError: Statistics that are none, targets that are no patterns by name, classes that are none.
    """
    named = "statistics to measure: [*mh.measure.DEFAULT, ...]"
    if not isinstance(statistics, Iterable) or isinstance(statistics, str):
        raise _odd(named, statistics, "pass a list of them, or leave it out for all")
    every = tuple(cast(Iterable[Any], statistics))
    for one in every:
        if not hasattr(one, "quantities"):
            raise _odd(named, one, "pass the statistics themselves; leave it out for all of them")
    _check_targets(targets)
    if classes is not None:
        _instance(classes, TokenClasses, "classes of tokens, from `token_classes`, or None")
    return every


def _check_targets(targets: object) -> None:
    if targets is not None and not isinstance(targets, Mapping):
        raise _odd("targets: patterns by name", targets, 'pass a dict: {"two": mh.distance(2)}')
    for name, given in cast(Mapping[object, object], targets or {}).items():
        every = [given] if isinstance(given, Pattern) or not isinstance(given, list | tuple) else given
        for one in (name, *cast(Sequence[object], every)):
            if not isinstance(one, str if one is name else Pattern):
                raise _odd(
                    f"a pattern, or one for each document, as target {name!r}",
                    one,
                    'pass {"two": mh.distance(2)}; mh.parse_pattern(text) reads a pattern from a text',
                )


def _instance(given: object, kind: type[T], asked: str) -> T:
    if not isinstance(given, kind):
        raise _odd(asked, given, f"pass a {kind.__name__}")
    return given


def _check_rows(place: int, batch: Batch) -> None:
    """Where the rows can be counted before the model runs, each has its document."""
    ids = batch.inputs.get("input_ids")
    if isinstance(ids, Tensor) and ids.ndim == 2 and len(ids) != len(batch.document):
        raise MultiheadError(
            asked=f"one document for each row of batch {place}",
            arrived=f"{len(batch.document)} for {len(ids)} rows of input_ids",
            remedy="give Batch.document one index for each row of the inputs",
        )


def _odd(asked: str, given: object, remedy: str) -> MultiheadError:
    return MultiheadError(asked=asked, arrived=kind_and_text(given), remedy=remedy)


def _listed(given: object, kind: type[T], asked: str) -> list[T]:
    if isinstance(given, kind):
        return [given]
    every = list(cast(Iterable[Any], given)) if isinstance(given, Iterable) else [given]
    return [_instance(one, kind, asked) for one in every]


def given_whole(name: str, value: object, *, remedy: str) -> int | None:
    """A whole number, or None where none is given.

    Args:
        name: What the argument is called.
        value: What was given.
        remedy: What to do where it is something else.

    Raises:
        MultiheadError: It is no whole number; True and False are none either.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not hasattr(type(value), "__index__"):
        raise MultiheadError(
            asked=f"a whole number as {name}, or None", arrived=f"{name}={str(value)[:60]!r}", remedy=remedy
        )
    return operator.index(cast(SupportsIndex, value))
