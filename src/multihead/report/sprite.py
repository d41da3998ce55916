"""Average maps as small pictures that need no script: PNG, four bits a pixel, ink over any ground."""

import struct
import zlib

import numpy as np
from numpy.typing import NDArray

from multihead.record.heads import Array

LEVELS = 15
"""Steps of ink; one more index marks what a head cannot see."""
_DARKEST = 0.9
_UNSEEN = 0.55


def ink_levels(maps: Array, *, causal: bool) -> NDArray[np.uint8]:
    """Steps of ink, sqrt of the weight: the same for every head, so that pictures can be compared.

    Args:
        maps: Weights (heads, rows, columns).
        causal: Whether what lies above the diagonal cannot be seen.

    Returns:
        Steps 0 to 14; 15 where nothing can be seen or nothing was measured.
    """
    known = np.isfinite(maps)
    strength = np.sqrt(np.clip(np.where(known, maps, 0.0), 0.0, 1.0))
    levels = np.rint(strength * (LEVELS - 1)).astype(np.uint8)
    unseen = ~known
    if causal:
        unseen = unseen | above_diagonal(maps.shape[-2], maps.shape[-1])
    return np.where(unseen, np.uint8(LEVELS), levels)


def above_diagonal(rows: int, columns: int) -> NDArray[np.bool_]:
    """The cells of a pooled map that a head which only looks back never reaches, (rows, columns).

    Row i covers the queries from i/rows to (i+1)/rows of the text, column j the keys in the same way.
    """
    start_of_key = np.arange(columns)[None, :] / columns
    end_of_query = (np.arange(rows)[:, None] + 1) / rows
    return start_of_key >= end_of_query - 1e-12


def looks_back_only(maps: Array) -> bool:
    """Whether no head of these puts any weight above the diagonal (and some has a diagonal to speak of)."""
    rows, columns = maps.shape[-2:]
    above = above_diagonal(rows, columns)
    known = bool(np.isfinite(maps).any()) and min(rows, columns) > 1
    return known and not bool((np.nan_to_num(maps[..., above]) > 0).any())


def draw_sprite(levels: NDArray[np.uint8]) -> bytes:
    """One PNG with the maps (heads, rows, columns) below each other."""
    flat = levels.reshape(-1, levels.shape[-1])
    height, width = flat.shape
    padded = np.zeros((height, width + width % 2), dtype=np.uint8)
    padded[:, :width] = flat
    packed = (padded[:, 0::2] << 4) | padded[:, 1::2]
    rows = np.concatenate([np.zeros((height, 1), dtype=np.uint8), packed], axis=1)
    alpha = [round(255 * _DARKEST * i / (LEVELS - 1)) for i in range(LEVELS)] + [round(255 * _UNSEEN)]
    return b"".join(
        (
            b"\x89PNG\r\n\x1a\n",
            _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 4, 3, 0, 0, 0)),
            _chunk(b"PLTE", b"\x00\x00\x00" * LEVELS + b"\xff\xff\xff"),
            _chunk(b"tRNS", bytes(alpha)),
            _chunk(b"IDAT", zlib.compress(rows.tobytes(), 9)),
            _chunk(b"IEND", b""),
        )
    )


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
