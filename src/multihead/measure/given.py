"""What callers hand to `observe`, brought into form: loose where it is plain what is meant, else refused in words."""

import operator
from collections.abc import Iterable
from pathlib import Path
from typing import Any, SupportsIndex, TypeVar, cast

from torch import nn

from multihead.error import MultiheadError
from multihead.measure.batch import Batch
from multihead.measure.run import Run
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
    if found.journal is not None:
        _instance(found.journal, Path, "the folder of a journal: Run(journal=pathlib.Path(...))")
    return found


def given_model(model: object) -> nn.Module:
    """The model.

    Raises:
        MultiheadError: It is something else.
    """
    return _instance(model, nn.Module, "a model to measure, a torch.nn.Module")


def _instance(given: object, kind: type[T], asked: str) -> T:
    if not isinstance(given, kind):
        raise MultiheadError(
            asked=asked, arrived=f"{type(given).__name__} {str(given)[:60]!r}", remedy=f"pass a {kind.__name__}"
        )
    return given


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
