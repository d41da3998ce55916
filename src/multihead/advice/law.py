"""The formulas of attention that weighs pairs: all of them, or those within a window."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from multihead.advice.sizes import Sizes
from multihead.layer.check import divisors

Count = Callable[[Sizes], int]

WINDOW = 256
GROUP = 4
LATENT = 4
"""Width of the latent vector, in heads' widths."""


def _no(_: Sizes) -> int:
    return 0


def _once(_: Sizes) -> int:
    return 1


def _four_maps(s: Sizes) -> int:
    return 4 * s.embed_dim**2


def _keys_values(s: Sizes) -> int:
    return 2 * s.embed_dim * s.number


def _row_sums(s: Sizes) -> int:
    """Bytes of the logarithm of a row's sum, which is kept in float32 or wider."""
    return s.heads * s.q_len * max(s.number, 4)


def _kept_dense(s: Sizes) -> int:
    """Queries, keys, values, output, and a number a row."""
    return s.embed_dim * (2 * s.q_len + 2 * s.keys) * s.number + _row_sums(s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """The formulas of one kind of attention.

    Args:
        growth: Of the multiply-adds between the projections with the length, in words.
        exponent: The power of the length that they tend to.
        forward: Multiply-adds between the projections, of one sequence.
        backward: Those of the gradients; None where queries, keys and values are of one width.
        projections: Multiply-adds of the maps from and to the layer's width, of one token.
        kept: Bytes between the projections that wait for the gradients, of one sequence.
        cached: Bytes in the cache, of one token.
        state: Bytes in the cache that do not grow, of one sequence.
        window: Tokens that the cache keeps at most; None for all.
        steps: Products that wait for one another.
    """

    growth: str
    exponent: float
    forward: Count
    backward: Count | None = None
    projections: Count = _four_maps
    kept: Count = _kept_dense
    cached: Count = _keys_values
    state: Count = _no
    window: int | None = None
    steps: Count = _once

    def gradients(self, s: Sizes) -> int:
        """Multiply-adds of the gradients, of one sequence.

        Args:
            s: Of the call.
        """
        # Scores are computed again: five products where the forward pass has two.
        return 5 * self.forward(s) // 2 if self.backward is None else self.backward(s)


def _dense(s: Sizes) -> int:
    """Every pair is multiplied once for its score and once for its value."""
    return 2 * s.pairs * s.embed_dim


def grouped(kv_heads: Callable[[int], int]) -> Law:
    """Attention with fewer key/value heads: as much between the projections, less to project and to keep."""

    def width(s: Sizes) -> int:
        return kv_heads(s.heads) * s.head_dim

    return Law(
        growth="O(n^2)",
        exponent=2.0,
        forward=_dense,
        projections=lambda s: 2 * s.embed_dim * (s.embed_dim + width(s)),
        kept=lambda s: 2 * (s.embed_dim * s.q_len + width(s) * s.keys) * s.number + _row_sums(s),
        cached=lambda s: 2 * width(s) * s.number,
    )


@lru_cache(maxsize=64)
def grouped_heads(heads: int) -> int:
    """Key/value heads of `grouped_query`: a quarter of the heads, or the next number below that divides.

    Args:
        heads: Query heads.

    Example:
        >>> grouped_heads(8), grouped_heads(12), grouped_heads(10)
        (2, 3, 2)
    """
    return max(n for n in divisors(heads) if n <= max(heads // GROUP, 1))


def windowed(window: int, *, cached: Count = _keys_values) -> Law:
    """Attention to the nearest keys."""
    return Law(
        growth="O(n w)",
        exponent=1.0,
        forward=lambda s: 2 * s.near(window) * s.embed_dim,
        window=window,
        cached=cached,
    )


def _turned(s: Sizes) -> int:
    """Width of the part of a head that positions turn."""
    return max(s.head_dim // 4 * 2, 2)


def _latent(s: Sizes) -> int:
    """What is less: all keys and values made first, or queries moved to where the latent vectors are."""
    rank, heads = LATENT * s.head_dim, s.heads
    through = rank * 2 * s.head_dim
    expanded = heads * (s.keys * through + s.pairs * (2 * s.head_dim + _turned(s)))
    if s.keys == s.q_len:
        return expanded
    return min(expanded, heads * (s.q_len * through + s.pairs * 2 * (rank + _turned(s))))


def _latent_gradients(s: Sizes) -> int:
    """Of all keys and values made first."""
    through = LATENT * s.head_dim * 2 * s.head_dim
    return s.heads * (2 * s.keys * through + s.pairs * (5 * s.head_dim + 3 * _turned(s)))


def _latent_maps(s: Sizes) -> int:
    d, turned = s.head_dim, _turned(s)
    return s.embed_dim * (s.heads * (d + turned) + LATENT * d + turned + s.heads * d)


def _latent_kept(s: Sizes) -> int:
    wide = s.heads * (s.head_dim + _turned(s))
    rows = s.q_len * (wide + s.embed_dim) + s.keys * (wide + s.embed_dim + LATENT * s.head_dim + _turned(s))
    return rows * s.number + _row_sums(s)


def _latent_cached(s: Sizes) -> int:
    return (LATENT * s.head_dim + _turned(s)) * s.number


def _differential_kept(s: Sizes) -> int:
    """Two maps a head, each with an output as wide as a head."""
    return s.embed_dim * (3 * s.q_len + 3 * s.keys) * s.number + 2 * _row_sums(s)


def _talking(s: Sizes) -> int:
    """Scores of all pairs, masked ones too, in every head; both mixtures."""
    return s.q_len * s.keys * s.heads * (2 * s.head_dim + 2 * s.heads)


DENSE: Mapping[str, Law] = {
    "multi_head": Law(growth="O(n^2)", exponent=2.0, forward=_dense),
    "grouped_query": grouped(grouped_heads),
    "multi_query": grouped(lambda _: 1),
    "latent": Law(
        growth="O(n^2)",
        exponent=2.0,
        forward=_latent,
        backward=_latent_gradients,
        projections=_latent_maps,
        kept=_latent_kept,
        cached=_latent_cached,
    ),
    "differential": Law(
        growth="O(n^2)",
        exponent=2.0,
        # Two maps of half the width, each over values of a whole one; scores count three times in the gradients.
        forward=lambda s: 3 * s.pairs * s.embed_dim,
        backward=lambda s: 7 * s.pairs * s.embed_dim,
        kept=_differential_kept,
    ),
    "talking_heads": Law(
        growth="O(n^2)",
        exponent=2.0,
        forward=_talking,
        # Blocks of rows are computed a second time but for their outputs, then twice as many products.
        backward=lambda s: s.q_len * s.keys * s.heads * (5 * s.head_dim + 6 * s.heads),
        kept=lambda s: s.embed_dim * (s.q_len + 2 * s.keys) * s.number,
    ),
    "window": windowed(WINDOW),
    # Its own token and half of 2 * WINDOW on each side; it has no cache.
    "longformer": windowed(WINDOW + 1, cached=_no),
}
"""Multi-head attention and its kin."""
