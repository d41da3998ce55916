"""The passes of the kernel that look at weights, called at its own door with exactly what is asked of them."""

import ctypes

import torch

from multihead.attend.lowering import mask_parts
from multihead.attend.problem import make_problem
from multihead.native import CProblem, load
from multihead.native import statistics as door
from multihead.native.ops import pack_problem
from multihead.pattern import causal

BASE = ("entropy", "top", "squares", "peak", "distance", "offsets", "columns", "pooled")
"""Entropy, largest weight, sum of squares, largest score, distance, offsets -16 to 16, weight on each key, mean map."""

TARGETS, BINS, KINDS = 8, 32, 50


class Pass:
    """One call of `mh_statistics`, everything made before it.

    Args:
        case: The attention call.
        q: Queries.
        k: Keys.
        threads: Threads.
        fields: What is asked, as `mh_found` names it.
        targets: Sets of pairs besides: distances and equal ids by turns.
    """

    def __init__(self, case, q, k, threads, fields, targets=0):
        self.library = load()
        problem = make_problem(q, k, k[..., :0], mask=causal() if case.causal else None)
        mask = mask_parts(problem)
        numbers = (problem.scale, 0.0, 0, 0)
        given = pack_problem((q, k, problem.v), mask.tensors(), [], None, numbers, (0, threads))
        self.problem: CProblem = given
        places = torch.arange(case.queries)[None]
        bins = (places * BINS // case.queries).int()
        wanted = door.Wanted(
            rows=slice(0, case.queries),
            centers=places,
            q_kept=None,
            k_kept=None,
            # The first key, as in most models, where statistics are asked with it and without it.
            sunk=places == 0,
            q_bins=bins,
            k_bins=bins,
            bins=BINS,
            pairs=[self._target(number, case.queries) for number in range(targets)],
            # The first row of a causal mask counts too, so that `error` has one weight for every row.
            least=1,
        )
        self.wanted, held = door._wanted(wanted, 1)
        if "sunk_weights" not in fields:
            self.wanted.sunk = None
        self.found = self._found(case, fields, targets)
        each = (self.found.get(name) for name, _ in door.CFound._fields_)
        self.to = door.CFound(*(None if tensor is None else tensor.data_ptr() for tensor in each))
        self._held = (q, k, mask, held)

    def _target(self, number, length):
        if number % 2 == 0:
            return door.Pairs(low=number + 1, high=number + 1)
        ids = torch.randint(KINDS, (1, length)).int()
        return door.Pairs(ids=(ids, ids), without=0)

    def _found(self, case, fields, targets):
        rows, double = (1, case.heads, case.queries), torch.float64
        made = {
            "offsets": torch.zeros(*rows, 2 * door.FARTHEST + 1),
            "octaves": torch.zeros(*rows, 2 * door.OCTAVES),
            "columns": torch.zeros(rows, dtype=double),
            "sunk_weights": torch.zeros(rows),
            "sunk_seen": torch.zeros(rows, dtype=torch.uint8),
            "pooled": torch.zeros(1, case.heads, BINS, BINS, dtype=double),
            "pooled_content": torch.zeros(1, case.heads, BINS, BINS, dtype=double),
            "gram": torch.zeros(1, case.heads, case.heads, dtype=double),
            "leaks": torch.zeros(1, dtype=torch.uint8),
        }
        for name in ("sees", "sees_sunk", "top_key"):
            made[name] = torch.zeros(rows, dtype=torch.int32)
        for name in ("pair_weight", "pair_sunk", "pair_seen", "pair_seen_sunk", "pair_top"):
            kind = torch.uint8 if name.endswith("top") else torch.int32 if "seen" in name else torch.float32
            made[name] = torch.zeros(targets, *rows, dtype=kind)
        wanted = [*fields, *(name for name in made if targets and name.startswith("pair_"))]
        return {name: made[name] if name in made else torch.zeros(rows) for name in wanted}

    def error(self):
        """How far the weights of a row are from 1 together, from what is told of all of them."""
        found, rows = self(), self.wanted.row_count
        sums = found["columns"].sum(-1) if "columns" in found else found["gram"].diagonal(dim1=1, dim2=2)
        return float((sums / rows - 1).abs().max())

    def __call__(self):
        pointers = (ctypes.byref(given) for given in (self.problem, self.wanted, self.to))
        self.library.check(self.library.c.mh_statistics(*pointers), "a pass over the weights")
        return self.found


def passes(case, q, k, threads):
    """What is timed for a case, by name."""
    if load() is None:
        return {}
    if case.kind == "gram":
        return {"ours": Pass(case, q, k, threads, ("gram",))}
    every = [name for name, _ in door.CFound._fields_ if not name.startswith("pair_") and name != "gram"]
    return {
        "ours": Pass(case, q, k, threads, BASE),
        f"{TARGETS} targets": Pass(case, q, k, threads, BASE, TARGETS),
        "all, sink aside": Pass(case, q, k, threads, every),
    }
