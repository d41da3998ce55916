"""What a command tells: words for people, or, with `--json`, one JSON document on the standard output for scripts."""

import errno
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter, Token
from rich.console import Console

from multihead.error import MultiheadError, remedy_of, system_error

Json = Annotated[bool, Parameter(name="--json", negative="")]
"""The option every command has."""


def _named(_: object, tokens: Sequence[Token]) -> Path:
    """A place by its name: an empty one would be the working directory, and all that is in it."""
    value = tokens[0].value
    if not value.strip():
        raise ValueError("the name of a file or folder is needed, not an empty text; . is the working directory")
    return Path(value)


def _each_named(kind: object, tokens: Sequence[Token]) -> list[Path]:
    return [_named(kind, [token]) for token in tokens]


Folder = Annotated[Path, Parameter(converter=_named)]
"""A folder to read from or to write to."""
Paths = Annotated[list[Path] | None, Parameter(converter=_each_named, negative="", consume_multiple=True)]
"""An option with files and folders to read."""


def check_out(folder: Path, *, files: Sequence[str]) -> None:
    """Fail before the long work and not after it: a folder must be there, or can be made, that takes files.

    Args:
        folder: What `--out` names.
        files: Names of the files that will be written there.

    Raises:
        MultiheadError: It cannot be written to.
    """
    nearest = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    in_the_way = [folder / name for name in files if nearest == folder and (folder / name).is_dir()]
    try:
        if not nearest.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, f"{nearest} is a file")
        if in_the_way:
            raise IsADirectoryError(errno.EISDIR, f"{in_the_way[0]} is a folder")
        with tempfile.NamedTemporaryFile(dir=nearest):
            pass
    except OSError as problem:
        raise system_error(f"a folder to write to: --out {folder}", problem) from problem


def tell_json(value: Any) -> None:
    """Write one JSON document; numbers that JSON lacks must have become None before."""
    if sys.stdout is not None:  # pyright: ignore[reportUnnecessaryComparison]  # it is, where it was closed (>&-)
        sys.stdout.write(json.dumps(value, allow_nan=False, indent=1) + "\n")
        sys.stdout.flush()


def asks_json(argument: str) -> bool:
    """Whether an argument asks for JSON: known before the arguments are read, so that their faults are told so too."""
    name, _, value = argument.partition("=")
    return name == "--json" and (not value or value.lower() in ("yes", "y", "1", "true", "t"))


def memory_error(problem: MemoryError | RuntimeError) -> MultiheadError | None:
    """What to say where the memory did not suffice; None where something else went wrong."""
    words = str(problem).partition("\n")[0]
    if (
        not isinstance(problem, MemoryError)
        and "out of memory" not in words
        and "allocate memory" not in words
        and "Storage size" not in words
    ):
        return None
    return MultiheadError(
        asked="memory for the run",
        arrived=words or "no more of it",
        remedy="read shorter chunks with --max-length, or run it where there is more memory; chunks that are done are "
        "kept, and --resume goes on with the same options",
    )


def tell_error(problem: Exception, errors: Console, *, as_json: bool) -> None:
    """Say what is wrong: on the standard error for people, on the standard output for scripts.

    Args:
        problem: What happened.
        errors: The standard error.
        as_json: Whether the command was run with `--json`.
    """
    if isinstance(problem, MemoryError | RuntimeError):
        problem = memory_error(problem) or problem
    if as_json:
        try:
            tell_json({"error": _parts(problem)})
        except OSError as closed:
            problem = closed  # the output itself cannot be written to: only people can be told
        else:
            return
    # The words of our own errors hold their remedy.
    fix = "" if isinstance(problem, MultiheadError) else f"\n  fix: {_parts(problem)['remedy']}"
    errors.print(f"error: {problem}{fix}", markup=False, highlight=False)


def _parts(problem: Exception) -> dict[str, str]:
    if isinstance(problem, MultiheadError):
        return {"asked": problem.asked, "arrived": problem.arrived, "remedy": problem.remedy}
    help_tells = "multihead COMMAND --help lists what a command takes"
    remedy = remedy_of(problem) if isinstance(problem, OSError) else help_tells
    return {"asked": "", "arrived": str(problem), "remedy": remedy}
