import struct
import zlib

import numpy as np
import pytest

from multihead.report.sprite import above_diagonal, draw_sprite, ink_levels, looks_back_only


def read_png(data):
    """An independent reader of 4-bit palette pictures without filters."""
    assert data[:8] == bytes.fromhex("89504e470d0a1a0a")
    chunks, at = {}, 8
    while at < len(data):
        (size,) = struct.unpack(">I", data[at : at + 4])
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + size]
        assert struct.unpack(">I", data[at + 8 + size : at + 12 + size])[0] == zlib.crc32(kind + body)
        chunks[kind] = body
        at += 12 + size
    width, height, depth, colour, _, _, _ = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    assert (depth, colour) == (4, 3)
    raw, stride = zlib.decompress(chunks[b"IDAT"]), 1 + (width + 1) // 2
    pixels = np.zeros((height, width), dtype=int)
    for y in range(height):
        assert raw[y * stride] == 0
        for x in range(width):
            byte = raw[y * stride + 1 + x // 2]
            pixels[y, x] = byte >> 4 if x % 2 == 0 else byte & 15
    return pixels, list(chunks[b"tRNS"])


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 5, 7), (2, 1, 1)])
def test_a_picture_holds_the_levels_it_was_given(shape, seed):
    levels = np.random.default_rng(seed).integers(0, 16, shape).astype(np.uint8)
    pixels, alpha = read_png(draw_sprite(levels))
    assert np.array_equal(pixels, levels.reshape(-1, shape[-1]))
    assert alpha[0] == 0
    assert alpha[:15] == sorted(alpha[:15])


def test_ink_is_the_root_of_the_weight(seed):
    maps = np.random.default_rng(seed).uniform(0, 1, (2, 8, 8))
    assert np.abs(ink_levels(maps, causal=False) / 14 - np.sqrt(maps)).max() <= 0.5 / 14 + 1e-9


def test_what_was_not_measured_or_cannot_be_seen_is_marked():
    maps = np.full((1, 4, 4), 0.25)
    maps[0, 2, 0] = np.nan
    plain, causal = ink_levels(maps, causal=False)[0], ink_levels(maps, causal=True)[0]
    assert [tuple(p) for p in np.argwhere(plain == 15)] == [(2, 0)]
    assert [tuple(p) for p in np.argwhere(causal == 15)] == [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 0), (2, 3)]


@pytest.mark.parametrize(("rows", "columns"), [(4, 4), (8, 8), (3, 5), (6, 2), (1, 4)])
def test_above_the_diagonal_no_query_of_the_row_reaches_a_key_of_the_column(rows, columns):
    n = rows * columns * 4
    reached = np.zeros((rows, columns), dtype=bool)
    for i in range(n):
        for j in range(i + 1):
            reached[i * rows // n, j * columns // n] = True
    assert np.array_equal(above_diagonal(rows, columns), ~reached)


def test_a_stack_looks_back_only_if_no_head_looks_ahead():
    maps = np.tril(np.full((3, 4, 4), 0.25))
    assert looks_back_only(maps)
    maps[1, 0, 3] = 1e-9
    assert not looks_back_only(maps)
    assert not looks_back_only(np.full((3, 4, 4), np.nan))
