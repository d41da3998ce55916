"""What a kind of attention can fetch back: recall of repeated sequences, trained short, asked at longer lengths.

A model of two blocks (width 64, 4 heads, no feed-forward network) reads a random sequence that begins again after some
period, and is to say each next token of the repeat: it has to find the token's last occurrence and fetch what stood
behind it. It trains on 64 tokens with periods of 8 to 32 and is asked at 64 and more, each text holding one repeat of
half its length. So a longer text asks for more at once (n / 2 tokens to hold) and from farther away (n / 2 tokens
back). Accuracy is the share of right next tokens in the second half; guessing gives 1 in 512.

`--setting small` is a task that states of a fixed size learn as well: 128 tokens are known, periods are 4 to 16, steps
are larger, and attention begins as the modules begin by themselves. Lengths of 8 and more ask for 4 tokens and more.

    python benchmarks/recall.py                         every model, two seeds (half an hour on one core)
    python benchmarks/recall.py --setting small         the states, and all pairs beside them (half an hour)
    python benchmarks/recall.py --models rope window --seeds 0 --steps 300
    python benchmarks/recall.py --show                  the table of the JSON file
"""

import argparse
import json
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from apart import machine, save, versions
from torch import nn
from torch.nn.functional import cross_entropy

import multihead as mh
from multihead.layer import Block

