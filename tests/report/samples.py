"""Records to make pages of: made-up models whose heads look like those of real ones."""

import functools

import numpy as np

from multihead.record import CheckupRecord, Document, HeadAddress, HeadStatistics, ModelFacts, Quantity
from multihead.report import render_page

BINS, LENGTH, POOL = 32, 192, 24
CLASSES = ("special", "word start", "continuation", "punctuation", "digit", "newline")
KINDS = ("previous", "next", "self", "sink", "wide", "near", "induction", "same")
TEXTS = ("story.txt", "list.txt", "code.py")
SCALARS = (
    ("first_token", "weight on the first token", "share"),
    ("special_token", "weight on special tokens", "share"),
    ("entropy", "entropy", "nats"),
    ("entropy_share", "entropy, of an even spread's", "share"),
    ("participation", "keys taking part", "keys"),
    ("max_weight", "largest weight", "share"),
    ("logit_max", "largest score", "logit"),
    ("distance", "mean distance back", "tokens"),
    ("distance_absolute", "mean distance", "tokens"),
    ("same_token", "weight on the same token", "share"),
    ("induction", "weight on what followed a copy", "share"),
    ("previous", "weight on the token before", "share"),
    ("previous_argmax", "largest weight on the token before", "share"),
    ("next", "weight on the token after", "share"),
    ("next_argmax", "largest weight on the token after", "share"),
    ("self", "weight on its own token", "share"),
    ("self_argmax", "largest weight on its own token", "share"),
    ("received_top", "share of all weight on one token", "share"),
    ("sink_mass", "weight on a learned sink", "share"),
    ("output_norm", "length of the output", "norm"),
    ("output_ratio", "output, of the layer's mean", "ratio"),
    ("output_share", "output, of the block's input", "share"),
    ("rows_counted", "rows that count", "share"),
    ("rows_short", "rows with nothing to choose", "share"),
    ("rows_nonfinite", "rows with NaN or infinity", "share"),
    ("rows_padded", "padded rows", "share"),
)
SPANS = ("1", "2-3", "4-7", "8-15", "16-31", "32-63", "64-127", "128-255", "256+")
SPAN_LABELS = (*(f"ahead {span}" for span in reversed(SPANS)), "self", *(f"back {span}" for span in SPANS))
ARRAYS = (
    ("offsets", "weight by offset", "share", (33,), tuple(str(o) for o in range(-16, 17))),
    ("distance_histogram", "weight by distance", "share", (len(SPAN_LABELS),), SPAN_LABELS),
    ("token_class", "weight by class of token", "share", (len(CLASSES),), CLASSES),
    ("received", "weight received", "weight", (BINS,), ()),
    ("pooled_map", "mean map", "share", (BINS, BINS), ()),
    ("entropy_by_position", "entropy along the text", "nats", (BINS,), ()),
)


def quantities():
    scalars = [
        Quantity(name=n, title=t, unit=u, formula=f"mean over rows of {t}", fold="max" if n == "logit_max" else "mean")
        for n, t, u in SCALARS
    ]
    arrays = [
        Quantity(name=n, title=t, unit=u, formula=f"mean over rows of {t} in a bin", shape=shape, labels=labels)
        for n, t, u, shape, labels in ARRAYS
    ]
    return (*scalars, *arrays)


