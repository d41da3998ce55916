"""How far a result of the compiled kernel may be from the reference in float64: a bound, derived and not tuned.

u is half a unit in the last place of float32, 2^-24. For one query, s_j are its scores in exact arithmetic and p_j its
weights; what is computed differs from them in these steps:

1. A product of q and k of D numbers, summed in any order: D u sum_d |q_d k_d| at most. The scale is rounded once and
   multiplied in once, log2(e) likewise: 4 u |s| more, and |s| <= |scale| sum |q k|. Together
   (D + 4) u |scale| sum |q k|.
2. A softcap c: the quotient, the tanh and the product are rounded, and tanh is exact to some units of its own: 8 u c.
   Its slope is 1 at most, so that step 1 does not grow.
3. A bias b: its product of slope and distance, its sum with the score, log2(e): 4 u (|s| + |b|).
4. A sink: 4 u |sink|.

E is the largest sum of these over the keys the query sees. A weight before it is divided is exp of a score: wrong by a
factor within exp(+-(E + e)), where e is what the kernel's exp is off by (2^-20 in float32, 2^-12 where weights go on in
bfloat16). So are the sums of weights; n of them add n u. The quotient is then wrong by a factor within
exp(+-2 (E + e + n u)), the sum of n products with values adds n u of their magnitudes. With M = sum_j p_j |v_j|:

    |out - exact| <= (expm1(2 (E + e)) + (3 n + 8) u) M
    |lse - exact| <= E + e + n u + 4 u (|lse| + 1)

Weights that go on in bfloat16 are rounded, 2^-8 of each at most, as is their sum: 2 * 2^-8 M more. The output is
rounded to its dtype: 2^-8 (bfloat16) or 2^-11 (float16) of it, or half the smallest number of float16. Weights below
2^-126 become 0: n 2^-100 max |v| covers it.
"""

import dataclasses

import torch

from multihead.attend import define
from multihead.native import Variant
from multihead.position import AdaptiveSpan

