"""PyTorch's flash kernel for the CPU, with the gradients it leaves out: of the log-sum-exp and of sinks.

The kernel wants keys and values of one size, takes masks as numbers, and gives 0 as the log-sum-exp of an empty row.
Here the smaller ones are padded with zeros, the mask of a band of queries is made when the band is computed, so that
the whole of it never exists, and empty rows get -inf.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from multihead.attend.fit import finite, fit, mask_copies, mask_numbers
from multihead.attend.normaliser import Softmax
from multihead.attend.order import FirstOrder, last, rebuilt
from multihead.attend.problem import Problem, blank
from multihead.attend.tile import Band, add_at, bands
from multihead.pattern import Pattern

_KERNEL = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
_NUMBERS = 2**21  # in the mask of a band: 8 MiB in float32
_LEAST, _MOST = 32, 256  # queries in a band
_NOTHING = torch.empty(0, 0, 0, 0)
_BLOCK = 192  # queries from which on the kernel works in large blocks


def run(problem: Problem) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp; gradients flow to q, k, v and the sinks, from both."""
    if not torch.is_grad_enabled():
        return _attend(problem)
    return _Flash.apply(problem, problem.q, problem.k, problem.v, _softmax(problem).sinks)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prepared:
    """A call of the kernel itself, whose derivative is torch's own, known but for q, k and v.

    That is what `run` does where only q, k and v are trained and nobody asks for the log-sum-exp, without a function of
    autograd in Python, which takes longer than a small kernel.

    Args:
        causal: The kernel's flag.
        scale: Factor of the products.
        steps: Strides of the gradients of q, k and v.
    """

    causal: bool
    scale: float
    steps: tuple[tuple[int, ...], ...]

    def run(self, q: Tensor, k: Tensor, v: Tensor, /) -> Tensor:
        """The output of `run` for other tensors of the same facts.

        Args:
            q: Queries.
            k: Keys.
            v: Values.
        """
        out, _ = _KERNEL(q, k, v, 0.0, self.causal, attn_mask=None, scale=self.scale)
        if out.grad_fn is not None:
            out.grad_fn.register_hook(self._finish)
        return out

    def _finish(self, grads: tuple[Tensor | None, ...], _: object) -> tuple[Tensor | None, ...] | None:
        """The gradients as those of `run` lie, and guarded like them; None leaves them as they are."""
        # In the order of q, k and v; the kernel may have one more, of a mask, which there is not.
        pairs = list(zip(grads, self.steps, strict=False))
        if not torch.is_grad_enabled() and all(grad is None or grad.stride() == steps for grad, steps in pairs):
            return None
        laid = [grad if grad is None or grad.stride() == steps else _strided(grad, steps) for grad, steps in pairs]
        guarded = iter(last([grad for grad in laid if grad is not None], []))
        return *(None if grad is None else next(guarded) for grad in laid), *grads[len(pairs) :]


def prepare(problem: Problem) -> Prepared | None:
    """A problem ready to be run again for other q, k and v of the same sizes and strides.

    Args:
        problem: One that it can run.

    Returns:
        None where more has to be done than to call the kernel once, with what is given.
    """
    alone = problem.bias is None and _softmax(problem).plain and (problem.mask is None or flagged(problem))
    folds = problem.group > 1 and problem.q_len == 1 and not flagged(problem)
    gaps = any(x.stride(-1) != 1 for x in (problem.q, problem.k, problem.v))
    if not alone or folds or gaps or problem.head_dim != problem.v_head_dim:
        return None
    steps = tuple(torch.empty_like(x).stride() for x in (problem.q, problem.k, problem.v))
    return Prepared(causal=flagged(problem), scale=problem.scale, steps=steps)


def flagged(problem: Problem) -> bool:
    """True where the mask is what the kernel's causal flag means: key <= query, both counted from 0."""
    causal = isinstance(problem.mask, Pattern) and problem.mask.window == (None, 0)
    # With the flag -inf is multiplied by the scale: it must stay -inf.
    return causal and not problem.q_offset and problem.bias is None and problem.scale > 0


