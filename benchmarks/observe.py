"""What looking at every head costs: time, peak memory and size of the page, beside other tools.

Two random models of 12 layers and 12 heads, width 768, fp32, one input, one thread: an encoder (BERT) and a decoder
with grouped heads (Llama, 12 on 4). Every cell of the table (a tool, a model, a length) runs in a process of its own
under a limit of memory and time; running out is a result.

    plain sdpa               the forward pass alone
    ours                     `observe` with every default statistic and the classes of tokens, then the page; weights
                             are measured by the compiled kernel where it was built
    ours, in torch           the same by the sweep in torch
    ours, rows=512           the same from 512 query rows a layer
    output_attentions        transformers' own way, eager, and the same statistics from the matrices in plain torch
    BertViz head_view, BertViz model_view, inspectus, CircuitsVis (one layer)
                             output_attentions, then their page

Times are CPU seconds of one thread, medians of the rounds. `ours` alternates with the plain forward in one process, and
`x plain` is the median ratio of its rounds with the lowest and highest; for the others it is their time over that of
the plain cell, the page left out. `+GB` is the peak memory over that of the plain cell.

    python benchmarks/observe.py                                        ours and output_attentions
    python benchmarks/observe.py --make-peers build/peers               the other tools too, in an environment it makes
    python benchmarks/observe.py --peers build/peers/bin/python --lengths 128 512 --resume
    python benchmarks/observe.py --tools "plain sdpa" ours --lengths 8192 --rounds 3

The JSON file is written after every cell; --resume leaves out those it holds, --show prints it and runs nothing.
"""

import argparse
import json
import re
import sys
import time
from pathlib import Path

import peers
from apart import in_process, machine, save, versions
from cell import MODELS, TOOLS

PLAIN, MATRICES = "plain sdpa", "output_attentions"
PACKAGES = ("multihead", "torch", "transformers", "numpy")
HERE = Path(__file__).parent
FINAL = re.compile(r"done|(not run: )?out of")
"""Outcomes that another run would not change."""


def main():
    options = parse()
    python = peers.make(options.make_peers.absolute()) if options.make_peers else options.peers
    told = json.loads(options.json.read_text()) if (options.resume or options.show) and options.json.exists() else {}
    cells = {key_of(cell): cell for cell in told.get("cells", []) if options.show or FINAL.match(cell["outcome"])}
    if options.show:
        show(told.get("about", {}), list(cells.values()))
        return
    about = describe(python, options)
    for model in options.models:
        for length in options.lengths:
            for tool in options.tools:
                cell = {"tool": tool, "model": model, "length": length}
                if key_of(cell) in cells or (tool in peers.PAGES and not python):
                    continue
                cells[key_of(cell)] = cell | run(cell, cells, python, options)
                save(options.json, about, cells)
    show(about, list(cells.values()))


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 512, 2048, 8192])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=list(TOOLS), metavar="TOOL", help="see above")
    parser.add_argument("--rounds", type=int, help="rounds a cell; fewer on longer input where not given")
    parser.add_argument("--memory", type=float, default=9.0, help="GB a process may take (%(default)s)")
    parser.add_argument("--seconds", type=float, default=1200.0, help="seconds a process may take (%(default)s)")
    parser.add_argument("--peers", type=Path, metavar="PYTHON", help="an interpreter that has the other tools")
    parser.add_argument("--make-peers", type=Path, metavar="FOLDER", help="make an environment for them, and use it")
    parser.add_argument("--json", type=Path, default=Path("build/observe.json"))
    parser.add_argument("--resume", action="store_true", help="leave out cells that the JSON file holds")
    parser.add_argument("--show", action="store_true", help="print the table of the JSON file and stop")
    return parser.parse_args()


def key_of(cell):
    return cell["tool"], cell["model"], cell["length"]


def describe(python, options):
    """The machine and the versions."""
    return {
        "machine": machine(),
        "limits": f"1 thread, fp32, {options.memory:g} GB and {options.seconds:g} s a process",
        "versions": versions(PACKAGES) | (peers.versions(python) if python else {}),
    }


