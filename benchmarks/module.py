"""Our module against `nn.MultiheadAttention`, transformers' layers and x-transformers, in time and memory.

A layer of width 512 with 8 heads of 64 and its four projections, the same weights in all. Every cell of the table (a
case, a step, a dtype, a batch, a length) runs in a process of its own, in which everybody takes turns, round by round.
Times are CPU seconds of one thread, which a busy machine moves little; a ratio is the median over rounds of the other's
time over ours, so 1.10 says that ours takes 10 % less than the other; in brackets the middle four fifths of rounds.
Memory is the largest resident memory of a step over what was there before.

    self     every token sees all       ours, nn.MultiheadAttention, BERT's layer under sdpa, x-transformers with flash
    causal   itself and those before    ours, nn.MultiheadAttention, x-transformers with flash
    llama    causal, rotary positions, two key/value heads      ours, Llama's layer under sdpa
    mixed    two heads of 128 and four of 64                    ours, and ours with eight heads of 64

`infer` is a forward pass without gradients, `train` a forward and a backward pass, gradients of the input included.
`ours fused` is the same module after `fuse()`.

    python benchmarks/module.py --make-peers build/module-peers          everything; installs x-transformers
    python benchmarks/module.py --quick                                  short inputs, one second of rounds a cell
    python benchmarks/module.py --cases llama --steps train --lengths 512 2048 --batches 1
    python benchmarks/module.py --show                                   the table of the JSON file
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

import peers
from apart import in_process, machine, save, versions
from module_layers import CASES, FUSED

import multihead

PACKAGES = ("multihead", "torch", "transformers")
PINS = ("x-transformers==2.31.10",)
NEEDED = ("einops>=0.8.0", "einx>=0.3.0", "loguru", "torch-einops-utils>=0.1.41")
HERE = Path(__file__).parent
STEPS, DTYPES, LENGTHS, BATCHES = (
    ("infer", "train"),
    ("float32", "bfloat16"),
    (128, 512, 1024, 2048, 4096, 8192),
    (1, 8),
)
MOST_TOKENS = 16384
"""Of a batch: beyond it a round takes minutes."""
SPEED, MEMORY, MIXED = 0.97, 1.03, 1.05
"""What is aimed at: ratio at least, memory over that of peers with fused attention at most, mixed over equal heads."""
SMALL_MB = 0.25
"""Difference in memory that is none."""


def main():
    options = parse()
    python = peers.make(options.make_peers.absolute(), NEEDED, PINS) if options.make_peers else options.python
    told = json.loads(options.json.read_text()) if (options.resume or options.show) and options.json.exists() else {}
    cells = {key_of(cell): cell for cell in told.get("cells", []) if options.show or cell["outcome"] == "done"}
    if options.show:
        show(told.get("about", {}), list(cells.values()))
        return
    about = {
        "machine": machine(),
        "limits": "1 thread, CPU time",
        "versions": versions(PACKAGES) | dict(pin.split("==") for pin in PINS),
    }
    wanted = [key for key in cells_of(options) if key not in cells]
    for number, key in enumerate(wanted):
        print(f"{time.strftime('%H:%M:%S')}  {number + 1}/{len(wanted)}  {' '.join(map(str, key))} ... ", end="")
        sys.stdout.flush()
        cells[key] = run(key, python, options)
        print(brief(cells[key]), flush=True)
        save(options.json, about, cells)
    show(about, list(cells.values()))


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=list(STEPS))
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES), help="bfloat16 in inference only")
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS))
    parser.add_argument("--batches", type=int, nargs="+", default=list(BATCHES), help="as far as 16,384 tokens")
    parser.add_argument("--quick", action="store_true", help="lengths 128 and 512, batch 1, 1 second of rounds a cell")
    parser.add_argument("--round-seconds", type=float, default=10.0, help="of rounds a cell, 5 rounds at least (10)")
    parser.add_argument("--seconds", type=float, default=1800.0, help="a process may take (1800)")
    parser.add_argument("--memory", type=float, default=9.0, help="GB a process may take (9)")
    parser.add_argument("--python", type=Path, default=Path(sys.executable), help="an interpreter that has the peers")
    parser.add_argument("--make-peers", type=Path, metavar="FOLDER", help="make an environment for them, and use it")
    parser.add_argument("--json", type=Path, default=Path("build/module.json"))
    parser.add_argument("--resume", action="store_true", help="leave out cells that the JSON file holds")
    parser.add_argument("--show", action="store_true", help="print the table of the JSON file and stop")
    options = parser.parse_args()
    if options.quick:
        options.lengths, options.batches, options.round_seconds = [128, 512], [1], 1.0
    return options


def cells_of(options):
    """What is to be run: (case, step, dtype, batch, length)."""
    for case in options.cases:
        for step in options.steps:
            for dtype in options.dtypes if step == "infer" else [d for d in options.dtypes if d == "float32"]:
                for batch in options.batches:
                    for length in options.lengths:
                        if batch * length <= MOST_TOKENS:
                            yield case, step, dtype, batch, length


def key_of(cell):
    return cell["case"], cell["step"], cell["dtype"], cell["batch"], cell["length"]


def run(key, python, options):
    words = dict(zip(("--case", "--step", "--dtype", "--batch", "--length"), key, strict=True))
    words["--seconds"] = options.round_seconds
    command = [python, HERE / "module_cell.py", *(word for pair in words.items() for word in pair)]
    # The package of this checkout, whatever that interpreter has.
    path = [str(Path(multihead.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    result = in_process(command, options, PYTHONPATH=os.pathsep.join(path), OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1")
    return dict(zip(("case", "step", "dtype", "batch", "length"), key, strict=True)) | result


def brief(cell):
    if "contenders" not in cell:
        return cell["outcome"]
    return ", ".join(f"{name} {told['median_s'] * 1e3:.2f} ms" for name, told in cell["contenders"].items())


def show(about, cells):
    """The table, as Markdown, and where an aim was missed."""
    for name, told in about.items():
        print(f"{name}: {told if isinstance(told, str) else ', '.join(f'{k} {v}' for k, v in told.items())}")
    print("\n| case | step | dtype | batch | length | layer | ms | its time over ours | MB |\n" + "|---" * 9 + "|")
    missed = []
    for cell in cells:
        head = " | ".join(map(str, key_of(cell)))
        for name, told in cell.get("contenders", {}).items():
            spread = f"{told['ratio']:.2f} ({told['ratio_low']:.2f} to {told['ratio_high']:.2f})"
            shown = "" if name == "ours" else spread
            print(f"| {head} | {name} | {told['median_s'] * 1e3:.2f} | {shown} | {told['extra_mb']:.1f} |")
            missed += [f"{head}: {word}" for word in missed_by(name, told, cell)]
        for name, reason in cell.get("absent", {}).items():
            print(f"| {head} | {name} | {reason} | | |")
        if "contenders" not in cell:
            print(f"| {head} | | {cell['outcome']} | | |")
    print(f"\n{len(missed)} below the aim" + "".join(f"\n- {line}" for line in missed))


def missed_by(name, told, cell):
    """What was aimed at and not reached against one contender."""
    ours = min(cell["contenders"][own]["extra_mb"] for own in ("ours", "ours fused") if own in cell["contenders"])
    least = 1 / MIXED if cell["case"] == "mixed" else SPEED
    if name in FUSED and told["ratio"] < least:
        yield f"{name} takes {told['ratio']:.3f} of our time"
    if name in FUSED and cell["case"] != "mixed" and ours > MEMORY * told["extra_mb"] + SMALL_MB:
        yield f"memory {ours:.1f} MB, {name} {told['extra_mb']:.1f} MB"


if __name__ == "__main__":
    main()
