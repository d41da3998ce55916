"""The modules of other kinds of attention in graphs of torch.compile: whole, at any length, with the same values."""

import subprocess
import sys
from pathlib import Path


def test_each_kind_is_one_graph_at_any_length():
    script = Path(__file__).with_name("compiling_variants.py")
    run = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr[-2000:]) == (0, "")
