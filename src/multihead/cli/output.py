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

from multihead.error import MultiheadError, remedy_of

Json = Annotated[bool, Parameter(name="--json", negative="")]
"""The option every command has."""


def _named(_: object, tokens: Sequence[Token]) -> Path:
    """A folder by its name: an empty one would be the working directory, and fill it with files."""
    value = tokens[0].value
    if not value.strip():
        raise ValueError("the name of a folder is needed, not an empty text; write . for the working directory")
    return Path(value)


Folder = Annotated[Path, Parameter(converter=_named)]
"""An option that names a folder to write to."""


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
        raise MultiheadError(
            asked=f"a folder to write to: --out {folder}",
            arrived=problem.strerror or str(problem),
            remedy=remedy_of(problem),
        ) from problem


def tell_json(value: Any) -> None:
    """Write one JSON document; numbers that JSON lacks must have become None before."""
    sys.stdout.write(json.dumps(value, allow_nan=False, indent=1) + "\n")


def tell_error(problem: Exception, errors: Console, *, as_json: bool) -> None:
    """Say what is wrong: on the standard error for people, on the standard output for scripts.

    Args:
        problem: What happened.
        errors: The standard error.
        as_json: Whether the command was run with `--json`.
    """
    if as_json:
        tell_json({"error": _parts(problem)})
        return
    fix = f"\n  fix: {remedy_of(problem)}" if isinstance(problem, OSError) else ""
    errors.print(f"error: {problem}{fix}", markup=False, highlight=False)


def _parts(problem: Exception) -> dict[str, str]:
    if isinstance(problem, MultiheadError):
        return {"asked": problem.asked, "arrived": problem.arrived, "remedy": problem.remedy}
    help_tells = "multihead COMMAND --help lists what a command takes"
    remedy = remedy_of(problem) if isinstance(problem, OSError) else help_tells
    return {"asked": "", "arrived": str(problem), "remedy": remedy}
