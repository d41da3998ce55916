"""Measuring some rows instead of all: do the intervals hold the exact values, and how much faster is it?

One document is read once; its calls are measured exactly, then many times from a sample of their query rows, each draw
with a seed of its own. For every statistic the table says in what share of draws the interval of a head holds that
head's exact value. Intervals that keep what they promise hold it in a share that lies, 95 times of 100, in the binomial
interval above the table. Draws are independent of each other and heads of one draw are not (they are looked at on the
same rows), so it is the one for the number of draws. A share below it is marked "low", one above it "high" (intervals
wider than they need be). `worst` is the head (or entry of an array) whose value was held least: of many, some lie below
by chance. Entries that had an interval in fewer than nine draws of ten are left out, and a head's likeness to itself;
`entries` says how many are not.
`width`: mean half width of the intervals over 1.96 standard deviations of the drawn values, of the median head; 1 is as
narrow as can be.

    python benchmarks/rows.py                                         a small random decoder, 2,048 tokens
    python benchmarks/rows.py --model smollm2 --text novel.txt --length 2048 --draws 200 --json build/rows.json
    python benchmarks/rows.py --model smollm2 --text novel.txt --length 8192 --draws 0 --rounds 3    speed alone

The JSON file is written after every ten draws; --resume goes on from it.
"""

import argparse
import json
import math
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import torch

from multihead.hooks import watching
from multihead.measure import DEFAULT, Batch, Run, observe
from multihead.measure.recorder import Recorder
from multihead.measure.sample import Sampler
from multihead.record import Document

# Statistics of outputs are of all rows and have no such interval.
WEIGHED = tuple(statistic for statistic in DEFAULT if not getattr(statistic, "outputs", False))

VOCAB, ROUNDING, SAVE_EVERY, KNOWN = 1000, 1e-5, 10, 0.9


def main():
    options = parse()
    torch.set_num_threads(1)
    model, batch, document = prepare(options)
    told = json.loads(options.json.read_text()) if options.resume and options.json.exists() else {}
    about = {
        "model": options.model,
        "document": document.name,
        "digest": document.digest,
        "tokens": document.tokens,
        "rows": options.rows,
        "level": options.level,
        "versions": {"torch": torch.__version__},
    }
    if told and told["about"] != about:
        sys.exit(f"{options.json} holds another run: {told['about']}")
    result = {"about": about, "draws": 0, "held": {}, "speed": None} | told
    print(", ".join(f"{name} {value}" for name, value in about.items() if name != "versions"), flush=True)

    def look(run=Run()):  # noqa: B008 - frozen
        return observe(model, [batch], documents=[document], run=run)

    if options.rounds and not result["speed"]:
        result["speed"] = speed(model, batch, look, options)
        save(options.json, result)
    tell_speed(result["speed"])
    if options.draws > result["draws"]:
        draw(keep_calls(model, batch), document, result, options)
    tell_coverage(result)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="random", help="a packaged name, a folder, or random (%(default)s)")
    parser.add_argument("--text", type=Path, help="the document; the first default text of the library where not given")
    parser.add_argument("--length", type=int, default=2048, help="tokens read of it (%(default)s)")
    parser.add_argument("--rows", type=int, default=512, help="query rows measured a layer (%(default)s)")
    parser.add_argument("--draws", type=int, default=200, help="draws; 0 for none (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds for the speed; 0 for none (%(default)s)")
    parser.add_argument("--level", type=float, default=0.95, help="level of the intervals (%(default)s)")
    parser.add_argument("--json", type=Path, default=Path("build/rows.json"))
    parser.add_argument("--resume", action="store_true", help="go on from the JSON file")
    return parser.parse_args()


def prepare(options):
    """A model, and one chunk of one document."""
    if options.model == "random":
        return random_model(options.length)
    from multihead.corpus import Text, default_texts
    from multihead.workflow import open_model
    from multihead.workflow.encode import encode_texts

    opened = open_model(options.model)
    given = options.text and Text(options.text.name, options.text.read_text(encoding="utf-8"))
    encoded = encode_texts(opened.model, opened.tokenizer, [given or default_texts()[0]], max_length=options.length)
    ids = encoded.batches[0].inputs
    document = Document(
        name=encoded.documents[0].name,
        digest=encoded.documents[0].digest,
        tokens=ids["input_ids"].shape[1],
    )
    return opened.model, Batch(inputs=ids, document=(0,)), document


