"""The reference as a backend: every problem and every derivative, at the price of storing every weight."""

import torch
from torch import Tensor

from multihead.attend.problem import Problem
from multihead.attend.reference import define

NAME = "reference"
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}


def why_not(problem: Problem) -> list[str]:
    """Nothing: the definition covers every problem."""
    return []


def how(problem: Problem) -> str:
    """What it costs."""
    weights = problem.batch * problem.heads * problem.q_len * problem.kv_len * problem.wide.itemsize
    return f"the definition; stores every weight, {weights / 2**20:,.1f} MiB at a time"


def run(problem: Problem) -> tuple[Tensor, Tensor | None]:
    """Output (batch, heads, q_len, v_head_dim) and log-sum-exp, None where the normaliser has none."""
    out, lse, _ = define(problem)
    return out, lse
