"""Aligners with random parameters, walked step by step, and their formulas number by number."""

import math

import torch

from multihead.align import Bahdanau, Chunk, Coverage, LocalMonotonic, LocalPredictive, Luong, Monotonic

# Widths of queries, entries and hidden sums that no other can stand in for.
BUILD = {
    "bahdanau": lambda: Bahdanau(3, 5, 4),
    "normalised": lambda: Bahdanau(3, 5, 4, normalised=True, bias=False),
    "coverage": lambda: Bahdanau(3, 5, 4, coverage=Coverage()),
    "dot": lambda: Luong(5, 5, score="dot"),
    "general": lambda: Luong(3, 5),
    "concat": lambda: Luong(3, 5, score="concat", hidden=4),
    "local-m": lambda: Luong(3, 5, local=LocalMonotonic(1)),
    "local-p": lambda: Luong(3, 5, local=LocalPredictive(2)),
    "monotonic": lambda: Monotonic(3, 5, 4, form="expected", noise=0.0),
    "hard": lambda: Monotonic(3, 5, 4, form="hard"),
    "chunkwise": lambda: Monotonic(3, 5, 4, chunk=Chunk(2), form="expected", noise=0.0),
    "hard-chunkwise": lambda: Monotonic(3, 5, 4, chunk=Chunk(3), form="hard"),
}
PARALLEL = [name for name in BUILD if name != "coverage"]


def build(name, dtype=torch.float64):
    """An aligner with random parameters, biases, gains and offsets among them."""
    aligner = BUILD[name]().to(dtype)
    with torch.no_grad():
        for parameter in aligner.parameters():
            parameter.copy_(torch.randn(parameter.shape) * (1.0 if parameter.ndim < 2 else parameter.shape[-1] ** -0.5))
    return aligner


def source(aligner, batch=2, length=6, dtype=torch.float64):
    return torch.randn(batch, length, aligner.memory_dim, dtype=dtype)


def states(aligner, batch=2, length=4, dtype=torch.float64):
    return torch.randn(batch, length, aligner.query_dim, dtype=dtype)


def walk(aligner, queries, memory, state=None):
    """Step by step: contexts, weights (both (batch, q_len, ...)) and all states."""
    told = []
    for i in range(queries.shape[1]):
        told.append(aligner.step(queries[:, i], memory, state))
        state = told[-1].state
    return (
        torch.stack([t.context for t in told], 1),
        torch.stack([t.weights for t in told], 1),
        [t.state for t in told],
    )


def numbers(module):
    """Its parameters as nested lists of Python floats."""
    return {name: p.detach().double().tolist() for name, p in module.named_parameters()}


def dot(a, b):
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def additive_by_hand(score, query, entry, covered=0.0):
    """v . tanh(W s + U h + b + w_c cov) + r, number by number."""
    given, total = numbers(score), 0.0
    v = given["vector"]
    if "gain" in given:
        v = [given["gain"] * x / math.sqrt(dot(v, v)) for x in v]
    for a in range(len(v)):
        inner = dot(given["query_proj.weight"][a], query) + dot(given["memory_proj.weight"][a], entry)
        inner += given.get("query_proj.bias", [0.0] * len(v))[a]
        inner += given.get("coverage", [0.0] * len(v))[a] * covered
        total += v[a] * math.tanh(inner)
    return total + given.get("offset", 0.0)


def softmax_by_hand(scores):
    """Of a dict from place to score."""
    if not scores:
        return {}
    top = max(scores.values())
    total = math.fsum(math.exp(s - top) for s in scores.values())
    return {j: math.exp(s - top) / total for j, s in scores.items()}
