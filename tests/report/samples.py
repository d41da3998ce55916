"""Records to make pages of: made-up models whose heads look like those of real ones."""

import functools
from dataclasses import replace

import numpy as np

from multihead.record import CheckupRecord, Document, Example, HeadAddress, HeadStatistics, ModelFacts, Quantity
from multihead.report import render_page

BINS, LENGTH, POOL = 32, 192, 24
WORDS = (
    (
        "When",
        "Mary",
        "and",
        "John",
        "went",
        "to",
        "the",
        "market",
        ",",
        "John",
        "gave",
        "a",
        "bottle",
        "of",
        "milk",
        ".",
    ),
    (
        "\u05e9\u05dc\u05d5\u05dd",
        "\u05e2\u05d5\u05dc\u05dd",
        "\u05d0\u05d5\u05de\u05e8",
        "\u05d4\u05d9\u05dc\u05d3",
        ",",
        "\u05d5\u05d4\u05d5\u05dc\u05da",
    ),
    (*(f"word{i}" for i in range(58)), "\U0001f642", "\U0001f469\u200d\U0001f4bb", "\n"),
)
CYCLE = (*("blue", "river", "seven", "candle", "winter") * 2, "blue", "river", "seven")
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
NEW_SCALARS = (
    ("sink", "weight on the sink", "share"),
    ("span90", "distance that holds 90% of the weight", "tokens"),
    ("effective_rank", "effective rank of the output", "dimensions"),
    ("previous2", "weight two tokens before", "share"),
    ("sink_argmax", "largest weight on the sink", "share"),
    ("induction_argmax", "largest weight on what followed a copy", "share"),
)
TWINS = (
    "entropy",
    "entropy_share",
    "distance",
    "distance_absolute",
    "span90",
    "previous",
    "next",
    "self",
    "previous2",
    "same_token",
    "induction",
)
EVENS = ("previous", "next", "self", "previous2", "same_token", "induction", "sink")
PAIRS = ("similarity", "similarity_content", "cka")
LENGTHS = ("2-3", "4-7", "8-15", "16-31", "32-63", "64-127", "128-255")
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


def all_quantities(widest):
    """The quantities of today and those with the sink set aside, baselines, pairs of heads."""
    more = [Quantity(name=n, title=t, unit=u, formula=f"mean over rows of {t}") for n, t, u in NEW_SCALARS]
    plain = {q.name: q for q in (*quantities(), *more)}
    plain = {n: replace(q, even=f"{n}_even") if n in EVENS else q for n, q in plain.items()}
    evens = [Quantity(name=f"{n}_even", title=f"{n}, even", unit="share", formula="even") for n in EVENS]
    arrays = ("offsets", "distance_histogram", "token_class", "pooled_map")
    twins = [
        replace(plain[n], name=f"{n}_content", title=f"{plain[n].title}, aside", content_of=n)
        for n in (*TWINS, *arrays)
    ]
    pairs = [
        Quantity(name=n, title=n, unit="ratio", formula=n, shape=(widest,), pairs=True,
                 content_of="similarity" if n == "similarity_content" else "")
        for n in PAIRS
    ]  # fmt: skip
    rows = [
        Quantity(name="entropy_by_length", title="entropy by length", unit="nats", formula="H", shape=(len(LENGTHS),),
                 labels=LENGTHS),
        Quantity(name="sink_by_position", title="sink by position", unit="share", formula="s", shape=(BINS,)),
    ]  # fmt: skip
    return (*plain.values(), *evens, *twins, *pairs, *rows)


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


def set_aside(weights, causal):
    """Which keys are the sink, the weight of each row on it, and what is left of the rows."""
    sink = np.zeros(LENGTH, dtype=bool)
    sink[[0] if causal else [0, -1]] = True
    return sink, weights[:, sink].sum(1), np.where(sink[None, :], 0.0, weights)


