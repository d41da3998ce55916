"""The tables of `kernel.py`, as Markdown."""

from kernel_case import BF16, CASES, FP32

SHORT = {FP32: "fp32", BF16: "bf16"}
PEERS = ("onnxruntime", "openvino", "flex", "jax", "eager")
WORDS = """\
PyTorch multiplies with MKL, which withholds AVX-512 from processors that Intel did not make: on an AMD it runs AVX2
code in float32 and has no fast bfloat16. A processor whose AVX-512 units are twice as wide (Zen 5, most Intel servers)
has twice the peak; only where it is withheld from PyTorch (Zen 5) are ratios possible that others cannot reach, and the
aims are for such a one. `ceiling` is the most that is possible here. On an Intel processor with AVX-512 and AMX PyTorch
has both. There, from 512 tokens on, ours is 1.1 to 2.0 times as fast in float32, and dozens of times with a window; in
bfloat16 PyTorch's tiles take full attention in half the time of ours or less (head_dim 64 and more), and ours wins with
windows. "auto" takes ours only where a table says that it was measured to be faster on such a processor:
src/multihead/attend/winners.json. Not measured: Intel without AMX, Arm, more threads than in the table.
"""


def show(about, cells):
    for name, told in about.items():
        print(f"{name}: {told if isinstance(told, str) else ', '.join(f'{k} {v}' for k, v in told.items())}")
    order = {name: place for place, name in enumerate(CASES)}
    cells = sorted(cells, key=lambda c: (order[c["case"]], c["dtype"] == BF16))
    for threads in sorted({c["threads"] for c in cells} - {0}):
        here = [c for c in cells if c["threads"] == threads]
        clock = "CPU time" if threads == 1 else "wall time"
        for kind, title in (("forward", "Forward"), ("statistics", "Statistics"), ("gram", "Gram matrices of heads")):
            some = [c for c in here if CASES[c["case"]].kind == kind]
            if some:
                print(f"\n{title}, {threads} thread{'s' * (threads > 1)}, {clock}\n")
                (tell_forward if kind == "forward" else tell_passes)(some)
    tell_memory([c for c in cells if c["threads"] == 0])
    tell_absent(cells)
    print("\n" + WORDS)


def least_seconds(cell, case, flops):
    """What the products at the peak take, or reading keys and values once."""
    peak = cell["peak"]
    if not peak["flops"]:
        return None
    size = 4 if cell["dtype"] == FP32 else 2
    read = 2 * case.kv_heads * case.kv_len * case.dim * size / (peak["bytes"] * cell["threads"])
    return max(flops / (peak["flops"] * cell["threads"]), read)


def tell_forward(cells):
    print("| case | dtype | sdpa ms | ours ms | ratio | spread | aim | ceiling | GFLOP/s | of peak |", end="")
    print(" | ".join(["", *PEERS])[2:] + " |")
    print("|---" * (10 + len(PEERS)) + "|")
    for cell in cells:
        case = CASES[cell["case"]]
        print("| " + " | ".join([case.name, SHORT[cell["dtype"]], *forward_columns(cell, case)]) + " |")


def forward_columns(cell, case):
    told = cell.get("contenders")
    if told is None:
        return [cell["outcome"], *[""] * (7 + len(PEERS))]
    base, mine = told["sdpa"], told.get("ours")
    least = least_seconds(cell, case, case.flops)
    ceiling = f"{base['median_s'] / least:.1f}" if least else ""
    columns = [
        milliseconds(base),
        milliseconds(mine),
        ratio(mine),
        spread(mine),
        aim(case, cell),
        ceiling,
    ]
    if mine and case.queries > 1:
        rate = case.flops / mine["median_s"]
        peak = cell["peak"]["flops"] * cell["threads"]
        columns += [f"{rate / 1e9:.0f}", f"{rate / peak:.0%}" if peak else ""]
    else:
        columns += ["", ""]
    return columns + [ratio(told.get(name)) for name in PEERS]


def tell_passes(cells):
    """What looks at the weights again: its time over that of PyTorch's forward pass."""
    print("| case | dtype | sdpa ms | ours ms | over sdpa | aim | floor | each target | all, sink aside |")
    print("|---" * 9 + "|")
    for cell in cells:
        case, told = CASES[cell["case"]], cell.get("contenders", {})
        columns = pass_columns(cell, case, told) if "ours" in told else [cell["outcome"], *[""] * 6]
        print(f"| {case.name} | {SHORT[cell['dtype']]} | {' | '.join(columns)} |")


def pass_columns(cell, case, told):
    base, least = told["sdpa"]["median_s"], least_seconds(cell, case, case.flops)
    over = {name: 1 / one["ratio"] for name, one in told.items()}
    columns = [milliseconds(told["sdpa"]), milliseconds(told["ours"]), f"{over['ours']:.2f}"]
    columns += [f"{case.aims[cell['dtype']]:g}", f"{least / base:.2f}" if least else ""]
    if "8 targets" not in over:
        return [*columns, "", ""]
    return [*columns, f"+{(over['8 targets'] - over['ours']) / 8:.3f}", f"{over['all, sink aside']:.2f}"]


def aim(case, cell):
    wanted = case.aims.get(cell["dtype"])
    return "" if wanted is None else f"{wanted:g}"


def milliseconds(told):
    return "" if told is None else f"{told['median_s'] * 1e3:.4g}"


def ratio(told):
    return "" if told is None else f"{told['ratio']:.2f}"


def spread(told):
    return "" if told is None else f"{told['ratio_low']:.2f}-{told['ratio_high']:.2f}"


def tell_memory(cells):
    if cells:
        print("\nLargest memory during one call over that before it, output included, MB\n")
        print("| case | dtype | sdpa | ours |\n|---|---|---|---|")
    for cell in cells:
        found = cell.get("extra_mb", {})
        columns = [f"{found[name]:.0f}" if name in found else "" for name in ("sdpa", "ours")]
        print(f"| {cell['case']} | {SHORT[cell['dtype']]} | {' | '.join(columns)} |")


def tell_absent(cells):
    """Who did not take part and why, each reason once, and how far results are apart at most."""
    reasons, errors = {}, {}
    for cell in cells:
        for name, reason in cell.get("absent", {}).items():
            reasons.setdefault((name, reason), []).append(f"{cell['case']} {SHORT[cell['dtype']]}")
        for name, told in cell.get("contenders", {}).items() if CASES[cell["case"]].kind == "forward" else ():
            key = name, cell["dtype"]
            errors[key] = max(errors.get(key, 0.0), told["error"])
    for (name, reason), where in reasons.items():
        print(f"\n{name}, {', '.join(where) if len(where) < 6 else f'{len(where)} cells'}: {reason}")
    if errors:
        print("\nLargest difference from sdpa in float32 on the same numbers:", end=" ")
        print(", ".join(f"{name} {SHORT[dtype]} {error:.1e}" for (name, dtype), error in errors.items()))
