"""The most arithmetic one core does here, and the most it reads, from loops in `peak.cpp` compiled on the spot.

python benchmarks/peak.py
"""

import ctypes
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import torch

SOURCE = Path(__file__).with_name("peak.cpp")
FLOPS = {"avx2": 12 * 8 * 2, "avx512": 24 * 16 * 2, "bf16": 24 * 32 * 2, "neon": 24 * 4 * 2}
"""Of one turn of each loop."""
FIRST = {"avx2": b"2", "avx512": b"5", "bf16": b"b", "neon": b"n"}
SHORT_S, LEAST_BYTES = 0.02, 2**28


class Peak:
    """The loops, ready to be timed; without a compiler there is nothing in it.

    Attributes:
        loops: Name of each loop that this processor can run.
    """

    def __init__(self):
        self.library = build()
        able = self.library.peak_has if self.library else lambda name: 0
        self.loops = [name for name in FLOPS if able(FIRST[name])]
        self._turns = dict.fromkeys(self.loops, 1000)
        for name in self.loops:
            getattr(self.library, f"peak_{name}").argtypes = (ctypes.c_int64, ctypes.c_float)
            while self._seconds(name) < SHORT_S:
                self._turns[name] *= 2
        if self.library:
            self.library.peak_read.argtypes = (ctypes.c_void_p, ctypes.c_int64)

    def loops_of(self, dtype):
        """The loops of which the faster bounds products of a dtype: the widest of float32, and pairs of bfloat16.

        Numbers of bfloat16 can be made float32 first, which is twice as fast as their pairs on some processors.
        """
        pairs = [name for name in self.loops if name == "bf16" and dtype == torch.bfloat16]
        return [name for name in self.loops if name != "bf16"][-1:] + pairs

    def flops(self, name):
        """FLOP/s of one core, once."""
        return FLOPS[name] * self._turns[name] / self._seconds(name)

    def bytes(self, tensor):
        """Bytes a second that one core reads of a tensor, from wherever it lies after it was read before."""
        size, times = tensor.nbytes // 512 * 512, max(1, LEAST_BYTES // tensor.nbytes)
        self.library.peak_read(tensor.data_ptr(), size)
        start = time.thread_time()
        for _ in range(times):
            self.library.peak_read(tensor.data_ptr(), size)
        return times * size / (time.thread_time() - start)

    def _seconds(self, name):
        start = time.thread_time()
        getattr(self.library, f"peak_{name}")(self._turns[name], 1.0)
        return time.thread_time() - start


def build():
    """The library, or None where there is no compiler."""
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "peak.so"
        options = ["-O3", "-std=c++17", "-shared", "-fPIC"]
        subprocess.run([compiler, *options, "-o", str(path), str(SOURCE)], check=True)
        return ctypes.CDLL(str(path))


def main():
    peak = Peak()
    for name in peak.loops:
        rates = [peak.flops(name) / 1e9 for _ in range(25)]
        print(f"{name:7} {statistics.median(rates):6.0f} GFLOP/s of one core (best {max(rates):.0f})")
    for size in (2**15, 2**19, 2**23, 2**28) if peak.library else ():
        tensor = torch.ones(size // 4)
        rates = [peak.bytes(tensor) / 1e9 for _ in range(25)]
        print(f"reading {size // 1024:7} KiB {statistics.median(rates):6.0f} GB/s (best {max(rates):.0f})")


if __name__ == "__main__":
    main()
