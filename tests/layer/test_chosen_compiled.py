"""Modules that choose their keys, compiled: the same values and gradients, the graph cut around the choice."""

import subprocess
import sys
from pathlib import Path


def test_compiled_they_give_the_same():
    script = Path(__file__).with_name("compiling_chosen.py")
    run = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr[-2000:]) == (0, "")
