"""The kernel in a process that was forked off after it ran on several threads: OpenMP's threads are not there."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from built import needs_kernel
from multihead.native import load

SCRIPT = Path(__file__).with_name("forking.py")


@needs_kernel
def test_forks_of_forks_compute_and_do_not_wait_for_ever():
    if not load().has_threads():
        pytest.skip("the kernel was built without threads")
    run = subprocess.Popen(
        [sys.executable, str(SCRIPT)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        out, err = run.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        os.killpg(run.pid, signal.SIGKILL)  # the children that wait as well
        out, err = run.communicate()
    assert (out, run.returncode) == ("True 1 1\nTrue 1 1\n", 0), err[-2000:]
