"""The header of a journal: which run it is of, and in words what sets another run apart from it."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from multihead.error import MultiheadError

Facts = Mapping[str, str]

# Facts that are a hash, or too long to be told: what it means that they differ.
_MEANS = {
    "weights": "the model's weights are others",
    "configuration": "the model's configuration is another",
    "classes": "the classes of tokens are others (another tokenizer, or another version of it?)",
    "batches": "the documents are cut into other tokens or batches (another tokenizer, or another version of it?)",
}
_CALLED = {"model": "the model's class", "name": "the model's name", "attention": "the attention kernel"}
# What differs for the sake of something that is told already.
_FOLLOWS = {
    "weights": ("dtype", "model"),
    "configuration": ("dtype", "model", "attention"),
    "statistics": ("targets",),
}
_LISTED = 5
_NEEDED = ("model", "weights", "batches", "documents", "version of multihead")


def check_same(header: Path, about: Facts) -> None:
    """Refuse a journal whose header is damaged, or of another run.

    Args:
        header: The file.
        about: What tells the run that wants to go on from others.

    Raises:
        MultiheadError: It is damaged; or all that sets the runs apart, in words.
    """
    anew = f"begin anew: leave --resume out, or delete {header.parent} (in Python: mh.discard_journal)"
    asked = f"to go on with the run whose journal is in {header.parent}"
    try:
        kept = _read(header)
    except (ValueError, RecursionError) as fault:
        raise MultiheadError(asked=asked, arrived=f"a damaged {header.name}: {fault}", remedy=anew) from fault
    if differences := list(_differences(kept, about)):
        raise MultiheadError(
            asked=asked,
            arrived=f"another run: {'; '.join(differences)}",
            remedy=f"run it as it was begun, or {anew}",
        )


def _read(header: Path) -> Facts:
    raw: Any = json.loads(header.read_text(encoding="utf-8"))
    if not isinstance(raw, dict):
        raise ValueError(f"it holds a {type(raw).__name__}")
    kept = cast(dict[str, Any], raw)
    if odd := [name for name in _NEEDED if name not in kept]:
        raise ValueError(f"it does not tell the {odd[0]}")
    if odd := [name for name, value in kept.items() if not isinstance(value, str)]:
        raise ValueError(f"its {odd[0]} is no text")
    return cast(Facts, kept)


def _differences(kept: Facts, now: Facts) -> Iterator[str]:
    other = [name for name in dict.fromkeys((*kept, *now)) if kept.get(name) != now.get(name)]
    documents = list(_of_documents(kept.get("documents", ""), now.get("documents", "")))
    # Other documents, or other lengths of them, are cut in other places: that goes without saying.
    known = bool(documents) or not {"max_length", "classes"}.isdisjoint(other)
    for name in other:
        if name == "documents":
            yield from documents
        elif name == "batches":
            yield from () if known else [_MEANS[name]]
        elif not any(cause in other for cause in _FOLLOWS.get(name, ())):
            yield from _told(name, kept.get(name, ""), now.get(name, ""))


def _told(name: str, then: str, now: str) -> Iterator[str]:
    if name in _MEANS:
        yield _MEANS[name]
    elif name in ("statistics", "targets"):
        yield from _of_lists(name, *(text.split(", " if name == "statistics" else "; ") for text in (then, now)))
    else:
        yield f"{_CALLED.get(name, name)} was {then or 'not told'} and is {now or 'not told'}"


def _of_documents(then: str, now: str) -> Iterator[str]:
    """Which documents are gone, new or changed; nothing where only the number of their tokens is another."""
    first, second = _documents(then), _documents(now)
    changed = [name for name in first if name in second and first[name] != second[name]]
    parts = {
        "gone": [name for name in first if name not in second],
        "new": [name for name in second if name not in first],
        "not as it was": changed,
    }
    if any(parts.values()):
        yield from (f"of the documents {_some(names)} {what}" for what, names in _verbs(parts))
    elif list(first) != list(second):
        yield "the documents come in another order"


def _verbs(parts: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, Sequence[str]]]:
    for what, names in parts.items():
        if names:
            verb = "is" if len(names) == 1 else "are"
            yield f"{verb} {what if verb == 'is' else what.replace('it was', 'they were')}", names


def _documents(text: str) -> dict[str, str]:
    """Digest of the content of each, by name."""
    try:
        return {name: digest for name, digest, _ in json.loads(text)}
    except (ValueError, TypeError):
        return {}


def _of_lists(name: str, then: Sequence[str], now: Sequence[str]) -> Iterator[str]:
    gone, new = ([one for one in these if one not in those] for these, those in ((then, now), (now, then)))
    parts = [f"{what} {_some(names)}" for what, names in (("without", gone), ("with", new)) if names]
    yield f"the {name} are now {' and '.join(parts) or 'in another order'}"


def _some(names: Sequence[str]) -> str:
    rest = len(names) - _LISTED
    return ", ".join(names[:_LISTED]) + (f" and {rest} more" if rest > 0 else "")
