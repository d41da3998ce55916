"""The CPU kernel against PyTorch's attention, other libraries, and the most this processor can do.

Every cell (a case, a dtype, a number of threads) runs in a process of its own. In it everybody takes turns, round by
round; times are medians, and a ratio is the median over rounds of PyTorch's time over the other's. One thread: CPU time
of the process, which a busy machine moves little. Two threads: wall time, for a quiet machine only.

    sdpa          torch's scaled_dot_product_attention; with a boolean mask where there is a window
    ours          multihead.attention(backend="native")
    onnxruntime, openvino, flex (FlexAttention, compiled), jax, eager (the formula in plain torch)
                  on the same numbers; whose result is not the same is left out and named

    python benchmarks/kernel.py                             everybody who is installed
    python benchmarks/kernel.py --quick                     sdpa and ours, short inputs, few rounds: 2 minutes
    python benchmarks/kernel.py --make-peers build/kernel-peers     install the other libraries, and use them (1 GB)
    python benchmarks/kernel.py --cases causal-2048 decode --threads 2 --dtypes bfloat16
    python benchmarks/kernel.py --show                      the table of the JSON file

`peak` is measured in the same rounds by loops of the widest multiply-add (`peak.cpp`, needs a compiler); of bfloat16 it
is that of pairs or of float32, whichever is faster. Tiles (AMX), which PyTorch uses, are not among them. `ceiling` is
the ratio that a program would reach which did nothing but the products at that peak: no kernel of vectors can be above
it on this processor. Where it takes longer to read the keys and values once, as fast as a loop reads the keys from
first to last, it is the ratio of that: no law, since another order of reading may be faster by a few percent.
"""

import argparse
import json
import os
import re
import sys
import time
from pathlib import Path

import peers
from apart import in_process, machine, save, versions
from kernel_case import BF16, CASES, FP32
from kernel_peers import EVERYBODY, PINS
from kernel_table import show

import multihead

PACKAGES = ("multihead", "torch", "numpy")
HERE = Path(__file__).parent
MEMORY_CASES = ("full-8192", "causal-8192", "window", "statistics-full-8192", "gram-full-8192")
START_S = 15  # imports, compilers, first calls


def main():
    options = parse()
    python = peers.make(options.make_peers.absolute(), PINS, ()) if options.make_peers else options.python
    told = json.loads(options.json.read_text()) if (options.resume or options.show) and options.json.exists() else {}
    cells = {key_of(cell): cell for cell in told.get("cells", []) if options.show or cell["outcome"] == "done"}
    if options.show:
        show(told["about"], list(cells.values()))
        return
    about = told.get("about") or describe(options)
    wanted = [key for key in cells_of(options) if key not in cells]
    minutes = len(wanted) * (options.round_seconds + START_S) / 60
    print(f"{len(wanted)} cells, about {minutes:.0f} minutes", flush=True)
    for number, key in enumerate(wanted):
        print(f"{time.strftime('%H:%M:%S')}  {number + 1}/{len(wanted)}  {' '.join(map(str, key))} ... ", end="")
        sys.stdout.flush()
        cells[key] = run(key, python, options)
        print(brief(cells[key]), flush=True)
        save(options.json, about, cells)
    show(about, list(cells.values()))


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, metavar="CASE", default=list(CASES), help=", ".join(CASES))
    parser.add_argument("--dtypes", nargs="+", choices=(FP32, BF16), default=[FP32, BF16])
    parser.add_argument("--threads", type=int, nargs="+", default=[1], help="(1)")
    parser.add_argument("--who", nargs="+", choices=EVERYBODY, default=list(EVERYBODY))
    parser.add_argument("--quick", action="store_true", help="sdpa and ours, nothing long, 2 seconds of rounds a cell")
    parser.add_argument("--round-seconds", type=float, default=10.0, help="of rounds a cell, 5 rounds at least (10)")
    parser.add_argument("--seconds", type=float, default=900.0, help="a process may take (900)")
    parser.add_argument("--memory", type=float, default=9.0, help="GB a process may take (9)")
    parser.add_argument("--python", type=Path, default=Path(sys.executable), help="an interpreter that has the peers")
    parser.add_argument("--make-peers", type=Path, metavar="FOLDER", help="make an environment for them, and use it")
    parser.add_argument("--json", type=Path, default=Path("build/kernel.json"))
    parser.add_argument("--resume", action="store_true", help="leave out cells that the JSON file holds")
    parser.add_argument("--show", action="store_true", help="print the table of the JSON file and stop")
    options = parser.parse_args()
    if options.quick:
        options.who, options.round_seconds = ["sdpa", "ours"], 2.0
        options.cases = [name for name in options.cases if not CASES[name].long]
    return options


def cells_of(options):
    """What is to be run: (case, dtype, threads), where threads 0 stands for memory."""
    for name in options.cases:
        for dtype in options.dtypes:
            for threads in options.threads:
                yield name, dtype, threads
            if name in MEMORY_CASES:
                yield name, dtype, 0


def key_of(cell):
    return cell["case"], cell["dtype"], cell["threads"]


def describe(options):
    cpu = Path("/proc/cpuinfo").read_text()
    flags = set(re.search(r"flags\s*:\s*(.+)", cpu)[1].split()) if "flags" in cpu else set()
    family = re.search(r"cpu family\s*:\s*(\d+)\s+model\s*:\s*(\d+)", cpu)
    known = [name for name in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if name in flags]
    return {
        "machine": machine() + (f"; family {family[1]}, model {family[2]}; {', '.join(known)}" if family else ""),
        "versions": versions(PACKAGES) | {pin.partition("==")[0]: pin.partition("==")[2] for pin in PINS},
    }


def run(key, python, options):
    case, dtype, threads = key
    words = {"--case": case, "--dtype": dtype, "--threads": threads or 1, "--seconds": options.round_seconds}
    command = [python, HERE / "kernel_cell.py", *(word for pair in words.items() for word in pair)]
    who = [name for name in options.who if name in ("sdpa", "ours")] if threads == 0 else options.who
    command += ["--memory"] * (threads == 0) + ["--who", *who]
    result = in_process(
        command,
        options,
        # The package of this checkout, whatever that interpreter has; libraries that take all cores unless told.
        PYTHONPATH=os.pathsep.join(
            [str(Path(multihead.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
        ),
        OMP_NUM_THREADS=str(threads or 1),
        XLA_FLAGS="--xla_cpu_multi_thread_eigen=false" if threads < 2 else "",
        TF_CPP_MIN_LOG_LEVEL="3",
    )
    return {"case": case, "dtype": dtype, "threads": threads} | result


def brief(cell):
    if "contenders" in cell:
        return ", ".join(f"{name} {told['median_s'] * 1e3:.2f} ms" for name, told in cell["contenders"].items())
    return str(cell.get("extra_mb", cell["outcome"]))


if __name__ == "__main__":
    main()
