"""Every statistic written out on whole matrices of weights in fp64, one head of one row at a time."""

import math
from dataclasses import dataclass, field

import numpy as np
import torch

from multihead.attend import Softmax

BINS = 32


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
        sums.add(name, 0.0, 0.0, shape=(facts.classes,) if name == "token_class" else shape)
    columns = np.zeros(weights.shape[1])
    for i in rows:
        a = {int(j): float(weights[i, j]) for j in np.flatnonzero(seen[i])}
        for j, weight in a.items():
            columns[j] += weight
        _spread(sums, a, float(sinks[i]), facts, places, i)
        _where(sums, a, facts, places, i)
        _copies(sums, a, facts, places, i)
        _targets(sums, a, places, i)
    if rows:
        for j in np.flatnonzero(facts.k_keep):
            sums.add("received", columns[j], place=places.k_bin[j])
    sums.add("received_top", columns.max(), columns.sum())
    sums.add("rows_counted", len(rows), len(real))
    sums.add("rows_short", len(real) - len(rows), len(real))
    sums.add("rows_padded", len(weights) - len(real), len(weights))
    sums.add("rows_nonfinite", 0, len(real))
    if scores is not None:
        sighted = [i for i in real if seen[i].any()]
        peak = max((float(scores[i, j]) for i in sighted for j in np.flatnonzero(seen[i])), default=0.0)
        sums.add("logit_max", peak, len(sighted))
    return sums.found


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
        if facts.k_ids is not None:
            sums.add("token_class", p, 0.0, place=facts.class_of[int(facts.k_ids[j])])
            special += p * (int(facts.k_ids[j]) in facts.special)
    sums.add("special_token", special)


def _copies(sums, a, facts, places, i):
    """Weight on other copies of the token, and on what followed one."""
    if facts.q_ids is None or facts.k_ids is None:
        return
    own = facts.q_ids[i]

    def copy(j):
        return facts.k_keep[j] and facts.k_ids[j] == own and (facts.cross or places.distance(i, j) != 0)

    for name, keys in (
        ("same_token", [j for j in a if copy(j)]),
        ("induction", [j for j in a if places.k[j] >= 1 and copy(j - 1)]),
    ):
        if keys:
            sums.add(name, sum(a[j] for j in keys))


def _targets(sums, a, places, i):
    best = max(a, key=lambda j: (a[j], -j))
    for name, distance in (("previous", 1), ("next", -1), ("self", 0)):
        keys = [j for j in a if places.distance(i, j) == distance]
        if keys:
            sums.add(name, sum(a[j] for j in keys))
            sums.add(f"{name}_argmax", best in keys)


TARGETS = ("previous", "next", "self")
SCALARS = (
    "entropy",
    "entropy_share",
    "participation",
    "max_weight",
    "first_token",
    "special_token",
    "sink_mass",
    "distance",
    "distance_absolute",
    "same_token",
    "induction",
)
SHAPES = {
    **dict.fromkeys((*SCALARS, *TARGETS, *(f"{name}_argmax" for name in TARGETS)), ()),
    "offsets": (33,),
    "distance_histogram": (31,),
    "token_class": (0,),
    "entropy_by_position": (BINS,),
    "pooled_map": (BINS, BINS),
    "received": (BINS,),
}


def histogram_bin(distance):
    """Place of query - key among 31 bins, farthest ahead first."""
    if distance == 0:
        return 15
    octave = min(int(math.log2(abs(distance)) + 1e-9), 14)
    return 16 + octave if distance > 0 else 14 - octave


def outputs_of(output, weight, residual, rows):
    """Output statistics of one row of a batch: output (q_len, heads, width), weight (d, heads * width)."""
    heads, width = output.shape[1:]
    norms = np.zeros((heads, len(rows)))
    for h in range(heads):
        for r, i in enumerate(rows):
            norms[h, r] = np.linalg.norm(weight[:, h * width : (h + 1) * width] @ output[i, h])
    found = {
        "output_norm": (norms.sum(1), np.full(heads, float(len(rows)))),
        "output_ratio": (norms.sum(1), np.full(heads, norms.mean(0).sum())),
    }
    if residual is not None:
        lengths = np.array([np.linalg.norm(residual[i]) for i in rows])
        found["output_share"] = ((norms / lengths).sum(1), np.full(heads, float(len(rows))))
    return found
