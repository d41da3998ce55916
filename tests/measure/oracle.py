"""Every statistic written out on whole matrices of weights in fp64, one head of one row at a time."""

import math
from dataclasses import dataclass, field

import numpy as np
import torch

from multihead.attend import Softmax

BINS = 32
NINETY = 0.9 - 1e-5


@dataclass
class Facts:
    """What the oracle is told of one batch row."""

    q_keep: np.ndarray
    k_keep: np.ndarray
    q_ids: np.ndarray | None = None
    k_ids: np.ndarray | None = None
    special: frozenset = frozenset()
    class_of: dict = field(default_factory=dict)
    classes: int = 0
    cross: bool = False
    offset: int = 0
    sink: bool = False
    class_at: np.ndarray | None = None
    special_at: np.ndarray | None = None

    def is_special(self, j):
        """Whether key j is a special token, as far as it is known."""
        if self.special_at is not None:
            return bool(self.special_at[j])
        return self.k_ids is not None and int(self.k_ids[j]) in self.special

    def class_of_key(self, j):
        """Class of key j, or None."""
        if self.class_at is not None:
            return int(self.class_at[j])
        return None if self.k_ids is None else self.class_of[int(self.k_ids[j])]

    def in_sink(self, j, first):
        """Whether key j belongs to the sink."""
        return bool(self.k_keep[j]) and (j == first or self.is_special(j))


def weights_of(problem):
    """Weights (batch, heads, q_len, kv_len), sink weights and scores in fp64, from the definition."""
    scores = _scores(problem)
    shift = scores.amax(-1, keepdim=True).clamp(min=-1e6)
    exps = torch.exp(scores - shift)
    sink = torch.zeros_like(shift)
    if isinstance(problem.normaliser, Softmax):
        if problem.normaliser.sinks is not None:
            sink = sink + torch.exp(problem.normaliser.sinks.double()[None, :, None, None] - shift)
        if problem.normaliser.off_by_one:
            sink = sink + torch.exp(-shift)
    total = exps.sum(-1, keepdim=True) + sink
    return exps / total, (sink / total)[..., 0], scores


