"""One cell of `module.py`: one case, step, dtype, batch and length, in a process of its own. Prints a line of JSON.

python benchmarks/module_cell.py --case self --step train --dtype float32 --batch 1 --length 512 --seconds 5
"""

import argparse
import itertools
import json
import os
import statistics
import time

import torch
from kernel_cell import seconds
from module_layers import CASES, WIDTH, Layers

TOLERANCE = {"float32": 1e-4, "bfloat16": 3e-2}
"""Of the output against ours, as a share of the largest number in it: enough to find a wrong mask or weight."""
SAMPLE_S, LEAST, MOST = 0.01, 5, 41


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=CASES, required=True)
    parser.add_argument("--step", choices=("infer", "train"), required=True)
    parser.add_argument("--dtype", choices=TOLERANCE, default="float32")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--length", type=int, required=True)
    parser.add_argument("--seconds", type=float, default=5.0, help="for all rounds together")
    return parser.parse_args()


def step_of(layer, call, x, train):
    """The function that is timed: a forward pass, or one with its backward pass, gradients of the input included."""
    if not train:
        layer.eval()

        def infer():
            with torch.no_grad():
                return call(x)

        return infer
    layer.train()
    given, pull = x.clone().requires_grad_(), torch.randn_like(x)

    def step():
        given.grad = None
        layer.zero_grad(set_to_none=True)
        out = call(given)
        out.backward(pull)
        return out.detach()

    return step


def enter(options):
    """Who can run and gives the same numbers, and why the others cannot."""
    dtype = getattr(torch, options.dtype)
    layers = Layers(options.case, dtype, options.length)
    x = torch.randn(options.batch, options.length, WIDTH, generator=torch.Generator().manual_seed(1)).to(dtype)
    able, errors, absent, wanted = {}, {}, {}, None
    for name in CASES[options.case]:
        try:
            step = step_of(*layers.build(name), x, options.step == "train")
            out = step().float()
        except Exception as fault:  # of whatever kind another library raises; it is told in the table
            absent[name] = f"{type(fault).__name__}: {(str(fault).strip().splitlines() or ['no word'])[0]}"[:200]
            continue
        wanted = out if wanted is None else wanted
        errors[name] = float((out - wanted).abs().max() / wanted.abs().max())
        if errors[name] > TOLERANCE[options.dtype] and options.case != "mixed":
            absent[name] = f"its output is {errors[name]:.1e} off"
        else:
            able[name] = step
    return able, errors, absent


def compare(able, options):
    """Everybody in turn, round by round: CPU seconds of the process."""
    clock = time.process_time
    first = {name: min(seconds(run, 1, clock) for _ in range(2)) for name, run in able.items()}
    times = {name: max(1, round(SAMPLE_S / max(s, 1e-6))) for name, s in first.items()}
    rounds = int(options.seconds / sum(first[name] * times[name] for name in able))
    taken = {name: [] for name in able}
    names = list(able)
    for turn in range(min(max(rounds, LEAST), MOST)):
        # Nobody always runs behind the same neighbour.
        for name in names if turn % 2 else reversed(names):
            taken[name].append(seconds(able[name], times[name], clock))
    return {name: describe(taken[name], taken["ours"]) for name in able}


def describe(taken, ours):
    """`ratio` is that of the other's time over ours, round by round; below 1 the other is faster."""
    ratios = sorted(a / b for a, b in zip(taken, ours, strict=True))
    return {
        "turns": len(taken),
        "median_s": statistics.median(taken),
        "least_s": min(taken),
        "most_s": max(taken),
        "ratio": statistics.median(ratios),
        "ratio_low": ratios[len(ratios) // 10],
        "ratio_high": ratios[-1 - len(ratios) // 10],
    }


def memory(run):
    """Most megabytes of tensors that a step holds at once, beyond those that were there before it, output included.

    Told by torch's allocator, which is exact. The resident memory of the process is not: the C library keeps what was
    freed by rules that learn from the past, and the same step read 31 and 57 MB. What kernels take besides, for tiles
    of their own, is not in it; `kernel.py` measures that.
    """
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        out = run()
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = itertools.accumulate(event.nbytes() for event in sorted(events, key=lambda event: event.start_ns()))
    del out
    return max(held, default=0) / 2**20


def main():
    options = parse()
    torch.set_num_threads(1)
    able, errors, absent = enter(options)
    told = compare(able, options)
    for name, run in able.items():
        told[name]["extra_mb"] = statistics.median(memory(run) for _ in range(3))
        told[name]["error"] = errors[name]
    print(json.dumps({"outcome": "done", "contenders": told, "absent": absent, "load": os.getloadavg()[0]}))


if __name__ == "__main__":
    main()
