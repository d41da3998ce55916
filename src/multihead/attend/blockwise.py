"""Attention to chosen blocks of keys, each with the queries that chose it: no other pair costs anything.

A pattern of tiles is as fine as a tile: where each query chooses for itself, nearly every tile of 64 x 64 pairs holds a
query that chose it. Here the queries that chose a block are gathered instead (as in MoBA: Lu et al. 2025, arXiv
2502.13189), multiplied with that block alone, and joined with what they had from earlier blocks by a running maximum
and sum (Milakov and Gimelshein 2018, arXiv 1805.02867). A query comes once to a block, so that nothing is added in an
order that could differ from run to run. Weights are made again in the backward pass from two numbers a row.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy
import torch
from jaxtyping import Float, Int
from torch import Tensor

from multihead.attend.fit import finite
from multihead.attend.normaliser import Softmax
from multihead.attend.order import FirstOrder, hidden, kept, last, rebuilt
from multihead.attend.piece import LEAST, Piece, asked_of, chosen_of, pieces
from multihead.attend.problem import Problem, blank
from multihead.pattern.chosen import Chosen, unpacked

NAME = "blockwise"
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}

_BITS = 2**24  # bits that are counted at once
_EDGE = 64  # queries that share a tile of the compiled kernel
_DEARER = 10
"""A chosen pair takes here about ten times as long as a pair of a tile takes the compiled kernel (14 and 1.5 ns with
heads of 64, blocks of 64, float32, one core)."""


def why_not(problem: Problem) -> list[str]:
    """Every reason against it, in words; none if it can run the problem."""
    reasons = [f"it has no {what}" for what in hidden(problem)]
    if chosen_of(problem.mask) is None:
        reasons.append(f"it is for masks that are, or contain by &, chosen blocks of {LEAST} keys or more")
    if not isinstance(problem.normaliser, Softmax):
        reasons.append(f"it has softmax only, not {problem.normaliser}")
    if problem.bias is not None:
        reasons.append("it has no bias")
    if torch.compiler.is_compiling() or problem.q.is_meta:
        reasons.append("how many queries chose a block is known from numbers alone, which a graph does not have")
    return reasons


def how(problem: Problem) -> str:
    """What runs, in words."""
    chosen = asked_of(problem)
    return f"plain torch, {_share(chosen):.1%} of all pairs in {chosen.columns} blocks of {chosen.block} keys"


def ahead(problem: Problem) -> str | None:
    """Why it goes before the compiled kernel, which takes whole tiles in a tenth of the time a pair, or None.

    Args:
        problem: One that it can run.
    """
    chosen = asked_of(problem)
    # A tile of so few rows touches no more than all of them together chose: in decoding nothing is counted.
    if chosen.bits.shape[2] <= _DEARER:
        return None
    share, touched = _share(chosen), _touched(chosen)
    if share * _DEARER >= touched:
        return None
    return f"its tiles of {_EDGE} queries touch {touched:.1%} of all pairs, of which {share:.1%} are chosen"


def _share(chosen: Chosen) -> float:
    """The share of all pairs that was chosen."""
    return _ones(chosen.bits.on("cpu"), chosen.columns)


def _touched(chosen: Chosen) -> float:
    """The share of all pairs in tiles of queries one of which chose the block."""
    words = chosen.bits.on("cpu").numpy()
    if not words.size:
        return 0.0
    starts = numpy.arange(0, words.shape[2], max(1, _EDGE // chosen.span))
    return _ones(torch.from_numpy(numpy.bitwise_or.reduceat(words, starts, axis=2)), chosen.columns)


def _ones(words: Int[Tensor, "_ _ rows words"], columns: int) -> float:
    """The share of bits that are set."""
    rows = words.flatten(0, 2)
    ones = sum(int(unpacked(some, columns).sum()) for some in rows.split(max(1, _BITS // max(columns, 1))))
    return ones / max(rows.shape[0] * columns, 1)


def run(problem: Problem) -> tuple[Tensor, Tensor]:
    """Output (batch, heads, q_len, v_head_dim) and log-sum-exp (batch, heads, q_len).

    Gradients flow to q, k, v and the sinks, from both results.
    """
    seed = int(torch.randint(2**62, ())) if problem.dropout > 0 else 0
    if torch.is_grad_enabled():
        sinks = problem.normaliser.sinks if isinstance(problem.normaliser, Softmax) else None
        out, lse, _ = _Blockwise.apply(problem, seed, problem.q, problem.k, problem.v, sinks)
        return out, lse
    out, settled = _attend(problem, seed)
    return out, settled.sum(-1)


class _Blockwise(FirstOrder):
    """(out, lse, settled); the tensors a gradient may flow to are handed over one by one."""

    @staticmethod
    def forward(
        problem: Problem, seed: int, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        out, settled = _attend(rebuilt(problem, q, k, v, sinks), seed)
        return out, settled.sum(-1), settled

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        problem, seed, *tensors = inputs
        ctx.set_materialize_grads(False)
        ctx.problem, ctx.seed = problem, seed
        ctx.save_for_backward(*tensors, output[0], output[2])
        ctx.mark_non_differentiable(output[2])

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor | None) -> tuple[Tensor | None, ...]:
        grad_out, grad_lse, _ = grad_outputs
        q, k, v, sinks, out, settled = ctx.saved_tensors
        with torch.no_grad():
            problem = rebuilt(ctx.problem, q, k, v, sinks)
            if grad_out is None:
                grad_out = torch.zeros_like(out)
            flow = _Flow(problem, ctx.seed, settled, out, grad_out, grad_lse)
            grads = flow.grads()
        known = [(g.to(x.dtype), x) for g, x in zip(grads, (q, k, v, sinks), strict=True) if g is not None]
        guarded = iter(last([g for g, _ in known], [*(x for _, x in known), grad_out]))
        return None, None, *(None if g is None else next(guarded) for g in grads)


def _attend(problem: Problem, seed: int) -> tuple[Tensor, Tensor]:
    """Output, and for each row the largest score and the log of the sum of exponentials below it."""
    q, k, v = _wide(problem)
    rows = _Running.begin(problem)
    for piece in pieces(problem):
        scores = _scores(problem, piece, q.index_select(0, piece.rows), k)[0]
        rows.take(piece, scores, v, _kept(problem, seed, piece))
    out = blank(problem)
    shape = problem.q.shape[:3]
    settled = rows.settled()
    out.copy_((rows.mixed * torch.exp(-finite(settled[:, 1]))[:, None]).view(*shape, problem.v_head_dim))
    return out, settled.view(*shape, 2)


class _Flow(NamedTuple):
    """What a backward pass knows."""

    problem: Problem
    seed: int
    settled: Tensor
    out: Tensor
    grad_out: Tensor
    grad_lse: Tensor | None

    def grads(self) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Gradients of q, k, v and the sinks."""
        p = self.problem
        q, k, v = _wide(p)
        flat = self.grad_out.to(p.wide).reshape(-1, p.v_head_dim)
        inner = (self.grad_out.to(p.wide) * self.out.to(p.wide)).sum(-1)
        inner = inner if self.grad_lse is None else inner - self.grad_lse.to(p.wide)
        peak, rest = self.settled.reshape(-1, 2).unbind(-1)
        each = torch.stack([peak, torch.exp(-finite(rest)), inner.reshape(-1)], 1)
        grad_q, grad_k, grad_v = (torch.zeros_like(x) for x in (q, k, v))
        for piece in pieces(p):
            some, come = q.index_select(0, piece.rows), flat.index_select(0, piece.rows)
            base, factor, less = each.index_select(0, piece.rows).split(1, 1)
            scores, capped = _scores(p, piece, some, k)
            # No weight exceeds 1, however the products were rounded.
            weights = scores.sub_(base).clamp_(max=0.0).exp_().mul_(factor)
            factors = _kept(p, self.seed, piece)
            grad = piece.times(come, v, transposed=True)
            grad = (grad if factors is None else grad.mul_(factors)).sub_(less).mul_(weights)
            piece.add_keys(grad_v, weights if factors is None else weights.mul_(factors), come)
            if capped is not None and p.softcap is not None:
                grad *= 1 - (capped / p.softcap) ** 2
            grad_q.index_add_(0, piece.rows, piece.times(grad, k))
            piece.add_keys(grad_k, grad, some)
        grad_q *= p.scale
        shaped = grad_q.view(p.q.shape), grad_k.view(p.k.shape), grad_v.view(p.v.shape)
        return *shaped, _pull_sinks(p, self.settled.sum(-1), inner)


