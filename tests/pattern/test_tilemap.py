import pytest
import torch

from multihead.error import MultiheadError
from multihead.pattern import (
    Tile,
    bigbird,
    block_band,
    causal,
    chunk,
    dilated,
    document,
    every,
    everything,
    fixed,
    keys_every,
    lower,
    neighbourhood,
    nothing,
    padding,
    per_head,
    prefix,
    random_blocks,
    same_token,
    sliding_window,
    strided,
)
from multihead.pattern.law import Law


@pytest.mark.parametrize("block", [1, 3, 8, 16, 100])
@pytest.mark.parametrize("sizes", [(1, 1, 0), (17, 40, 23), (40, 17, 0)])
def test_the_map_is_the_mask(block, sizes):
    q_len, kv_len, q_offset = sizes
    ids = torch.randint(4, (2, 40))
    pattern = per_head([causal(), sliding_window(5)]) & document(ids.sort().values) | same_token(ids)
    tiles = lower(pattern, q_len, kv_len, block=block, q_offset=q_offset)
    assert tiles.mask().equal(pattern.mask(q_len, kv_len, q_offset=q_offset))


@pytest.mark.parametrize(
    ("pattern", "distinct"), [(causal(), 1), (sliding_window(100), 3), (everything(), 0), (nothing(), 0)]
)
def test_equal_tiles_are_stored_once(pattern, distinct):
    short, long = (lower(pattern, n, n, block=64) for n in (512, 1024))
    assert len(short.bits) == len(long.bits) == distinct
    tiles = (1024 // 64) ** 2
    assert long.nbytes == tiles * (1 + 4) + distinct * 64 * 64 // 8
    assert sum(long.counts.values()) == tiles


def test_classes_are_exact_where_the_pattern_cannot_tell():
    # The ids of every tile overlap, so that the pattern itself calls all of them partial.
    ids = torch.tensor([0, 2, 0, 2, 1, 1, 1, 1])
    tiles = lower(document(ids), 8, 8, block=4)
    assert document(ids).tile(range(4), range(4, 8)) == Tile.PARTIAL
    assert tiles.classes[0, 0].tolist() == [[Tile.PARTIAL, Tile.SKIP], [Tile.SKIP, Tile.FULL]]
    assert tiles.counts == {Tile.SKIP: 2, Tile.PARTIAL: 1, Tile.FULL: 1}


def test_bits_of_a_tile():
    tiles = lower(causal(), 10, 10, block=10)
    assert tiles.bits.shape == (1, 10, 2)
    assert tiles.bits[0, :3].tolist() == [[1, 0], [3, 0], [7, 0]]
    assert tiles.bits[0, 9].tolist() == [255, 3]
    assert tiles.index.tolist() == [[[[0]]]]


def test_tiles_that_stick_out_are_full_when_all_that_is_real_is_inside():
    tiles = lower(everything(), 5, 7, block=4)
    assert tiles.classes.tolist() == [[[[2, 2], [2, 2]]]]
    assert lower(document(torch.tensor([0, 1, 0, 1, 0])), 5, 5, block=4).classes[0, 0, 1, 1] == Tile.FULL


def test_nothing_to_lower():
    for q_len, kv_len in [(0, 5), (5, 0), (0, 0)]:
        ids = torch.zeros(2, 5).long()
        for pattern in (causal(), document(ids), document(ids[:0]), per_head([causal(), everything()])):
            tiles = lower(pattern, q_len, kv_len, block=4)
            assert tiles.mask().shape == pattern.mask(q_len, kv_len).shape
    assert lower(padding(torch.ones(2, 0).bool()), 5, 0).mask().shape == (2, 1, 5, 0)
    assert lower(padding(torch.ones(0, 6).bool()) & causal(), 5, 6).mask().shape == (0, 1, 5, 6)


def test_more_tiles_than_are_evaluated_at_once(monkeypatch):
    monkeypatch.setattr("multihead.pattern.tilemap._AT_ONCE", 1)
    pattern = same_token(torch.randint(3, (2, 30)))
    assert lower(pattern, 30, 30, block=8).mask().equal(pattern.mask(30, 30))


@pytest.mark.parametrize(
    ("ask", "told"),
    [
        (lambda: lower(causal(), 4, 4, block=0), ("block: the side of a tile", "got: 0", "from 1")),
        (lambda: lower(causal(), -4, 4), ("q_len: the number of queries", "got: -4")),
        (lambda: lower(causal(), 4, -4), ("kv_len: the number of keys", "got: -4")),
        (lambda: lower(causal(), 4, 4, q_offset=2**41), ("q_offset: the position of the first query", "2**40")),
        (lambda: lower(document(torch.zeros(3).long()), 4, 3), ("document(ids)", "needs length 4", "got: length 3")),
    ],
)
def test_what_cannot_be_lowered_says_so(ask, told):
    with pytest.raises(MultiheadError) as error:
        ask()
    for words in told:
        assert words in str(error.value)


# Tiles of 64 that are touched of 16 x 16, and those looked into. No pattern here calls a tile partial that is empty.
TOUCHED = {
    "causal": (causal(), 16 * 17 // 2, 1),
    "chunk": (causal() & chunk(256), 4 * (4 * 5 // 2), 4),  # a diagonal of 4 in each of 4 chunks, which are alike
    "block_band": (block_band(64, 1, 1), 3 * 16 - 2, 0),
    "dilated": (dilated(2, 512), 16 + 8, 2),  # two diagonals, one of them from row 8 on
    "every": (causal() & every(256), 16 + 12 + 8 + 4, 4),  # every fourth diagonal
    "strided": (strided(32), 16 * 17 // 2, 16),  # all, a kind for each diagonal
    "fixed": (causal() & keys_every(128, 120, 8), 15 + 13 + 11 + 9 + 7 + 5 + 3 + 1, 15),  # every second column
    "bigbird": (
        bigbird(64, 2, length=1024, seed=3),
        2 * 16 + 12 * (5 + 2) + 2 * (4 + 2),
        0,
    ),  # 1 and 14 see an end twice
    "random_blocks": (random_blocks(64, 3, seed=3), 0 + 1 + 2 + 13 * 3, 0),
    "neighbourhood": (neighbourhood(16, 64, 3), 3 * 16, 3 * 16),  # a tile is a row of the picture
}


@pytest.mark.parametrize("name", TOUCHED)
def test_only_the_tiles_of_a_pattern_are_touched(name, monkeypatch):
    pattern, touched, looked = TOUCHED[name]
    asked = []
    allows = Law.allows
    monkeypatch.setattr(Law, "allows", lambda self, q, k: asked.append(q.shape[0]) or allows(self, q, k))
    edges = torch.arange(0, 1025, 64)
    assert int((pattern.tiles(edges, edges) != Tile.SKIP).sum()) == touched
    tiles = lower(pattern, 1024, 1024, block=64)
    assert int((tiles.classes != Tile.SKIP).sum()) == touched
    assert sum(asked) == looked


@pytest.mark.parametrize("pattern", [chunk(24), every(10), dilated(2, 7), fixed(12, 2, heads=2), strided(9)], ids=str)
@pytest.mark.parametrize("sizes", [(50, 50, 0), (33, 49, 5), (49, 41, -9)])
def test_tiles_a_period_apart_are_the_mask_too(pattern, sizes):
    """With all of one kind looked into once, at any offset, the short ones at the edges by themselves."""
    q_len, kv_len, q_offset = sizes
    mask = pattern.mask(q_len, kv_len, q_offset=q_offset)
    for block in (4, 8, 12):
        tiles = lower(pattern, q_len, kv_len, block=block, q_offset=q_offset)
        assert tiles.mask().equal(mask)
        for s, t in torch.cartesian_prod(*(torch.arange(size) for size in tiles.classes.shape[2:])).tolist():
            part = mask[:, :, s * block : (s + 1) * block, t * block : (t + 1) * block].flatten(2)
            exact = torch.where(part.all(-1), Tile.FULL, torch.where(part.any(-1), Tile.PARTIAL, Tile.SKIP))
            assert tiles.classes[:, :, s, t].equal(exact.to(torch.int8))


def test_a_pattern_without_period_is_looked_into_everywhere():
    assert prefix(100).period is None
    assert lower(prefix(100), 256, 256, block=32).mask().equal(prefix(100).mask(256, 256))
