"""What a call means, written out: scores, masks, sinks, one by one."""

import torch

from multihead.attend import Problem


def weights_of(problem: Problem) -> torch.Tensor:
    """Weights (batch, heads, q_len, kv_len) in fp64; NaN in rows without an allowed key."""
    q, k = problem.q.double(), problem.k.double()
    rows = []
    for head in range(q.shape[1]):
        shared = head // (q.shape[1] // k.shape[1])
        scores = problem.scale * torch.einsum("bid,bjd->bij", q[:, head], k[:, shared])
        if problem.softcap is not None:
            scores = problem.softcap * torch.tanh(scores / problem.softcap)
        if problem.bias is not None:
            scores = scores + problem.bias[:, head if problem.bias.shape[1] > 1 else 0].double()
        allowed = allowed_of(problem)
        if allowed is not None:
            scores = scores.masked_fill(~allowed[:, head if allowed.shape[1] > 1 else 0], -torch.inf)
        exps = torch.exp(scores)
        total = exps.sum(-1, keepdim=True)
        if problem.normaliser.sinks is not None:
            total = total + torch.exp(problem.normaliser.sinks[head].double())
        rows.append(exps / total)
    return torch.stack(rows, dim=1)


def allowed_of(problem: Problem) -> torch.Tensor | None:
    if problem.mask is None or isinstance(problem.mask, torch.Tensor):
        return problem.mask
    assert str(problem.mask) == "causal"
    i = torch.arange(problem.q_len)[:, None] + (problem.q_offset or 0)
    return (torch.arange(problem.kv_len)[None] <= i)[None, None]


def output_of(problem: Problem) -> torch.Tensor:
    """Head outputs (batch, q_len, heads, v_head_dim) in fp64; NaN in rows without an allowed key."""
    v = problem.v.double().repeat_interleave(problem.group, dim=1)
    return (weights_of(problem) @ v).transpose(1, 2)


def real_rows(problem: Problem) -> torch.Tensor:
    """Rows with an allowed key, (batch, 1, q_len)."""
    allowed = allowed_of(problem)
    if allowed is None:
        return torch.ones(problem.batch, 1, problem.q_len, dtype=torch.bool)
    full = allowed.expand(problem.batch, allowed.shape[1], problem.q_len, problem.kv_len)
    return full.any(-1)
