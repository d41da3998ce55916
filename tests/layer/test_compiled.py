"""The module in graphs of torch.compile and torch.export: whole, at any length, with the values it has without."""

import subprocess
import sys
from pathlib import Path


def test_35_a_module_is_one_graph_at_any_length():
    script = Path(__file__).with_name("compiling.py")
    run = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr[-2000:]) == (0, "")
