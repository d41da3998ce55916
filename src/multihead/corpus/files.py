"""Files of one kind at given paths, each read when it is asked for and not before."""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar, overload

from multihead.error import MultiheadError, remedy_of

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Skipped:
    """A file or folder that was met and not read.

    Args:
        path: Where it lies.
        reason: Why it was left out.
    """

    path: Path
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Files(Generic[T]):
    """Files as a sequence of what is in them: `for`, `len` and `[place]`.

    One is read each time it is asked for, so that a folder of photos does not fill the memory.

    Args:
        paths: The files, in order.
        names: Their names, told apart.
        skipped: Files and folders met within a folder and not read, each with its reason.
        read: Reads one file, given its path and its name.
    """

    paths: tuple[Path, ...]
    names: tuple[str, ...]
    skipped: tuple[Skipped, ...]
    read: Callable[[Path, str], T]

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[T, ...]: ...
    def __getitem__(self, index: int | slice) -> T | tuple[T, ...]:
        """One file's content, or some."""
        if isinstance(index, slice):
            return tuple(self.read(path, name) for path, name in zip(self.paths[index], self.names[index], strict=True))
        return self.read(self.paths[index], self.names[index])

    def __iter__(self) -> Iterator[T]:
        """Each file's content, read when its turn comes."""
        return (self[place] for place in range(len(self)))

    def __len__(self) -> int:
        """How many files there are."""
        return len(self.paths)


def find_files(
    paths: str | Path | Sequence[str | Path],
    *,
    suffixes: Sequence[str],
    kind: str,
    read: Callable[[Path, str], T],
) -> Files[T]:
    """The files at some paths: a file named by itself whatever its ending, in folders those of some endings.

    Folders are read through, in the order of names; hidden files, links to folders and other files are listed in
    `skipped`. A file met twice is taken once.

    Args:
        paths: Files and folders.
        suffixes: Endings of the files in folders, small letters.
        kind: What they are, in the plural, for messages.
        read: Reads one file, given its path and its name.

    Raises:
        MultiheadError: A path does not exist, a folder cannot be listed, or there is no file.
    """
    given = [Path(path) for path in ([paths] if isinstance(paths, str | Path) else paths)]
    found: dict[Path, tuple[Path, str]] = {}
    skipped: list[Skipped] = []
    for path in given:
        for file, name, reason in _met(path, suffixes, kind):
            again = "" if reason or file.resolve() not in found else "it was read already"
            if reason or again:
                skipped.append(Skipped(file, reason or again))
            else:
                found[file.resolve()] = file, name
    if not found:
        raise MultiheadError(
            asked=f"{kind} to read: files, or folders with {', '.join(f'*{suffix}' for suffix in suffixes)}",
            arrived=f"{', '.join(map(str, given)) or 'no path'}, with {len(skipped)} files of other kinds",
            remedy="name such a file, or a folder that holds some",
        )
    files = tuple(file for file, _ in found.values())
    names = _distinct([name for _, name in found.values()], list(found))
    return Files(paths=files, names=names, skipped=tuple(skipped), read=read)


def bytes_of(file: Path, *, kind: str) -> bytes:
    """The content of a file.

    Raises:
        MultiheadError: It cannot be read.
    """
    try:
        return file.read_bytes()
    except OSError as fault:
        raise MultiheadError(asked=f"{kind} in {file}", arrived=str(fault.strerror), remedy=remedy_of(fault)) from fault


def shown_name(name: str) -> str:
    """A file's name as it may be shown: bytes that are no UTF-8 and control characters are written out."""
    whole = name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in whole)


def _met(path: Path, suffixes: Sequence[str], kind: str) -> Iterator[tuple[Path, str, str]]:
    """Every file at a path: (file, name, reason to leave it out or empty)."""
    _check_kind(path, kind)
    if not path.is_dir():
        yield path, path.name, ""
        return
    for root, folders, files in os.walk(path, onerror=_cannot_list):
        here = Path(root)
        for name in sorted(folders):
            if name.startswith("."):
                yield here / name, "", "hidden folder"
            elif (here / name).is_symlink():
                yield here / name, "", "link to a folder"
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            yield here / name, (here / name).relative_to(path).as_posix(), _reason(here / name, suffixes)


def _check_kind(path: Path, kind: str) -> None:
    if not path.exists():
        raise MultiheadError(
            asked=f"{kind} from {path}",
            arrived="a link that leads nowhere, or in a circle" if path.is_symlink() else "nothing of that name exists",
            remedy="check the path for a typing error",
        )
    if not (path.is_dir() or path.is_file()):
        # Reading a pipe or a device waits for ever.
        raise MultiheadError(
            asked=f"{kind} from {path}",
            arrived="a pipe, a socket or a device",
            remedy="write its content to a file and name that",
        )


def _reason(file: Path, suffixes: Sequence[str]) -> str:
    if file.name.startswith("."):
        return "hidden file"
    if file.suffix.lower() not in suffixes:
        return f"not one of {', '.join(suffixes)}"
    return "" if file.is_file() else "not a regular file"


def _cannot_list(fault: OSError) -> None:
    raise MultiheadError(
        asked=f"the files of the folder {fault.filename}",
        arrived=str(fault.strerror),
        remedy="give yourself the right to read the folder, or name its files one by one",
    ) from fault


def _distinct(names: list[str], files: list[Path]) -> tuple[str, ...]:
    """Names told apart: those that are shared take in parent folders until no two are the same."""
    while len(counts := Counter(names)) < len(names):
        for place, file in enumerate(files):
            if counts[names[place]] > 1:
                names[place] = "/".join(file.parts[-names[place].count("/") - 2 :])
    return tuple(names)