def run(cell, cells, python, options):
    """One cell; what ran out of memory or time on a shorter input is not tried again."""
    tool, model, length = key_of(cell)
    shorter = [c for c in cells.values() if key_of(c)[:2] == (tool, model) and c["length"] < length]
    failed = [c for c in shorter if c["outcome"].startswith("out of")]
    print(f"{time.strftime('%H:%M:%S')}  {tool}, {model}, {length} ... ", end="", flush=True)
    if failed:
        result = {"outcome": f"not run: {failed[0]['outcome']} at {failed[0]['length']} already"}
    else:
        rounds = options.rounds or max(2, min(9, 8192 // length))
        interpreter = python if tool in peers.PAGES else sys.executable
        asked = {"--tool": tool, "--model": model, "--length": length, "--rounds": rounds, "--memory": options.memory}
        words = [word for pair in asked.items() for word in pair]
        result = in_process([interpreter, HERE / "cell.py", *words], options)
        result |= {"rounds": 1 if tool in peers.PAGES else rounds}
    print(result["outcome"], f"{result['cpu_s']:.2f} s" if "cpu_s" in result else "", flush=True)
    return result


def show(about, cells):
    """The table, as Markdown."""
    for name, told in about.items():
        print(f"{name}: {told if isinstance(told, str) else ', '.join(f'{k} {v}' for k, v in told.items())}")
    print("\n| model | length | tool | CPU s | x plain | peak GB | +GB | page s | page |\n" + "|---" * 9 + "|")
    have = {key_of(cell): cell for cell in cells}
    for cell in sorted(
        cells, key=lambda c: (list(MODELS).index(c["model"]), c["length"], list(TOOLS).index(c["tool"]))
    ):
        plain = have.get((PLAIN, cell["model"], cell["length"]), {})
        print(f"| {cell['model']} | {cell['length']} | {cell['tool']} | {' | '.join(columns(cell, plain))} |")
    print()
    tell_statistics(have)


def columns(cell, plain):
    if cell["outcome"] != "done":
        return [cell["outcome"], "", "", "", "", ""]
    ratio = ""
    if "ratio" in cell:
        ratio = f"{cell['ratio']:.2f} ({cell['ratio_low']:.2f} to {cell['ratio_high']:.2f})"
    elif "cpu_s" in plain and cell["tool"] != PLAIN:
        ratio = f"{cell['cpu_s'] / plain['cpu_s']:.2f}"
    more = f"{cell['peak_gb'] - plain['peak_gb']:+.2f}" if "peak_gb" in plain and cell["tool"] != PLAIN else ""
    page_s = f"{cell['page_s']:.2f}" if "page_s" in cell else ""
    page = size(cell["page_bytes"]) if "page_bytes" in cell else ""
    return [f"{cell['cpu_s']:.2f}", ratio, f"{cell['peak_gb']:.2f}", more, page_s, page]


def size(count):
    return (
        f"{count / 1e9:.2f} GB"
        if count >= 1e9
        else f"{count / 1e6:.1f} MB"
        if count >= 1e6
        else f"{count / 1e3:.0f} kB"
    )


def tell_statistics(have):
    """Which statistics each list holds, and how far the two ways differ where both give a number."""
    for tool in TOOLS:
        named = [cell["statistics"] for key, cell in have.items() if key[0] == tool and "statistics" in cell]
        if named:
            print(f"{tool}: {len(named[-1])} statistics: {', '.join(named[-1])}")
    worst = {}
    for (tool, model, length), cell in have.items():
        ours = have.get(("ours", model, length), {}).get("values", {})
        if tool == MATRICES and "values" in cell:
            for name in ours.keys() & cell["values"].keys():
                worst[name] = max(worst.get(name, 0.0), difference(ours[name], cell["values"][name]))
    if worst:
        name = max(worst, key=worst.get)
        far = f"largest relative difference {worst[name]:.1e} ({name})"
        print(f"Ours against the matrices, {len(worst)} numbers a head: {far}")


def difference(ours, theirs):
    """Largest difference of any head, relative to the largest value; heads without a value are left out."""
    pairs = [(a, b) for a, b in zip(ours, theirs, strict=True) if a == a]  # NaN is not equal to itself
    return max((abs(a - b) for a, b in pairs), default=0.0) / max((abs(a) for a, _ in pairs), default=1.0)


if __name__ == "__main__":
    main()