def _pull_sinks(problem: Problem, lse: Tensor, inner: Tensor) -> Tensor | None:
    """Gradient of the sinks: the sink of a row takes up weight like a key whose value is 0."""
    assert isinstance(problem.normaliser, Softmax)
    sinks = problem.normaliser.sinks
    if sinks is None:
        return None
    # `finite`: a row without any key, and without a sink, has none to give to.
    return -(torch.exp(sinks.to(lse)[:, None] - finite(lse)) * inner).sum((0, 2))


def _kept(problem: Problem, seed: int, piece: Piece) -> Tensor | None:
    """The factor of dropout on each weight of a piece."""
    return kept((piece.rows.numel(), piece.cols.stop - piece.cols.start), problem, seed, piece.number)


def _scores(problem: Problem, piece: Piece, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor | None]:
    """Scores of a piece, -inf where the rest of the mask hides a pair, and with a softcap what it made of them."""
    scores = piece.times(q, k, transposed=True)
    capped = None
    if problem.softcap is not None:
        capped = problem.softcap * torch.tanh(scores / problem.softcap)
        scores = capped.clone()
    if piece.cut is not None:
        places, hidden_keys = piece.cut
        scores.index_copy_(0, places, scores.index_select(0, places).masked_fill_(hidden_keys, -torch.inf))
    return scores, capped


