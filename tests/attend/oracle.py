"""Attention written out pair by pair in Python floats: slow, obvious, and of no code with the library."""

import itertools
import math

import torch


def attend_slowly(q, k, v, *, allowed=None, bias=None, scale=None, softcap=None, sinks=None):
    """(out, lse, weights) of softmax attention; `allowed` and `bias` are full (batch, heads, q_len, kv_len) or None."""
    (batch, heads, q_len, head_dim), (kv_heads, kv_len, v_head_dim) = q.shape, v.shape[1:]
    scale = head_dim**-0.5 if scale is None else scale
    out = torch.zeros(batch, heads, q_len, v_head_dim, dtype=torch.float64)
    lse = torch.full((batch, heads, q_len), -math.inf, dtype=torch.float64)
    weights = torch.zeros(batch, heads, q_len, kv_len, dtype=torch.float64)
    places = itertools.product(range(batch), range(heads), range(q_len))
    for b, h, i in places:
        g = h // (heads // kv_heads)
        scores = {}
        for j in range(kv_len):
            if allowed is None or bool(allowed[b, h, i, j]):
                score = scale * float(q[b, h, i].double() @ k[b, g, j].double())
                score = score if softcap is None else softcap * math.tanh(score / softcap)
                scores[j] = score + (0.0 if bias is None else float(bias[b, h, i, j]))
        row = _row(scores, [] if sinks is None else [float(sinks[h])])
        if row is not None:
            lse[b, h, i] = row[0]
            for j, weight in row[1].items():
                weights[b, h, i, j] = weight
                out[b, h, i] += weight * v[b, g, j].double()
    return out, lse, weights


def _row(scores, beside):
    """Log-sum-exp and weights of one query, or None if there is nothing to attend to."""
    peak = max([*scores.values(), *beside], default=-math.inf)
    if peak == -math.inf:
        return None
    total = sum(math.exp(score - peak) for score in [*scores.values(), *beside])
    return peak + math.log(total), {j: math.exp(score - peak) / total for j, score in scores.items()}


def full(x, batch, heads, q_len, kv_len):
    """A mask or bias with all its sizes."""
    return (x if x.ndim == 4 else x[None, None]).expand(batch, heads, q_len, kv_len)


def qkv(batch=2, heads=4, kv_heads=2, q_len=6, kv_len=7, head_dim=8, v_head_dim=8, dtype=torch.float32, grad=False):
    """Random queries, keys and values."""
    shapes = (heads, q_len, head_dim), (kv_heads, kv_len, head_dim), (kv_heads, kv_len, v_head_dim)
    return tuple(torch.randn(batch, *shape, dtype=dtype).requires_grad_(grad) for shape in shapes)


def near(got, want, tolerance=1e-5):
    """Whether the largest difference is within the tolerance; equal infinities are no difference."""
    got, want = got.detach().double(), want.detach().double()
    if got.shape != want.shape or not torch.equal(got.isinf(), want.isinf()):
        return False
    finite = ~want.isinf()
    return want.numel() == 0 or float((got - want).where(finite, 0).abs().max()) <= tolerance


def every_pair(q, k, v, allowed, *, softcap=None, sinks=None):
    """(out, lse) by every pair."""
    group = q.shape[1] // k.shape[1]
    scores = q @ k.repeat_interleave(group, 1).mT * q.shape[3] ** -0.5
    scores = scores if softcap is None else softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~allowed, -torch.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks[:, None, None].expand(*scores.shape[:3], 1)], -1)
    lse = torch.logsumexp(scores, -1)
    weights = torch.exp(scores - torch.where(lse.isinf(), 0.0, lse)[..., None])[..., : k.shape[2]]
    return weights @ v.repeat_interleave(group, 1), lse


def check_pairs(found, wants, inputs):
    """(out, lse) and their gradients are those that `every_pair` gives; a row without keys has no finite lse."""
    seen = ~wants[1].isinf()
    assert torch.equal(seen, ~found[1].isinf())
    for got, want in zip(found, wants, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)
    weigh = torch.randn(found[0].shape, dtype=torch.float64), torch.randn(seen.shape, dtype=torch.float64)
    losses = [(out * weigh[0]).sum() + (lse * weigh[1])[seen].sum() for out, lse in (found, wants)]
    got, want = (torch.autograd.grad(loss, inputs) for loss in losses)
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)
