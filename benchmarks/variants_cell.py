"""One cell of `variants.py`: one step at one length, in a process of its own. Prints a line of JSON.

python benchmarks/variants_cell.py --step train --length 2048 --seconds 5 --who sdpa ours window
"""

import argparse
import json
import os
import statistics
import time

import torch
from kernel_cell import seconds
from module_cell import memory
from variants_operators import EVERYBODY, base_of

SAMPLE_S, LEAST, MOST = 0.01, 3, 31
LONG_S, VERY_LONG_S = 5.0, 20.0
"""Steps of which the first call tells how long they take, and of which no memory is told."""


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--step", choices=("infer", "train"), required=True)
    parser.add_argument("--length", type=int, required=True)
    parser.add_argument("--seconds", type=float, default=5.0, help="for all rounds together")
    parser.add_argument("--rounds", type=int, default=LEAST, help=f"that there are at least ({LEAST})")
    parser.add_argument("--who", nargs="+", choices=EVERYBODY, default=list(EVERYBODY))
    return parser.parse_args()


def step_of(name, length, train):
    """The function that is timed: a forward pass, or one with its backward pass, gradients of all inputs included."""
    given, run, *layers = EVERYBODY[name](length)
    if not train:

        def infer():
            with torch.no_grad():
                return run(*given)

        return infer
    pull = None

    def step():
        nonlocal pull
        leaves = [x.detach().requires_grad_() for x in given]
        for layer in layers:
            layer.zero_grad(set_to_none=True)
        out = run(*leaves)
        pull = torch.randn_like(out) if pull is None else pull
        out.backward(pull)
        return out.detach()

    return step


def enter(options):
    """Who can run, and why the others cannot."""
    able, first, absent = {}, {}, {}
    for name in options.who:
        try:
            step = step_of(name, options.length, options.step == "train")
            start = time.process_time()
            out = step()
            first[name] = time.process_time() - start
            if first[name] < LONG_S:  # of a long one the first time is told well enough
                first[name] = seconds(step, 1, time.process_time)
        except Exception as fault:  # of whatever kind; it is told in the table
            absent[name] = f"{type(fault).__name__}: {(str(fault).strip().splitlines() or ['no word'])[0]}"[:200]
            continue
        if torch.isfinite(out).all():
            able[name] = step
        else:
            absent[name] = "its output is not finite"
    return able, first, absent


def compare(able, first, options):
    """Everybody in turn, round by round: CPU seconds of the process."""
    times = {name: max(1, round(SAMPLE_S / max(first[name], 1e-6))) for name in able}
    rounds = int(options.seconds / sum(first[name] * times[name] for name in able))
    taken, names = {name: [] for name in able}, list(able)
    for turn in range(min(max(rounds, options.rounds), MOST)):
        # Nobody always runs behind the same neighbour.
        for name in names if turn % 2 else reversed(names):
            taken[name].append(seconds(able[name], times[name], time.process_time))
    return {name: describe(taken[name], taken.get(base_of(name))) for name in able}


def describe(taken, base):
    """`ratio` is that of the base's time over this one's, round by round; above 1 this one is faster."""
    told = {"turns": len(taken), "median_s": statistics.median(taken), "least_s": min(taken), "most_s": max(taken)}
    if base is None:
        return told
    ratios = sorted(b / a for a, b in zip(taken, base, strict=True))
    low, high = ratios[len(ratios) // 10], ratios[-1 - len(ratios) // 10]
    return told | {"ratio": statistics.median(ratios), "ratio_low": low, "ratio_high": high}


def main():
    options = parse()
    torch.set_num_threads(1)
    able, first, absent = enter(options)
    told = compare(able, first, options) if able else {}
    for name, run in able.items():
        if first[name] < VERY_LONG_S:
            told[name]["extra_mb"] = statistics.median(memory(run) for _ in range(3 if first[name] < 1 else 1))
    print(json.dumps({"outcome": "done", "contenders": told, "absent": absent, "load": os.getloadavg()[0]}))


if __name__ == "__main__":
    main()
