"""One run at a time in a folder: a lock that the operating system frees, however a run ends."""

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from multihead.error import MultiheadError, system_error

LOCK = "multihead.lock"
# How often a lock is tried again that another run was just taking away.
_TRIES = 100

if sys.platform == "win32":
    import msvcrt

    def _take(handle: int) -> None:
        # What is locked there can be read by nobody: a place far behind the number of the process.
        os.lseek(handle, 1 << 20, os.SEEK_SET)
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        os.lseek(handle, 0, os.SEEK_SET)
else:
    import fcntl

    def _take(handle: int) -> None:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextmanager
def held(folder: Path) -> Generator[None]:
    """Hold a folder for one run; folders that are made for it, and end empty, are taken away again.

    The lock is one of the operating system on a file in the folder. It ends with the process, also by `kill -9`; what
    is left of the file then locks nothing.

    Args:
        folder: The folder; it is made.

    Raises:
        MultiheadError: Another run holds it (nothing was written then), or the folder cannot be written.
    """
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    if folder.is_dir() and any(folder.iterdir()):
        made = [folder]  # by an earlier run, which left something
    try:
        handle = _opened(folder)
    except OSError as problem:
        raise system_error(f"to keep the journal of a run in {folder}", problem) from problem
    try:
        yield
    finally:
        if sys.platform != "win32":  # there no open file can be taken away; left over it locks nothing
            # Taken away while it is held: whoever has opened it finds that the name leads elsewhere.
            (folder / LOCK).unlink(missing_ok=True)
        os.close(handle)
        for place in made:
            if not place.is_dir() or any(place.iterdir()):
                break
            place.rmdir()


def _opened(folder: Path) -> int:
    for _ in range(_TRIES):
        handle = _open(folder)
        try:
            _take(handle)
        except OSError as problem:
            os.close(handle)
            if isinstance(problem, BlockingIOError | PermissionError):
                raise _busy(folder) from problem
            raise
        if _is_there(handle, folder / LOCK):
            os.truncate(handle, 0)
            os.write(handle, str(os.getpid()).encode())
            return handle
        os.close(handle)
    raise _busy(folder)


def _open(folder: Path) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    try:
        return os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except FileNotFoundError:
        # A run that ended has just taken its folder away.
        folder.mkdir(parents=True, exist_ok=True)
        return os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)


def _is_there(handle: int, path: Path) -> bool:
    """Whether the file that was locked is still the one of that name."""
    return path.exists() and os.path.samestat(os.fstat(handle), path.stat())


def _busy(folder: Path) -> MultiheadError:
    return MultiheadError(
        asked=f"to run in {folder}, where no other run goes on",
        arrived=f"one that goes on there now, process {_process(folder)}",
        remedy="wait for its end, or give this run a folder of its own with --out (in Python: journal=)",
    )


def _process(folder: Path) -> str:
    told = (folder / LOCK).read_bytes() if (folder / LOCK).exists() else b""
    return told.decode("ascii", "replace") or "unknown"