U = 2.0**-24
ROUNDED = {torch.float32: U, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


def exact(problem):
    """The problem in float64, with values of 0 where they are infinite or NaN, and a mask where a bias is -inf."""

    def wide(x):
        return x.double() if isinstance(x, torch.Tensor) else x

    bias, n = problem.bias, problem.normaliser
    if bias is not None:
        bias = wide(bias) if isinstance(bias, torch.Tensor) else bias.with_weight(wide(bias.weight))
    if isinstance(bias, AdaptiveSpan):  # beyond a span nothing is seen
        bias = bias.scores(problem.q_positions(), problem.k_positions())
    mask = problem.mask
    if isinstance(bias, torch.Tensor) and bool(bias.isneginf().any()):
        shut = bias.isneginf()
        bias, mask = bias.masked_fill(shut, 0), ~shut if mask is None else allowed(problem) & ~shut
    return dataclasses.replace(
        problem,
        mask=mask,
        q=wide(problem.q),
        k=wide(problem.k),
        v=wide(problem.v).nan_to_num(nan=0, posinf=0, neginf=0),
        bias=bias,
        normaliser=dataclasses.replace(n, sinks=wide(n.sinks)),
    )


def allowed(problem):
    """The mask of a problem as a tensor."""
    mask = problem.mask
    return (
        mask
        if isinstance(mask, torch.Tensor)
        else mask.mask(problem.q_len, problem.kv_len, q_offset=problem.q_offset or 0)
    )


class Verdict:
    """What the reference gives, how far a result may be off, and which results must not be numbers."""

    def __init__(self, problem, variant):
        p = exact(problem)
        self.out, self.lse, weights = define(p)
        seen = weights.new_ones(weights.shape, dtype=torch.bool)
        if p.mask is not None:
            seen = seen & allowed(p)
        bias, group = p.bias_rows(), problem.group
        k, v = (x.repeat_interleave(group, 1) for x in (p.k, p.v))
        strange = (~problem.v.isfinite()).repeat_interleave(group, 1).double()
        # Columns that a row sees something strange in; only where it has weight is it sure to come out strange.
        self.touched = seen.expand(weights.shape).double() @ strange > 0
        self.strange = (seen & (weights > 1e-6)).double() @ strange > 0
        share = weights.nan_to_num() * seen
        magnitude = share @ v.abs()
        size = abs(p.scale) * (p.q.abs().nan_to_num(posinf=0) @ k.abs().nan_to_num(posinf=0).mT)
        off = (problem.head_dim + 4) * U * size
        reach = size if p.softcap is None else torch.full_like(size, p.softcap)
        off = off + (0 if p.softcap is None else 8 * U * p.softcap)
        if bias is not None:
            off = off + 4 * U * (reach + bias.abs().nan_to_num(posinf=0))
        # A row's own sum of what its keys can be off by; 0 where it sees none.
        off = off.where(seen, 0)
        most = torch.nn.functional.pad(off, (0, 1)).amax(-1)
        if p.normaliser.sinks is not None:
            most = most + 4 * U * p.normaliser.sinks.abs().nan_to_num(posinf=0)[:, None]
        self._bounds(problem, variant, most, magnitude, v)

    def _bounds(self, problem, variant, most, magnitude, v):
        pairs = problem.q.dtype == torch.bfloat16 and variant == Variant.AVX512_BF16
        e, n = 2.0**-12 if pairs else 2.0**-20, problem.kv_len + 1
        self.lse_bound = most + e + n * U + 4 * U * (self.lse.abs().nan_to_num(posinf=0) + 1)
        factor = torch.expm1(2 * (most + e)) + (3 * n + 8) * U + (2 * ROUNDED[torch.bfloat16] if pairs else 0)
        largest = v.abs().amax() if v.numel() else 0.0
        bound = factor[..., None] * magnitude + n * 2.0**-100 * largest
        rounding = ROUNDED[problem.q.dtype] * (self.out.abs() + bound)
        self.out_bound = bound + rounding + (2.0**-25 if problem.q.dtype == torch.float16 else 0)

    def faults(self, out, lse):
        """What is wrong with a result, in words."""
        out, lse = out.double(), lse.double()
        wrong = []
        ill = self.out.isnan()
        # The reference has -inf for the log-sum-exp of NaN as well.
        empty = self.lse.isneginf() & ~ill.any(-1)
        checked = {
            "a row without a key is not 0": (empty[..., None] & ~self.touched & (out != 0)).any(),
            "log-sum-exp of a row without a key is not -inf": (empty & ~lse.isneginf()).any(),
            "a row that sees NaN came out as numbers": (ill & out.isfinite()).any(),
            "a value that is no number came out as one": (self.strange & ~ill & out.isfinite()).any(),
            "NaN where nothing strange is seen": (~self.touched & ~ill & ~out.isfinite()).any(),
            "log-sum-exp NaN where nothing strange is seen": (self.lse.isfinite() & ~lse.isfinite()).any(),
        }
        wrong += [told for told, found in checked.items() if bool(found)]
        sound = ~self.touched & ~ill
        over = ((out - self.out).abs() / self.out_bound).where(sound & out.isfinite(), 0)
        over_lse = ((lse - self.lse).abs() / self.lse_bound).where(self.lse.isfinite() & lse.isfinite(), 0)
        for name, found in (("output", over), ("log-sum-exp", over_lse)):
            if found.numel() and float(found.max()) > 1:
                place = torch.unravel_index(found.argmax(), found.shape)
                wrong.append(f"{name} {float(found.max()):.3g} times its bound at {[int(at) for at in place]}")
        return wrong

    def nearness(self, out):
        """The largest difference as a share of its bound."""
        share = ((out.double() - self.out).abs() / self.out_bound).where(~self.touched & self.out.isfinite(), 0)
        return float(share.nan_to_num().max()) if share.numel() else 0.0
