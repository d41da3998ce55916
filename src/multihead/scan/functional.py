"""The scans: linear attention and the delta rule, each with its state."""

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from multihead.scan import chunked, running
from multihead.scan.check import check_beta, check_decay, check_flags, check_inputs, check_mass, check_state
from multihead.scan.state import DeltaState, LinearState, Scanned
from multihead.scan.stepped import mended


def linear_attention(
    q: Float[Tensor, "batch heads length head_dim"],
    k: Float[Tensor, "batch kv_heads length head_dim"],
    v: Float[Tensor, "batch kv_heads length v_head_dim"],
    *,
    log_decay: Float[Tensor, "*sizes"] | None = None,
    normalise: bool = True,
    state: LinearState | None = None,
    reset: Bool[Tensor, "batch length"] | None = None,
    valid: Bool[Tensor, "batch length"] | None = None,
) -> Scanned[LinearState]:
    """Causal linear attention, with or without decay: `o_t = S_t^T q_t / (q_t . z_t)`.

    `S_t = D_t S_{t-1} + k_t v_t^T`, `z_t = D_t z_{t-1} + k_t`, `D_t = exp(log_decay_t)`. Time and memory grow with the
    length, not with its square, and the state does not grow at all. q and k are what is multiplied: features, as
    `EluPlusOne` or `Favor` make them of queries and keys (no scale is applied).

    Without decay it is Katharopoulos et al. 2020, "Transformers are RNNs", arXiv:2006.16236; with one decay a head
    RetNet (Sun et al. 2023, arXiv:2307.08621); with one a head and token the form of Mamba-2 (Dao and Gu 2024,
    arXiv:2405.21060); with one a channel gated linear attention (Yang et al. 2023, arXiv:2312.06635). It is computed
    in chunks, all exponents at most 0; one token is one step of the recurrence.

    Args:
        q: Features of the queries (batch, heads, length, head_dim).
        k: Features of the keys (batch, kv_heads, length, head_dim); query head h reads kv head h // (heads //
            kv_heads).
        v: Values (batch, kv_heads, length, v_head_dim).
        log_decay: At most 0: (heads,), (batch, heads, length) or (batch, heads, length, head_dim), heads or kv_heads of
            them. -inf forgets all that was before. None: no decay.
        normalise: Whether outputs are divided by `q . z`. Where that is exactly 0, as for a query that sees no key, the
            output is 0; nothing is added to it. Features should not be negative then.
        state: What an earlier call gave, with the tokens before these.
        reset: True where a document begins: the state is cleared before that token.
        valid: True = a real token. Others add nothing, neither to S nor to z, and their output is 0; decays go on.

    Returns:
        Outputs in the dtype of q, and the state, in float32 or wider.

    Raises:
        MultiheadError: Shapes, dtypes or devices that do not belong together, a decay above 0 or NaN (looked at on CPUs
            outside of graphs), or the state of another call.

    Example:
        >>> phi = EluPlusOne()
        >>> q, k, v = torch.randn(1, 4, 100, 16), torch.randn(1, 2, 100, 16), torch.randn(1, 2, 100, 32)
        >>> made = linear_attention(phi.queries(q), phi.keys(k), v)
        >>> made.out.shape, made.state.memory.shape
        (torch.Size([1, 4, 100, 32]), torch.Size([1, 2, 16, 32]))
    """
    check_inputs(q, k, v)
    check_decay(log_decay, q, k)
    check_flags(q, {"reset": reset, "valid": valid}, q.shape[2])
    given = chunked.prepared(q, k, v, log_decay=log_decay, reset=reset, valid=valid)
    batch, states, _, _, head_dim = given.q.shape
    check_state(state, LinearState, (batch, states, head_dim, v.shape[3]), q)
    check_mass(state, normalise=normalise)
    if state is None:
        mass = q.new_zeros(batch, states, head_dim, dtype=given.dtype) if normalise else None
        memory = q.new_zeros(batch, states, head_dim, v.shape[3], dtype=given.dtype)
        state = LinearState(memory=memory, mass=mass)
    if not given.length:
        return Scanned(out=q.new_zeros(*q.shape[:3], v.shape[3]), state=state)
    many: Any = running.linear if running.suits(given, state.memory, state.mass) else chunked.linear
    run: Any = chunked.linear_step if given.length == 1 else many
    with _wide(q):
        first = (state.memory, state.mass)
        out, (memory, mass) = run(given, first, normalise=normalise)
        out = mended(out, given, first, partial(chunked.linear_step, normalise=normalise))
    return Scanned(out=_told(out, q, valid), state=LinearState(memory=memory, mass=mass))


