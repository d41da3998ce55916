"""`multihead checkup` in a process of its own that is ended by force, or by Ctrl-C, at a moment of its run."""

import os
import random
import signal
import subprocess
import sys
import time

ENVIRONMENT = dict(os.environ, OMP_NUM_THREADS="1")


def start(arguments, cwd):
    return subprocess.Popen(
        [sys.executable, "-m", "multihead", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env=ENVIRONMENT,
        # A shell that runs this in the background has switched Ctrl-C off for its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def finish(arguments, cwd, *, timeout=240):
    """Run it to its end: exit code, standard output, standard error."""
    process = start(arguments, cwd)
    try:
        out, err = process.communicate(timeout=timeout)
    finally:
        process.kill()
        process.wait()
    return process.returncode, out, err


def chunks(out):
    """How many chunks the journals within the output hold."""
    return len(list((out / "unfinished").glob("*/[0-9]*.safetensors")))


def end(arguments, cwd, *, out, more, how=signal.SIGKILL):
    """Begin it, and end it some time after so many more chunks are in the journal; its exit code, None if too late."""
    process = start(arguments, cwd)
    before = chunks(out)
    try:
        while process.poll() is None and chunks(out) < before + more:
            time.sleep(0.001)
        # Anywhere within a chunk: in a pass, in a write, between them.
        time.sleep(random.uniform(0, 0.2))
        if process.poll() is None:
            os.kill(process.pid, how)
        process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    return process.returncode