def _scores(problem):
    q, k = problem.q.double(), problem.k.double().repeat_interleave(problem.q.shape[1] // problem.k.shape[1], dim=1)
    scores = torch.einsum("bhid,bhjd->bhij", q, k) * problem.scale
    if problem.softcap is not None:
        scores = problem.softcap * torch.tanh(scores / problem.softcap)
    q_pos = torch.arange(problem.q_len) + (problem.q_offset or 0)
    k_pos = torch.arange(problem.kv_len)
    if isinstance(problem.bias, torch.Tensor):
        scores = scores + problem.bias.double()
    elif problem.bias is not None:
        scores = scores + problem.bias.scores(q_pos, k_pos).double()
    if problem.mask is None:
        return scores
    allowed = problem.mask if isinstance(problem.mask, torch.Tensor) else problem.mask.allows(q_pos, k_pos)
    return scores.masked_fill(~allowed, -math.inf)


class Places:
    """Positions and bins of the queries and keys of one row, counted from the first real token."""

    def __init__(self, facts, q_len, kv_len):
        self.first, last = _ends(facts.k_keep)
        own_first, own_last = _ends(facts.q_keep) if facts.cross else (self.first, last)
        self.q = np.arange(q_len) + facts.offset - own_first
        self.k = np.arange(kv_len) - self.first
        self.q_bin = np.floor(BINS * self.q / (own_last + 1 - own_first)).astype(int)
        self.k_bin = np.floor(BINS * self.k / (last + 1 - self.first)).astype(int)

    def distance(self, i, j):
        return int(self.q[i] - self.k[j])


def _ends(keep):
    places = np.flatnonzero(keep)
    return (int(places[0]), int(places[-1])) if len(places) else (0, 0)


class Sums:
    """name -> [sum, count], numbers or arrays."""

    def __init__(self):
        self.found = {}

    def add(self, name, value, count=1.0, *, place=(), shape=()):
        sums, counts = self.found.setdefault(name, (np.zeros(shape), np.zeros(shape)))
        sums[place] += value
        counts[place] += count


def statistics_of(weights, visible, facts, *, sinks=None, scores=None):
    """Sums and counts of one head in one row.

    weights (q_len, kv_len) as the model used them; visible (q_len, kv_len): what it lets a query see, padding or not.
    """
    weights, seen = np.asarray(weights, dtype=float), np.asarray(visible) & facts.k_keep[None]
    sinks = np.zeros(len(weights)) if sinks is None else np.asarray(sinks)
    real = np.flatnonzero(facts.q_keep)
    rows = [i for i in real if seen[i].sum() >= 2]
    places, sums = Places(facts, *weights.shape), Sums()
    for name, shape in SHAPES.items():
        sums.add(name, 0.0, 0.0, shape=(facts.classes,) if name.startswith("token_class") else shape)
    columns = np.zeros((_blocks_of(len(weights)), weights.shape[1]))
    for i in rows:
        a = {int(j): float(weights[i, j]) for j in np.flatnonzero(seen[i])}
        for j, weight in a.items():
            columns[min(i // 512, len(columns) - 1), j] += weight
        row = Row(a, float(sinks[i]), facts, places, i)
        _spread(sums, a, float(sinks[i]), facts, places, i)
        _where(sums, a, facts, places, i)
        _sink(sums, row)
        _left(sums, row)
        _pairs(sums, row)
    if rows:
        for j in np.flatnonzero(facts.k_keep):
            sums.add("received", columns[:, j].sum(), place=places.k_bin[j])
    for block in columns:
        sums.add("received_top", block.max(), block.sum())
    sums.add("rows_counted", len(rows), len(real))
    sums.add("rows_short", len(real) - len(rows), len(real))
    sums.add("rows_padded", len(weights) - len(real), len(weights))
    sums.add("rows_nonfinite", 0, len(real))
    if scores is not None:
        sighted = [i for i in real if seen[i].any()]
        peak = max((float(scores[i, j]) for i in sighted for j in np.flatnonzero(seen[i])), default=0.0)
        sums.add("logit_max", peak, len(sighted))
    return sums.found


def _blocks_of(rows):
    """Blocks of 512 rows; under 64 left over join the last."""
    return max(1, (rows + 512 - 64) // 512)


def _spread(sums, a, sink, facts, places, i):
    """How a row's weight is spread, whatever is where."""
    outcomes = [*a.values(), *([sink] if facts.sink else [])]
    entropy = -sum(p * math.log(p) for p in outcomes if p > 0)
    sums.add("entropy", entropy)
    sums.add("entropy_share", entropy / math.log(len(a) + facts.sink))
    sums.add("entropy_by_position", entropy, place=places.q_bin[i])
    length = math.hypot(*outcomes)
    sums.add("participation", (sum(outcomes) / length) ** 2 if length > 1e-18 else 0.0)
    sums.add("max_weight", max(a.values()))
    sums.add("sink_mass", sink if facts.sink else 0.0)


def _where(sums, a, facts, places, i):
    """Where a row's weight lands."""
    sums.add("first_token", a.get(places.first, 0.0))
    sums.add("distance", sum(p * places.distance(i, j) for j, p in a.items()))
    sums.add("distance_absolute", sum(p * abs(places.distance(i, j)) for j, p in a.items()))
    for name in ("offsets", "distance_histogram", "token_class"):
        sums.add(name, 0.0, place=slice(None))
    sums.add("pooled_map", 0.0, place=places.q_bin[i])
    special = 0.0
    for j, p in a.items():
        d = places.distance(i, j)
        if abs(d) <= 16:
            sums.add("offsets", p, 0.0, place=d + 16)
        sums.add("distance_histogram", p, 0.0, place=histogram_bin(d))
        sums.add("pooled_map", p, 0.0, place=(places.q_bin[i], places.k_bin[j]))
        if facts.class_of_key(j) is not None:
            sums.add("token_class", p, 0.0, place=facts.class_of_key(j))
        special += p * facts.is_special(j)
    sums.add("special_token", special)


class Row:
    """One row of weights: on every visible key, on those of the sink, and on the others."""

    def __init__(self, a, sink, facts, places, i):
        self.a, self.learned, self.facts, self.places, self.i = a, sink if facts.sink else 0.0, facts, places, i
        self.sunk = {j: p for j, p in a.items() if facts.in_sink(j, places.first)}
        self.rest = {j: p for j, p in a.items() if j not in self.sunk}
        self.s = sum(self.sunk.values()) + self.learned
        self.left = sum(self.rest.values())
        self.best = max(a, key=lambda j: (a[j], -j))
        self.outcomes = len(a) + facts.sink

    def distance(self, j):
        return self.places.distance(self.i, j)


def _sink(sums, row):
    """Weight on the sink, the first token and special tokens; where the largest weight is; what even spreads do."""
    first, facts = row.places.first, row.facts
    sums.add("sink", row.s)
    sums.add("sink_argmax", (row.learned > row.a[row.best]) or row.best in row.sunk)
    sums.add("sink_even", (len(row.sunk) + facts.sink) / row.outcomes)
    sums.add("sink_by_position", row.s, place=row.places.q_bin[row.i])
    sums.add("first_token_argmax", row.best == first)
    sums.add("first_token_even", (first in row.a) / row.outcomes)
    sums.add("special_token_argmax", facts.is_special(row.best))


def _left(sums, row):
    """Everything again with the sink set aside: what is left counts as much as it is."""
    left, places = row.left, row.places
    b = {j: p / left for j, p in row.rest.items()} if left > 0 else {}
    entropy = -sum(p * math.log(p) for p in b.values() if p > 0)
    sums.add("entropy_content", left * entropy, left)
    if len(row.rest) >= 2:
        sums.add("entropy_share_content", left * entropy / math.log(len(row.rest)), left)
    sums.add("distance_content", sum(p * row.distance(j) for j, p in row.rest.items()), left)
    sums.add("distance_absolute_content", sum(p * abs(row.distance(j)) for j, p in row.rest.items()), left)
    sums.add("span90", span90({j: (row.distance(j), p) for j, p in row.a.items()}))
    sums.add("span90_content", left * span90({j: (row.distance(j), p) for j, p in row.rest.items()}), left)
    for name in ("offsets_content", "distance_histogram_content", "token_class_content"):
        sums.add(name, 0.0, left, place=slice(None))
    sums.add("pooled_map_content", 0.0, left, place=places.q_bin[row.i])
    for j, p in row.rest.items():
        d = row.distance(j)
        if abs(d) <= 16:
            sums.add("offsets_content", p, 0.0, place=d + 16)
        sums.add("distance_histogram_content", p, 0.0, place=histogram_bin(d))
        sums.add("pooled_map_content", p, 0.0, place=(places.q_bin[row.i], places.k_bin[j]))
        if row.facts.class_of_key(j) is not None:
            sums.add("token_class_content", p, 0.0, place=row.facts.class_of_key(j))
    octave = min(int(math.log2(len(row.a)) + 1e-9), 19) - 1
    outcomes = [*row.a.values(), row.learned]
    sums.add("entropy_by_length", -sum(p * math.log(p) for p in outcomes if p > 0), place=octave)


def span90(weights):
    """Distance that holds 90 %: exact up to 15, then in proportion inside octaves."""
    total = sum(p for _, p in weights.values())
    if total <= 1e-12:
        return 0.0
    wanted, have = NINETY * total, 0.0
    bounds = [(d, d) for d in range(16)] + [(2**k, 2 ** (k + 1) - 1) for k in range(4, 40)]
    for low, high in bounds:
        inside = sum(p for d, p in weights.values() if low <= abs(d) <= high)
        if have + inside >= wanted:
            return low + (high - low) * (wanted - have) / inside
        have += inside
    raise AssertionError


def _pairs(sums, row):
    """Weight on other copies of the token, on what followed one, and at single distances."""
    facts, places = row.facts, row.places
    found = {name: [j for j in row.a if row.distance(j) == d] for name, d in TARGETS.items()}
    if facts.q_ids is not None and facts.k_ids is not None:
        own = facts.q_ids[row.i]

        def copy(j):
            return facts.k_keep[j] and facts.k_ids[j] == own and (facts.cross or row.distance(j) != 0)

        found["same_token"] = [j for j in row.a if copy(j)]
        found["induction"] = [j for j in row.a if places.k[j] >= 1 and copy(j - 1)]
    for name, keys in found.items():
        add_pairs(sums, row, name, keys)


def add_pairs(sums, row, name, keys):
    """One set of pairs of a row that are visible."""
    if keys:
        sums.add(name, sum(row.a[j] for j in keys))
        sums.add(f"{name}_argmax", row.best in keys)
        sums.add(f"{name}_even", len(keys) / row.outcomes)
    if any(j in row.rest for j in keys):
        sums.add(f"{name}_content", sum(row.rest.get(j, 0.0) for j in keys), row.left)


TARGETS = {"previous": 1, "next": -1, "self": 0, "previous2": 2}
SCALARS = (
    "entropy",
    "entropy_content",
    "entropy_share",
    "entropy_share_content",
    "participation",
    "max_weight",
    "sink",
    "sink_argmax",
    "sink_even",
    "first_token",
    "first_token_argmax",
    "first_token_even",
    "special_token",
    "special_token_argmax",
    "sink_mass",
    "distance",
    "distance_content",
    "distance_absolute",
    "distance_absolute_content",
    "span90",
    "span90_content",
)
PAIRS = [
    f"{name}{end}" for name in ("same_token", "induction", *TARGETS) for end in ("", *("_argmax", "_even", "_content"))
]
SHAPES = {
    **dict.fromkeys((*SCALARS, *PAIRS), ()),
    "offsets": (33,),
    "offsets_content": (33,),
    "distance_histogram": (31,),
    "distance_histogram_content": (31,),
    "token_class": (0,),
    "token_class_content": (0,),
    "entropy_by_position": (BINS,),
    "entropy_by_length": (19,),
    "sink_by_position": (BINS,),
    "pooled_map": (BINS, BINS),
    "pooled_map_content": (BINS, BINS),
    "received": (BINS,),
}


def histogram_bin(distance):
    """Place of query - key among 31 bins, farthest ahead first."""
    if distance == 0:
        return 15
    octave = min(int(math.log2(abs(distance)) + 1e-9), 14)
    return 16 + octave if distance > 0 else 14 - octave


def alike_of(weights, visible, facts, sinks):
    """Sums and counts of how alike heads of a layer are, (heads, heads): weights (heads, q_len, kv_len)."""
    heads = len(weights)
    places, sums = Places(facts, *weights.shape[1:]), Sums()
    for name in ("similarity", "similarity_content"):
        sums.add(name, 0.0, 0.0, shape=(heads, heads))
    rows = {}
    for h in range(heads):
        seen = np.asarray(visible[h]) & facts.k_keep[None]
        for i in np.flatnonzero(facts.q_keep):
            if seen[i].sum() >= 2:
                a = {int(j): float(weights[h, i, j]) for j in np.flatnonzero(seen[i])}
                rows[h, i] = Row(a, float(sinks[h, i]), facts, places, i)
    for (h, i), one in rows.items():
        for g in range(heads):
            other = rows.get((g, i))
            if other is None:
                continue
            every = sum(math.sqrt(p * other.a.get(j, 0.0)) for j, p in one.a.items())
            sums.add("similarity", every + math.sqrt(one.learned * other.learned), place=(h, g))
            rest = sum(math.sqrt(p * other.rest.get(j, 0.0)) for j, p in one.rest.items())
            sums.add("similarity_content", rest, math.sqrt(one.left * other.left), place=(h, g))
    return sums.found
