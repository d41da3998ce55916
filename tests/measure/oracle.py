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
    if isinstance(problem.mask, torch.Tensor):
        scores = scores.masked_fill(~problem.mask, -math.inf)
    elif problem.mask is not None:
        scores = scores.masked_fill(~problem.mask.allows(q_pos, k_pos), -math.inf)
    shift = scores.amax(-1, keepdim=True).clamp(min=-1e6)
    exps = torch.exp(scores - shift)
    total = exps.sum(-1, keepdim=True)
    sink = torch.zeros_like(total)
    if isinstance(problem.normaliser, Softmax):
        if problem.normaliser.sinks is not None:
            sink = sink + torch.exp(problem.normaliser.sinks.double()[None, :, None, None] - shift)
        if problem.normaliser.off_by_one:
            sink = sink + torch.exp(-shift)
    return exps / (total + sink), (sink / (total + sink))[..., 0], scores


def statistics_of(weights, visible, facts, *, sinks=None, scores=None):
    """Sums and counts of one head in one row.

    weights (q_len, kv_len) as the model used them; visible (q_len, kv_len): what it lets a query see, padding or not.
    """
    weights, seen = np.asarray(weights, dtype=float), np.asarray(visible) & facts.k_keep[None]
    sinks = np.zeros(len(weights)) if sinks is None else np.asarray(sinks)
    real = np.flatnonzero(facts.q_keep)
    rows = [i for i in real if seen[i].sum() >= 2]
    q_first = int(np.flatnonzero(facts.q_keep)[0]) if facts.q_keep.any() else 0
    k_first = int(np.flatnonzero(facts.k_keep)[0]) if facts.k_keep.any() else 0
    k_span = int(np.flatnonzero(facts.k_keep)[-1]) + 1 - k_first if facts.k_keep.any() else 1
    q_span = int(np.flatnonzero(facts.q_keep)[-1]) + 1 - q_first if facts.q_keep.any() else 1
    q_pos = np.arange(len(weights)) + facts.offset - (q_first if facts.cross else k_first)
    k_pos = np.arange(weights.shape[1]) - k_first
    q_bin = np.floor(BINS * q_pos / (q_span if facts.cross else k_span)).astype(int)
    k_bin = np.floor(BINS * k_pos / k_span).astype(int)
    d = q_pos[:, None] - k_pos[None]

    found = {name: (0.0, float(len(rows))) for name in SCALARS}
    arrays = {
        "offsets": (np.zeros(33), np.full(33, float(len(rows)))),
        "distance_histogram": (np.zeros(31), np.full(31, float(len(rows)))),
        "token_class": (np.zeros(facts.classes), np.full(facts.classes, float(len(rows)))),
        "entropy_by_position": (np.zeros(BINS), np.zeros(BINS)),
        "pooled_map": (np.zeros((BINS, BINS)), np.zeros((BINS, BINS))),
        "received": (np.zeros(BINS), np.zeros(BINS)),
    }
    columns = np.zeros(weights.shape[1])
    pairs = {"same_token": [0.0, 0], "induction": [0.0, 0]}
    targets = {name: [0.0, 0.0, 0] for name in ("previous", "next", "self")}
    for i in rows:
        a = {int(j): float(weights[i, j]) for j in np.flatnonzero(seen[i])}
        outcomes = [*a.values(), *([float(sinks[i])] if facts.sink else [])]
        entropy = -sum(p * math.log(p) for p in outcomes if p > 0)
        add = {
            "entropy": entropy,
            "entropy_share": entropy / math.log(len(a) + facts.sink),
            "participation": 1 / sum(p * p for p in outcomes),
            "max_weight": max(a.values()),
            "first_token": a.get(k_first, 0.0),
            "sink_mass": float(sinks[i]) if facts.sink else 0.0,
            "distance": sum(p * d[i, j] for j, p in a.items()),
            "distance_absolute": sum(p * abs(d[i, j]) for j, p in a.items()),
            "special_token": sum(p for j, p in a.items() if facts.k_ids is not None and facts.k_ids[j] in facts.special),
        }
        for name, value in add.items():
            found[name] = (found[name][0] + value, found[name][1])
        for j, p in a.items():
            columns[j] += p
            if abs(d[i, j]) <= 16:
                arrays["offsets"][0][d[i, j] + 16] += p
            arrays["distance_histogram"][0][histogram_bin(int(d[i, j]))] += p
            if facts.k_ids is not None and facts.classes:
                arrays["token_class"][0][facts.class_of[int(facts.k_ids[j])]] += p
            arrays["pooled_map"][0][q_bin[i], k_bin[j]] += p
        arrays["pooled_map"][1][q_bin[i]] += 1
        arrays["entropy_by_position"][0][q_bin[i]] += entropy
        arrays["entropy_by_position"][1][q_bin[i]] += 1
        if facts.q_ids is not None and facts.k_ids is not None:
            copies = {
                "same_token": [j for j in a if facts.k_ids[j] == facts.q_ids[i] and (facts.cross or d[i, j] != 0)],
                "induction": [
                    j
                    for j in a
                    if k_pos[j] >= 1
                    and facts.k_keep[j - 1]
                    and facts.k_ids[j - 1] == facts.q_ids[i]
                    and (facts.cross or d[i, j - 1] != 0)
                ],
            }
            for name, keys in copies.items():
                if keys:
                    pairs[name][0] += sum(a[j] for j in keys)
                    pairs[name][1] += 1
        best = max(a, key=lambda j: (a[j], -j))
        for name, distance in (("previous", 1), ("next", -1), ("self", 0)):
            keys = [j for j in a if d[i, j] == distance]
            if keys:
                targets[name][0] += sum(a[j] for j in keys)
                targets[name][1] += best in keys
                targets[name][2] += 1
    if rows:
        for j in np.flatnonzero(facts.k_keep):
            arrays["received"][0][k_bin[j]] += columns[j]
            arrays["received"][1][k_bin[j]] += 1
    found |= {name: tuple(both) for name, both in pairs.items()}
    for name, (mass, hits, count) in targets.items():
        found |= {name: (mass, count), f"{name}_argmax": (hits, count)}
    found["received_top"] = (columns.max(), columns.sum())
    found["rows_counted"] = (len(rows), len(real))
    found["rows_short"] = (len(real) - len(rows), len(real))
    found["rows_padded"] = (len(weights) - len(real), len(weights))
    found["rows_nonfinite"] = (0, len(real))
    if scores is not None:
        sighted = [i for i in real if seen[i].any()]
        peak = max((float(scores[i, j]) for i in sighted for j in np.flatnonzero(seen[i])), default=0.0)
        found["logit_max"] = (peak, len(sighted))
    return found | arrays


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
)


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
