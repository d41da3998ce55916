"""Attention over keys in several places, joined exactly through the log-sum-exp of each."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from multihead.attend.functional import Attended
from multihead.attend.normaliser import Softmax
from multihead.error import MultiheadError, kind_and_text


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Merged:
    """Attention of some queries over some keys: what `merge` takes and gives.

    Args:
        out: (batch, heads, q_len, v_head_dim).
        lse: Log-sum-exp of each row of scores, (batch, heads, q_len); -inf where a row sees none of these keys.
    """

    out: Float[Tensor, "batch heads q_len v_head_dim"]
    lse: Float[Tensor, "batch heads q_len"]


def merge(parts: Sequence[Attended | Merged], *, normaliser: Softmax | None = None) -> Merged:
    """Joins attention over sets of keys that have none in common into attention over all of them.

    `lse = logsumexp_r lse_r`, `out = sum_r exp(lse_r - lse) out_r`: exact, whatever the order, and to be repeated. So
    keys may lie on several machines (ring attention: Liu et al. 2023, arXiv:2310.01889), in a prefix shared by many
    sequences, or be split among cores for one query (flash decoding). Gradients flow into `out` and `lse` of each part.

    Args:
        parts: The same queries over different keys: results of `attention_lse`, or outputs and log-sum-exps from
            elsewhere as `Merged`. Their normaliser is a plain softmax.
        normaliser: `Softmax` with the sinks that hold for all keys together, which are counted once; None for none.

    Returns:
        Output in the dtype of the first part's, and log-sum-exp, the sinks included.

    Raises:
        MultiheadError: There is no part, shapes differ, or a part cannot be joined: its rows have no log-sum-exp
            (`Sigmoid`, `Sparsemax`, `Entmax`), or sinks are in it, which would count once a part.

    Example:
        >>> q, k, v = (torch.randn(1, 2, 6, 8) for _ in range(3))
        >>> halves = [attention_lse(q, k[:, :, part], v[:, :, part]) for part in (slice(0, 3), slice(3, 6))]
        >>> torch.allclose(merge(halves).out, attention(q, k, v), atol=1e-6)
        True
    """
    if not isinstance(parts, Sequence) or not all(isinstance(part, Attended | Merged) for part in parts):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise MultiheadError(
            asked="parts to merge: results of attention_lse or merge, in a list",
            arrived=kind_and_text(parts),
            remedy="merge([attention_lse(q, k1, v1), attention_lse(q, k2, v2)]); attention gives outputs alone",
        )
    if not parts:
        raise MultiheadError(
            asked="at least one part to merge",
            arrived="none",
            remedy="pass results of attention_lse for the same queries",
        )
    lse = torch.stack([_checked(part, parts[0]) for part in parts])
    empty = lse.detach().isneginf().all(0)
    # A row that is empty in every part is taken out before the logarithm, whose gradient would be NaN.
    total = torch.logsumexp(lse.where(~empty, 0.0), 0).where(~empty, -torch.inf)
    if normaliser is not None:
        total = normaliser.with_sink(total)
    shares = torch.exp(lse - total.where(~total.isneginf(), 0.0))
    wide = [part.out.to(share.dtype) * share[..., None] for part, share in zip(parts, shares, strict=True)]
    return Merged(out=torch.stack(wide).sum(0).to(parts[0].out.dtype), lse=total)


def _checked(part: Attended | Merged, first: Attended | Merged) -> Tensor:
    if isinstance(part, Attended):
        normaliser = part.problem.normaliser
        if not (isinstance(normaliser, Softmax) and normaliser.plain):
            raise MultiheadError(
                asked="to join attention over several sets of keys",
                arrived=f"a part whose normaliser is {normaliser}",
                remedy="compute each part with a plain softmax and give the sinks once: merge(parts, "
                "normaliser=Softmax(sinks=...))"
                if isinstance(normaliser, Softmax)
                else "add the outputs of the parts: each weight of a sigmoid stands by itself"
                if normaliser.merges
                else "give it all keys at once: the threshold of a row depends on every score in it; or take "
                "Softmax(), which can be joined",
            )
    if part.out.shape != first.out.shape or part.lse is None or part.lse.shape != part.out.shape[:3]:
        raise MultiheadError(
            asked="parts of one shape: out (batch, heads, q_len, v_head_dim), lse (batch, heads, q_len)",
            arrived=f"out {tuple(part.out.shape)} and lse {None if part.lse is None else tuple(part.lse.shape)}, the "
            f"first part's out {tuple(first.out.shape)}",
            remedy="attend with the same queries to each set of keys",
        )
    return part.lse
