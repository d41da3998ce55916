"""What a command tells: words for people, or, with `--json`, one JSON document on the standard output for scripts."""

import json
import sys
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console

from multihead.error import MultiheadError

Json = Annotated[bool, Parameter(name="--json", negative="")]
"""The option every command has."""


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
    fix = "" if isinstance(problem, MultiheadError) else "\n  fix: check the path, the free space and your rights"
    errors.print(f"error: {problem}{fix}", markup=False, highlight=False)


def _parts(problem: Exception) -> dict[str, str]:
    if isinstance(problem, MultiheadError):
        return {"asked": problem.asked, "arrived": problem.arrived, "remedy": problem.remedy}
    return {"asked": "", "arrived": str(problem), "remedy": "multihead COMMAND --help lists what a command takes"}