@dataclass(frozen=True, slots=True)
class _Running:
    """Rows on their way: the largest score, the sum of exponentials below it, and the values mixed by these."""

    peak: Tensor
    total: Tensor
    mixed: Tensor

    @classmethod
    def begin(cls, problem: Problem) -> "_Running":
        """Nothing yet but the sink."""
        assert isinstance(problem.normaliser, Softmax)
        shape, device = problem.q.shape[:3], problem.q.device
        count = shape.numel()
        mixed = torch.zeros(count, problem.v_head_dim, dtype=problem.wide, device=device)
        sink = problem.normaliser.sink_logit(mixed)
        if sink is None:
            peak = torch.full((count,), -torch.inf, dtype=problem.wide, device=device)
            return cls(peak, torch.zeros_like(peak), mixed)
        sink = sink.expand(shape).reshape(-1)
        peak = sink.clamp(max=torch.finfo(sink.dtype).max)
        return cls(peak, torch.exp(sink - _above(peak)), mixed)

    def take(self, piece: Piece, scores: Tensor, v: Tensor, factors: Tensor | None) -> None:
        """Joins what rows had with one block more. The scores are used up."""
        before = self.peak.index_select(0, piece.rows)
        most = torch.finfo(scores.dtype).max
        peak = torch.maximum(before, scores.amax(1)).clamp(max=most)
        base = _above(peak)
        weights = scores.sub_(base[:, None]).exp_()
        less = torch.exp(before - base)
        total = self.total.index_select(0, piece.rows).mul_(less).add_(weights.sum(1))
        weights = weights if factors is None else weights.mul_(factors)
        mixed = self.mixed.index_select(0, piece.rows).mul_(less[:, None]).add_(piece.times(weights, v))
        for held, made in zip((self.peak, self.total, self.mixed), (peak, total, mixed), strict=True):
            held.index_copy_(0, piece.rows, made)

    def settled(self) -> Float[Tensor, "rows 2"]:
        """The largest score (0 in an empty row), and the log of the sum; -inf in an empty row."""
        return torch.stack([_above(self.peak), torch.log(self.total)], -1)


def _above(peak: Tensor) -> Tensor:
    """What exponentials are taken below: 0 where there is no score."""
    return torch.where(peak.isneginf(), 0.0, peak)


def _wide(problem: Problem) -> tuple[Tensor, Tensor, Tensor]:
    """Scaled queries (rows, head_dim), and keys and values (batch * kv_heads, kv_len, dim), in the dtype of sums."""
    wide = problem.widen()
    q = (wide.q * problem.scale).reshape(-1, problem.head_dim)
    return q, wide.k.flatten(0, 1).contiguous(), wide.v.flatten(0, 1).contiguous()
