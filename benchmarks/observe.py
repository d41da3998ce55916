"""What a checkup costs: plain sdpa forward against the same forward observed with every statistic.

Random 12 x 12 encoder (BERT) and grouped decoder (Llama, 12 heads on 4), one thread, fp32. The two are interleaved
within one process; medians with the spread of the ratio. Speed is a table to read, never an assertion.

    python benchmarks/observe.py --lengths 128 512 2048 --rounds 5 --json build/observe.json
"""

import argparse
import json
import platform
import resource
import statistics
import time
from pathlib import Path

import torch
import transformers

from multihead.measure import Batch, observe
from multihead.record import Document


def encoder(length):
    config = transformers.BertConfig(vocab_size=1000, max_position_embeddings=length, attn_implementation="sdpa")
    return transformers.BertModel(config)


def decoder(length):
    config = transformers.LlamaConfig(
        vocab_size=1000,
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=12,
        num_attention_heads=12,
        num_key_value_heads=4,
        max_position_embeddings=length,
        attn_implementation="sdpa",
    )
    return transformers.LlamaModel(config)


def seconds(run):
    """CPU seconds of this thread: the wall clock of a shared machine says little."""
    start = time.thread_time()
    run()
    return time.thread_time() - start


def measure(build, length, rounds):
    torch.manual_seed(0)
    model = build(length).eval()
    ids = torch.randint(5, 1000, (1, length))
    batch = Batch(inputs={"input_ids": ids}, document=(0,))
    document = Document(name="random", digest="0" * 16, tokens=length)

    def plain():
        with torch.no_grad():
            model(input_ids=ids)

    def observed():
        observe(model, [batch], documents=[document])

    plain()
    observed()
    pairs = [(seconds(plain), seconds(observed)) for _ in range(rounds)]
    ratios = sorted(b / a for a, b in pairs)
    return {
        "length": length,
        "plain_s": statistics.median(a for a, _ in pairs),
        "observed_s": statistics.median(b for _, b in pairs),
        "ratio": statistics.median(ratios),
        "ratio_low": ratios[0],
        "ratio_high": ratios[-1],
        "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 512, 2048])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, default=Path("build/observe.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    about = f"torch {torch.__version__}, transformers {transformers.__version__}, {platform.machine()}, 1 thread, fp32"
    print(about)
    print(f"{'model':8} {'length':>7} {'plain s':>9} {'observed s':>11} {'ratio':>7} {'spread':>13} {'peak GB':>8}")
    rows = []
    for name, build in (("BERT", encoder), ("Llama", decoder)):
        for length in options.lengths:
            row = {"model": name} | measure(build, length, options.rounds)
            rows.append(row)
            print(
                f"{name:8} {length:7} {row['plain_s']:9.3f} {row['observed_s']:11.3f} {row['ratio']:7.2f} "
                f"{row['ratio_low']:6.2f}-{row['ratio_high']:<6.2f} {row['peak_gb']:8.2f}",
                flush=True,
            )
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
