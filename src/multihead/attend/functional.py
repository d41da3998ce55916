"""The public functions: attention, attention with its log-sum-exp and weights, and which backend runs it."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from multihead.attend.choose import Explanation, choose, explain
from multihead.attend.compiled import traced
from multihead.attend.known import facts_of, recall, remember
from multihead.attend.normaliser import Normaliser, Softmax
from multihead.attend.problem import ALL, Index, PositionBias, Problem, make_problem
from multihead.error import MultiheadError
from multihead.pattern import Pattern

Mask = Pattern | Bool[Tensor, "..."]
Bias = PositionBias | Float[Tensor, "..."]
Scale = float | Float[Tensor, "..."]
Run = Callable[[Callable[[], Problem], str], "Attended"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Attended:
    """The result of one attention call.

    Args:
        out: (batch, heads, q_len, v_head_dim), in the dtype of q.
        lse: Log-sum-exp of each row of scores, sinks included, (batch, heads, q_len) in float32 (float64 for float64
            inputs): weights are `exp(scores - lse)`. -inf in a row without any allowed key. None where the normaliser
            has none (`Sigmoid`, `Sparsemax`, `Entmax`).
        backend: Name of the backend that ran. In a graph, which chooses when it runs, the one that was asked for.
        problem: What was asked, checked.
    """

    out: Float[Tensor, "batch heads q_len v_head_dim"]
    lse: Float[Tensor, "batch heads q_len"] | None
    backend: str
    problem: Problem

    def weights(
        self, rows: slice | Sequence[int] | None = None, heads: slice | Sequence[int] | None = None
    ) -> Float[Tensor, "batch chosen_heads chosen_rows kv_len"]:
        """The attention weights of some queries and heads, computed again from q and k, exactly.

        They are the clean ones: dropout is not in them. Gradients flow. Memory is that of what is returned, so ask for
        the rows and heads you look at.

        Args:
            rows: Which queries: a slice or indices, negative ones from the end; None is all.
            heads: Which query heads, likewise.

        Returns:
            (batch, heads, rows, kv_len) in float32 (float64 for float64 inputs).

        Raises:
            MultiheadError: If an index is out of range.

        Example:
            >>> q = k = v = torch.randn(1, 8, 100, 16)
            >>> attention_lse(q, k, v).weights(rows=[-1], heads=slice(0, 2)).shape
            torch.Size([1, 2, 1, 100])
        """
        p = self.problem
        chosen = None if heads is None else _indices("heads", heads, p.heads, p.q.device)
        index: Index = ALL if rows is None else _indices("rows", rows, p.q_len, p.q.device)
        normaliser = p.normaliser if chosen is None else p.normaliser.pick(chosen)
        scores = p.scores(index, heads=chosen)
        return normaliser.weigh(scores, normaliser.settle(scores))


def attention(  # noqa: PLR0913 - the one public signature with every part of the formula
    q: Float[Tensor, "batch heads q_len head_dim"],
    k: Float[Tensor, "batch kv_heads kv_len head_dim"],
    v: Float[Tensor, "batch kv_heads kv_len v_head_dim"],
    *,
    mask: Mask | None = None,
    bias: Bias | None = None,
    scale: Scale | None = None,
    softcap: float | None = None,
    normaliser: Normaliser | None = None,
    dropout: float = 0.0,
    q_offset: int | None = None,
    backend: str = "auto",
) -> Float[Tensor, "batch heads q_len v_head_dim"]:
    """Multi-head attention (Vaswani et al. 2017, "Attention is all you need"), with the usual extensions.

    `out = dropout(softmax(mask(softcap(scale * q @ k.T) + bias))) @ v`, in this order, for each head; query head h
    reads kv head `h // (heads // kv_heads)`. Every backend gives the same answer; `explain_backend` says which one
    runs. In a graph of torch.compile or torch.export a call without dropout is one operator, which chooses when the
    graph runs; its backward pass there computes the forward pass once more.

    Args:
        q: Queries (batch, heads, q_len, head_dim).
        k: Keys (batch, kv_heads, kv_len, head_dim); kv_heads divides heads.
        v: Values (batch, kv_heads, kv_len, v_head_dim).
        mask: Which pairs take part: a pattern, or a boolean tensor (True = attend) of shape (q_len, kv_len) or (batch,
            heads, q_len, kv_len), any size 1. A query without an allowed key gets 0 and gradient 0. None allows all.
        bias: Added to the scores: a floating tensor of the same shapes, `ALiBi`, `RelativeTable` or `AdaptiveSpan`. Its
            numbers are not looked at: -inf shuts a pair out, and NaN or +inf makes all of a row that sees it NaN, by
            every backend.
        scale: Factor of the products; None is head_dim ** -0.5. A tensor, such as a learned temperature, is multiplied
            onto q: one number, one for each head (heads,), or (batch | 1, heads | 1, q_len | 1, 1).
        softcap: c in `c * tanh(scaled / c)` (Gemma 2); None is no cap.
        normaliser: `Softmax()` where None; `Softmax(sinks=...)`, `Sigmoid()`, `Sparsemax()`, `Entmax()`.
        dropout: Share of the weights to drop. It is applied as given: pass 0 outside of training.
        q_offset: Position of the first query where the first key has position 0. It must be given where q_len and
            kv_len differ and the mask or the bias depends on positions.
        backend: "auto", or a name to run that backend or none.

    Returns:
        (batch, heads, q_len, v_head_dim), in the dtype of q. Products are summed in float32 or wider.

    Raises:
        MultiheadError: If the arguments do not fit together.
        BackendRefused: If the backend named cannot run the problem, with its reasons.

    Example:
        >>> from multihead.pattern import causal
        >>> q, k, v = torch.randn(2, 8, 10, 64), torch.randn(2, 2, 10, 64), torch.randn(2, 2, 10, 64)
        >>> attention(q, k, v, mask=causal()).shape
        torch.Size([2, 8, 10, 64])
    """
    if torch.compiler.is_compiling() and dropout == 0:
        call, _ = traced(
            q,
            k,
            v,
            mask=mask,
            bias=bias,
            scale=scale,
            softcap=softcap,
            normaliser=normaliser,
            q_offset=q_offset,
            backend=backend,
        )
        return torch.ops.multihead.attention(*call)
    alone = bias is None and _is_plain(normaliser) and type(dropout) in (float, int) and dropout == 0
    facts = facts_of(q, k, v, mask, scale, softcap, q_offset, backend) if alone else None
    ready = recall(facts)
    if ready is not None:
        return ready.run(q, k, v)
    make = partial(
        make_problem,
        q,
        k,
        v,
        mask=mask,
        bias=bias,
        scale=scale,
        softcap=softcap,
        normaliser=normaliser,
        dropout=dropout,
        q_offset=q_offset,
    )
    return _runner()(make, backend).out if facts is None else _run_and_remember(facts, make, backend)


def attention_lse(  # noqa: PLR0913 - the signature of `attention`
    q: Float[Tensor, "batch heads q_len head_dim"],
    k: Float[Tensor, "batch kv_heads kv_len head_dim"],
    v: Float[Tensor, "batch kv_heads kv_len v_head_dim"],
    *,
    mask: Mask | None = None,
    bias: Bias | None = None,
    scale: Scale | None = None,
    softcap: float | None = None,
    normaliser: Normaliser | None = None,
    dropout: float = 0.0,
    q_offset: int | None = None,
    backend: str = "auto",
) -> Attended:
    """Attention with the log-sum-exp of each row, from which sinks, merging and every weight follow.

    The arguments are those of `attention`. Gradients flow from the log-sum-exp as well. The result keeps q, k and v
    alive.

    Returns:
        Output, log-sum-exp, the backend's name, and `weights()` of any slice.

    Raises:
        MultiheadError: If the arguments do not fit together.
        BackendRefused: If the backend named cannot run the problem, with its reasons.

    Example:
        >>> q = k = v = torch.randn(1, 8, 10, 64)
        >>> attended = attention_lse(q, k, v)
        >>> attended.lse.shape, attended.weights(rows=[9]).sum(-1).allclose(torch.ones(1, 8, 1))
        (torch.Size([1, 8, 10]), True)
    """
    if torch.compiler.is_compiling() and dropout == 0:
        call, problem = traced(
            q,
            k,
            v,
            mask=mask,
            bias=bias,
            scale=scale,
            softcap=softcap,
            normaliser=normaliser,
            q_offset=q_offset,
            backend=backend,
        )
        if not problem.normaliser.has_lse:
            return Attended(out=torch.ops.multihead.attention(*call), lse=None, backend=backend, problem=problem)
        out, lse = torch.ops.multihead.attention_lse(*call)
        return Attended(out=out, lse=lse, backend=backend, problem=problem)
    make = partial(
        make_problem,
        q,
        k,
        v,
        mask=mask,
        bias=bias,
        scale=scale,
        softcap=softcap,
        normaliser=normaliser,
        dropout=dropout,
        q_offset=q_offset,
    )
    return _runner()(make, backend)


def explain_backend(  # noqa: PLR0913 - the signature of `attention`
    q: Float[Tensor, "batch heads q_len head_dim"],
    k: Float[Tensor, "batch kv_heads kv_len head_dim"],
    v: Float[Tensor, "batch kv_heads kv_len v_head_dim"],
    *,
    mask: Mask | None = None,
    bias: Bias | None = None,
    scale: Scale | None = None,
    softcap: float | None = None,
    normaliser: Normaliser | None = None,
    dropout: float = 0.0,
    q_offset: int | None = None,
    backend: str = "auto",
) -> Explanation:
    """Which backend `attention` would take for these arguments, and what each one says; nothing is computed.

    The arguments are those of `attention`. Our compiled kernel comes first where it was measured to be faster than
    PyTorch's; where it can run and is passed over, its line says which measurement decided.

    Returns:
        Print it: one line a backend, with what it would run or every reason why it cannot.

    Raises:
        MultiheadError: If the arguments do not fit together.

    Example:
        >>> q = k = v = torch.randn(1, 8, 10, 64)
        >>> explain_backend(q, k, v, dropout=0.1).chosen
        'tiled'
    """
    make = partial(
        make_problem,
        q,
        k,
        v,
        mask=mask,
        bias=bias,
        scale=scale,
        softcap=softcap,
        normaliser=normaliser,
        dropout=dropout,
        q_offset=q_offset,
    )
    return explain(make(), backend)


def _is_plain(normaliser: Normaliser | None) -> bool:
    return normaliser is None or (type(normaliser) is Softmax and normaliser.plain)


def _run(make: Callable[[], Problem], backend: str) -> Attended:
    problem = make()
    chosen = choose(problem, backend)
    out, lse = chosen.run(problem)
    return Attended(out=out, lse=lse, backend=chosen.NAME, problem=problem)


def _run_and_remember(facts: Hashable, make: Callable[[], Problem], backend: str) -> Tensor:
    """The output, by what is remembered of the call where something is: the next one then does the very same."""
    problem = make()
    chosen = choose(problem, backend)
    ready = remember(facts, problem, chosen.NAME)
    return chosen.run(problem)[0] if ready is None else ready.run(problem.q, problem.k, problem.v)


def _runner() -> Run:
    """`_run`; under torch.compile, where `traced` does not serve, it runs as it is, between two graphs.

    The kernels are compiled already, and what surrounds them depends on patterns, not on tensors.
    """
    return cast(Run, torch.compiler.disable(_run)) if torch.compiler.is_compiling() else _run


def _indices(name: str, chosen: slice | Sequence[int], length: int, device: torch.device) -> Tensor:
    """The indices that were asked for, from 0."""
    if isinstance(chosen, slice):
        return torch.arange(length, device=device)[chosen]
    beyond = [index for index in chosen if not -length <= index < length]
    if beyond:
        raise MultiheadError(
            asked=f"weights of {name} {list(chosen)}",
            arrived=f"{beyond} out of range, there are {length} {name}",
            remedy=f"pass indices from 0 to {length - 1} (or from -{length}), or a slice",
        )
    return torch.tensor([index % length for index in chosen], dtype=torch.long, device=device)
