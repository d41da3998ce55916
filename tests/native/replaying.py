"""Writes problem files, builds the program that replays them (csrc/replay.c says what is in one), and runs it."""

import fcntl
import shutil
import struct
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import torch

from multihead.native import load, why_none

ROOT = Path(__file__).parents[2]


@dataclass
class Case:
    """One problem for the kernel, field by field, and what is expected of it; "@" and more make a field another one."""

    label: str
    fields: dict[str, int | float | torch.Tensor] = field(default_factory=dict)
    entry: str = "forward"


def write(path, cases):
    """Writes cases to a file, and gives its path."""
    with path.open("wb") as file:
        file.write(b"MHREPLAY" + struct.pack("<q", 1))
        for case in cases:
            _chunk(file, "label", 1, case.label.encode())
            for name, value in case.fields.items():
                _chunk(file, name.partition("@")[0], *_bytes(value))
            _chunk(file, "run", 1, case.entry.encode())
    return path


def _bytes(value):
    if isinstance(value, torch.Tensor):
        assert value.is_contiguous()
        flat = value.reshape(-1).view(torch.uint8) if value.numel() else value.new_empty(0, dtype=torch.uint8)
        return value.element_size(), flat.numpy().tobytes()
    return 8, struct.pack("<d", value) if isinstance(value, float) else struct.pack("<q", value)


def _chunk(file, name, unit, data):
    file.write(struct.pack("<24siiq", name.encode(), unit, 0, len(data)) + data + bytes(-len(data) % 8))


def build(name, *options):
    """Builds the program below `build/`, where what was compiled before is kept, and gives its path."""
    folder = ROOT / "build" / f"replay-{name}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:  # two workers may want the same one
        fcntl.flock(lock, fcntl.LOCK_EX)
        configure = ["cmake", "-S", str(ROOT), "-B", str(folder), "-G", "Ninja", "-DMULTIHEAD_REPLAY=ON", *options]
        for command in (configure, ["cmake", "--build", str(folder), "--target", "multihead_replay"]):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
    return folder / "multihead_replay"


def missing(*tools):
    """A reason to skip, where tools are missing, else an empty text."""
    lost = [tool for tool in tools if shutil.which(tool) is None]
    return f"not installed: {', '.join(lost)}" if lost else ""


def replay(program, file, *, variants="all", threads="1", runner=(), env=None):
    """Runs a file of problems; gives the finished process."""
    command = [*runner, str(program), str(file), variants, threads]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=200, env=env)


def assert_agrees(done, cases):
    """All cases of a file were replayed, and each gave what was expected."""
    assert done.returncode == 0, f"status {done.returncode}\n{done.stdout}{done.stderr}"
    assert f"{cases} problems, 0 failures" in done.stdout


def build_native(folder):
    """Compiles the program alone, against the kernel that is installed."""
    library = load()
    assert library is not None, why_none()
    program = folder / "multihead_replay"
    command = ["c++", "-x", "c", "-O1", "-Wall", "-Wextra", "-Werror", str(ROOT / "csrc" / "replay.c"), "-x", "none"]
    command += [str(library.path), f"-Wl,-rpath,{library.path.parent}", "-lm", "-o", str(program)]
    subprocess.run(command, check=True)
    return program
