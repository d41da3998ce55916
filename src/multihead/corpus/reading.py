"""Reading texts from files and folders: what is read is read whole, what is not read is named."""

import json
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast, overload

from multihead.corpus.files import Skipped, bytes_of, find_files
from multihead.corpus.text import Text
from multihead.error import MultiheadError

SUFFIXES = (".txt", ".md", ".jsonl")
"""Endings of the files that are read from folders; a file named by itself is read whatever its ending."""


@dataclass(frozen=True, slots=True, eq=False)
class Reading(Sequence[Text]):
    """The texts that were read, as a sequence, and what was left out.

    Args:
        texts: The documents, in the order of the paths given; folders in the order of their files' names.
        skipped: Files and folders met within a folder and not read, each with its reason.
    """

    texts: tuple[Text, ...]
    skipped: tuple[Skipped, ...]

    @overload
    def __getitem__(self, index: int) -> Text: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Text, ...]: ...
    def __getitem__(self, index: int | slice) -> Text | tuple[Text, ...]:
        """One text, or some."""
        return self.texts[index]

    def __len__(self) -> int:
        """How many texts were read."""
        return len(self.texts)


def read_texts(paths: str | Path | Sequence[str | Path]) -> Reading:
    r"""Read documents from files and folders.

    A `.jsonl` file gives one document a row, from the field `"text"`; any other file is one document. Folders are
    read through, in the order of names, for `*.txt`, `*.md` and `*.jsonl`; hidden files, links to folders and files of
    other kinds are listed in `skipped`. Line ends become `\n`, and a byte order mark is taken off.

    Args:
        paths: Files and folders. A path met twice is read once and listed.

    Returns:
        The texts with distinct names: the file's name within its folder, made longer where two would be the same.

    Raises:
        MultiheadError: A path does not exist or cannot be read; a file is binary, not UTF-8 (file and byte offset are
            named), empty or blank; a row is not an object with a text; there is nothing to read.

    Example:
        `read_texts(["letters/", "diary.md"])`
    """
    found = find_files(paths, suffixes=SUFFIXES, kind="texts", read=_documents)
    return Reading(tuple(text for texts in found for text in texts), found.skipped)


def _documents(file: Path, name: str) -> tuple[Text, ...]:
    if file.suffix.lower() == ".jsonl":
        return tuple(_rows(file, name))
    content = _decoded(bytes_of(file, kind="texts"), file, 0)
    if not content.strip():
        raise MultiheadError(
            asked=f"a text in {file}",
            arrived=f"{len(content)} characters, none of them visible",
            remedy="write something into the file, or leave it out",
        )
    return (Text(name, content),)


def _decoded(raw: bytes, file: Path, start: int) -> str:
    """Text of some bytes that begin at an offset of a file."""
    mark = len(BOM_UTF8) if raw.startswith(BOM_UTF8) else 0
    nul = raw.find(b"\0")
    if raw.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
        at, trouble, fix = 0, "a UTF-16 byte order mark", "convert it: iconv -f UTF-16 -t UTF-8"
    elif nul >= 0:
        at, trouble, fix = nul, "a NUL byte: the file is binary, or UTF-16", "name text files only"
    else:
        try:
            return raw[mark:].decode().replace("\r\n", "\n").replace("\r", "\n")
        except UnicodeDecodeError as fault:
            at = mark + fault.start
            trouble = f"the byte 0x{raw[at]:02x}, which is not UTF-8 there"
            fix = "save it as UTF-8, for example: iconv -f LATIN1 -t UTF-8"
    raise MultiheadError(asked=f"UTF-8 text in {file}", arrived=f"at byte offset {start + at}: {trouble}", remedy=fix)


def _rows(file: Path, name: str) -> Iterator[Text]:
    start, count = 0, 0
    for number, raw in enumerate(bytes_of(file, kind="texts").splitlines(keepends=True), start=1):
        line = _decoded(raw, file, start)
        start += len(raw)
        if line.strip():
            count += 1
            yield Text(f"{name}:{number}", _text_of(line, f"{file}, line {number}"))
    if not count:
        raise MultiheadError(
            asked=f'rows with a "text" in {file}', arrived="no row", remedy="write rows into the file, or leave it out"
        )


def _text_of(line: str, place: str) -> str:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as fault:
        raise _not_a_row(place, f"no JSON ({fault})") from fault
    text = row.get("text") if isinstance(row, dict) else None
    if not isinstance(text, str):
        raise _not_a_row(place, _described(row))
    if not text.strip():
        raise _not_a_row(place, "a text without a visible character")
    try:
        text.encode()
    except UnicodeEncodeError as fault:
        raise _not_a_row(place, f"half a surrogate pair at character {fault.start}") from fault
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _described(row: object) -> str:
    """What a row is that has no string "text"."""
    if not isinstance(row, dict):
        return repr(row)[:60]
    fields = cast(dict[str, object], row)
    if "text" in fields:
        return f'a "text" that is {json.dumps(fields["text"])[:60]}, not a string'
    return f"an object with {', '.join(map(repr, fields)) or 'no field'}"


def _not_a_row(place: str, arrived: str) -> MultiheadError:
    return MultiheadError(
        asked=f'{place}: a JSON object with a string "text"',
        arrived=arrived,
        remedy='write one object a line: {"text": "..."}',
    )
