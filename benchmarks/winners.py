"""Where "auto" takes the compiled kernel: measures it against PyTorch's kernels and writes the table that it goes by.

The variant that this processor takes and the `sdpa` backend take turns on one call after another: dtypes, kinds of
mask, sizes of heads, lengths. One thread, CPU time; a ratio is the median over turns of the time of `sdpa` over ours.
Lesser variants are not forced: PyTorch would still use all of this processor, so that their ratios would be none of a
lesser processor. The rows of other processors and variants stay as they are.

    python benchmarks/winners.py --out src/multihead/attend/winners.json      some 10 minutes
    python benchmarks/winners.py --kinds decode --dtypes bfloat16             measures these, writes nothing
"""

import argparse
import itertools
import statistics
import time
from pathlib import Path

import torch
from apart import machine

from multihead.attend import attention
from multihead.attend.native import forced
from multihead.attend.table import KINDS, Row, packaged, processor_of, write_table
from multihead.native import load
from multihead.pattern import causal, sliding_window

DTYPES = ("float32", "bfloat16", "float16")
DIMS, LENGTHS = (16, 32, 64, 128, 256), (16, 64, 256, 1024, 2048)
HEADS = 8
TURNS, SAMPLE_S = 5, 0.005


def main():
    options = parse()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    library = load()
    if library is None:
        raise SystemExit("The compiled kernel is not built.")
    variant = library.best_variant().name.lower()
    rows = []
    for dtype, kind, dim in itertools.product(options.dtypes, options.kinds, options.dims):
        found = {length: ratio(dtype, kind, dim, length) for length in options.lengths}
        here = processor_of(library, getattr(torch, dtype))
        rows.append(
            Row(processor=here, variant=variant, dtype=dtype, kind=kind, head_dim=dim, heads=HEADS, ratios=found)
        )
        told = " ".join(f"{found[length]:.2f}" for length in options.lengths)
        print(f"{time.strftime('%H:%M:%S')}  {here} {variant} {dtype} {kind} {dim}: {told}", flush=True)
    if options.out:
        replaced = {(row.processor, row.variant) for row in rows}
        words = f"{machine()}, PyTorch {torch.__version__}, 1 thread"
        measured = packaged().measured | {f"{here} {variant}": words for here, variant in sorted(replaced)}
        others = [row for row in packaged().rows if (row.processor, row.variant) not in replaced]
        write_table(options.out, measured=measured, rows=[*others, *rows])


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=DTYPES)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--dims", nargs="+", type=int, default=DIMS)
    parser.add_argument("--lengths", nargs="+", type=int, default=LENGTHS)
    parser.add_argument("--out", type=Path, help="the file to write: the packaged table with what was measured here")
    options = parser.parse_args()
    if options.out and any(
        set(asked) != set(every)
        for asked, every in ((options.dtypes, DTYPES), (options.kinds, KINDS), (options.dims, DIMS))
    ):
        parser.error("--out needs all dtypes, kinds and dims")
    return options


def ratio(dtype, kind, dim, length):
    """The time of `sdpa` over ours."""
    queries = 1 if kind == "decode" else length
    q, k, v = (torch.randn(1, HEADS, size, dim).to(getattr(torch, dtype)) for size in (queries, length, length))
    mask = mask_of(kind, length)

    def rival():
        attention(q, k, v, mask=mask, backend="sdpa")

    def ours():
        with forced(threads=1):
            attention(q, k, v, mask=mask, backend="native")

    times = {run: max(1, round(SAMPLE_S / seconds(run, 2))) for run in (rival, ours)}
    return statistics.median(seconds(rival, times[rival]) / seconds(ours, times[ours]) for _ in range(TURNS))


def mask_of(kind, length):
    """A window of a quarter; of a mask that is none of these the worst: a tenth of the pairs shut, here and there."""
    if kind == "causal":
        return causal()
    if kind == "window":
        return sliding_window(length // 4)
    return torch.rand(length, length) > 0.1 if kind == "mask" else None


def seconds(run, times):
    start = time.thread_time()
    for _ in range(times):
        run()
    return (time.thread_time() - start) / times


if __name__ == "__main__":
    main()
