"""Every kind of attention against causal attention of all pairs: time, memory, growth, and from which length it pays.

Eight heads of 64, batch 1, float32, one thread. Operators (queries, keys, values in) stand against torch's causal
`scaled_dot_product_attention` and ours; layers (projections included) against a layer of multi-head attention. Every
cell of the table (a step and a length) runs in a process of its own, in which everybody takes turns, round by round.
Times are CPU seconds of one thread, which a busy machine moves little; a ratio is the median over rounds of the base's
time over the other's, so 8.0 says that it takes an eighth; in brackets the middle four fifths of rounds. Memory is the
largest resident memory of a step over what was there before; of steps of 20 seconds and more none is told.

`infer` is a forward pass without gradients, `train` a forward and a backward pass, gradients of the inputs included.
Growth is the power of the length that fits the times from 2,048 tokens on. A kind pays from that length on at which it
takes less time than the base, on a line between logarithms.

    python benchmarks/variants.py                                  everything: lengths to 32,768, some to 131,072
    python benchmarks/variants.py --quick                          512 to 2,048 tokens, one second of rounds a cell
    python benchmarks/variants.py --who window linear --steps infer --lengths 8192 16384
    python benchmarks/variants.py --resume                         goes on where it was ended
    python benchmarks/variants.py --show                           the tables of the JSON file
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

from apart import in_process, machine, save, versions
from variants_operators import BASES, EVERYBODY, GROWTH, LAYERS, LONG, base_of

import multihead
from multihead.advice import fitted_exponent, meeting_point

HERE = Path(__file__).parent
STEPS = ("infer", "train")
LENGTHS, LONGER = (512, 1024, 2048, 4096, 8192, 16384, 32768), (65536, 131072)
FIT_FROM = 2048
CHUNKED, CHUNKED_AT = 8.0, 8192
"""Chunked linear attention takes at most an eighth of the time of causal attention at that length."""


def main():
    options = parse()
    told = json.loads(options.json.read_text()) if (options.resume or options.show) and options.json.exists() else {}
    cells = {key_of(cell): cell for cell in told.get("cells", [])}
    if options.show:
        show(told.get("about", {}), list(cells.values()))
        return
    about = {
        "machine": machine(),
        "limits": "1 thread, CPU time",
        "versions": versions(("multihead", "torch")),
    }
    wanted = [(step, length) for step in options.steps for length in options.lengths]
    for number, key in enumerate(wanted):
        who = [name for name in who_runs(key[1], options) if name not in known(cells.get(key))]
        if not who:
            continue
        print(f"{time.strftime('%H:%M:%S')}  {number + 1}/{len(wanted)}  {' '.join(map(str, key))} ... ", end="")
        sys.stdout.flush()
        # Whoever comes later takes turns with the base too, whose first numbers stay.
        bases = {base_of(name) for name in who} if key[1] <= max(LENGTHS) else set()
        result = run(key, [*sorted(bases - set(who)), *who], options)
        cells[key] = dict(zip(("step", "length"), key, strict=True)) | joined(cells.get(key), result)
        print(brief(cells[key]), flush=True)
        save(options.json, about, cells)
    show(about, list(cells.values()))


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=list(STEPS))
    parser.add_argument("--lengths", type=int, nargs="+", default=[*LENGTHS, *LONGER])
    parser.add_argument("--who", nargs="+", choices=EVERYBODY, default=list(EVERYBODY), help="the bases run besides")
    parser.add_argument("--quick", action="store_true", help="512 to 2,048 tokens, 1 second of rounds a cell")
    parser.add_argument("--round-seconds", type=float, default=60.0, help="of rounds a cell (60)")
    parser.add_argument("--rounds", type=int, default=3, help="of a cell at least, however long they take (3)")
    parser.add_argument("--seconds", type=float, default=3600.0, help="a process may take (3600)")
    parser.add_argument("--memory", type=float, default=9.0, help="GB a process may take (9)")
    parser.add_argument("--json", type=Path, default=Path("build/variants.json"))
    parser.add_argument("--resume", action="store_true", help="leave out what the JSON file holds")
    parser.add_argument("--show", action="store_true", help="print the tables of the JSON file and stop")
    options = parser.parse_args()
    if options.quick:
        options.lengths, options.round_seconds = [512, 1024, 2048], 1.0
    return options


def who_runs(length, options):
    """The contenders at a length: beyond what dense attention does in minutes, those that grow with the length."""
    asked = [name for name in options.who if name not in BASES]
    if length > max(LENGTHS):
        return [name for name in asked if name in LONG]
    bases = [base for base in BASES if base in options.who or any((base in LAYERS) == (n in LAYERS) for n in asked)]
    return bases + asked


def key_of(cell):
    return cell["step"], cell["length"]


def known(cell):
    """Who was told about already."""
    return set() if cell is None else {*cell.get("contenders", {}), *cell.get("absent", {})}


def run(key, who, options):
    """A cell; where all together take too much, everybody alone."""
    result = once(key, who, options)
    if "contenders" in result or len(who) == 1:
        return alone(result, who)
    found = {"outcome": "done", "contenders": {}, "absent": {}}
    for name in who:
        part = alone(once(key, [name], options), [name])
        found["contenders"] |= part["contenders"]
        found["absent"] |= part["absent"]
    for name, told in found["contenders"].items():
        base = found["contenders"].get(base_of(name))
        if base is not None:  # not in turns: the medians stand against each other
            told |= dict.fromkeys(("ratio", "ratio_low", "ratio_high"), base["median_s"] / told["median_s"])
    return found


def once(key, who, options):
    step, length = key
    command = [sys.executable, HERE / "variants_cell.py", "--step", step, "--length", length]
    command += ["--seconds", options.round_seconds, "--rounds", options.rounds, "--who", *who]
    path = [str(Path(multihead.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return in_process(command, options, PYTHONPATH=os.pathsep.join(path), OMP_NUM_THREADS="1")


def alone(result, who):
    """A cell whose process gave up tells why for each that was in it."""
    if "contenders" in result:
        return result
    return {"outcome": "done", "contenders": {}, "absent": dict.fromkeys(who, result["outcome"])}


def joined(before, result):
    """What is told of a cell in two runs."""
    if before is None:
        return result
    return result | {part: result.get(part, {}) | before.get(part, {}) for part in ("contenders", "absent")}


def brief(cell):
    told = ", ".join(f"{name} {told['median_s'] * 1e3:.1f} ms" for name, told in cell["contenders"].items())
    return told or "; ".join(f"{name}: {why}" for name, why in cell["absent"].items())


def show(about, cells):
    """The tables, as Markdown, and where an aim was missed."""
    cells = sorted(cells, key=key_of)
    for name, told in about.items():
        print(f"{name}: {told if isinstance(told, str) else ', '.join(f'{k} {v}' for k, v in told.items())}")
    print("\n| step | length | kind | ms | base's time over its | MB |\n" + "|---" * 6 + "|")
    for cell in cells:
        head = f"{cell['step']} | {cell['length']}"
        for name, told in cell["contenders"].items():
            spread = (
                f"{told['ratio']:.2f} ({told['ratio_low']:.2f} to {told['ratio_high']:.2f})" if "ratio" in told else ""
            )
            held = f"{told['extra_mb']:.1f}" if "extra_mb" in told else ""
            print(f"| {head} | {name} | {told['median_s'] * 1e3:.2f} | {spread} | {held} |")
        for name, reason in cell["absent"].items():
            print(f"| {head} | {name} | {reason} | | |")
    for step in STEPS:
        by_length(cells, step, [name for name in EVERYBODY if name not in LAYERS], "operators")
        by_length(cells, step, LAYERS, "layers")
    missed = [*growth(cells), *(word for step in STEPS for word in chunked(cells, step))]
    print(f"\n{len(missed)} aims missed" + "".join(f"\n- {line}" for line in missed))


def growth(cells):
    """How times and memory grow, and from where on each pays; what grows otherwise than it should."""
    print(
        "\n| step | kind | grows with n to the | memory | pays against sdpa from | against ours from |\n"
        + "|---" * 6
        + "|"
    )
    missed = []
    for step in STEPS:
        for name in EVERYBODY:
            if seconds := of(cells, step, name, "median_s"):
                row = summary(cells, step, name, seconds)
                print(f"| {step} | {name} | {' | '.join(row)} |")
                missed += missed_by(step, name, seconds)
    return missed


def by_length(cells, step, names, title):
    """The medians of some kinds, a column a length, and the memory at 8,192 tokens."""
    times = {name: seconds for name in names if (seconds := of(cells, step, name, "median_s"))}
    lengths = sorted({length for seconds in times.values() for length in seconds})
    if not lengths:
        return
    print(f"\n{step}, {title}, milliseconds\n")
    print(f"| kind | {' | '.join(f'{length:,}' for length in lengths)} | MB at {CHUNKED_AT:,} |")
    print("|---" * (len(lengths) + 2) + "|")
    for name, seconds in times.items():
        shown = [in_words(seconds[length]) if length in seconds else "" for length in lengths]
        held = of(cells, step, name, "extra_mb").get(CHUNKED_AT)
        print(f"| {name} | {' | '.join(shown)} | {'' if held is None else f'{held:.0f}'} |")


def in_words(seconds):
    """Three figures; from ten seconds on with their unit."""
    if seconds >= 10:
        return f"{seconds:.1f} s"
    return f"{seconds * 1e3:.1f}" if seconds < 0.1 else f"{seconds * 1e3:.0f}"


def of(cells, step, name, what):
    """A number of one contender at each length."""
    found = {cell["length"]: cell["contenders"].get(name) for cell in cells if cell["step"] == step}
    return {length: told[what] for length, told in found.items() if told is not None and what in told}


def power(values):
    """The fitted power of the longer lengths, or None where there are too few of them."""
    values = {length: value for length, value in values.items() if length >= FIT_FROM and value > 0}
    return fitted_exponent(values) if len(values) > 1 else None


def summary(cells, step, name, seconds):
    """Growth of time and memory, and the lengths from which on it pays."""
    powers = [power(seconds), power(of(cells, step, name, "extra_mb"))]
    row = ["" if p is None else f"{p:.2f}" for p in powers]
    for base in BASES[2:] if name in LAYERS else BASES[:2]:
        other = of(cells, step, base, "median_s")
        found = meeting_point({n: s / other[n] for n, s in seconds.items() if n in other})
        row.append("" if name == base else "not so far" if found is None else f"{found:,.0f}")
    return row


def missed_by(step, name, seconds):
    """Whether it grows faster, or slower, than it should."""
    low, high = GROWTH.get(name, (0.0, float("inf")))
    found = power(seconds)
    if found is not None and not low <= found <= high:
        yield f"{step}: {name} grows with n^{found:.2f}, which should lie between {low} and {high}"


def chunked(cells, step):
    """Whether chunked linear attention is as much faster as is aimed at."""
    ratio = of(cells, step, "linear", "ratio").get(CHUNKED_AT)
    if ratio is not None and ratio < CHUNKED:
        yield f"{step}: linear at {CHUNKED_AT} takes 1/{ratio:.2f} of the time of causal attention, not 1/{CHUNKED:g}"


if __name__ == "__main__":
    main()