def describe_aside(weights, plain, causal):
    """The statistics with the sink set aside and what comes with them, the slow plain way."""
    i, j = np.arange(LENGTH)[:, None], np.arange(LENGTH)[None, :]
    _, s, left = set_aside(weights, causal)
    total, width = (1 - s).sum(), LENGTH // BINS
    entropy = -(left * np.log(np.where(left > 0, left, 1))).sum(1) + np.where(
        s < 1, (1 - s) * np.log(np.maximum(1 - s, 1e-300)), 0
    )
    at = {d: float(np.diagonal(left, -d).sum() / total) for d in range(-16, 17)}
    size = np.searchsorted([2**k for k in range(len(SPANS))], np.abs(i - j), side="right")
    spans = np.where(i >= j, size, -size) + len(SPANS)
    rest = (1 - s).reshape(BINS, width).sum(1)
    lengths = np.log2(np.maximum(i[:, 0] + 1, 2)).astype(int) - 1
    h = plain["entropy_by_row"]
    return {
        "sink": s.mean(), "span90": 12.0, "effective_rank": 9.5, "previous2": plain["offsets"][18],
        "sink_argmax": s.mean(), "induction_argmax": plain["induction"],
        "entropy_content": entropy.sum() / total, "entropy_share_content": min(1.0, plain["entropy_share"] * 1.1),
        "distance_content": (left * (i - j)).sum() / total, "span90_content": 10.0,
        "distance_absolute_content": (left * np.abs(i - j)).sum() / total,
        "previous_content": at[1], "next_content": at[-1], "self_content": at[0], "previous2_content": at[2],
        "same_token_content": plain["same_token"], "induction_content": plain["induction"],
        "offsets_content": np.array(list(at.values())),
        "distance_histogram_content": np.bincount(spans.ravel(), left.ravel(), minlength=len(SPAN_LABELS)) / total,
        "token_class_content": plain["token_class"] * np.array([0] + [1] * (len(CLASSES) - 1)),
        "pooled_map_content": left.reshape(BINS, width, BINS, width).sum(3).sum(1) / rest[:, None],
        "sink_by_position": s.reshape(BINS, width).mean(1),
        "entropy_by_length": np.array([h[lengths == k].mean() if (lengths == k).any() else np.nan
                                       for k in range(len(LENGTHS))]),
        **{f"{n}_even": 0.02 for n in EVENS},
    }  # fmt: skip


def overlap(a, b, causal, content):
    """Bhattacharyya overlap of two heads, with the sink set aside if so wanted."""
    if not content:
        return float(np.sqrt(a * b).sum(1).mean())
    (_, s, left), (_, t, other) = set_aside(a, causal), set_aside(b, causal)
    return float(np.sqrt(left * other).sum() / np.sqrt((1 - s) * (1 - t)).sum())


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
        "entropy_by_position": entropy.reshape(BINS, width).mean(1), "entropy_by_row": entropy,
    }  # fmt: skip


def pairs_of(heads, picked, causal, rng, widest):
    """Overlap of patterns and likeness of outputs within each layer, (heads, widest); NaN beyond a layer's heads."""
    found = {name: np.full((len(heads), widest), np.nan) for name in PAIRS}
    known = {}
    for i, a in enumerate(heads):
        for j, b in enumerate(heads):
            if (a.stack, a.layer) == (b.stack, b.layer):
                for name in PAIRS[:2]:
                    key = (name, id(picked[i]), id(picked[j]))
                    if key not in known:
                        known[key] = overlap(picked[i], picked[j], causal, name == "similarity_content")
                    found[name][i, b.head] = known[key]
                found["cka"][i, b.head] = 1.0 if i == j else rng.uniform(0, 0.6)
    return found


def make_examples(heads, kinds, causal, rng, *, texts=WORDS, document=0):
    """Stretches whose links are what the kind of a head says."""
    out = []
    for number, words in enumerate(texts):
        for stack in dict.fromkeys(h.stack for h in heads):
            mine = tuple(i for i, h in enumerate(heads) if h.stack == stack)
            shape = (len(mine), len(words), 4)
            places, weights = np.full(shape, -1, dtype=np.int16), np.zeros(shape, dtype=np.float32)
            sink = np.zeros(shape[:2], dtype=np.float32)
            for row, head in enumerate(mine):
                step = {"previous": -1, "next": 1, "self": 0, "induction": -3}.get(kinds[head], -2)
                for i in range(len(words)):
                    sink[row, i] = 0.8 if kinds[head] == "sink" else 0.1
                    for k, j in enumerate((i + step, i - 4)):
                        if 0 <= j < len(words) and not (causal and j > i):
                            places[row, i, k] = j
                            weights[row, i, k] = (1 - sink[row, i]) * (0.6, 0.15)[k]
            out.append(
                Example(
                    document=document + number, start=3, stack=stack, heads=mine, queries=words, keys=words,
                    places=places, weights=weights, sink=sink,
                    elsewhere=np.clip(1 - sink - weights.sum(2), 0, 1).astype(np.float32),
                )
            )  # fmt: skip
    return tuple(out)