def weights_of(kind, causal, rng):
    """The weights of one head on a text of LENGTH tokens."""
    i, j = np.arange(LENGTH)[:, None], np.arange(LENGTH)[None, :]
    score = rng.normal(0, 0.8, (LENGTH, LENGTH)) + rng.normal(0, 1.0, LENGTH)[None, :]
    strong = rng.uniform(4, 9)
    favoured = {"previous": i - j == 1, "next": i - j == -1, "self": i == j, "sink": j + 0 * i == 0}
    if kind in favoured:
        score = score + strong * favoured[kind]
    elif kind == "near":
        score = score - np.abs(i - j) / rng.uniform(2, 12)
    elif kind == "wide":
        score = score * 0.3
    else:
        score = score + rng.uniform(2, 7) * (j == 0)
    if causal:
        score = np.where(j > i, -np.inf, score)
    weights = np.exp(score - score.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def describe(weights, kind, causal, rng):
    """Every statistic of one head, the slow plain way."""
    i, j = np.arange(LENGTH)[:, None], np.arange(LENGTH)[None, :]
    entropy = -(weights * np.log(np.where(weights > 0, weights, 1))).sum(1)
    most = np.log(np.arange(1, LENGTH + 1)) if causal else np.full(LENGTH, np.log(LENGTH))
    columns, top = weights.sum(0), weights.argmax(1)
    at = {d: float(np.diagonal(weights, -d).sum() / LENGTH) for d in range(-16, 17)}
    size = np.searchsorted([2**k for k in range(len(SPANS))], np.abs(i - j), side="right")
    spans = np.where(i >= j, size, -size) + len(SPANS)
    classes = np.concatenate([[0], 1 + np.minimum(4, rng.geometric(0.5, LENGTH - 1) - 1)])
    ratio, width = rng.lognormal(0, 0.4), LENGTH // BINS
    return {
        "first_token": weights[:, 0].mean(), "special_token": weights[:, 0].mean() * 0.9,
        "entropy": entropy.mean(), "entropy_share": (entropy[2:] / most[2:]).mean(),
        "participation": (1 / (weights**2).sum(1)).mean(), "max_weight": weights.max(1).mean(),
        "logit_max": rng.uniform(5, 40), "distance": (weights * (i - j)).sum(1).mean(),
        "distance_absolute": (weights * np.abs(i - j)).sum(1).mean(),
        "same_token": rng.uniform(0.5, 0.8) if kind == "same" else rng.uniform(0, 0.1),
        "induction": rng.uniform(0.5, 0.8) if kind == "induction" else rng.uniform(0, 0.1),
        "previous": at[1], "previous_argmax": (top == np.arange(LENGTH) - 1).mean(),
        "next": at[-1], "next_argmax": (top == np.arange(LENGTH) + 1).mean(),
        "self": at[0], "self_argmax": (top == np.arange(LENGTH)).mean(),
        "received_top": columns.max() / LENGTH, "sink_mass": 0.0,
        "output_norm": 2 * ratio, "output_ratio": ratio, "output_share": 0.1 * ratio,
        "rows_counted": 0.99, "rows_short": 0.01, "rows_nonfinite": 0.0, "rows_padded": 0.0,
        "offsets": np.array(list(at.values())),
        "distance_histogram": np.bincount(spans.ravel(), weights.ravel(), minlength=len(SPAN_LABELS)) / LENGTH,
        "token_class": np.array([columns[classes == c].sum() / LENGTH for c in range(len(CLASSES))]),
        "received": columns.reshape(BINS, width).mean(1),
        "pooled_map": weights.reshape(BINS, width, BINS, width).sum(3).mean(1),
        "entropy_by_position": entropy.reshape(BINS, width).mean(1),
    }  # fmt: skip


def make_statistics(heads, kv_heads, kinds, *, causal, rng, documents, notes=()):
    """Heads of the same kind share a description; noise on every number keeps them and the documents apart."""
    wanted, shape = quantities(), (len(documents), len(heads))
    pool = {
        (kind, copy): describe(weights_of(kind, causal, rng), kind, causal, rng)
        for kind in sorted(set(kinds))
        for copy in range(min(3, list(kinds).count(kind)))
    }
    seen = dict.fromkeys(kinds, 0)
    drawn = []
    for kind in kinds:
        copies = sum(k == kind for k, _ in pool)
        drawn.append(pool[kind, seen[kind] % copies])
        seen[kind] += 1
    sums = {}
    for q in wanted:
        values = np.stack([one[q.name] for one in drawn])
        noisy = values * rng.uniform(0.9, 1.1, (len(heads), *q.shape)) * rng.uniform(0.95, 1.05, (*shape, *q.shape))
        sums[q.name] = np.minimum(noisy, 1.0) if q.unit == "share" else noisy
    return HeadStatistics(
        model="sample",
        heads=tuple(heads),
        kv_heads=tuple(kv_heads),
        documents=tuple(
            Document(name=name, digest=f"{i:016x}", tokens=int(rng.integers(200, 500)))
            for i, name in enumerate(documents)
        ),
        quantities=wanted,
        sums=sums,
        counts={q.name: np.ones((*shape, *q.shape)) for q in wanted},
        notes=tuple(notes),
    )


def make_record(
    layers=3, heads=4, *, causal=False, group=1, stacks=("",), seed=0, repeats=True, name="sample-base",
    complete=True, notes=(), documents=TEXTS,
):  # fmt: skip
    """A record of a made-up model; the seed decides everything."""
    rng = np.random.default_rng(seed)
    addresses = [HeadAddress(s, layer, head) for s in stacks for layer in range(layers) for head in range(heads)]
    kv = [a.head // group for a in addresses]
    shares = np.array([0.08, 0.0 if causal else 0.04, 0.06, 0.3, 0.2, 0.18, 0.08, 0.06])
    kinds = [str(k) for k in rng.choice(KINDS, len(addresses), p=shares / shares.sum())]
    one_of_each = [k for k in KINDS if not (causal and k == "next")]
    kinds[: len(one_of_each)] = one_of_each[: len(kinds)]
    texts = make_statistics(addresses, kv, kinds, causal=causal, rng=rng, documents=documents, notes=notes)
    runs = ("run 0", "run 1")
    model = ModelFacts(
        name=name,
        architecture="SampleModel",
        parameters=22_713_216,
        causal=causal if len(stacks) == 1 else None,
        max_length=512,
        special_tokens=("[CLS]", "[SEP]"),
    )
    return CheckupRecord(
        model=model,
        texts=texts,
        repeats=make_statistics(addresses, kv, kinds, causal=causal, rng=rng, documents=runs) if repeats else None,
        created="2026-11-30T03:09:00Z",
        versions={"multihead": "0.1.0", "torch": "2.13.0"},
        settings={"device": "cpu", "dtype": "float32", "max_length": "512"},
        complete=complete,
    )


@functools.cache
def thousand_heads():
    """The page of 25 layers of 40 heads; it takes a while, so it is made once."""
    return render_page(make_record(25, 40))
