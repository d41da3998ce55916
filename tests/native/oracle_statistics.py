"""Calls of the kernel made by hand, and their statistics on whole matrices of weights in float64."""

import ctypes
import math
from types import SimpleNamespace

import numpy as np
import torch

from multihead.native.abi import ABI, CMask, CProblem, CTensor
from multihead.native.statistics import NONE, OPEN, Wanted

DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


def case(
    *,
    batch=2,
    heads=4,
    kv_heads=2,
    q_len=37,
    kv_len=150,
    dim=24,
    dtype=torch.float32,
    rows=None,
    window=None,
    dense=False,
    keep=False,
    pads=False,
    sinks=False,
    bias=False,
    softcap=0.0,
    scale=0.3,
    offset=0,
    bins=5,
    pairs=(),
    sunk_keys=3,
    links=0,
    link_rows=None,
    variant=0,
    threads=1,
):
    """A random call; `window` (low, high) bounds of the distance, `rows` a slice or indices."""
    c = SimpleNamespace(**locals())
    c.q = torch.randn(batch, heads, q_len, dim).to(dtype)
    c.k = torch.randn(batch, kv_heads, kv_len, dim).to(dtype)
    c.rows = slice(0, q_len) if rows is None else rows
    c.allowed = torch.ones(batch, heads, q_len, kv_len, dtype=torch.bool)
    c.dense = torch.rand(batch, heads, q_len, kv_len) < 0.4 if dense else None
    c.keep = torch.rand(batch, kv_len) < 0.6 if keep else None
    c.sinks = torch.randn(heads) * 2 if sinks else None
    c.bias = torch.randn(heads, q_len, kv_len) if bias else None
    distance = torch.arange(q_len)[:, None] + offset - torch.arange(kv_len)
    if window is not None:
        c.allowed &= (distance >= window[0]) & (distance <= window[1])
    for part in (c.dense, None if c.keep is None else c.keep[:, None, None]):
        if part is not None:
            c.allowed &= part
    c.k_kept = torch.rand(batch, kv_len) < 0.8 if pads else None
    sunk = torch.zeros(batch, kv_len, dtype=torch.bool)
    for b in range(batch):
        sunk[b, torch.randperm(kv_len)[:sunk_keys]] = True
    c.sunk = sunk if c.k_kept is None else sunk & c.k_kept
    count = len(torch.arange(q_len)[c.rows])
    c.wanted = Wanted(
        rows=c.rows if isinstance(c.rows, slice) else torch.as_tensor(c.rows),
        centers=(torch.arange(q_len)[c.rows] + offset)[None] + torch.randint(0, 2, (batch, 1)),
        q_kept=torch.rand(batch, count) < 0.8,
        k_kept=c.k_kept,
        sunk=c.sunk,
        q_bins=torch.randint(0, bins, (batch, count)).int(),
        k_bins=torch.randint(-1, bins, (batch, kv_len)).sort(-1).values.int(),
        bins=bins,
        pairs=pairs,
        links=links,
        link_rows=link_rows,
    )
    return c


def problem_of(c):
    """The struct, and what it points to."""
    window = None if c.window is None else torch.tensor(c.window)
    mask = CMask()
    if window is not None:
        mask.window = window.data_ptr()
    keep = None if c.keep is None else c.keep.to(torch.uint8)
    if keep is not None:
        mask.keep, mask.keep_batch = keep.data_ptr(), c.kv_len
    if c.dense is not None:
        mask.dense = c.dense.data_ptr()
        mask.dense_batch, mask.dense_head, mask.dense_row, mask.dense_col = c.dense.stride()
    p = CProblem(
        ABI, DTYPES[c.dtype], c.variant, c.threads, c.batch, c.heads, c.kv_heads, c.q_len, c.kv_len, c.dim, 0,
        _tensor(c.q), _tensor(c.k), CTensor(None, 0, 0, 0), c.scale, c.softcap, c.offset, mask,
    )  # fmt: skip
    if c.bias is not None:
        p.bias.dense, p.bias.dense_dtype = c.bias.data_ptr(), 0
        p.bias.dense_head, p.bias.dense_row, p.bias.dense_col = c.bias.stride()
    if c.sinks is not None:
        p.sinks = c.sinks.data_ptr()
    return p, (window, keep, c)


