"""Attention by its definition: the law every backend is held against. Slow, plain, differentiable at any order."""

import torch
from torch import Tensor

from multihead.attend.normaliser import Entmax, Normaliser, Sigmoid, Softmax
from multihead.attend.problem import Problem


def define(p: Problem, keep: Tensor | None = None) -> tuple[Tensor, Tensor | None, Tensor]:
    """Output, log-sum-exp (None where the normaliser has none) and clean weights; `keep` says which weights stay."""
    q, k, v = (x.to(torch.promote_types(x.dtype, torch.float32)) for x in (p.q, p.k, p.v))
    k, v = (x.repeat_interleave(q.shape[1] // max(x.shape[1], 1), dim=1) for x in (k, v))
    q_pos = (p.q_offset or 0) + torch.arange(q.shape[2], device=q.device)
    k_pos = torch.arange(k.shape[2], device=q.device)
    scores = q @ k.mT * p.scale
    if p.softcap is not None:
        scores = p.softcap * torch.tanh(scores / p.softcap)
    if p.bias is not None:
        bias = (
            p.bias if isinstance(p.bias, Tensor) else p.bias.with_weight(p.bias.weight.to(scores)).scores(q_pos, k_pos)
        )
        scores = scores + bias.to(scores)
    if p.mask is not None:
        scores = scores.where(p.mask if isinstance(p.mask, Tensor) else p.mask.allows(q_pos, k_pos), -torch.inf)
    scores = scores.where(scores < torch.inf, torch.nan) if not isinstance(p.normaliser, Sigmoid) else scores
    weights, lse = _softmax(scores, p.normaliser) if isinstance(p.normaliser, Softmax) else _other(scores, p.normaliser)
    if p.dropout > 0 and keep is None:
        keep = torch.rand_like(weights) >= p.dropout
    dropped = weights if keep is None else weights * keep / (1 - p.dropout)
    return (dropped @ v).to(p.q.dtype), lse, weights


def _softmax(scores: Tensor, n: Softmax) -> tuple[Tensor, Tensor]:
    beside = 0.0 if n.off_by_one else -torch.inf  # -inf changes nothing; it is there for rows without a key
    columns = [torch.nn.functional.pad(scores, (0, 1), value=beside)]
    if n.sinks is not None:
        columns.append(n.sinks.to(scores)[:, None, None].expand(*scores.shape[:3], 1))
    every = torch.cat(columns, -1)
    shift = every.detach().amax(-1, keepdim=True).nan_to_num(nan=torch.nan, neginf=0.0)
    total = torch.exp(every - shift).sum(-1, keepdim=True)
    safe = total.where(total != 0, 1)
    return torch.exp(scores - shift) / safe, (shift + safe.log()).where(total != 0, -torch.inf)[..., 0]


def _other(scores: Tensor, n: Normaliser) -> tuple[Tensor, None]:
    if isinstance(n, Sigmoid):
        return torch.sigmoid(scores + n.bias), None
    alpha = n.alpha if isinstance(n, Entmax) else 2.0
    x, power = torch.nn.functional.pad(scores * (alpha - 1), (1, 0), value=-torch.inf), 1 / (alpha - 1)
    tau = x.detach().amax(-1, keepdim=True).nan_to_num(nan=torch.nan, neginf=0.0) - 1
    for bit in range(1, 64):  # tau lies in [max - 1, max]: take each halving that leaves a mass of at least 1
        step = tau + 0.5**bit
        tau = step.where((x.detach() - step).clamp(min=0).pow(power).sum(-1, keepdim=True) >= 1, tau)
    held = x.detach() > tau
    for _ in range(2):  # Newton moves nothing, but makes tau a function of the scores, exact to the second derivative
        lift = (x - tau).where(held, 1).clamp(min=torch.finfo(x.dtype).tiny)
        slope = (power * lift.pow(power - 1)).where(held, 0).sum(-1, keepdim=True)
        tau = tau + (lift.pow(power).where(held, 0).sum(-1, keepdim=True) - 1) / slope.where(slope > 0, 1)
    return (x - tau).where(held, 1).clamp(min=0).pow(power).where(held, 0)[..., 1:] + 0 * tau, None
