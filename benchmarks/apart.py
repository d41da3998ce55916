"""Programs that measure in a process of their own, under a limit of memory and time; what is told about them."""

import json
import os
import platform
import re
import signal
import subprocess
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

POLL_S = 0.02


def machine():
    """The processor, its cores and the memory, in words."""
    cpu = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    memory = int(re.search(r"MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text())[1]) / 2**20
    return f"{platform.machine()}, {cpu[1] if cpu else '?'}, {os.cpu_count()} cores, {memory:.0f} GB"


def versions(packages):
    return {"python": platform.python_version()} | {package: version(package) for package in packages}


def in_process(command, options, **settings):
    """Run a program that prints JSON; look at its memory all the time and end it where it takes too much.

    Args:
        command: The words of the command.
        options: `memory` in GB and `seconds` at most.
        **settings: Environment variables.
    """
    start, ended = time.monotonic(), ""
    # Files: nobody reads a pipe while the cell runs.
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(list(map(str, command)), stdout=out, stderr=err, env=os.environ | settings)
        try:
            while process.poll() is None and not ended:
                time.sleep(POLL_S)
                if resident_gb(process.pid) > options.memory:
                    ended = "out of memory"
                elif time.monotonic() - start > options.seconds:
                    ended = "out of time"
        finally:
            process.kill()
            process.wait()
        return {"outcome": ended} if ended else outcome(process.returncode, read(out), read(err))


def read(file):
    file.seek(0)
    return file.read()


def outcome(code, out, err):
    """What a program that ended by itself tells."""
    if code == 0:
        return json.loads(out.splitlines()[-1])
    # A library may give up in its own way where memory ends.
    if code in (-signal.SIGABRT, -signal.SIGSEGV, -signal.SIGKILL) or "bad_alloc" in err:
        return {"outcome": "out of memory"}
    return {"outcome": f"failed: {(err.strip().splitlines() or ['no word'])[-1]}"}


def resident_gb(pid):
    try:
        return int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1]) / 2**20
    except (OSError, TypeError):  # it has just ended
        return 0.0


def save(path, about, cells):
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps({"about": about, "cells": list(cells.values())}, indent=1) + "\n")
    part.replace(path)
