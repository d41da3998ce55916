"""Whole models under our attention and under PyTorch's: `attn_implementation="multihead"` against `"sdpa"`.

    smollm2 prefill    SmolLM2 (30 layers, 9 heads on 3) reads a text of 512, 2048 or 8192 tokens, the last logits asked
    smollm2 decode     one token more after 2048
    minilm             MiniLM (6 layers, 12 heads) reads 32 texts of 128 tokens, whole and padded to unequal lengths

One model in one process; the two take turns, and a ratio is the median over rounds of PyTorch's time over ours (above
1: ours is faster). One thread: CPU time. What they give is compared before: in float32 logits must agree to 1e-3 of the
largest, in bfloat16 ours may be no farther from float32's logits than 1.25 times PyTorch's (a program that fails this
stops here). Attention is a part of the whole: `attention` is its share of PyTorch's time.

    python benchmarks/end_to_end.py
    python benchmarks/end_to_end.py --cases prefill-512 decode-2048 --dtypes bfloat16 --rounds 5
"""

import argparse
import json
import statistics
import time
from collections import Counter
from pathlib import Path

import torch
from apart import machine, save, versions
from torch.nn import functional

from multihead.attend import attention_lse
from multihead.corpus import default_texts
from multihead.interop import register, register_transformers
from multihead.workflow import open_model

CASES = ("prefill-512", "prefill-2048", "prefill-8192", "decode-2048", "minilm", "minilm-padded")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
PACKAGES = ("multihead", "torch", "transformers")
KERNELS = ("sdpa", "multihead")
BATCH, LENGTH, SHORTEST = 32, 128, 16
WITHIN, FARTHER = 1e-3, 1.25


def main():
    options = parse()
    torch.set_num_threads(options.threads)
    torch.set_grad_enabled(False)
    register_transformers()
    about = {"machine": machine(), "threads": options.threads, "versions": versions(PACKAGES)}
    cells = {}
    for name in ("smollm2", "minilm"):
        cases = [case for case in options.cases if case.startswith("minilm") == (name == "minilm")]
        if not cases:
            continue
        opened = open_model(name)
        ids = tokens_of(opened)
        for dtype in options.dtypes:
            model = opened.model.to(DTYPES[dtype])
            for case in cases:
                run = prepared(case, model, ids)
                # What float32 gives is kept for bfloat16, which comes after it.
                cell = cells.get((case, "float32"), {})
                cells[case, dtype] = measure(case, model, run, cell.get("logits"), options)
                print(line(case, dtype, cells[case, dtype]), flush=True)
    told = {key: {"case": key[0], "dtype": key[1]} | without_logits(cell) for key, cell in cells.items()}
    save(options.json, about, told)
    show(about, told)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, help="fewer of what is slow where not given")
    parser.add_argument("--seconds", type=float, default=60.0, help="of rounds a case, 3 rounds at least (60)")
    parser.add_argument("--json", type=Path, default=Path("build/end_to_end.json"))
    return parser.parse_args()


