"""Calls whose statistics are known, for the door of Python and for replay without it."""

import math
from dataclasses import replace

import torch

from multihead.native.statistics import Pairs
from native.oracle_statistics import DTYPES, bounds_of, case, expect, weights_of
from native.replaying import Case


def ids(batch, length):
    return torch.randint(0, 4, (batch, length)).int()


def sets():
    return (
        Pairs(low=1, high=1),
        Pairs(low=-3, high=90),
        Pairs(high=-2),
        Pairs(ids=(ids(2, 37), ids(2, 150)), without=0),
        Pairs(ids=(ids(1, 37), ids(1, 150)), without=-1, low=-20),
        Pairs(dense=torch.rand(2, 4, 37, 30) < 0.5, dense_first=50),
        Pairs(dense=torch.rand(1, 1, 37, 150) < 0.02),
        Pairs(low=400, high=500),
        Pairs(low=2**63 - 1),
        Pairs(high=-(2**63)),
    )


CASES = {
    "plain": {"links": 3},
    "sets of pairs": {"pairs": sets, "offset": 60},
    "causal": {"window": (0, 2**62), "offset": 113, "pairs": sets, "links": 40},
    "window": {"window": (-9, 40), "offset": 50, "pairs": sets},
    "window that ends": {"window": (5, 20), "offset": 0},
    "dense mask": {"dense": True, "pairs": sets},
    "keys shut": {"keep": True, "pairs": sets, "links": 5, "link_rows": torch.tensor([0, 5, 6, 30])},
    "padding that gets weight": {"pads": True, "pairs": sets, "links": 5},
    "padding within a mask": {"pads": True, "dense": True, "keep": True, "window": (0, 99), "offset": 90},
    "sinks": {"sinks": True, "pairs": sets},
    "sinks and padding": {"sinks": True, "pads": True, "softcap": 3.0},
    "softcap": {"softcap": 2.0},
    "bias": {"bias": True, "sinks": True},
    "scale below nothing": {"scale": -0.4},
    "scale of nothing": {"scale": 0.0},
    "a tiny scale": {"scale": 1e-9},
    "large scores": {"scale": 20.0},
    "some rows": {"rows": [30, 2, 3, 36, 11, 7, 5, 0], "window": (0, 70), "offset": 80},
    "some rows with bias": {"rows": [30, 2, 3, 36, 11, 7, 5, 0], "bias": True, "dense": True},
    "a range of rows": {"rows": slice(7, 29), "window": (-20, 60), "offset": 40, "dense": True},
    "one row": {"q_len": 1, "offset": 140, "window": (0, 2**62)},
    "one key": {"kv_len": 1, "sunk_keys": 1, "links": 2},
    "many heads": {"heads": 9, "kv_heads": 3, "batch": 1},
    "one head, one dim": {"heads": 1, "kv_heads": 1, "dim": 1},
    "wide heads": {"dim": 300, "scale": 0.05},
    "no sink": {"sunk_keys": 0},
    "many keys of the sink": {"sunk_keys": 80},
    "far": {"kv_len": 1500, "offset": 700, "q_len": 20, "heads": 2},
    "rows of several blocks": {"q_len": 150, "kv_len": 200, "offset": 30, "batch": 1, "links": 1},
}


def made(name, **more):
    """A case by its name, with random numbers."""
    given = dict(CASES[name])
    if "pairs" in given:
        given["pairs"] = given["pairs"]()
    return case(**given | more)


LITTLE = (
    ("columns", "pooled"),
    ("entropy",),
    ("octaves", "top_key"),
    ("distance", "squares"),
    ("distance_absolute", "leaks"),
    ("gram",),
    ("gram", "distance_absolute", "columns"),
    ("link_keys",),
)
"""What little may be asked for: what is not asked for is left out of the sums."""


def replay_cases():
    """Cases as a file of problems holds them, with what is expected: some in other dtypes, some asked for less."""
    short = [(name, dtype) for name in ("causal", "keys shut") for dtype in (torch.bfloat16, torch.float16)]
    calls = [(name, torch.float32) for name in CASES] + short
    cases = [_replayed(name, made(name, dtype=dtype)) for name, dtype in calls]
    cases += [_less(case, drop=["gram"]) for case in cases]
    for name in ("causal", "keys shut"):
        case = _replayed(name, made(name))
        names = {field.partition(".")[2] for field in case.fields if field.startswith("found.")}
        cases += [_less(case, drop=names - {*little, "sunk_weights"}) for little in LITTLE]
    return cases


def _less(case, *, drop):
    """A case without some of what is found."""
    lost = {f"{kind}.{name}" for kind in ("found", "want", "bound") for name in drop}
    left = {name: value for name, value in case.fields.items() if name not in lost}
    told = " ".join(name[6:] for name in left if name.startswith("found."))
    return replace(case, label=f"{case.label}, {told}"[:150], fields=left)


