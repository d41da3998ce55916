"""Attention in plain torch, one band of queries at a time: everything, on any device, in O(n) memory both ways.

A band holds every key its queries may attend to, so that normalisers that need complete rows work as well. The backward
pass makes each band of weights again from two numbers a row.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from multihead.attend.normaliser import Softmax
from multihead.attend.order import FirstOrder, hidden, kept, last, rebuilt
from multihead.attend.problem import PositionBias, Problem, blank, cap, hide, products
from multihead.attend.tile import Band, add_at, bands

NAME = "tiled"
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}

_TARGET = 2**20  # weights in a band, over all batch rows and heads
_LEAST, _MOST = 16, 256  # queries in a band


def why_not(problem: Problem) -> list[str]:
    """Nothing but what torch.func.vmap hides from it: else it runs every problem."""
    return [f"it has no {what}" for what in hidden(problem)]


def how(problem: Problem) -> str:
    """What runs, in words."""
    return f"plain torch, bands of {min(_height(problem), problem.q_len)} queries"


def run(problem: Problem) -> tuple[Tensor, Tensor | None]:
    """Output (batch, heads, q_len, v_head_dim) and log-sum-exp, None where the normaliser has none.

    Gradients flow to q, k, v, to the tensor of the bias, and to the sinks, from both results.
    """
    seed = int(torch.randint(2**62, ())) if problem.dropout > 0 else 0
    if torch.is_grad_enabled():
        sinks = problem.normaliser.sinks if isinstance(problem.normaliser, Softmax) else None
        weight = problem.bias if isinstance(problem.bias, Tensor) or problem.bias is None else problem.bias.weight
        out, lse, _ = _Tiled.apply(problem, seed, problem.q, problem.k, problem.v, weight, sinks)
    else:
        out, lse, _ = _attend(problem, seed)
    return out, lse if problem.normaliser.has_lse else None


class _Tiled(FirstOrder):
    """(out, lse, settled); the tensors a gradient may flow to are handed over one by one."""

    @staticmethod
    def forward(
        problem: Problem, seed: int, q: Tensor, k: Tensor, v: Tensor, weight: Tensor | None, sinks: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        return _attend(_rebuilt(problem, q, k, v, weight, sinks), seed)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        problem, seed, *tensors = inputs
        ctx.set_materialize_grads(False)
        ctx.problem, ctx.seed = problem, seed
        ctx.save_for_backward(*tensors, output[2])
        ctx.mark_non_differentiable(*output[2 if problem.normaliser.has_lse else 1 :])

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor | None) -> tuple[Tensor | None, ...]:
        grad_out, grad_lse, _ = grad_outputs
        q, k, v, weight, sinks, settled = ctx.saved_tensors
        with torch.no_grad():
            problem = _rebuilt(ctx.problem, q, k, v, weight, sinks)
            sums = _Sums.zeros(problem, bias=ctx.needs_input_grad[5])
            if grad_out is None:
                grad_out = torch.zeros_like(v[:, :1, :1]).expand(*q.shape[:3], v.shape[3])
            flow = _Flow(problem.widen(), ctx.seed, settled, grad_out, grad_lse)
            for band in bands(problem, _height(problem)):
                flow.back(band, sums)
            grads = [sums.q, sums.k, sums.v, sums.bias, sums.sinks]
        known = [(g.to(x.dtype), x) for g, x in zip(grads, (q, k, v, weight, sinks), strict=True) if g is not None]
        guarded = iter(last([g for g, _ in known], [*(x for _, x in known), grad_out]))
        return None, None, *(None if g is None else next(guarded) for g in grads)


def _attend(problem: Problem, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Output, log-sum-exp, and the numbers each row of weights follows from, of all bands."""
    wide, normaliser = problem.widen(), problem.normaliser
    out, settled = blank(problem), problem.q.new_empty(*problem.q.shape[:3], 2, dtype=problem.wide)
    for band in bands(problem, _height(problem)):
        scores = _Scores.of(wide, band).final
        rows = normaliser.settle(scores)
        weights = normaliser.weigh(scores, rows)
        factors = kept(weights.shape, problem, seed, band.rows.start)
        out[:, :, band.rows] = _mix(weights if factors is None else weights * factors, wide.v[:, :, band.cols])
        settled[:, :, band.rows] = rows
    return out, settled.sum(-1), settled


class _Scores(NamedTuple):
    """Scores of a band, before and after bias and mask."""

    capped: Tensor
    final: Tensor

    @classmethod
    def of(cls, wide: Problem, band: Band) -> "_Scores":
        """Computes them."""
        capped = cap(products(wide.q[:, :, band.rows], wide.k[:, :, band.cols], wide.scale), wide.softcap)
        bias = wide.bias_rows(band.rows, band.cols)
        biased = capped if bias is None else capped + bias
        return cls(capped, hide(biased, wide.allowed(band.rows, band.cols) if band.masked else None))