def delta_rule(
    q: Float[Tensor, "batch heads length head_dim"],
    k: Float[Tensor, "batch kv_heads length head_dim"],
    v: Float[Tensor, "batch kv_heads length v_head_dim"],
    beta: Float[Tensor, "batch beta_heads length"],
    *,
    log_decay: Float[Tensor, "*sizes"] | None = None,
    state: DeltaState | None = None,
    reset: Bool[Tensor, "batch length"] | None = None,
    valid: Bool[Tensor, "batch length"] | None = None,
) -> Scanned[DeltaState]:
    """The delta rule: what is written under a key replaces what was there, `o_t = S_t^T q_t`.

    `S' = D_t S_{t-1}`, `S_t = S' + beta_t k_t (v_t - S'^T k_t)^T`, `D_t = exp(log_decay_t)`. Without decay it is
    DeltaNet (Schlag et al. 2021, arXiv:2102.11174; in chunks Yang et al. 2024, arXiv:2406.06484), with one a head and
    token gated DeltaNet (Yang et al. 2024, arXiv:2412.06464), with one a channel Kimi delta attention
    (arXiv:2510.26692). Keys should have length 1: the state stays bounded as long as `beta |k|^2 <= 2`. No scale is
    applied: multiply q by head_dim ** -0.5 where a model does.

    Args:
        q: Queries (batch, heads, length, head_dim).
        k: Keys (batch, kv_heads, length, head_dim); query head h reads kv head h // (heads // kv_heads).
        v: Values (batch, kv_heads, length, v_head_dim).
        beta: How much of the old value is replaced, (batch, heads | kv_heads, length): 0 to 1, or up to 2, which gives
            the state's transition negative eigenvalues, enough to count modulo 2 (Grazzi et al. 2024,
            arXiv:2411.12537).
        log_decay: At most 0: (heads,), (batch, heads, length) or (batch, heads, length, head_dim), heads or kv_heads of
            them. None: no decay.
        state: What an earlier call gave, with the tokens before these.
        reset: True where a document begins: the state is cleared before that token.
        valid: True = a real token. Others write nothing, and their output is 0; decays go on.

    Returns:
        Outputs in the dtype of q, and the state, in float32 or wider.

    Raises:
        MultiheadError: Shapes, dtypes or devices that do not belong together, a decay above 0, a beta outside of 0 to 2
            (both looked at on CPUs outside of graphs), or the state of another call.

    Example:
        >>> q, k, v = (torch.randn(1, 4, 100, 16) for _ in range(3))
        >>> made = delta_rule(q, torch.nn.functional.normalize(k, dim=-1), v, torch.rand(1, 4, 100))
        >>> made.out.shape, made.state.memory.shape
        (torch.Size([1, 4, 100, 16]), torch.Size([1, 4, 16, 16]))
    """
    check_inputs(q, k, v)
    check_decay(log_decay, q, k)
    check_beta(beta, q, k)
    check_flags(q, {"reset": reset, "valid": valid}, q.shape[2])
    given = chunked.prepared(q, k, v, beta=beta, log_decay=log_decay, reset=reset, valid=valid)
    batch, states, _, _, head_dim = given.q.shape
    check_state(state, DeltaState, (batch, states, head_dim, v.shape[3]), q)
    if state is None:
        state = DeltaState(memory=q.new_zeros(batch, states, head_dim, v.shape[3], dtype=given.dtype))
    if not given.length:
        return Scanned(out=q.new_zeros(*q.shape[:3], v.shape[3]), state=state)
    with _wide(q):
        out, memory = (chunked.delta_step if given.length == 1 else chunked.delta)(given, state.memory)
        out = mended(out, given, state.memory, chunked.delta_step)
    return Scanned(out=_told(out, q, valid), state=DeltaState(memory=memory))


def linear_attention_full(
    q: Float[Tensor, "batch heads q_len head_dim"],
    k: Float[Tensor, "batch kv_heads kv_len head_dim"],
    v: Float[Tensor, "batch kv_heads kv_len v_head_dim"],
    *,
    normalise: bool = True,
    valid: Bool[Tensor, "batch kv_len"] | None = None,
) -> Float[Tensor, "batch heads q_len v_head_dim"]:
    """Linear attention of every query to all keys, of its own sequence or of another: `o_i = S^T q_i / (q_i . z)`.

    `S = sum_j k_j v_j^T`, `z = sum_j k_j` (Katharopoulos et al. 2020, arXiv:2006.16236).

    Args:
        q: Features of the queries (batch, heads, q_len, head_dim).
        k: Features of the keys (batch, kv_heads, kv_len, head_dim).
        v: Values (batch, kv_heads, kv_len, v_head_dim).
        normalise: As in `linear_attention`.
        valid: True = a real key; others add nothing. Outputs of all queries are computed.

    Returns:
        (batch, heads, q_len, v_head_dim), in the dtype of q.

    Raises:
        MultiheadError: Shapes, dtypes or devices that do not belong together.

    Example:
        >>> phi, x = EluPlusOne(), torch.randn(1, 4, 100, 16)
        >>> linear_attention_full(phi.queries(x[:, :, :7]), phi.keys(x), x).shape
        torch.Size([1, 4, 7, 16])
    """
    check_inputs(q, k, v, same_length=False)
    check_flags(q, {"valid": valid}, k.shape[2])
    given = chunked.prepared(q, k, v, valid=valid).whole()
    rows = given.q.flatten(2, 3)
    with _wide(q):
        out = rows @ (given.k.mT @ given.v)
        if normalise:
            out = chunked.divided(out, rows @ given.k.sum(2, keepdim=True).mT)
    return out.unflatten(2, given.q.shape[2:4]).flatten(1, 2).to(q.dtype)


def _wide(like: Tensor) -> AbstractContextManager[object]:
    """No autocast within: sums over a whole text would be rounded as they grow, and states are wide."""
    if like.is_meta:
        return nullcontext()  # torch has no autocast there
    return torch.autocast(like.device.type, enabled=False)


def _told(out: Tensor, q: Tensor, valid: Tensor | None) -> Tensor:
    """Outputs (batch, states, group, length, v_head_dim) as the caller gets them."""
    heads = out.flatten(1, 2).to(q.dtype)
    return heads if valid is None else torch.where(valid[:, None, :, None], heads, 0.0)
