"""From a name to a model that is ready to be checked: packaged models, folders and hub names."""

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from multihead.corpus import PACKAGED, PUBLISHED, SmilesTokenizer, Text, find_packaged
from multihead.corpus.files import shown_name
from multihead.error import MultiheadError, kind_and_text
from multihead.interop import LoadedModel, PictureFacts, SoundFacts, load_model, load_packaged

_SHOWN = 80
_SNAPSHOT = re.compile(r"(?:^|[/\\])models--([^/\\]+)[/\\]snapshots[/\\][^/\\]+[/\\]?$")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OpenedModel:
    """A model, its tokenizer, and what it reads.

    Args:
        model: In evaluation mode.
        tokenizer: Its tokenizer; None for models that read no tokens.
        name: What to call it.
        texts: What to read where the user gives no text; None for the default texts.
        pictures: What it wants of a picture; None for models that read none.
        sounds: What it wants of a recording; None for models that read none.
    """

    model: nn.Module
    tokenizer: Any
    name: str
    texts: Sequence[Text] | None = None
    pictures: PictureFacts | None = None
    sounds: SoundFacts | None = None

    @property
    def reads(self) -> Literal["text", "images", "audio"]:
        """What the model is given. One that takes pictures and text (CLIP) counts as a model of pictures."""
        if self.pictures is not None:
            return "images"
        return "text" if self.sounds is None else "audio"


def open_model(name: str | Path, *, device: str = "cpu") -> OpenedModel:
    """Load a model by the name of a package, a folder or a hub name.

    Args:
        name: A packaged name such as `"minilm"` (it wins over a folder of the same name; write `./minilm` for that), a
            folder, a `.gguf` file, or a name on the hub.
        device: Where to run.

    Raises:
        MultiheadError: There is no such model, or it cannot be loaded.

    Example:
        >>> opened = open_model("minilm")  # doctest: +SKIP
    """
    _check_kinds(name, device)
    _check_length(name)
    if isinstance(name, Path) or name not in PACKAGED:
        _check_spelling(name)
        return _opened(load_model(name, device=device), called(name))
    found = find_packaged(name)
    model = found.model
    smiles = model.tokenizer == "smiles"
    tokenizer = SmilesTokenizer.from_folder(found.path) if smiles else None
    loaded = load_packaged(found.path, weights=model.weights, form=model.form, device=device, tokenizer=tokenizer)
    # A model of reactions reads no prose.
    texts = tuple(Text(reaction.name, reaction.plain) for reaction in PUBLISHED) if smiles else None
    return _opened(loaded, name, texts=texts)


def called(place: str | Path) -> str:
    """What to call a model on a page that others see: never the folders above it.

    A folder or a file is called by its own name, a folder of the hub's cache by the model that is in it, a name on the
    hub as it is.

    Example:
        >>> called("/cache/hub/models--org--small-bert/snapshots/0f3c")
        'org/small-bert'
    """
    path = Path(place).expanduser()
    if path.exists() and path.name in ("", ".."):
        path = path.resolve()
    if found := _SNAPSHOT.search(str(path.absolute() if path.exists() else path)):
        return shown_name(found[1].replace("--", "/", 1))
    return shown_name(path.name if path.exists() or path.is_absolute() else str(place))


def _opened(loaded: LoadedModel, name: str, *, texts: Sequence[Text] | None = None) -> OpenedModel:
    return OpenedModel(
        model=loaded.model,
        tokenizer=loaded.tokenizer,
        name=name,
        texts=texts,
        pictures=loaded.pictures,
        sounds=loaded.sounds,
    )


def _check_kinds(name: object, device: object) -> None:
    for asked, given, kinds, remedy in (
        ("a packaged model, a folder or a hub name", name, (str, Path), 'pass its name: mh.open_model("minilm")'),
        ("the device to run on", device, (str, torch.device), 'pass device="cpu", or another of this build of torch'),
    ):
        if not isinstance(given, kinds):
            raise MultiheadError(asked=asked, arrived=kind_and_text(given), remedy=remedy)


def _check_length(name: str | Path) -> None:
    """Refuse what no system can look up, before it is looked up."""
    text = str(name)
    try:
        Path(text).expanduser().exists()
        # A null byte is no fault to `exists`, only to what opens the file.
        why = "it holds a null byte" if "\0" in text else ""
    # Without a home `~` has no meaning.
    except (OSError, ValueError, RuntimeError) as fault:
        why = getattr(fault, "strerror", None) or str(fault)
    if why:
        cut = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
        raise MultiheadError(
            asked="a packaged model, a folder or a hub name",
            arrived=f"{cut!a}, {len(text)} characters: {why}",
            remedy="name one: `multihead models` lists the packaged ones",
        )


def _check_spelling(name: str | Path) -> None:
    if not str(name).strip():
        raise MultiheadError(
            asked="a packaged model, a folder or a hub name", arrived=repr(name), remedy="name one: `multihead models`"
        )
    close = difflib.get_close_matches(str(name), PACKAGED, n=1)
    if close and not Path(name).exists():
        raise MultiheadError(
            asked="a packaged model, a folder or a hub name",
            arrived=repr(name),
            remedy=f"did you mean {close[0]}? `multihead models` lists the packaged ones",
        )
