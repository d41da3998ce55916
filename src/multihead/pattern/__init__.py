"""Patterns: which query sees which key, as sets with `&`, `|`, `~`, a text form and tiles."""

from multihead.pattern.algebra import Pattern
from multihead.pattern.heads import per_head
from multihead.pattern.law import Tile
from multihead.pattern.places import global_tokens, keys_at, pairs
from multihead.pattern.relative import band, causal, distance, everything, nothing, prefix, sliding_window
from multihead.pattern.text import parse_pattern
from multihead.pattern.tilemap import TileMap, lower
from multihead.pattern.tokens import after_same_token, document, padding, same_token

__all__ = [
    "Pattern",
    "Tile",
    "TileMap",
    "after_same_token",
    "band",
    "causal",
    "distance",
    "document",
    "everything",
    "global_tokens",
    "keys_at",
    "lower",
    "nothing",
    "padding",
    "pairs",
    "parse_pattern",
    "per_head",
    "prefix",
    "same_token",
    "sliding_window",
]