def _tensor(x):
    return CTensor(ctypes.c_void_p(x.data_ptr()), *x.stride()[:3])


def weights_of(c, rows):
    """Weights on the keys that count, what the sink takes, log-sum-exp, scores, and which keys are visible."""
    k = c.k.double().repeat_interleave(c.heads // c.kv_heads, 1)
    scores = (c.q.double() @ k.transpose(-1, -2)) * float(np.float32(c.scale))
    if c.softcap:
        scores = c.softcap * torch.tanh(scores / c.softcap)
    if c.bias is not None:
        scores = scores + c.bias.double()
    scores = scores.masked_fill(~c.allowed, -math.inf)[:, :, rows]
    shift = scores.amax(-1, keepdim=True)
    if c.sinks is not None:
        shift = torch.maximum(shift, c.sinks.double()[None, :, None, None])
    shift = shift.masked_fill(shift.isneginf(), 0.0)
    e = torch.exp(scores - shift)
    sink = torch.zeros_like(shift) if c.sinks is None else torch.exp(c.sinks.double()[None, :, None, None] - shift)
    total = e.sum(-1, keepdim=True) + sink
    seen = c.allowed[:, :, rows] & kept_of(c)[:, None, None]
    a = torch.where(seen, e / total.clamp(min=1e-300), 0.0)
    sink = torch.where(seen.any(-1), (sink / total)[..., 0], 0.0)
    return a, sink, (shift + total.log())[..., 0], scores, seen


def kept_of(c):
    """Keys that count."""
    return torch.ones(c.batch, c.kv_len, dtype=torch.bool) if c.k_kept is None else c.k_kept


def expect(c):
    """What the kernel should find, by the name of the field; arrays of float64."""
    rows = list(range(c.rows.start, c.rows.stop)) if isinstance(c.rows, slice) else list(c.rows)
    a, sink, lse, scores, seen = weights_of(c, rows)
    content = torch.where(c.sunk[:, None, None], 0.0, a)
    none, best = ~seen.any(-1), torch.where(seen, scores, -math.inf)
    center = c.wanted.centers.expand(c.batch, -1)
    distance = (center[..., None] - torch.arange(c.kv_len))[:, None].expand_as(a)
    places, left = c.sunk.nonzero().tolist(), content.sum(-1)
    found = {
        "sees": seen.sum(-1),
        "sees_sunk": (seen & c.sunk[:, None, None]).sum(-1),
        "lse": lse.masked_fill(none, -math.inf),
        "peak": best.amax(-1).masked_fill(none, -1e30),
        "top": a.amax(-1),
        "top_key": best.argmax(-1),
        "sink": sink,
        "entropy": torch.special.entr(a).sum(-1) + torch.special.entr(sink),
        "sunk": (a - content).sum(-1),
        "left": left,
        "left_entropy": torch.special.entr(content).sum(-1) - torch.special.entr(left),
        "squares": content.square().sum(-1),
        "distance": (content * distance).sum(-1),
        "distance_absolute": (content * distance.abs()).sum(-1),
        "offsets": torch.stack([torch.where(distance == d, content, 0.0).sum(-1) for d in range(-16, 17)], -1),
        "octaves": torch.stack([_within(content, distance, low, high) for low, high in _octaves()], -1),
        "sunk_weights": torch.stack([a[b, :, :, j] for b, j in places]) if places else a.new_zeros(0),
        "sunk_seen": torch.stack([seen[b, :, :, j] for b, j in places]) if places else a.new_zeros(0),
    }
    pads = c.allowed[:, :, rows] & ~kept_of(c)[:, None, None] & c.wanted.q_kept[:, None, :, None]
    found["leaks"] = pads.flatten(1).any(-1)
    if c.links:
        found |= links_of(c, a, best)
    return found | _over_rows(c, a, content, found["sees"]) | _of_pairs(c, a, content, distance, found["top_key"], seen)


def bounds_of(c, want):
    """How far each number may be off: a few units of float32, of what it is made from."""
    scale = max(1.0, float(want["peak"].abs().masked_fill(want["peak"] < -1e29, 0.0).max()) / 10)
    bounds = {}
    for name, numbers in want.items():
        size = numbers.double().abs().masked_fill(numbers.isinf(), 0.0)
        if name in {"columns", "pooled", "pooled_content", "gram"}:
            least = size.max().clamp(min=1.0)
        else:
            least = 1000.0 if name.startswith("distance") else 1.0
        bounds[name] = scale * (4e-6 * size + 2e-6 * least)
    return bounds


def links_of(c, a, best):
    """The keys of the largest scores of some rows and their weights; -1 and 0 where there is no key to be seen."""
    rows = slice(None) if c.link_rows is None else c.link_rows
    scores, keys = best[:, :, rows].sort(dim=-1, descending=True, stable=True)
    blank, weights = scores.isneginf(), a[:, :, rows].gather(-1, keys)
    wide = (0, max(0, c.links - c.kv_len))
    keys = torch.nn.functional.pad(keys.masked_fill(blank, -1), wide, value=-1)
    return {"link_keys": keys[..., : c.links], "link_weights": torch.nn.functional.pad(weights, wide)[..., : c.links]}


def _over_rows(c, a, content, sees):
    """Sums over the rows that count."""
    w, counts = c.wanted, c.wanted.q_kept[:, None] & (sees >= 2)
    counted, of_content = a * counts[..., None], content * counts[..., None]
    q_of = torch.nn.functional.one_hot(w.q_bins.long(), c.bins).double()[:, None]
    k_of = (w.k_bins[..., None] == torch.arange(c.bins)).double()[:, None]
    roots = of_content.sqrt().flatten(2)
    return {
        "columns": counted.sum(2),
        "pooled": q_of.transpose(-1, -2) @ counted @ k_of,
        "pooled_content": q_of.transpose(-1, -2) @ of_content @ k_of,
        "gram": roots @ roots.transpose(-1, -2),
    }


def _of_pairs(c, a, content, distance, top_key, seen):
    """The sets of pairs."""
    found = {f"pair_{name}": [] for name in ("weight", "sunk", "seen", "seen_sunk", "top")}
    for pairs in c.wanted.pairs:
        inside = _inside(c, pairs, distance) & seen
        found["pair_weight"].append(torch.where(inside, content, 0.0).sum(-1))
        found["pair_sunk"].append(torch.where(inside, a - content, 0.0).sum(-1))
        found["pair_seen"].append(inside.sum(-1))
        found["pair_seen_sunk"].append((inside & c.sunk[:, None, None]).sum(-1))
        found["pair_top"].append(inside.gather(-1, top_key[..., None])[..., 0])
    return {name: torch.stack(parts) if parts else torch.zeros(0) for name, parts in found.items()}


def _within(content, distance, low, high):
    return torch.where((distance >= low) & (distance <= high), content, 0.0).sum(-1)


def _octaves():
    low = [(2**k, 2 ** (k + 1) - 1 if k < 14 else 2**60) for k in range(4, 15)]
    return [(-high, -low) for low, high in reversed(low)] + low


def _inside(c, pairs, distance):
    inside = torch.ones_like(distance, dtype=torch.bool)
    if pairs.low > NONE:
        inside &= distance >= pairs.low
    if pairs.high < OPEN:
        inside &= distance <= pairs.high
    if pairs.without > NONE:
        inside &= distance != pairs.without
    if pairs.ids is not None:
        q, k = (ids.expand(c.batch, -1) for ids in pairs.ids)
        inside &= (q[..., None] == k[:, None])[:, None]
    if pairs.dense is not None:
        width = pairs.dense.shape[-1]
        whole = torch.nn.functional.pad(pairs.dense, (pairs.dense_first, c.kv_len - width - pairs.dense_first))
        inside &= whole
    return inside