class _Sums(NamedTuple):
    """The gradients, growing band by band."""

    q: Tensor
    k: Tensor
    v: Tensor
    bias: Tensor | None
    sinks: Tensor | None

    @classmethod
    def zeros(cls, problem: Problem, *, bias: bool) -> "_Sums":
        """Nothing yet."""
        q, k, v = (torch.zeros(x.shape, dtype=problem.wide, device=x.device) for x in (problem.q, problem.k, problem.v))
        held = problem.bias if isinstance(problem.bias, Tensor) or problem.bias is None else problem.bias.weight
        sinks = problem.normaliser.sinks if isinstance(problem.normaliser, Softmax) else None
        return cls(
            q,
            k,
            v,
            torch.zeros(held.shape, dtype=problem.wide, device=held.device) if held is not None and bias else None,
            torch.zeros(sinks.shape, dtype=problem.wide, device=sinks.device) if sinks is not None else None,
        )


class _Flow(NamedTuple):
    """What a backward pass knows."""

    wide: Problem
    seed: int
    settled: Tensor
    grad_out: Tensor
    grad_lse: Tensor | None

    def back(self, band: Band, sums: _Sums) -> None:
        """Adds the gradients of one band."""
        p, rows, cols = self.wide, band.rows, band.cols
        settled, grad_out = self.settled[:, :, rows], self.grad_out[:, :, rows].to(p.wide)
        scores = _Scores.of(p, band)
        weights = p.normaliser.weigh(scores.final, settled)
        factors = kept(weights.shape, p, self.seed, band.rows.start)
        grad_weights = products(grad_out, p.v[:, :, cols], 1.0)
        grad_weights = grad_weights if factors is None else grad_weights * factors
        add_at(sums.v, cols, _transposed(weights if factors is None else weights * factors, grad_out, p.kv_heads))
        grad = p.normaliser.pull(weights, grad_weights)
        if sums.sinks is not None:
            sums.sinks.sub_(_pull_sinks(p, settled, (weights * grad_weights).sum(-1)))
        if self.grad_lse is not None:
            grad_lse = self.grad_lse[:, :, rows]
            grad = grad + weights * grad_lse[..., None]
            if sums.sinks is not None:
                sums.sinks.add_(_pull_sinks(p, settled, grad_lse))
        if sums.bias is not None:
            _pull_bias(p, band, grad, sums.bias)
        if p.softcap is not None:
            grad = grad * (1 - (scores.capped / p.softcap) ** 2)
        grad = grad * p.scale
        sums.q[:, :, rows] = _mix(grad, p.k[:, :, cols])
        add_at(sums.k, cols, _transposed(grad, p.q[:, :, rows], p.kv_heads))


def _pull_sinks(problem: Problem, settled: Tensor, grad: Tensor) -> Tensor:
    """Gradient of the sinks: the sink of a row takes up weight like a key whose value is 0."""
    normaliser = problem.normaliser
    if not isinstance(normaliser, Softmax) or normaliser.sinks is None:
        return torch.zeros((), dtype=grad.dtype, device=grad.device)
    peak, rest = settled.unbind(-1)
    share = torch.exp(normaliser.sinks.to(settled)[:, None] - peak - torch.where(rest.isneginf(), 0.0, rest))
    return (share * grad).sum((0, 2))


def _pull_bias(problem: Problem, band: Band, grad: Tensor, total: Tensor) -> None:
    """Adds the gradient of the bias's tensor."""
    bias = problem.bias
    if isinstance(bias, Tensor):
        part = total[:, :, band.rows] if bias.shape[2] > 1 else total
        shape = (*part.shape[:3], grad.shape[3] if bias.shape[3] > 1 else 1)
        summed = grad.sum_to_size(shape)
        if bias.shape[3] == 1:
            part += summed
        elif isinstance(band.cols, Tensor):
            part.index_add_(3, band.cols, summed)
        else:
            part[..., band.cols] += summed
    elif bias is not None:
        places = problem.q_positions()[band.rows], problem.k_positions()[band.cols]
        total += bias.pull(grad.sum(0), *places)


def _mix(weights: Tensor, values: Tensor) -> Tensor:
    """Weights (batch, heads, rows, cols) @ values (batch, kv_heads, cols, dim), grouped."""
    batch, heads, rows, cols = weights.shape
    folded = weights.reshape(batch, values.shape[1], heads // max(values.shape[1], 1) * rows, cols)
    return (folded @ values).view(batch, heads, rows, values.shape[3])


def _transposed(weights: Tensor, rows: Tensor, kv_heads: int) -> Tensor:
    """Weights.T @ rows, summed over the query heads of each kv head."""
    batch, heads, length, cols = weights.shape
    size = heads // max(kv_heads, 1) * length
    return weights.reshape(batch, kv_heads, size, cols).mT @ rows.reshape(batch, kv_heads, size, rows.shape[3])


def _rebuilt(problem: Problem, q: Tensor, k: Tensor, v: Tensor, weight: Tensor | None, sinks: Tensor | None) -> Problem:
    """The problem around the tensors autograd hands over."""
    bias: Tensor | PositionBias | None = weight
    if weight is not None and problem.bias is not None and not isinstance(problem.bias, Tensor):
        bias = problem.bias.with_weight(weight)
    return replace(rebuilt(problem, q, k, v, sinks), bias=bias)


def _height(problem: Problem) -> int:
    """Queries in a band. It must not depend on the values: dropout draws by band."""
    row = max(problem.batch * problem.heads * problem.kv_len, 1)
    return min(max(_TARGET // row, _LEAST), _MOST)
