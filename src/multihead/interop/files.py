"""Weight files as files: whether those of a folder are whole, told from their headers; their bytes without a copy."""

import json
import mmap
import struct
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from multihead.error import MultiheadError

_INDEX = "model.safetensors.index.json"
_WHOLE = "model.safetensors"
_POINTER = b"version https://git-lfs"
_GGUF = b"GGUF"
_TOKENIZERS = ("tokenizer.json", "vocab.txt", "vocab.json", "merges.txt", "tokenizer_config.json", "tekken.json")
_LENGTH = 8
_SHOWN = 3
_AGAIN = "get the file again: the copy or the download did not finish"


def check_files(folder: Path) -> None:
    """Refuse a folder whose safetensors files are missing, cut off, or stand-ins for the real ones.

    A safetensors file begins with the length of its header (8 bytes), then the header, JSON with the place of each
    tensor behind it; so its own first bytes tell how long it must be. An index names the files of a model in parts.

    Args:
        folder: Holds `*.safetensors`, or none.

    Raises:
        MultiheadError: A file that the index names is not there; a file is shorter than its header says; it is a
            pointer of Git LFS; the index is damaged.

    Example:
        >>> check_files(Path("."))
    """
    named = _named(folder / _INDEX) if (folder / _INDEX).is_file() else ()
    missing = [name for name in named if not (folder / name).is_file()]
    if missing:
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        raise MultiheadError(
            asked=f"the weights in {folder}, {len(named)} files named by {_INDEX}",
            arrived=f"{len(missing)} of them are not there: {', '.join(missing[:_SHOWN])}{more}",
            remedy="get the missing files, or the whole folder again",
        )
    found = sorted(file.name for file in folder.glob("*.safetensors"))
    # Beside the model's own file others may lie that nobody reads.
    for name in named or ([_WHOLE] if _WHOLE in found else found):
        _check(folder / name)


def check_gguf(file: Path) -> None:
    """Refuse a file that does not begin as every GGUF file does, with the letters GGUF.

    Raises:
        MultiheadError: It begins otherwise, or cannot be read.
    """
    try:
        with file.open("rb") as opened:
            start = opened.read(len(_POINTER))
    except OSError as fault:
        raise _broken(file, str(fault.strerror), "give yourself the right to read the file") from fault
    if start == _POINTER:
        raise _broken(file, "a pointer of Git LFS, not the weights", "run `git lfs pull` in the folder")
    if not start.startswith(_GGUF):
        first = f"its first bytes are {start[:_LENGTH]!r}, not {_GGUF!r}" if start else "it is empty"
        raise _broken(file, f"no GGUF file: {first}", "get the file again, or name the one you mean")


def check_config(file: Path) -> None:
    """Refuse a `config.json` that is no JSON object, and say where it stops being one.

    Raises:
        MultiheadError: It is not JSON, not UTF-8, no object, or cannot be read.
    """
    try:
        told = json.loads(file.read_text(encoding="utf-8"))
    except json.JSONDecodeError as fault:
        why = f"not JSON, {fault.msg} in line {fault.lineno}, column {fault.colno}"
    except UnicodeDecodeError as fault:
        why = f"byte {fault.start + 1} is no UTF-8"
    except RecursionError:
        why = "lists in lists without end"
    except OSError as fault:
        raise MultiheadError(
            asked=f"the settings of a model in {file}",
            arrived=str(fault.strerror),
            remedy="give yourself the right to read the file",
        ) from fault
    else:
        if isinstance(told, dict):
            return
        why = f"it holds a {type(told).__name__}"
    raise MultiheadError(
        asked=f"the settings of a model as JSON in {file}",
        arrived=f"the file is no JSON object: {why}",
        remedy="mend that place, or get config.json again",
    )


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder holds any file that a tokenizer of transformers is read from."""
    return any((folder / name).is_file() for name in _TOKENIZERS) or any(folder.glob("*.model"))


def _named(index: Path) -> tuple[str, ...]:
    """The files an index names, in order."""
    try:
        told = json.loads(index.read_text(encoding="utf-8"))
        files = set(cast(Mapping[str, str], told["weight_map"]).values())
        # A name with folders in it would lead out of this one.
        if not files or any(Path(name).name != name for name in files):
            raise ValueError("weight_map names no files of this folder")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as fault:
        raise MultiheadError(
            asked=f"the list of weight files in {index}",
            arrived=f"{type(fault).__name__}: {fault}",
            remedy=_AGAIN,
        ) from fault
    return tuple(sorted(files))


def _check(file: Path) -> None:
    try:
        size = file.stat().st_size
        with file.open("rb") as opened:
            start = opened.read(_LENGTH)
            pointer = (start + opened.read(len(_POINTER) - _LENGTH)) == _POINTER
            opened.seek(_LENGTH)
            length = struct.unpack("<Q", start)[0] if len(start) == _LENGTH else 0
            header = opened.read(min(length, size)) if not pointer else b""
    except OSError as fault:
        raise _broken(file, str(fault.strerror), "give yourself the right to read the file") from fault
    if pointer:
        raise _broken(
            file, f"a pointer of Git LFS of {size} bytes, not the weights", "run `git lfs pull` in the folder"
        )
    if len(header) < length or not length:
        raise _broken(file, f"{size} bytes; its header alone has {length or 'none'}", _AGAIN)
    due = _LENGTH + length + _end(file, header)
    if size < due:
        raise _broken(file, f"{size} bytes of {due}: it is cut off", _AGAIN)


def _end(file: Path, header: bytes) -> int:
    """Where the last tensor ends, counted from the end of the header."""
    try:
        told = cast(Mapping[str, Mapping[str, list[int]]], json.loads(header))
        return max((int(told[name]["data_offsets"][1]) for name in told if name != "__metadata__"), default=0)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as fault:
        raise _broken(file, f"a header that is none: {type(fault).__name__}: {str(fault)[:80]}", _AGAIN) from fault


def _broken(file: Path, arrived: str, remedy: str) -> MultiheadError:
    return MultiheadError(asked=f"the weights in {file}", arrived=arrived, remedy=remedy)


@contextmanager
def mapped(path: Path, *, kind: str, remedy: str) -> Generator[mmap.mmap]:
    """The bytes of a weights file, mapped and not copied, closed at the end of the block.

    Args:
        path: The file.
        kind: What it is, for messages: `"an ONNX file"`.
        remedy: What to do where it cannot be read.

    Raises:
        MultiheadError: The file cannot be read, or what is done in the block finds it damaged.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as buffer:
            yield buffer
    except (OSError, ValueError) as fault:
        if isinstance(fault, MultiheadError):
            raise
        # An empty file cannot be mapped: that is a ValueError of mmap.
        raise MultiheadError(
            asked=f"the weights in {path}, {kind}",
            arrived=getattr(fault, "strerror", None) or str(fault),
            remedy=remedy,
        ) from fault
