"""The formulas of attention that chooses from the content: keys, blocks of keys, heads or experts."""

from collections.abc import Mapping
from dataclasses import replace

from multihead.advice.law import DENSE, GROUP, LATENT, Law
from multihead.advice.sizes import Sizes

ROUNDS, TILE, HASHES, CODE = 4, 64, 8, 8
"""Of hashing: rounds, tokens in a tile, buckets of each of two hashes, bytes that tell a token's tile."""
BLOCK, BLOCKS, NEAR = 64, 16, 512
"""Keys in a block, blocks that a query attends to, keys of the window beside them."""
CHOSEN, INDEX_HEADS = 512, 4
EXPERTS, TAKEN = 8, 2
LEAST = 256
"""Queries below which a mixture of heads computes every head."""


def _shared(s: Sizes) -> int:
    """Three maps: queries and keys are one."""
    return 3 * s.embed_dim**2


def _hashed(s: Sizes) -> int:
    """Each token is hashed, sorted, and multiplied with its own tile and the one before, round by round."""
    if s.q_len == 1:
        return s.embed_dim * (ROUNDS * HASHES + 2 * min(s.keys, 2 * TILE * ROUNDS))
    # A tile begins with each bucket: half of each bucket's last tile is empty, or most of the only one.
    tiles = max(s.q_len // TILE + HASHES**2 // 2, min(s.q_len, HASHES**2))
    weighed = 2 * 2 * tiles * min(s.q_len, TILE) ** 2 * s.embed_dim
    return ROUNDS * (weighed + s.q_len * (HASHES * s.embed_dim + s.heads * (s.q_len - 1).bit_length()))


def _blocks(s: Sizes) -> int:
    """A query is held against the mean of each block, then against the keys of those that fit best."""
    seen = s.chosen(BLOCK, BLOCKS) if s.causal else s.q_len * min(s.keys, BLOCK * BLOCKS)
    return s.embed_dim * (-(-s.pairs // BLOCK) + 2 * seen)


def _native(s: Sizes) -> int:
    """Compressed blocks, looked at and weighed once more to choose; the chosen ones; the window."""
    return s.embed_dim * (3 * -(-s.pairs // BLOCK) + 2 * s.chosen(BLOCK, BLOCKS) + 2 * s.near(NEAR))


def _wide(s: Sizes) -> int:
    return max(s.head_dim, s.head_dim // 4 * 2, 2)


def _indexed(s: Sizes) -> int:
    """Every pair is scored by few narrow heads; latent attention over what is chosen."""
    seen = s.near(CHOSEN) if s.causal else s.q_len * min(s.keys, CHOSEN)
    turned = max(s.head_dim // 4 * 2, 2)
    through = s.heads * s.keys * LATENT * s.head_dim * 2 * s.head_dim
    core = s.heads * seen * (2 * s.head_dim + turned)
    if s.q_len < s.keys:
        through, core = through // s.keys * s.q_len, s.heads * seen * 2 * (LATENT * s.head_dim + turned)
    return s.pairs * INDEX_HEADS * (_wide(s) + 1) + through + core


def _indexed_maps(s: Sizes) -> int:
    return DENSE["latent"].projections(s) + s.embed_dim * (INDEX_HEADS * _wide(s) + _wide(s) + INDEX_HEADS)


def _routed(s: Sizes) -> int:
    """Heads that run for a token, of all that there are."""
    shared = s.heads // GROUP
    taken = shared + max((s.heads - shared) // 2, 1)
    running = taken if s.q_len >= LEAST else s.heads
    return 2 * s.pairs * s.head_dim * running


def _routers(s: Sizes) -> int:
    shared = s.heads // GROUP
    return 4 * s.embed_dim**2 + s.embed_dim * (s.heads + (2 if shared else 0))


def _few(s: Sizes) -> int:
    """Heads of which each has experts."""
    return max(s.heads // GROUP, 1)


def _switch_maps(s: Sizes) -> int:
    """Queries and keys once, values and outputs by two experts of four; two routers."""
    return s.embed_dim * _few(s) * (6 * s.head_dim + 2 * 4)


def _half(s: Sizes) -> int:
    return max(s.heads // 2, 1)


def _experts_maps(s: Sizes) -> int:
    """Queries and outputs of two experts, keys and values of one; the router."""
    return s.embed_dim * ((2 * TAKEN + 2) * _half(s) * s.head_dim + EXPERTS)


_PLAIN = DENSE["multi_head"]

CHOOSING: Mapping[str, Law] = {
    "lsh": replace(
        _PLAIN,
        growth="O(n log n)",
        exponent=1.0,
        forward=_hashed,
        # A round is computed a second time, then twice as many products.
        backward=lambda s: 3 * _hashed(s),
        projections=_shared,
        cached=lambda s: 2 * s.embed_dim * s.number + s.heads * ROUNDS * CODE,
    ),
    "top_blocks": replace(_PLAIN, growth="O(n k + n^2/64)", forward=_blocks),
    "native_sparse": replace(
        _PLAIN,
        growth="O(n k + n^2/64)",
        forward=_native,
        projections=lambda s: 4 * s.embed_dim**2 + 3 * s.heads * s.embed_dim,
    ),
    "indexed": replace(
        DENSE["latent"],
        growth="O(n k + n^2/16)",
        forward=_indexed,
        # No gradient flows through the choice.
        backward=lambda s: 5 * (_indexed(s) - s.pairs * INDEX_HEADS * (_wide(s) + 1)) // 2,
        projections=_indexed_maps,
        cached=lambda s: DENSE["latent"].cached(s) + _wide(s) * s.number,
    ),
    "mixture_of_heads": replace(_PLAIN, forward=_routed, projections=_routers),
    "switch_head": replace(
        _PLAIN,
        forward=lambda s: 2 * s.pairs * s.head_dim * _few(s),
        projections=_switch_maps,
        cached=lambda s: 2 * _few(s) * s.head_dim * s.number,
    ),
    "mixture_of_attention": replace(
        _PLAIN,
        forward=lambda s: 2 * s.pairs * s.head_dim * _half(s) * TAKEN,
        projections=_experts_maps,
        cached=lambda s: 2 * _half(s) * s.head_dim * s.number,
    ),
}
"""Kinds of attention that choose."""