WIDTH, HEADS = 64, 4
TRAINED, BATCH = 64, 16


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A task, and how it is learned."""

    vocabulary: int
    periods: tuple[int, int]
    lengths: tuple[int, ...]
    steps: int
    rate: float
    plain: bool  # every matrix begins with a standard deviation of 0.02, else those beside attention


SETTINGS = {
    "large": Setting(
        vocabulary=512, periods=(8, 32), lengths=(64, 128, 256, 512, 1024), steps=1200, rate=3e-3, plain=True
    ),
    "small": Setting(
        vocabulary=128, periods=(4, 16), lengths=(8, 16, 32, 64, 128, 256), steps=2000, rate=1e-2, plain=False
    ),
}


ALIBI = mh.ALiBi(mh.alibi_slopes(HEADS))


def heads(**options):
    """Softmax heads, ALiBi unless another position is named: rotary ones fail beyond what they were trained on."""
    return lambda: mh.MultiHeadAttention(WIDTH, mh.HeadGroup(HEADS, **{"position": ALIBI} | options), bias=False)


def linear(**scoring):
    return lambda: mh.LinearAttention(WIDTH, HEADS, scoring=mh.LinearScoring(**scoring))


def sparse():
    branches = mh.Branches(block=8, budget=4, window=16)
    return mh.NativeSparseAttention(WIDTH, mh.HeadGroup(HEADS, position=mh.Rotary()), branches=branches, bias=False)


def previous():
    """What the second block needs of the first: a head that looks at the token before."""
    return heads(mask=mh.sliding_window(4))()


# What it is in words, and what its two blocks attend with.
MODELS = {
    "rope": ("all pairs, rotary positions", [heads(position=mh.Rotary())] * 2),
    "alibi": ("all pairs, ALiBi", [heads()] * 2),
    "window": ("windows of 32, ALiBi", [heads(mask=mh.sliding_window(32))] * 2),
    "window-all": ("window of 4, then all pairs (ALiBi)", [previous, heads()]),
    "blocks": ("4 best blocks of 8 (MoBA), ALiBi", [heads(mask=mh.TopBlocks(8, 4))] * 2),
    "keys": ("8 best keys of each row, ALiBi", [heads(mask=mh.TopKeys(8))] * 2),
    "native-sparse": ("native sparse attention, rotary positions", [sparse] * 2),
    "lsh": ("window of 4, then LSH: 4 rounds, chunks of 16", [previous, lambda: lsh()]),
    "mixture": ("mixture of heads, 1 shared and 2 of 3, all pairs", [lambda: moh()] * 2),
    "linear": ("linear attention, elu + 1", [linear()] * 2),
    "window-linear": ("window of 4, then linear attention", [previous, linear()]),
    "retention": ("RetNet", [lambda: mh.LinearAttention.retnet(WIDTH, HEADS)] * 2),
    "gated-linear": ("gated linear attention", [lambda: mh.GatedLinearAttention(WIDTH, HEADS)] * 2),
    "gated-delta": ("gated delta rule", [lambda: mh.GatedDeltaNet(WIDTH, HEADS)] * 2),
    "delta-all": ("gated delta rule, then all pairs (ALiBi)", [lambda: mh.GatedDeltaNet(WIDTH, HEADS), heads()]),
}

# What the smaller table is checked by: the delta rule without its convolution; other states, of 16 x 16 numbers a head
# too, behind a block that looks at the token before.
CONTROLS = {
    "delta-bare": ("gated delta rule without convolution", [lambda: bare()] * 2),
    "window-delta-bare": ("window of 4, then gated delta rule without convolution", [previous, lambda: bare()]),
    "window-retention": (
        "window of 4, then RetNet, 16 x 16",
        [previous, lambda: mh.LinearAttention.retnet(WIDTH, HEADS, v_head_dim=16)],
    ),
    "window-gated-linear": (
        "window of 4, then gated linear attention, 16 x 16",
        [previous, lambda: mh.GatedLinearAttention(WIDTH, HEADS, head_dim=16)],
    ),
}
MODELS |= CONTROLS

# Models that were trained as another and are asked with another second block, with the weights of the trained one.
ASKED = {
    "all-then-window": ("window of 4, then all pairs; a window of 32 when asked", "window-all", mh.sliding_window(32)),
    "all-then-blocks": ("window of 4, then all pairs; 4 best blocks of 8 when asked", "window-all", mh.TopBlocks(8, 4)),
    "all-then-keys": ("window of 4, then all pairs; 8 best keys when asked", "window-all", mh.TopKeys(8)),
}
EVERY = {name: told[0] for name, told in (MODELS | ASKED).items()}
LARGE = [name for name in EVERY if name not in CONTROLS]
SMALL = ["alibi", "window-all", "linear", "window-linear", "retention", "gated-linear", "gated-delta", "delta-all"]
SMALL += CONTROLS


def lsh():
    return mh.LSHAttention(WIDTH, HEADS, mh.Buckets(rounds=4, chunk=16, seed=0), bias=False)


def bare():
    return mh.GatedDeltaNet(WIDTH, HEADS, conv_width=1)


def moh():
    return mh.MoHAttention(WIDTH, mh.HeadGroup(HEADS, position=mh.Rotary()), shared=1, chosen=2, bias=False)


class Model(nn.Module):
    """Two blocks between an embedding and its read-out."""

    def __init__(self, kinds, setting):
        super().__init__()
        self.embedding = nn.Embedding(setting.vocabulary, WIDTH)
        self.blocks = nn.ModuleList(Block(WIDTH, kind(), feed_forward=None) for kind in kinds)
        self.norm, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, setting.vocabulary, bias=False)
        for name, parameter in self.named_parameters():
            if name.endswith("weight") and parameter.ndim == 2 and (setting.plain or not name.startswith("blocks")):
                nn.init.normal_(parameter, std=0.02)

    def forward(self, ids):
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x, mask=mh.causal())
        return self.out(self.norm(x))


def texts(count, length, periods, vocabulary, generator):
    """Random tokens, none twice in a period, that begin again after it; and the periods."""
    period = torch.randint(periods[0], periods[1] + 1, (count, 1), generator=generator)
    base = torch.rand(count, vocabulary, generator=generator).argsort(-1)
    return base.gather(1, torch.arange(length)[None] % period), period


def trained(kinds, seed, setting, steps):
    """A model, and what its training took."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = Model(kinds, setting)
    optimiser = torch.optim.AdamW(model.parameters(), lr=setting.rate, betas=(0.9, 0.98), weight_decay=0.01)
    # Warmed up over 50 steps, then down to a twentieth.
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: min(1, (step + 1) / 50) * max(0.05, 1 - step / steps)
    )
    start = time.process_time()
    for _ in range(steps):
        ids, period = texts(BATCH, TRAINED, setting.periods, setting.vocabulary, generator)
        logits = model(ids)[:, :-1]
        # Only a token whose last occurrence is in the text can be known.
        known = torch.arange(TRAINED - 1)[None] >= period
        loss = cross_entropy(logits[known], ids[:, 1:][known])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    return model.eval(), {"loss": loss.item(), "cpu_s": time.process_time() - start}


