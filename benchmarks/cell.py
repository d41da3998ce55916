"""One cell of `observe.py`: one tool, one model, one length, in a process of its own. Prints one line of JSON.

python benchmarks/cell.py --tool ours --model BERT --length 512 --rounds 5 --memory 9
"""

import argparse
import json
import re
import resource
import statistics
import time
from pathlib import Path

import torch
import transformers

VOCAB, SPECIAL, CLASSES = 1000, 5, 7
ROWS = 512


def encoder(length):
    return transformers.BertModel, transformers.BertConfig(vocab_size=VOCAB, max_position_embeddings=max(length, 128))


def decoder(length):
    return transformers.LlamaModel, transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=12,
        num_attention_heads=12,
        num_key_value_heads=4,
        max_position_embeddings=max(length, 128),
        use_cache=False,
    )


MODELS = {"BERT": encoder, "Llama": decoder}


class Setting:
    """A random model and an input: the same in every process."""

    def __init__(self, options, kernel):
        torch.manual_seed(0)
        kind, config = MODELS[options.model](options.length)
        config._attn_implementation = kernel
        self.name, self.length, self.rounds = options.model, options.length, options.rounds
        self.model = kind(config).eval()
        # Larger than at the start of training, so that heads differ and rows are not all alike.
        with torch.no_grad():
            for parameter in self.model.parameters():
                if parameter.ndim == 2:
                    parameter.mul_(2.0)
        self.ids = torch.randint(SPECIAL, VOCAB, (1, options.length))
        self.ids[0, 0] = 1
        self.classes = torch.randint(1, CLASSES, (VOCAB,))
        self.classes[:SPECIAL] = 0
        self.special = torch.arange(VOCAB) < SPECIAL

    def forward(self, ids=None, **options):
        with torch.no_grad():
            return self.model(input_ids=self.ids if ids is None else ids, **options)


def timed(run):
    """CPU seconds of this thread (the wall clock of a shared machine says little), wall seconds, and the result."""
    cpu, wall = time.thread_time(), time.perf_counter()
    result = run()
    return time.thread_time() - cpu, time.perf_counter() - wall, result


def median(pairs):
    return {"cpu_s": statistics.median(p[0] for p in pairs), "wall_s": statistics.median(p[1] for p in pairs)}


def rounded(values):
    return [float(f"{value:.7g}") for value in values]


def plain(options):
    setting = Setting(options, "sdpa")
    setting.forward()
    return median([timed(setting.forward)[:2] for _ in range(setting.rounds)])


def ours(options, **measured):
    from multihead.corpus import CLASSES as NAMES
    from multihead.corpus import TokenClasses
    from multihead.measure import Batch, observe
    from multihead.record import Document

    setting = Setting(options, "sdpa")
    document = Document(name="random", digest="0" * 16, tokens=setting.length)
    classes = TokenClasses(names=NAMES, table=setting.classes, special=setting.special, marks="")

    def observed(ids=setting.ids):
        batch = Batch(inputs={"input_ids": ids}, document=(0,))
        return observe(setting.model, [batch], documents=[document], classes=classes, **measured)

    observed(setting.ids[:, :64])
    setting.forward()
    pairs = [(timed(setting.forward)[:2], timed(observed)) for _ in range(setting.rounds)]
    record = pairs[-1][1][2]
    ratios = sorted(b[0] / a[0] for a, b in pairs)
    page_s, _, page = timed(lambda: our_page(setting, record))
    names = [q.name for q in record.quantities]
    return median([b for _, b in pairs]) | {
        "plain_cpu_s": statistics.median(a[0] for a, _ in pairs),
        "ratio": statistics.median(ratios),
        "ratio_low": ratios[0],
        "ratio_high": ratios[-1],
        "page_s": page_s,
        "page_bytes": len(page.encode()),
        "statistics": names,
        "values": {name: rounded(record.value(name).tolist()) for name in names if record.quantity(name).shape == ()},
    }


def ours_rows(options):
    from multihead.measure import Run

    return ours(options, run=Run(rows=ROWS))


def ours_in_torch(options):
    """By the sweep in torch, which runs everywhere; `ours` takes the compiled kernel where there is one."""
    from multihead.measure import Run

    return ours(options, run=Run(backend="torch"))


def our_page(setting, record):
    from multihead.record import CheckupRecord, ModelFacts
    from multihead.report import render_page

    facts = ModelFacts(
        name=setting.name,
        architecture=type(setting.model).__name__,
        parameters=sum(p.numel() for p in setting.model.parameters()),
        causal=setting.name == "Llama",
        max_length=setting.length,
        special_tokens=("[CLS]",),
    )
    return render_page(
        CheckupRecord(model=facts, texts=record, repeats=None, created="2026-01-01T00:00:00Z", versions={}, settings={})
    )


def from_matrices(options):
    from matrices import Matrices

    setting = Setting(options, "eager")

    def described(ids):
        layers = list(setting.forward(ids, output_attentions=True).attentions)
        shared = Matrices(ids[0], setting.classes, setting.special, causal=setting.name == "Llama")
        found = []
        while layers:  # each matrix is let go once it was read
            found.append(shared.describe(layers.pop(0)[0]))
        return {name: torch.stack([layer[name] for layer in found]) for name in found[0]}

    described(setting.ids[:, :64])
    runs = [timed(lambda: described(setting.ids)) for _ in range(setting.rounds)]
    values = runs[-1][2]
    numbers = {name: rounded(value.flatten().tolist()) for name, value in values.items() if value.ndim == 2}
    numbers.pop("received", None)
    return median(runs) | {"statistics": list(values), "values": numbers}


def page_of(tool):
    def run(options):
        from peers import PAGES

        setting = Setting(options, "eager")
        words = [f"word{i}" for i in setting.ids[0].tolist()]
        setting.forward(setting.ids[:, :64])
        cpu, wall, attentions = timed(lambda: setting.forward(output_attentions=True).attentions)
        page_s, page_wall, page = timed(lambda: PAGES[tool](attentions, words))
        size = len(page.encode())
        return {"cpu_s": cpu, "wall_s": wall + page_wall, "page_s": page_s, "page_bytes": size}

    return run


TOOLS = {
    "plain sdpa": plain,
    "ours": ours,
    "ours, in torch": ours_in_torch,
    f"ours, rows={ROWS}": ours_rows,
    "output_attentions": from_matrices,
    "BertViz head_view": page_of("BertViz head_view"),
    "BertViz model_view": page_of("BertViz model_view"),
    "inspectus": page_of("inspectus"),
    "CircuitsVis, one layer": page_of("CircuitsVis, one layer"),
}


def peak_gb():
    """Largest resident memory of this process so far."""
    return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) / 2**20


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", choices=TOOLS, required=True)
    parser.add_argument("--model", choices=MODELS, required=True)
    parser.add_argument("--length", type=int, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory", type=float, default=9.0, help="GB this process may take")
    options = parser.parse_args()
    torch.set_num_threads(1)
    most = int(options.memory * 2**30)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    try:
        result = TOOLS[options.tool](options)
    except MemoryError:
        result = {"outcome": "out of memory"}
    except RuntimeError as fault:
        if "memory" not in str(fault):
            raise
        result = {"outcome": "out of memory"}
    print(json.dumps({"outcome": "done", "peak_gb": peak_gb()} | result))


if __name__ == "__main__":
    main()
