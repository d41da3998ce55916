"""One cell of `kernel.py`: one case, one dtype, one number of threads, in a process of its own. Prints a line of JSON.

python benchmarks/kernel_cell.py --case causal-2048 --dtype float32 --threads 1 --seconds 10 --who sdpa ours
"""

import argparse
import ctypes
import json
import os
import re
import statistics
import time
from dataclasses import replace
from pathlib import Path

import torch
from kernel_case import CASES
from kernel_peers import EVERYBODY, Unable
from peak import Peak

TOLERANCE = {"float32": 1e-4, "bfloat16": 3e-2}
"""Of a result against PyTorch's in float32: enough to find a wrong mask."""
SAMPLE_S, FEWEST, LEAST, MOST = 0.01, 2, 5, 31


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=CASES, required=True)
    parser.add_argument("--dtype", choices=TOLERANCE, default="float32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=10.0, help="for all rounds together")
    parser.add_argument("--who", nargs="+", choices=EVERYBODY, default=list(EVERYBODY))
    parser.add_argument("--memory", action="store_true", help="measure memory, not time")
    return parser.parse_args()


def enter_passes(case, options):
    """PyTorch's forward pass, and ours over the weights."""
    from kernel_passes import passes

    tensors = case.tensors(options.dtype)
    q, k, _ = tensors
    runs = passes(case, q, k, options.threads)
    errors = {"sdpa": 0.0} | {name: run.error() for name, run in runs.items()}
    base = EVERYBODY["sdpa"](case, *tensors, options.threads).run
    return {"sdpa": base} | runs, errors, {} if runs else {"ours": "the compiled kernel is not built"}, tensors


def enter(case, options):
    """The contenders who are able and right, how far each is from the reference, and why the others are not in."""
    tensors = case.tensors(options.dtype)
    wanted = EVERYBODY["sdpa"](case, *(x.float() for x in tensors), options.threads).run()
    able, errors, absent = {}, {}, {}
    for name in options.who:
        try:
            contender = EVERYBODY[name](case, *tensors, options.threads)
            error = float((contender.read(contender.run()) - wanted).abs().max())
        except Unable as reason:
            absent[name] = str(reason)
            continue
        except Exception as fault:  # of whatever kind another library raises; it is told in the table
            absent[name] = f"{type(fault).__name__}: {str(fault).strip().splitlines()[0]}"[:200]
            continue
        errors[name] = error
        if error <= TOLERANCE[options.dtype]:
            able[name] = contender.run
        else:
            absent[name] = f"its result is {error:.1e} off"
    return able, errors, absent, tensors


def seconds(run, times, clock):
    start = clock()
    for _ in range(times):
        run()
    return (clock() - start) / times


def compare(case, options):
    """Everybody in turn, round by round."""
    able, errors, absent, tensors = (enter if case.kind == "forward" else enter_passes)(case, options)
    # Of the whole process: a library may compute in threads of its own.
    clock = time.process_time if options.threads == 1 else time.perf_counter
    first = {name: seconds(run, 2, clock) for name, run in able.items()}
    times = {name: max(1, round(SAMPLE_S / max(s, 1e-6))) for name, s in first.items()}
    rounds = int(options.seconds / sum(first[name] * times[name] for name in able))
    rounds = min(max(rounds, LEAST), MOST)
    # The slowest do not take the time of all others.
    turns = {name: min(rounds, max(FEWEST, int(options.seconds / first[name]))) for name in able}
    peak = Peak()
    loops = peak.loops_of(tensors[0].dtype)
    taken, most, read = {name: [] for name in able}, {name: [] for name in loops}, []
    for turn in range(rounds):
        for name, run in able.items():
            if turn < turns[name]:
                taken[name].append(seconds(run, times[name], clock))
        for name in loops:
            most[name].append(peak.flops(name))
        if loops:
            read.append(peak.bytes(tensors[1].view(-1)))
    return {
        "rounds": rounds,
        "contenders": {name: describe(taken[name], taken["sdpa"], errors[name]) for name in able},
        "absent": absent,
        "peak": highest(most) | {"bytes": median(read)},
        "load": os.getloadavg()[0],
    }


def median(values):
    return statistics.median(values) if values else 0.0


def highest(most):
    """The fastest of the loops, and what each reached."""
    every = {name: median(rates) for name, rates in most.items()}
    loop = max(every, key=every.get, default=None)
    return {
        "loop": loop,
        "flops": every.get(loop, 0.0),
        "best": max(most.get(loop, ()), default=0.0),
        "every": every,
    }


def describe(taken, base, error):
    ratios = sorted(b / a for a, b in zip(taken, base, strict=False))
    return {
        "turns": len(taken),
        "median_s": median(taken),
        "least_s": min(taken),
        "most_s": max(taken),
        "ratio": median(ratios),
        "ratio_low": ratios[len(ratios) // 10],
        "ratio_high": ratios[-1 - len(ratios) // 10],
        "error": error,
    }


def status(name):
    """A number of this process, in MB."""
    return int(re.search(rf"{name}:\s+(\d+)", Path("/proc/self/status").read_text())[1]) / 1024


def memory(case, options):
    """Largest resident memory of a call over what was there before it, output included, in MB."""
    found = {}
    for name in options.who:
        run = call_of(name, case, options)
        # Libraries load, threads start.
        call_of(name, replace(case, queries=512), options)()
        # Free memory that the C library keeps would be used again without being counted.
        ctypes.CDLL(None).malloc_trim(0)
        before = status("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # sets the high-water mark to what is there now
        run()
        found[name] = status("VmHWM") - before
    return {"extra_mb": found}


def call_of(name, case, options):
    from kernel_passes import passes

    tensors = case.tensors(options.dtype)
    if case.kind == "forward" or name == "sdpa":
        return EVERYBODY[name](case, *tensors, options.threads).run
    return passes(case, *tensors[:2], options.threads)[name]


def main():
    options = parse()
    torch.set_num_threads(options.threads)
    torch.set_grad_enabled(False)
    case = CASES[options.case]
    result = memory(case, options) if options.memory else compare(case, options)
    print(json.dumps({"outcome": "done"} | result))


if __name__ == "__main__":
    main()