def built(name, seed, setting, steps):
    """A model as it is to be asked."""
    if name in MODELS:
        return trained(MODELS[name][1], seed, setting, steps)
    _, other, mask = ASKED[name]
    model, told = trained(MODELS[other][1], seed, setting, steps)
    narrowed = heads(mask=mask)()
    narrowed.load_state_dict(model.blocks[1].attention.state_dict())
    model.blocks[1].attention = narrowed.eval()
    return model, told


def recall(model, length, seed, vocabulary):
    """Share of right next tokens in the second half of 24 texts of one repeat."""
    generator = torch.Generator().manual_seed(10_000 + seed)
    ids, _ = texts(24, length, (length // 2, length // 2), vocabulary, generator)
    asked = slice(length // 2, length - 1)
    with torch.no_grad():
        said = model(ids)[:, asked].argmax(-1)
    return (said == ids[:, length // 2 + 1 :]).double().mean().item()


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--setting", choices=SETTINGS, default="large", help="see above (large)")
    parser.add_argument("--models", nargs="+", choices=EVERY, help="all of the setting where not given")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--steps", type=int, help="of training (1200, small 2000)")
    parser.add_argument("--lengths", type=int, nargs="+", help="even, up to twice the known tokens")
    parser.add_argument("--json", type=Path, help="(build/recall.json, small build/recall-small.json)")
    parser.add_argument("--resume", action="store_true", help="leave out models that the JSON file holds")
    parser.add_argument("--show", action="store_true", help="print the table of the JSON file and stop")
    return parser.parse_args()


def main():
    options = parse()
    torch.set_num_threads(1)
    setting, small = SETTINGS[options.setting], options.setting == "small"
    options.json = options.json or Path(f"build/recall{'-small' * small}.json")
    options.models = options.models or (SMALL if small else LARGE)
    steps, lengths = options.steps or setting.steps, options.lengths or setting.lengths
    old = json.loads(options.json.read_text()) if (options.resume or options.show) and options.json.exists() else {}
    cells = {(cell["model"], cell["seed"]): cell for cell in old.get("cells", [])}
    about = old.get("about") or {"machine": machine(), "versions": versions(("multihead", "torch"))}
    wanted = [] if options.show else [(name, seed) for name in options.models for seed in options.seeds]
    for number, (name, seed) in enumerate(key for key in wanted if key not in cells):
        print(f"{number + 1}/{len(wanted)}  {name}, seed {seed} ... ", end="", flush=True)
        model, told = built(name, seed, setting, steps)
        found = {str(length): recall(model, length, seed, setting.vocabulary) for length in lengths}
        cells[name, seed] = {"model": name, "seed": seed, "steps": steps, "recall": found} | told
        print(f"{' '.join(f'{share:.2f}' for share in found.values())}  {told['cpu_s']:.0f} s", flush=True)
        save(options.json, about, cells)
    show(about, list(cells.values()))


def show(about, cells):
    """A line a model; where seeds differ by more than 0.05 both are told."""
    told = about | {"versions": ", ".join(f"{name} {number}" for name, number in about["versions"].items())}
    print(*(f"{name}: {each}" for name, each in told.items()), sep="\n")
    lengths = list(cells[0]["recall"]) if cells else []
    print(f"\n| model | {' | '.join(lengths)} | training, CPU s |\n" + "|---" * (len(lengths) + 2) + "|")
    for name, about_it in EVERY.items():
        runs = [cell for cell in cells if cell["model"] == name]
        if runs:
            shares = [_brief([run["recall"][length] for run in runs]) for length in lengths]
            seconds = statistics.mean(run["cpu_s"] for run in runs)
            print(f"| {about_it} | {' | '.join(shares)} | {seconds:.0f} |")


def _brief(shares):
    if max(shares) - min(shares) <= 0.05:
        return f"{statistics.mean(shares):.2f}"
    return " / ".join(f"{share:.2f}" for share in shares)


if __name__ == "__main__":
    main()