def make_statistics(heads, kv_heads, kinds, *, causal, rng, documents, notes=(), old=False, texts=WORDS):
    """Heads of the same kind share a description; noise on every number keeps them and the documents apart."""
    widest, shape = max(a.head for a in heads) + 1, (len(documents), len(heads))
    wanted = quantities() if old else all_quantities(widest)
    matrices = {
        (kind, copy): weights_of(kind, causal, rng)
        for kind in sorted(set(kinds))
        for copy in range(min(3, list(kinds).count(kind)))
    }
    pool = {}
    for (kind, copy), weights in matrices.items():
        plain = describe(weights, kind, causal, rng)
        pool[kind, copy] = plain if old else plain | describe_aside(weights, plain, causal)
    seen = dict.fromkeys(kinds, 0)
    drawn, picked = [], []
    for kind in kinds:
        key = (kind, seen[kind] % sum(k == kind for k, _ in pool))
        drawn.append(pool[key])
        picked.append(matrices[key])
        seen[kind] += 1
    pairs = {} if old else pairs_of(heads, picked, causal, rng, widest)
    sums, counts = {}, {}
    for q in wanted:
        values = pairs[q.name] if q.name in pairs else np.stack([one[q.name] for one in drawn])
        # What must fit together to the last digit is left as it is.
        still = q.name in ("pooled_map", "pooled_map_content", "sink_by_position", *PAIRS)
        noise = rng.uniform(0.9, 1.1, (len(heads), *q.shape)) * rng.uniform(0.95, 1.05, (*shape, *q.shape))
        noisy = np.broadcast_to(values, (*shape, *q.shape)) if still else values * noise
        counts[q.name] = np.isfinite(noisy).astype(float)
        sums[q.name] = np.where(np.isfinite(noisy), np.minimum(noisy, 1.0) if q.unit == "share" else noisy, 0.0)
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
        counts=counts,
        notes=tuple(notes),
        examples=() if old else make_examples(heads, kinds, causal, rng, texts=texts[: len(documents)]),
    )


def make_record(
    layers=3, heads=4, *, causal=False, group=1, stacks=("",), seed=0, repeats=True, name="sample-base",
    complete=True, notes=(), documents=TEXTS, old=False,
):  # fmt: skip
    """A record of a made-up model; the seed decides everything, so each is made once."""
    return _made(
        layers, heads, causal, group, tuple(stacks), seed, repeats, name, complete, tuple(notes), tuple(documents), old
    )


@functools.lru_cache(maxsize=40)
def _made(layers, heads, causal, group, stacks, seed, repeats, name, complete, notes, documents, old):
    rng = np.random.default_rng(seed)
    addresses = [HeadAddress(s, layer, head) for s in stacks for layer in range(layers) for head in range(heads)]
    kv = [a.head // group for a in addresses]
    shares = np.array([0.08, 0.0 if causal else 0.04, 0.06, 0.3, 0.2, 0.18, 0.08, 0.06])
    kinds = [str(k) for k in rng.choice(KINDS, len(addresses), p=shares / shares.sum())]
    one_of_each = [k for k in KINDS if not (causal and k == "next")]
    kinds[: len(one_of_each)] = one_of_each[: len(kinds)]
    texts = make_statistics(addresses, kv, kinds, causal=causal, rng=rng, documents=documents, notes=notes, old=old)
    runs = ("run 0", "run 1")
    repeated = make_statistics(addresses, kv, kinds, causal=causal, rng=rng, documents=runs, old=old, texts=(CYCLE,))
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
        repeats=repeated if repeats else None,
        created="2026-11-30T03:09:00Z",
        versions={"multihead": "0.1.0", "torch": "2.13.0"},
        settings={"device": "cpu", "dtype": "float32", "max_length": "512"},
        complete=complete,
    )


@functools.cache
def thousand_heads():
    """The page of 25 layers of 40 heads; it takes a while, so it is made once."""
    return render_page(make_record(25, 40))
