"""Patterns: which query sees which key, as sets with `&`, `|`, `~`, a text form and tiles."""

from multihead.pattern.algebra import Pattern
from multihead.pattern.blocked import block_band, chunk, global_blocks
from multihead.pattern.drawn import random_blocks, random_pairs
from multihead.pattern.grid import grid_window, neighbourhood
from multihead.pattern.heads import per_head
from multihead.pattern.law import Tile
from multihead.pattern.opaque import from_callable
from multihead.pattern.places import global_tokens, keys_at, pairs
from multihead.pattern.preset import bigbird, fixed, longformer, strided
from multihead.pattern.relative import band, causal, distance, everything, nothing, prefix, sliding_window
from multihead.pattern.spaced import dilated, every, keys_every
from multihead.pattern.text import parse_pattern
from multihead.pattern.tilemap import TileMap, lower
from multihead.pattern.tokens import after_same_token, document, padding, same_token

__all__ = [
    "Pattern",
    "Tile",
    "TileMap",
    "after_same_token",
    "band",
    "bigbird",
    "block_band",
    "causal",
    "chunk",
    "dilated",
    "distance",
    "document",
    "every",
    "everything",
    "fixed",
    "from_callable",
    "global_blocks",
    "global_tokens",
    "grid_window",
    "keys_at",
    "keys_every",
    "longformer",
    "lower",
    "neighbourhood",
    "nothing",
    "padding",
    "pairs",
    "parse_pattern",
    "per_head",
    "prefix",
    "random_blocks",
    "random_pairs",
    "same_token",
    "sliding_window",
    "strided",
]
