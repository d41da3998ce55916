"""Attention in float64 from rules for single pairs: slow, obvious, and of no code with the library."""

import itertools
import math

import torch


def table(rule, batch, heads, q_len, kv_len, *, first=0, dtype=torch.float64):
    """What a rule says of every pair; `first` is the position of the first query."""
    every = itertools.product(range(batch), range(heads), range(first, first + q_len), range(kv_len))
    numbers = [rule(b, h, i, j) for b, h, i, j in every]
    return torch.tensor(numbers, dtype=dtype).view(batch, heads, q_len, kv_len)


def attend(q, k, v, *, sees=None, added=None, scale=None, softcap=None, weigh=None, first=0):
    """(out, weights) in float64.

    `sees(b, h, i, j)` says whether a pair is allowed, `added(b, h, i, j)` what is added to its score, both by absolute
    positions; `weigh` turns the allowed scores of one row of one head into weights.
    """
    q, k, v = (x.double() for x in (q, k, v))
    batch, heads, q_len, head_dim = q.shape
    share = heads // k.shape[1]
    weights = []
    kv_len = k.shape[2]
    allowed = table(sees or (lambda b, h, i, j: True), batch, heads, q_len, kv_len, first=first, dtype=torch.bool)
    bias = 0 if added is None else table(added, batch, heads, q_len, kv_len, first=first)
    own_keys = torch.stack([k[:, h // share] for h in range(heads)], 1)
    scores = (q[..., None, :] * own_keys[:, :, None]).sum(-1) * (head_dim**-0.5 if scale is None else scale)
    if softcap is not None:
        scores = (
            softcap
            * ((scores / softcap).exp() - (-scores / softcap).exp())
            / ((scores / softcap).exp() + (-scores / softcap).exp())
        )
    scores = scores + bias
    weights = torch.zeros_like(scores)
    for b, h, i in itertools.product(range(batch), range(heads), range(q_len)):
        seen = allowed[b, h, i] & (scores[b, h, i] > -math.inf)
        if seen.any():
            weights[b, h, i, seen] = (weigh or softmax)(scores[b, h, i, seen], h)
    own_values = torch.stack([v[:, h // share] for h in range(heads)], 1)
    return (weights[..., None] * own_values[:, :, None]).sum(-2), weights


def softmax(row, h):
    """`exp(s_j) / sum_k exp(s_k)`."""
    return row.exp() / row.exp().sum()


def with_sinks(sinks, one=0.0):
    """A softmax of as many heads with a logit each, and perhaps 1, in the denominator."""
    return lambda row, h: row.exp() / (row.exp().sum() + math.exp(float(sinks[h])) + one)


def off_by_one(row, h):
    """Softmax with a 1 in the denominator."""
    return row.exp() / (1 + row.exp().sum())


def sigmoid(bias):
    """`1 / (1 + exp(-s_j - bias))`, of each score by itself."""
    return lambda row, h: 1 / (1 + (-row - bias).exp())


def sparsemax(row, h):
    """The nearest point of the simplex, by sorting (Martins and Astudillo 2016, algorithm 1)."""
    falling, _ = row.sort(descending=True)
    for count in range(len(row), 0, -1):
        threshold = (falling[:count].sum() - 1) / count
        if falling[count - 1] > threshold:
            return (row - threshold).clamp(min=0)
    raise AssertionError("the largest score is always above the threshold")


def entmax15(row, h):
    """1.5-entmax, by sorting (Peters, Niculae and Martins 2019, algorithm 2)."""
    half = row / 2
    falling, _ = half.sort(descending=True)
    for count in range(len(row), 0, -1):
        top = falling[:count]
        mean, square = top.mean(), top.square().mean()
        within = (1 - count * (square - mean**2)) / count
        if within < 0:
            continue
        threshold = mean - within.sqrt()
        if falling[count - 1] >= threshold:
            return (half - threshold).clamp(min=0) ** 2
    raise AssertionError("one score alone always has a threshold")


def bucket(distance):
    """T5's bucket of a distance, for 8 buckets with max_distance=6: 2 exact ones and 2 beyond on each side."""
    far = abs(distance)
    near = far if far < 2 else min(2 + int(math.log(far / 2) / math.log(3) * 2), 3)
    return near + 4 * (distance < 0)


def faded(span, ramp, distance):
    """The logarithm of an adaptive span's factor."""
    left = span + ramp - abs(distance)
    return -math.inf if left <= 0 else math.log(min(left / ramp, 1.0))