def height(problem: Problem) -> int:
    """Queries that one call of the kernel computes."""
    if flagged(problem) or (problem.mask is None and (problem.bias is None or isinstance(problem.bias, Tensor))):
        return max(problem.q_len, 1)
    seen, most = problem.kv_len, max(problem.q_len, 1)
    if isinstance(problem.mask, Pattern):
        left, right = problem.mask.reach
        wide = max(left + right + 1, _BLOCK) if left is not None and right is not None else problem.kv_len
        seen, most = min(seen, 2 * wide), min(wide, _MOST)
    return min(max(_NUMBERS // max(mask_copies(problem) * seen, 1), _LEAST), most)


def how(problem: Problem) -> str:
    """How the kernel is called, in words."""
    words = ["CPU flash kernel"]
    if flagged(problem):
        words.append("causal as a flag")
    elif problem.mask is not None or problem.bias is not None:
        words.append(f"mask in bands of {min(height(problem), problem.q_len)} queries")
    if problem.head_dim != problem.v_head_dim:
        words.append(f"padded to size {max(problem.head_dim, problem.v_head_dim)}")
    words += ["groups folded into rows"] * (problem.group > 1 and problem.q_len == 1 and not flagged(problem))
    words += ["sinks from the log-sum-exp"] * (not _softmax(problem).plain)
    return ", ".join(words)


class _Flash(FirstOrder):
    """(out, lse); the tensors a gradient may flow to are handed over one by one."""

    @staticmethod
    def forward(problem: Problem, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None) -> tuple[Tensor, Tensor]:
        return _attend(rebuilt(problem, q, k, v, sinks))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.set_materialize_grads(False)
        # Without its tensors, which are saved below: autograd lets go of those as soon as they have served.
        ctx.problem = replace(inputs[0], q=_NOTHING, k=_NOTHING, v=_NOTHING)
        ctx.save_for_backward(*inputs[1:], *output)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor | None) -> tuple[Tensor | None, ...]:
        grad_out, grad_lse = grad_outputs
        q, k, v, sinks, out, lse = ctx.saved_tensors
        with torch.no_grad():
            problem = rebuilt(ctx.problem, q, k, v, sinks)
            flow = _Flow(out, lse, torch.zeros_like(out) if grad_out is None else grad_out, grad_lse)
            grads = _backward(problem, flow)
            if sinks is not None:
                grads.append(_pull_sinks(problem, flow))
        sources = [q, k, v] if sinks is None else [q, k, v, sinks]
        guarded = last([grad.to(x.dtype) for grad, x in zip(grads, sources, strict=True)], [*sources, flow.grad_out])
        return None, *guarded, *([None] * (sinks is None))


class _Piece(NamedTuple):
    """What the kernel gets for one band."""

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None
    empty: Tensor | None
    causal: bool
    folds: bool

    @classmethod
    def of(cls, problem: Problem, band: Band, *, room: int = 0) -> "_Piece":
        """Pads to one size, with `room` for more columns in the values."""
        size = max(problem.head_dim, problem.v_head_dim + room)
        causal = flagged(problem)
        mask = None if causal else mask_numbers(problem, band)
        empty = None if mask is None else mask.isneginf().all(-1)
        q, k, v = problem.q[:, :, band.rows], problem.k[:, :, band.cols], problem.v[:, :, band.cols]
        # One query for a group of heads: the group's heads are rows of one product, which reads the keys once.
        folds = problem.group > 1 and q.shape[2] == 1 and not causal
        piece = cls(fit(q, size), fit(k, size), fit(v, size), mask, empty, causal, folds)
        return piece._replace(q=piece.fold(piece.q), mask=None if mask is None else piece.fold(mask))

    def fold(self, x: Tensor) -> Tensor:
        """(batch, heads, 1, ...) as (batch, kv_heads, group, ...), where that pays."""
        if not self.folds or x.shape[1] == 1:
            return x
        return x.reshape(x.shape[0], self.k.shape[1], x.shape[1] // self.k.shape[1], *x.shape[3:])

    def unfold(self, x: Tensor) -> Tensor:
        """The opposite."""
        return x.reshape(x.shape[0], x.shape[1] * x.shape[2], 1, *x.shape[3:]) if self.folds else x


class _Flow(NamedTuple):
    """What a backward pass knows besides the problem."""

    out: Tensor
    lse: Tensor
    grad_out: Tensor
    grad_lse: Tensor | None


def _attend(problem: Problem) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp of all bands."""
    out, lse = blank(problem), problem.q.new_empty(problem.q.shape[:3], dtype=problem.wide)
    for band in _bands(problem):
        parts = _forward(_Piece.of(problem, band), problem)
        if band.rows == slice(0, problem.q_len):
            return parts
        out[:, :, band.rows], lse[:, :, band.rows] = parts
    return out, lse


def _forward(piece: _Piece, problem: Problem) -> tuple[Tensor, Tensor]:
    """The same of one band."""
    if piece.k.shape[2] == 0:
        out = problem.q.new_zeros(*piece.q.shape[:3], problem.v_head_dim)
        keys = torch.full(out.shape[:3], -torch.inf, dtype=problem.wide, device=out.device)
    else:
        out, keys = _KERNEL(piece.q, piece.k, piece.v, 0.0, piece.causal, attn_mask=piece.mask, scale=problem.scale)
    out, keys = piece.unfold(out)[..., : problem.v_head_dim], piece.unfold(keys)
    if piece.empty is not None:
        keys = keys.masked_fill(piece.empty, -torch.inf)
    if _softmax(problem).plain:
        return out, keys
    lse = _softmax(problem).with_sink(keys)
    return out * torch.exp(keys - finite(lse))[..., None].to(out.dtype), lse


def _backward(problem: Problem, flow: _Flow) -> list[Tensor]:
    """Gradients of q, k and v.

    The kernel computes dS = P * (dP - D) with D = sum(grad_out * out). A gradient of the log-sum-exp has to be taken
    off D; it is put in as one more column: -grad_lse in the output, 1 in the output's gradient, 0 in the values.
    """
    parts = list(_bands(problem))
    if len(parts) == 1 and isinstance(parts[0].cols, slice) and parts[0].cols == slice(0, problem.kv_len):
        # As the kernel gives them: nothing to be added up, nor copied where heads lie as a projection leaves them.
        grads = _band_backward(problem, flow, parts[0])
        return [_laid_out(grad, x) for grad, x in zip(grads, (problem.q, problem.k, problem.v), strict=True)]
    q = torch.empty_like(problem.q)
    k, v = (torch.zeros(x.shape, dtype=problem.wide, device=x.device) for x in (problem.k, problem.v))
    for band in parts:
        to_q, to_k, to_v = _band_backward(problem, flow, band)
        q[:, :, band.rows] = to_q
        add_at(k, band.cols, to_k)
        add_at(v, band.cols, to_v)
    return [q, k, v]


def _band_backward(problem: Problem, flow: _Flow, band: Band) -> list[Tensor]:
    """What the queries of a band add to the gradients: of themselves, and of the keys and values they may see."""
    room = 0 if flow.grad_lse is None else 1
    size = max(problem.head_dim, problem.v_head_dim + room)
    piece = _Piece.of(problem, band, room=room)
    if piece.k.shape[2] == 0:
        return [torch.zeros_like(x) for x in (problem.q[:, :, band.rows], problem.k[:, :, :0], problem.v[:, :, :0])]
    out, grad_out = (x[:, :, band.rows] for x in (flow.out, flow.grad_out))
    if flow.grad_lse is not None:
        out = torch.cat([out, -flow.grad_lse[:, :, band.rows, None].to(out.dtype)], -1)
        grad_out = pad(grad_out, (0, 1), value=1.0)
    to_q, to_k, to_v = _BACKWARD(
        piece.fold(fit(grad_out, size)),
        piece.q,
        piece.k,
        piece.v,
        piece.fold(fit(out, size)),
        piece.fold(finite(flow.lse[:, :, band.rows])),
        0.0,
        piece.causal,
        attn_mask=piece.mask,
        scale=problem.scale,
    )
    to_q = piece.unfold(to_q)[..., : problem.head_dim]
    return [to_q, to_k[..., : problem.head_dim], to_v[..., : problem.v_head_dim]]


def _laid_out(grad: Tensor, like: Tensor) -> Tensor:
    """The gradient in the memory order of what it is of: what is summed up from it is then the same in a graph."""
    if grad.stride() == like.stride():
        return grad
    laid = torch.empty_like(like, dtype=grad.dtype)
    return grad if grad.stride() == laid.stride() else laid.copy_(grad)


def _strided(grad: Tensor, steps: tuple[int, ...]) -> Tensor:
    """A copy with these strides."""
    return grad.new_empty_strided(grad.shape, steps).copy_(grad)


def _pull_sinks(problem: Problem, flow: _Flow) -> Tensor:
    """Gradient of the sinks: the sink of a row takes up weight like a key whose value is 0."""
    sinks = _softmax(problem).sinks
    if sinks is None:
        return flow.lse.new_zeros(0)
    share = torch.exp(sinks.to(flow.lse)[:, None] - finite(flow.lse))
    grad = -(flow.grad_out.to(problem.wide) * flow.out).sum(-1)
    return (share * (grad if flow.grad_lse is None else grad + flow.grad_lse)).sum((0, 2))


def _bands(problem: Problem) -> Iterator[Band]:
    if flagged(problem):
        return iter([Band(slice(0, problem.q_len), slice(0, problem.kv_len), masked=True)])
    return bands(problem, height(problem))


def _softmax(problem: Problem) -> Softmax:
    return problem.normaliser if isinstance(problem.normaliser, Softmax) else Softmax()
