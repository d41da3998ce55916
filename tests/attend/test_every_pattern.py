"""Every pattern on every backend, against the definition on a mask that Python loops have made."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from attend.oracle import near, qkv
from built import NATIVE, needs_kernel
from multihead.attend import attention, attention_lse, explain_backend
from multihead.native import load
from multihead.pattern import (
    bigbird,
    block_band,
    causal,
    chunk,
    dilated,
    document,
    every,
    fixed,
    from_callable,
    global_blocks,
    grid_window,
    keys_every,
    longformer,
    neighbourhood,
    padding,
    prefix,
    random_blocks,
    random_pairs,
    strided,
)
from pattern.slow import in_grid_window, neighbour, random_block, random_pair

SCRIPT = Path(__file__).with_name("compiling_patterns.py")
LENGTH = 150  # more than two tiles of the kernel, and no multiple of one
BACKENDS = pytest.mark.parametrize("backend", [NATIVE, "tiled", "sdpa"])


def bird(h, i, j):
    at, other = i // 16, j // 16
    near_or_global = abs(at - other) <= 1 or {at, other} & {0, 9}
    return near_or_global or random_block(i, j, 16, 2, 5 + h, LENGTH, 1, 1)


CASES = {
    "chunk": (causal() & chunk(40), lambda h, i, j: j <= i and i // 40 == j // 40),
    "chunks on both sides": (chunk(7), lambda h, i, j: i // 7 == j // 7),
    "block_band": (block_band(20, 2, 1), lambda h, i, j: -1 <= i // 20 - j // 20 <= 2),
    "global_blocks": (global_blocks(8, [0, 11]), lambda h, i, j: {i // 8, j // 8} & {0, 11}),
    "dilated": (dilated(4, 9), lambda h, i, j: i - j in (0, 9, 18, 27)),
    "dilated far": (dilated(2, 100), lambda h, i, j: i - j in (0, 100)),
    "every": (causal() & every(13), lambda h, i, j: j <= i and (i - j) % 13 == 0),
    "keys_every": (keys_every(32, 30, 3), lambda h, i, j: j % 32 in (30, 31, 0)),
    "strided": (strided(12), lambda h, i, j: j <= i and (i - j < 12 or (i - j) % 12 == 0)),
    "strided heads": (
        strided(12, heads=4),
        lambda h, i, j: j <= i and ((i - j) % 12 == 0 if h % 2 else i - j < 12),
    ),
    "fixed": (fixed(12, 3), lambda h, i, j: j <= i and (i // 12 == j // 12 or j % 12 >= 9)),
    "fixed heads": (
        fixed(12, 3, heads=4),
        lambda h, i, j: j <= i and ((9 - 3 * (h // 2) <= j % 12 < 12 - 3 * (h // 2)) if h % 2 else i // 12 == j // 12),
    ),
    "longformer": (longformer(20, [0, 77]), lambda h, i, j: abs(i - j) <= 10 or {i, j} & {0, 77}),
    "bigbird": (bigbird(16, 2, length=LENGTH, seed=5, heads=4), bird),
    "random_blocks": (random_blocks(8, 3, seed=9), lambda h, i, j: random_block(i, j, 8, 3, 9)),
    "neighbourhood": (neighbourhood(10, 15, 5), lambda h, i, j: neighbour(i, j, 10, 15, 5)),
    "neighbourhood dilated": (neighbourhood(10, 15, 3, dilation=3), lambda h, i, j: neighbour(i, j, 10, 15, 3, 3)),
    "grid_window": (grid_window(10, 15, 3), lambda h, i, j: in_grid_window(i, j, 10, 15, 3)),
    "random_pairs": (random_pairs(0.05, seed=3), lambda h, i, j: random_pair(0.05, 3, i, j)),
    "callable": (from_callable(lambda q, k: (q * k) % 5 == 1), lambda h, i, j: i * j % 5 == 1),
    "shifted": (
        prefix(60).at(q_offset=41, k_offset=41) & ~chunk(50).at(k_offset=7),
        lambda h, i, j: (j + 41 < 60 or j <= i) and i // 50 != (j + 7) // 50,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_it_runs_on_every_backend(name):
    pattern, rule = CASES[name]
    mask = torch.tensor(
        [[[bool(rule(h, i, j)) for j in range(LENGTH)] for i in range(LENGTH)] for h in range(pattern.heads or 1)]
    )[None]
    q, k, v = qkv(batch=1, q_len=LENGTH, kv_len=LENGTH)
    want = attention_lse(q.double(), k.double(), v.double(), mask=mask, backend="reference")
    for backend in ["native"] * (load() is not None) + ["tiled", "sdpa"]:
        got = attention_lse(q, k, v, mask=pattern, backend=backend)
        assert got.backend == backend
        assert near(got.out, want.out), backend
        assert near(got.lse, want.lse), backend


@BACKENDS
@pytest.mark.parametrize("name", ["chunk", "dilated", "fixed", "bigbird", "neighbourhood", "random_pairs", "callable"])
def test_the_last_queries_alone_give_what_all_give(name, backend):
    """As after a cache, in any split, and with the first keys gone: both positions shifted."""
    pattern, _ = CASES[name]
    q, k, v = qkv(batch=1, q_len=LENGTH, kv_len=LENGTH)
    want = attention(q, k, v, mask=pattern, backend="reference")
    for start in (1, 100, LENGTH - 1):
        got = attention(q[:, :, start:], k, v, mask=pattern, q_offset=start, backend=backend)
        assert near(got, want[:, :, start:])
    first = 37
    seen = pattern & from_callable(lambda q, k: k >= first)
    want = attention(q, k, v, mask=seen, backend="reference")[:, :, 90:]
    moved = pattern.at(q_offset=first, k_offset=first)
    got = attention(q[:, :, 90:], k[:, :, first:], v[:, :, first:], mask=moved, q_offset=90 - first, backend=backend)
    assert near(got, want)


@BACKENDS
def test_the_parts_of_llama_4_join(backend):
    """Chunks, documents, padding and causal at once."""
    ids, keep = torch.arange(LENGTH) // 61, torch.rand(2, LENGTH) < 0.8
    pattern = causal() & chunk(64) & document(ids) & padding(keep)
    q, k, v = qkv(q_len=LENGTH, kv_len=LENGTH)
    i, j = torch.arange(LENGTH)[:, None], torch.arange(LENGTH)
    mask = ((j <= i) & (i // 64 == j // 64) & (ids[:, None] == ids))[None] & keep[:, None]
    want = attention(q, k, v, mask=mask[:, None], backend="reference")
    assert near(attention(q, k, v, mask=pattern, backend=backend), want)


@needs_kernel
def test_what_a_function_costs_is_said():
    def odd(q, k):
        return (q * k) % 7 < 3

    q, k, v = qkv(batch=1, q_len=640, kv_len=640)
    told = str(explain_backend(q, k, v, mask=causal() & from_callable(odd, name="odd"), backend="native"))
    # 100 tiles of 64 x 64 bits, and 5 bytes for each.
    assert "bit tiles, #odd asked pair by pair, once (a bit each: up to 50.5 KiB)" in told
    assert "mask causal & callable(#odd)" in told
    closed = str(explain_backend(q, k, v, mask=causal() & chunk(8) & dilated(3, 2), backend="native"))
    assert "mask in closed form (bounds of distance, ids)" in closed
    assert "tile map" not in closed


def test_graphs_are_whole_and_give_the_same():
    script = [sys.executable, str(SCRIPT), "auto" if load() is None else "native"]
    run = subprocess.run(script, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr[-2000:]) == (0, "")