def _replayed(name, c):
    want = expect(c)
    bounds = bounds_of(c, want)
    fields = _problem(c) | _wanted(c)
    for place, pairs in enumerate(c.wanted.pairs):
        fields |= _pairs(place, pairs)
    for found, numbers in (want | _sure(c, want)).items():
        kind = _kind(found)
        # What lies there before must not matter.
        fields[f"found.{found}"] = torch.randint(0, 256, (numbers.numel() * kind.itemsize,)).byte().view(kind)
        fields[f"want.{found}"] = numbers.float().contiguous()
        fields[f"bound.{found}"] = bounds[found].float().contiguous()
    return Case(f"statistics, {name}, {c.dtype}", fields, "statistics")


def _kind(name):
    if name in {"columns", "pooled", "pooled_content", "gram"}:
        return torch.float64
    if name in {"sunk_seen", "pair_top", "leaks"}:
        return torch.uint8
    return torch.int32 if name.endswith("key") or "see" in name or name == "link_keys" else torch.float32


def _sure(c, want):
    """Where two scores are equal but for rounding, either key may be the one: NaN, which stands for any."""
    rows = list(range(c.q_len))[c.rows] if isinstance(c.rows, slice) else list(c.rows)
    _, _, _, scores, seen = weights_of(c, rows)
    scores = torch.where(seen, scores, -math.inf).sort(dim=-1, descending=True).values
    near = (scores[..., :-1] - scores[..., 1:]) < 1e-5 * scores.nan_to_num(neginf=0).abs().amax().clamp(min=1.0)
    edge = near.new_zeros((*near.shape[:-1], 1))
    alone = ~(torch.cat([edge, near], -1) | torch.cat([near, edge], -1))
    first = alone[..., 0] | (c.kv_len == 1)
    sure = {name: want[name].double().where(first, torch.nan) for name in ("top_key", "pair_top") if want[name].numel()}
    if c.links:
        of_rows = alone if c.link_rows is None else alone[:, :, c.link_rows]
        keys = want["link_keys"].double()
        of_rows = torch.nn.functional.pad(of_rows, (0, max(0, c.links - c.kv_len)), value=True)[..., : c.links]
        sure["link_keys"] = keys.where(of_rows | (keys < 0), torch.nan)
    return sure


def _problem(c):
    fields = {"dtype": DTYPES[c.dtype], "v_head_dim": 0, "head_dim": c.dim, "q_offset": c.offset}
    fields |= {name: getattr(c, name) for name in ("batch", "heads", "kv_heads", "q_len", "kv_len", "scale", "softcap")}
    for name in "qk":
        fields[f"{name}.data"] = getattr(c, name)
        fields |= dict(zip((f"{name}.batch", f"{name}.head", f"{name}.row"), getattr(c, name).stride(), strict=False))
    if c.window is not None:
        fields["mask.window"] = torch.tensor(c.window)
    if c.keep is not None:
        fields |= {"mask.keep": c.keep, "mask.keep_batch": c.kv_len}
    if c.dense is not None:
        steps = zip(("batch", "head", "row", "col"), c.dense.stride(), strict=True)
        fields |= {"mask.dense": c.dense} | {f"mask.dense_{name}": step for name, step in steps}
    if c.bias is not None:
        steps = zip(("head", "row", "col"), c.bias.stride(), strict=True)
        fields |= {"bias.dense": c.bias} | {f"bias.dense_{name}": step for name, step in steps}
    return fields if c.sinks is None else fields | {"sinks": c.sinks}


def _wanted(c):
    w = c.wanted
    fields = {"wanted.bins": w.bins, "wanted.least": w.least, "wanted.pair_sets": len(w.pairs)}
    if isinstance(w.rows, slice):
        fields |= {"wanted.row_first": w.rows.start, "wanted.row_count": w.rows.stop - w.rows.start}
    else:
        fields |= {"wanted.rows": w.rows, "wanted.row_count": len(w.rows)}
    for name in ("centers", "q_kept", "k_kept", "sunk", "q_bins", "k_bins"):
        line = getattr(w, name)
        if line is not None and (name != "sunk" or bool(line.any())):
            fields |= {f"wanted.{name}": line, f"wanted.{name}_batch": line.shape[1] if line.shape[0] > 1 else 0}
    fields["wanted.sunk_keys"] = int(w.sunk.sum())
    if c.links:
        rows = range(c.wanted.centers.shape[1]) if c.link_rows is None else c.link_rows
        fields |= {"wanted.links": c.links, "wanted.link_count": len(rows)}
        fields |= {} if c.link_rows is None else {"wanted.link_rows": c.link_rows}
    return fields


def _pairs(place, pairs):
    fields = {"pair": place, "pairs.low": pairs.low, "pairs.high": pairs.high, "pairs.without": pairs.without}
    for side, line in zip("qk", pairs.ids or (), strict=False):
        batch = line.shape[1] if line.shape[0] > 1 else 0
        fields |= {f"pairs.{side}_ids": line, f"pairs.{side}_ids_batch": batch}
    if pairs.dense is not None:
        batch, head, row, _ = (0 if n == 1 else s for n, s in zip(pairs.dense.shape, pairs.dense.stride(), strict=True))
        fields |= {"pairs.dense": pairs.dense, "pairs.dense_batch": batch, "pairs.dense_head": head}
        fields |= {"pairs.dense_row": row, "pairs.dense_first": pairs.dense_first}
        fields["pairs.dense_keys"] = pairs.dense.shape[-1]
    return {f"{name}@{place}": value for name, value in fields.items()}
