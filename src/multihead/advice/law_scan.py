"""The formulas of attention that keeps a state: linear in the length, in chunks."""

from collections.abc import Callable, Mapping
from math import log

from multihead.advice.law import Count, Law
from multihead.advice.sizes import Sizes

CHUNK = 64
"""Tokens that are computed at once."""
RANK = 16
"""Of the decays of gated linear attention."""
TAPS = 4
"""Tokens that the convolution of Gated DeltaNet sees."""


def chunked(a_pair: int, a_token: int, s: Sizes, *, a_chunk: int = 0) -> int:
    """Multiply-adds of one head in chunks.

    Args:
        a_pair: For each pair of tokens of a chunk.
        a_token: For each token.
        s: Of the call.
        a_chunk: For each chunk.
    """
    whole, rest = divmod(s.q_len, CHUNK)
    pairs = whole * CHUNK**2 + rest**2
    return pairs * a_pair + s.q_len * a_token + a_chunk * -(-s.q_len // CHUNK)


def _steps(s: Sizes) -> int:
    return -(-s.q_len // CHUNK)


def stateful(
    widths: Callable[[Sizes], tuple[int, int]],
    *,
    summed: bool,
    projections: Count,
    forward: Count | None = None,
    state: Count | None = None,
) -> Law:
    """Linear attention.

    Args:
        widths: Of what keys and values are multiplied by: features and values of a head.
        summed: Whether outputs are divided by the sum of weights, which is kept as well.
        projections: Multiply-adds of one token.
        forward: Multiply-adds between the projections, where they are others.
        state: Bytes of the state, where they are others.
    """

    def scanned(s: Sizes) -> int:
        k, v = widths(s)
        a_token = 2 * k * v + (k if summed else 0)
        if not s.causal or s.q_len == 1:
            return s.heads * s.q_len * a_token
        return s.heads * chunked(k + v, a_token, s)

    count = scanned if forward is None else forward

    def kept(s: Sizes) -> int:
        k, v = widths(s)
        within = min(s.q_len, CHUNK) if s.causal else 0
        return s.heads * (s.q_len * (2 * k + 2 * v + within) + _steps(s) * k * v) * max(s.number, 4)

    def held(s: Sizes) -> int:
        k, v = widths(s)
        return s.heads * (k * v + (k if summed else 0)) * max(s.number, 4)

    return Law(
        growth="O(n)",
        exponent=1.0,
        forward=count,
        backward=lambda s: 2 * count(s),
        projections=projections,
        kept=kept,
        cached=lambda _: 0,
        state=held if state is None else state,
        steps=lambda s: _steps(s) if s.causal else 1,
    )


def _head(s: Sizes) -> tuple[int, int]:
    return s.head_dim, s.head_dim


def features(head_dim: int) -> int:
    """Random features of a head of the Performer, `head_dim ln(head_dim)`.

    Args:
        head_dim: Width of the head.
    """
    return max(1, round(head_dim * log(head_dim)))


def _performer_maps(s: Sizes) -> int:
    """Queries and keys are multiplied by the random directions besides."""
    return 4 * s.embed_dim**2 + 2 * s.embed_dim * features(s.head_dim)


def _gated_maps(s: Sizes) -> int:
    """Queries and keys of half the width; values, gate and output; decays of some rank."""
    return 4 * s.embed_dim**2 + RANK * s.embed_dim + RANK * s.embed_dim // 2


def _delta(s: Sizes) -> int:
    """Two maps of a chunk, its triangular system solved for keys and values, its state by way of a map of the state."""
    d = s.head_dim
    if s.q_len == 1:
        return s.heads * 3 * d * d
    return s.heads * chunked(4 * d, 4 * d * d, s, a_chunk=d**3)


def _delta_state(s: Sizes) -> int:
    inputs = (TAPS - 1) * 3 * s.embed_dim * s.number
    return s.heads * s.head_dim**2 * max(s.number, 4) + inputs


SCANS: Mapping[str, Law] = {
    "linear": stateful(_head, summed=True, projections=lambda s: 4 * s.embed_dim**2),
    "performer": stateful(lambda s: (features(s.head_dim), s.head_dim), summed=True, projections=_performer_maps),
    "retention": stateful(
        lambda s: (s.head_dim, 2 * s.head_dim), summed=False, projections=lambda s: 8 * s.embed_dim**2
    ),
    "gated_linear": stateful(lambda s: (s.head_dim // 2, s.head_dim), summed=False, projections=_gated_maps),
    "gated_delta": stateful(
        _head,
        summed=False,
        projections=lambda s: 5 * s.embed_dim**2 + 2 * s.embed_dim * s.heads + 3 * TAPS * s.embed_dim,
        forward=_delta,
        state=_delta_state,
    ),
}
"""Kinds of attention with a state."""