def random_model(length):
    """A decoder whose heads differ; random tokens, of which a third repeats the first third."""
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=128,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=length,
        use_cache=False,
    )
    model = transformers.LlamaModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(4.0)
    ids = torch.randint(VOCAB, (1, length))
    ids[:, -(length // 3) :] = ids[:, : length // 3]
    document = Document(name="random tokens", digest="0" * 16, tokens=length)
    return model, Batch(inputs={"input_ids": ids}, document=(0,)), document


def seconds(run):
    """CPU seconds of this thread."""
    start = time.thread_time()
    run()
    return time.thread_time() - start


def speed(model, batch, look, options):
    """Forward pass, exact and sampled, one after another in each round; medians."""

    def plain():
        with torch.no_grad():
            model(**batch.inputs)

    runs = {"plain": plain, "exact": look, "sampled": lambda: look(Run(rows=options.rows))}
    taken = {name: [] for name in runs}
    for _ in range(options.rounds):
        for name, run in runs.items():
            taken[name].append(seconds(run))
    found = {name: statistics.median(times) for name, times in taken.items()}
    beyond = [
        (exact - plain) / max(sampled - plain, 1e-9) for plain, exact, sampled in zip(*taken.values(), strict=True)
    ]
    return found | {"cut": statistics.median(beyond), "cut_low": min(beyond), "cut_high": max(beyond)}


def keep_calls(model, batch):
    """The attention calls of one pass."""
    calls = []
    with torch.no_grad(), watching(model.eval(), calls.append):
        model(**batch.inputs)
    return calls


def measure(calls, document, sampler=None):
    """The record of calls that were kept, exactly or of some rows."""
    recorder = Recorder(DEFAULT if sampler is None else WEIGHED, sampler=sampler)
    for call in calls:
        recorder.take(call, (0,), key="draw")
    recorder.ledger.post()
    return recorder.record("model", [document], [0])


def draw(calls, document, result, options):
    """Count, for every statistic and head, in how many draws the interval holds the exact value."""
    exact = measure(calls, document)
    while result["draws"] < options.draws:
        record = measure(calls, document, Sampler(rows=options.rows, seed=result["draws"]))
        for name in sorted(record.sampling):
            count(record, exact, name, result["held"], options.level)
        result["draws"] += 1
        if result["draws"] % SAVE_EVERY == 0 or result["draws"] == options.draws:
            save(options.json, result)
            print(f"{time.strftime('%H:%M:%S')}  {result['draws']} of {options.draws} draws", flush=True)


def count(record, exact, name, told, level):
    """Add one draw to what is told of a statistic; of single numbers also the values and the half widths."""
    held, known = holds(record, exact, name, level)
    new = {"held": held.astype(int), "known": known.astype(int)}
    if not record.quantity(name).shape:
        low, high = record.sampling_interval(name, level=level)
        value = np.where(known, record.value(name), 0.0)
        new |= {"value": value, "square": value**2, "half": np.where(known, (high - low) / 2, 0.0)}
    have = told.get(name, {})
    told[name] = {key: (one + np.array(have.get(key, 0))).tolist() for key, one in new.items()}


def holds(record, exact, name, level):
    """For each entry (heads x shape, flat): whether the interval holds the exact value, and whether there is one."""
    low, high = record.sampling_interval(name, level=level)
    value = exact.value(name)
    # Sums in another order differ in the last digits.
    slack = ROUNDING * np.nanmax(np.abs(value), initial=0.0)
    known = np.isfinite(value) & np.isfinite(low) & np.isfinite(high)
    if record.quantity(name).pairs:
        # A head and itself: 1 by definition, and all that differs is rounding.
        known[np.arange(len(known)), [address.head for address in record.heads]] = False
    held = known & (low - slack <= value) & (value <= high + slack)
    return held.ravel(), known.ravel()


def save(path, result):
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(result) + "\n")
    part.replace(path)


def tell_speed(told):
    if told:
        print(
            f"CPU s: forward {told['plain']:.2f}, exact {told['exact']:.2f}, sampled {told['sampled']:.2f}; the time "
            f"beyond the forward is cut {told['cut']:.1f} times ({told['cut_low']:.1f} to {told['cut_high']:.1f})"
        )


def tell_coverage(result):
    draws, level = result["draws"], result["about"]["level"]
    if not draws:
        return
    low, high = binomial_interval(draws, level)
    print(f"\n{draws} draws, intervals of {level:.0%}: expected {low:.3f} to {high:.3f}")
    print("\n| statistic | held | | worst | width | entries |\n|---|---|---|---|---|---|")
    for name, counts in result["held"].items():
        pairs = list(zip(counts["held"], counts["known"], strict=True))
        shares = [held / known for held, known in pairs if known >= KNOWN * draws]
        if not shares:
            print(f"| {name} | | | | | 0 of {len(pairs)} |")
            continue
        mean = statistics.fmean(shares)
        mark = "low" if mean < low else "high" if mean > high else ""
        entries = f"{len(shares)} of {len(pairs)}"
        print(f"| {name} | {mean:.3f} | {mark} | {min(shares):.3f} | {width_of(counts)} | {entries} |")


def width_of(counts):
    """Mean half width over 1.96 standard deviations of the drawn values, of the median head."""
    if "half" not in counts:
        return ""
    known, value, square, half = (np.array(counts[key]) for key in ("known", "value", "square", "half"))
    some = known > 1
    mean = value[some] / known[some]
    deviation = np.sqrt(np.maximum(square[some] / known[some] - mean**2, 0.0))
    sure = deviation > ROUNDING * np.abs(mean)
    if not sure.any():
        return ""
    return f"{np.median(half[some][sure] / known[some][sure] / 1.96 / deviation[sure]):.2f}"


def binomial_interval(draws, share):
    """The central 95 % of a binomial count, as shares."""
    chances = [math.comb(draws, k) * share**k * (1 - share) ** (draws - k) for k in range(draws + 1)]
    sums = np.cumsum(chances)
    return int(np.searchsorted(sums, 0.025)) / draws, int(np.searchsorted(sums, 0.975)) / draws


if __name__ == "__main__":
    main()
