"""Scans, and modules of linear heads, in graphs of torch.compile: whole, with the same values and gradients."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("names", [["linear", "delta"], pytest.param([], marks=pytest.mark.slow)], ids=["two", "all"])
def test_each_is_one_graph(names):
    script = Path(__file__).with_name("compiling_linear.py")
    run = subprocess.run([sys.executable, script, *names], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr[-2000:]) == (0, "")
