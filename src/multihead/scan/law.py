"""The law of both scans: one token after the other, as the formulas are written."""

import torch
from torch import Tensor

from multihead.scan.state import DeltaState, LinearState, Scanned


def linear(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    log_decay: Tensor | None = None,
    normalise: bool = True,
    state: LinearState | None = None,
    reset: Tensor | None = None,
    valid: Tensor | None = None,
) -> Scanned[LinearState]:
    """`S_t = D_t S_{t-1} + k_t v_t^T`, `z_t = D_t z_{t-1} + k_t`, `o_t = S_t^T q_t / (q_t . z_t)`; unchecked."""
    q_, k_, v_, decay = _wide(q, k, v, log_decay)
    memory = q_.new_zeros(*decay.shape[:2], k.shape[3], v.shape[3]) if state is None else state.memory
    mass = q_.new_zeros(*decay.shape[:2], k.shape[3]) if state is None or state.mass is None else state.mass
    out: list[Tensor] = []
    for t in range(q.shape[2]):
        kept = _kept(decay[:, :, t], reset, t)
        taken = _real(k_[:, :, t], valid, t)
        memory = kept[..., None] * memory + taken[..., :, None] * v_[:, :, t, None, :]
        mass = kept * mass + taken
        read = torch.einsum("bhgd,bhde->bhge", q_[:, :, :, t], memory)
        weight = torch.einsum("bhgd,bhd->bhg", q_[:, :, :, t], mass)[..., None]
        if normalise:
            read = torch.where(weight == 0, 0.0, read / torch.where(weight == 0, 1.0, weight))
        out.append(_real(read.flatten(1, 2), valid, t))
    return Scanned(out=_joined(out, q, v), state=LinearState(memory=memory, mass=mass if normalise else None))


def delta(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    *,
    log_decay: Tensor | None = None,
    state: DeltaState | None = None,
    reset: Tensor | None = None,
    valid: Tensor | None = None,
) -> Scanned[DeltaState]:
    """`S' = D_t S_{t-1}`, `S_t = S' + beta_t k_t (v_t - S'^T k_t)^T`, `o_t = S_t^T q_t`; unchecked."""
    q_, k_, v_, decay = _wide(q, k, v, log_decay, beta.shape[1])
    betas = beta.to(q_.dtype).repeat_interleave(decay.shape[1] // beta.shape[1], 1)
    memory = q_.new_zeros(*decay.shape[:2], k.shape[3], v.shape[3]) if state is None else state.memory
    out: list[Tensor] = []
    for t in range(q.shape[2]):
        memory = _kept(decay[:, :, t], reset, t)[..., None] * memory
        key = _real(k_[:, :, t], valid, t)
        wrong = v_[:, :, t] - torch.einsum("bhd,bhde->bhe", key, memory)
        memory = memory + betas[:, :, t, None, None] * key[..., :, None] * wrong[..., None, :]
        read = torch.einsum("bhgd,bhde->bhge", q_[:, :, :, t], memory)
        out.append(_real(read.flatten(1, 2), valid, t))
    return Scanned(out=_joined(out, q, v), state=DeltaState(memory=memory))


def _wide(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, least: int = 1
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries (batch, states, group, length, head_dim), k, v and decays (batch, states, length, ...), wide."""
    dtype = torch.promote_types(q.dtype, torch.float32)
    batch, heads, length, head_dim = q.shape
    decay = q.new_zeros(k.shape[1]) if log_decay is None else log_decay
    decay = decay[None, :, None, None] if decay.ndim == 1 else decay[..., None] if decay.ndim == 3 else decay
    states = max(decay.shape[1], k.shape[1], least)
    decay = decay.to(dtype).repeat_interleave(states // decay.shape[1], 1).expand(batch, states, length, head_dim)
    k, v = (x.to(dtype).repeat_interleave(states // k.shape[1], 1) for x in (k, v))
    return q.to(dtype).unflatten(1, (states, heads // states)), k, v, decay


def _kept(log_decay: Tensor, reset: Tensor | None, t: int) -> Tensor:
    """The share of the state that is kept, 0 where a document begins."""
    share = log_decay.exp()
    return share if reset is None else share.masked_fill(reset[:, t, None, None], 0.0)


def _real(x: Tensor, valid: Tensor | None, t: int) -> Tensor:
    return x if valid is None else x.masked_fill(~valid[:, t, None, None], 0.0)


def _joined(out: list[Tensor], q: Tensor, v: Tensor) -> Tensor:
    return torch.stack(out, 2).to(q.dtype) if out else q.new_zeros(*q.shape[:3], v.shape[3])
