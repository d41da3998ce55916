"""`multihead checkup` in a process of its own that is ended by force, or by Ctrl-C, at a moment of its run."""

import os
import random
import signal
import time

from forked import command, forked


def chunks(out):
    """How many chunks the journals within the output hold."""
    return len(list((out / "unfinished").glob("*/[0-9]*.safetensors")))


def end(arguments, folder, *, out, more, how=signal.SIGKILL):
    """Begin it, and end it some time after so many more chunks are in the journal; its exit code, 0 if too late."""
    before = chunks(out)
    with forked(command, arguments, folder, folder=folder) as process:
        while process.exitcode is None and chunks(out) < before + more:
            time.sleep(0.001)
        # Anywhere within a chunk: in a pass, in a write, between them.
        time.sleep(random.uniform(0, 0.2))
        if process.exitcode is None:
            os.kill(process.pid, how)
        process.join(60)
    return process.exitcode