def tokens_of(opened):
    """A text of at least 8192 tokens: the default texts one after another, from the start again where they end."""
    text = "\n".join(text.content for text in default_texts())
    ids = opened.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    return torch.tensor((ids * (8193 // len(ids) + 1))[:8193])


def prepared(case, model, ids):
    """A call of the model, which gives logits, or hidden states where it has none."""
    kind, _, length = case.partition("-")
    if kind == "prefill":
        given = ids[None, : int(length)]
        return lambda: model(input_ids=given, logits_to_keep=1).logits
    if kind == "decode":
        return decoding(model, ids, int(length))
    lengths = torch.linspace(SHORTEST, LENGTH, BATCH).long() if length else torch.full((BATCH,), LENGTH)
    seen = torch.arange(LENGTH) < lengths[:, None]
    given = ids[: BATCH * LENGTH].view(BATCH, LENGTH) * seen
    return lambda: model(input_ids=given, attention_mask=seen.long()).last_hidden_state[seen]


def decoding(model, ids, length):
    """One token after `length` others, which are forgotten after each call."""
    cache = model(input_ids=ids[None, :length], logits_to_keep=1).past_key_values

    def run():
        logits = model(input_ids=ids[None, length : length + 1], cache=cache).logits
        cache.crop(-1)
        return logits

    return run


def measure(case, model, run, exact, options):
    """Compare what both give, then time them in turns."""
    logits, times, backends = {}, {}, Counter()
    for kernel in KERNELS:
        model.set_attn_implementation(kernel)
        with noting(backends):
            logits[kernel] = run().float()
        times[kernel] = [seconds(run, options.threads)]
    off = agreed(case, logits, exact)
    repeat = max(1, round(0.05 / times["sdpa"][0]))
    rounds = options.rounds or min(31, max(3, int(options.seconds / (repeat * sum(t[0] for t in times.values())))))
    times = {kernel: [] for kernel in KERNELS}
    for _ in range(rounds):
        for kernel in KERNELS:
            model.set_attn_implementation(kernel)
            times[kernel].append(statistics.fmean(seconds(run, options.threads) for _ in range(repeat)))
    ratios = sorted(a / b for a, b in zip(times["sdpa"], times["multihead"], strict=True))
    return {
        "rounds": rounds,
        "backends": dict(backends),
        "median_s": {kernel: statistics.median(taken) for kernel, taken in times.items()},
        "ratio": statistics.median(ratios),
        "ratio_low": ratios[0],
        "ratio_high": ratios[-1],
        "attention": share_of_attention(model, run),
        "off": off,
        "logits": logits["sdpa"],
    }


class noting:  # noqa: N801 - reads as a verb
    """Count which backend runs each of our calls meanwhile."""

    def __init__(self, backends):
        self.backends = backends

    def __enter__(self):
        self.before = register.attention

        def noted(*tensors, **told):
            attended = attention_lse(*tensors, **told)
            self.backends[attended.backend] += 1
            return attended.out

        register.attention = noted

    def __exit__(self, *fault):
        register.attention = self.before


def agreed(case, logits, exact):
    """How far they are apart, as a share of the largest; stops the program where that is too much."""
    most = float(logits["sdpa"].abs().max())
    apart = float((logits["sdpa"] - logits["multihead"]).abs().max()) / most
    if exact is None:
        assert apart <= WITHIN, f"{case}: logits differ by {apart:.1e} of the largest"
        return {"apart": apart}
    away = {kernel: float((logits[kernel] - exact).square().mean().sqrt()) / most for kernel in KERNELS}
    assert away["multihead"] <= FARTHER * away["sdpa"], f"{case}: from float32: {away}"
    return {"apart": apart, "from_float32": away}


def seconds(run, threads):
    clock = time.process_time if threads == 1 else time.perf_counter
    start = clock()
    run()
    return clock() - start


def share_of_attention(model, run):
    """Of PyTorch's time, the part inside its attention function."""
    model.set_attn_implementation("sdpa")
    taken, kernel = [], functional.scaled_dot_product_attention

    def timed(*tensors, **told):
        start = time.perf_counter()
        found = kernel(*tensors, **told)
        taken.append(time.perf_counter() - start)
        return found

    functional.scaled_dot_product_attention = timed
    try:
        whole = seconds(run, 2)
    finally:
        functional.scaled_dot_product_attention = kernel
    return sum(taken) / whole


def without_logits(cell):
    return {name: value for name, value in cell.items() if name != "logits"}


def line(case, dtype, cell):
    sdpa, ours = (cell["median_s"][kernel] * 1e3 for kernel in KERNELS)
    spread = f"{cell['ratio_low']:.2f} to {cell['ratio_high']:.2f}, {cell['rounds']} rounds"
    backends = ", ".join(f"{name} x{count}" for name, count in cell["backends"].items())
    return f"{case} {dtype}: sdpa {sdpa:.1f} ms, ours {ours:.1f} ms, ratio {cell['ratio']:.3f} ({spread}); {backends}"


def show(about, cells):
    print("\n" + json.dumps(about) + "\n")
    print("| case | dtype | sdpa ms | ours ms | ratio | spread | attention | apart | backend |\n" + "|---" * 9 + "|")
    for (case, dtype), cell in cells.items():
        sdpa, ours = (f"{cell['median_s'][kernel] * 1e3:.4g}" for kernel in KERNELS)
        numbers = f"{cell['ratio']:.2f} | {cell['ratio_low']:.2f}-{cell['ratio_high']:.2f} | {cell['attention']:.0%}"
        backends = ", ".join(cell["backends"])
        print(f"| {case} | {dtype} | {sdpa} | {ours} | {numbers} | {cell['off']['apart']:.1e} | {backends} |")


if __name__ == "__main__":
    main()
