"""What callers hand to `checkup`, brought into form: loose where it is plain what is meant, else refused in words."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from io import IOBase
from pathlib import Path
from typing import Any, cast

from torch import nn

from multihead.corpus import Picture, Sound, Text, read_images, read_sounds, read_texts
from multihead.error import MultiheadError, kind_and_text
from multihead.workflow.opening import OpenedModel, open_model

Readable = str | Path | Text | Picture | Sound
"""One thing to read; a `Path` is read from the disk."""
_SUFFIXES = (".txt", ".md", ".jsonl", ".png", ".jpg", ".jpeg", ".wav")


def given_model(model: object, tokenizer: object) -> OpenedModel:
    """The model with its tokenizer; one that is named is opened.

    Raises:
        MultiheadError: It is no model, or what was given as the tokenizer is none.
    """
    if tokenizer is not None and not (callable(tokenizer) and hasattr(tokenizer, "get_vocab")):
        raise MultiheadError(
            asked="a tokenizer as the second argument: tokenizer(text)['input_ids'] and tokenizer.get_vocab()",
            arrived=kind_and_text(tokenizer),
            remedy="name what is to be read: mh.checkup(model, tokenizer, texts), or material=texts",
        )
    if isinstance(model, nn.Module):
        return OpenedModel(model=model, tokenizer=tokenizer, name="")
    if isinstance(model, str | Path):
        model = open_model(model)
    if not isinstance(model, OpenedModel):
        raise MultiheadError(
            asked="a model to check: a torch.nn.Module, what mh.open_model gave, or a name or folder it takes",
            arrived=kind_and_text(model),
            remedy='pass one, for example mh.checkup("minilm")',
        )
    return model


def given_material(material: object, reads: str) -> Any:
    """What is to be read, as a sequence: one thing by itself and a generator will do, and paths are read.

    Args:
        material: What was given.
        reads: What the model reads: `"text"`, `"images"` or `"audio"`.

    Raises:
        MultiheadError: A string that could be the name of a file or holds half a character, or what nothing can be read
            from.
    """
    if isinstance(material, str):
        _check_text(material)
        _check_characters(1, material)
        return [material]
    if isinstance(material, Text | Picture | Sound | Path):
        material = [material]
    if material is None or (isinstance(material, Sequence) and not isinstance(material, bytes | list | tuple)):
        return cast(Any, material)
    if isinstance(material, bytes | bytearray | Mapping | IOBase) or not isinstance(material, Iterable):
        raise MultiheadError(
            asked="texts, pictures or recordings to read",
            arrived=kind_and_text(material),
            remedy="pass a list: of strings, of Text, Picture or Sound objects, or of paths (pathlib.Path)",
        )
    every = list(cast(Iterable[Any], material))
    for number, one in enumerate(every, start=1):
        if isinstance(one, str):
            _check_characters(number, one)
    if every and all(isinstance(one, Path) for one in every):
        return {"text": read_texts, "images": read_images, "audio": read_sounds}[reads](every)
    return every


def check_callable(name: str, value: object) -> None:
    """Refuse what cannot be called.

    Raises:
        MultiheadError: It is neither None nor callable.
    """
    if value is not None and not isinstance(value, Callable):
        raise MultiheadError(
            asked=f"a function as {name}, called with each Progress",
            arrived=kind_and_text(value),
            remedy=f"pass {name}=lambda progress: ..., or leave it out",
        )


def _check_text(text: str) -> None:
    """One string is one text, unless it reads like the name of a file."""
    if len(text.split()) <= 1 and (text.lower().endswith(_SUFFIXES) or _exists(text)):
        raise MultiheadError(
            asked="a text to read",
            arrived=f"{text[:60]!r}, which looks like the name of a file or a folder",
            remedy="pass pathlib.Path(name) to read the file; a text as short as this goes in a list: [text]",
        )


def _check_characters(number: int, text: str) -> None:
    """Refuse a text that has no UTF-8: half of a pair of UTF-16 is no character."""
    try:
        text.encode()
    except UnicodeEncodeError as fault:
        start = ascii(text[:40])
        raise MultiheadError(
            asked="texts of whole characters, as UTF-8 can hold them",
            arrived=f"text {number} ({start}): its character {fault.start + 1} is {text[fault.start]!a}, half of "
            "one (a lone surrogate)",
            remedy="decode the text as what it is (UTF-8, UTF-16, ...), or take such characters out: "
            "text.encode('utf-8', 'ignore').decode()",
        ) from fault


def _exists(text: str) -> bool:
    return 0 < len(text) < 256 and "\0" not in text and Path(text).exists()
