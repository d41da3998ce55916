import pytest

from multihead.error import MultiheadError
from multihead.pattern import Tile, band, causal, distance, everything, nothing, prefix, sliding_window

SIZES = [(1, 1, 0), (5, 5, 0), (3, 7, 4), (7, 3, 0), (4, 6, -2)]


def looped(inside, q_len, kv_len, q_offset):
    return [[[[inside(i, j) for j in range(kv_len)] for i in range(q_offset, q_offset + q_len)]]]


CASES = [
    (causal, lambda i, j: j <= i),
    (everything, lambda i, j: True),
    (nothing, lambda i, j: False),
    (lambda: sliding_window(1), lambda i, j: i == j),
    (lambda: sliding_window(3), lambda i, j: j in (i, i - 1, i - 2)),
    (lambda: band(2, 1), lambda i, j: j in (i - 2, i - 1, i, i + 1)),
    (lambda: band(0, 0), lambda i, j: i == j),
    (lambda: band(0, 3), lambda i, j: i <= j <= i + 3),
    (lambda: distance(1), lambda i, j: j == i - 1),
    (lambda: distance(-2), lambda i, j: j == i + 2),
    (lambda: distance(0), lambda i, j: j == i),
    (lambda: prefix(0), lambda i, j: j <= i),
    (lambda: prefix(3), lambda i, j: j < 3 or j <= i),
    (lambda: prefix(99), lambda i, j: True),
]


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize(("factory", "inside"), CASES)
def test_mask_is_the_double_loop(factory, inside, sizes):
    q_len, kv_len, q_offset = sizes
    assert factory().mask(q_len, kv_len, q_offset=q_offset).tolist() == looped(inside, *sizes)


@pytest.mark.parametrize(("factory", "inside"), CASES)
def test_every_tile_has_its_exact_class(factory, inside):
    spans = [range(a, b) for a in range(6) for b in range(a + 1, 6)]
    pattern = factory()
    for rows in spans:
        for cols in spans:
            found = [inside(i, j) for i in rows for j in cols]
            exact = Tile.FULL if all(found) else Tile.PARTIAL if any(found) else Tile.SKIP
            assert pattern.tile(rows, cols).item() == exact


@pytest.mark.parametrize(
    ("pattern", "reach"),
    [
        (causal(), (None, 0)),
        (sliding_window(4), (3, 0)),
        (band(2, 5), (2, 5)),
        (distance(1), (1, -1)),
        (distance(-3), (-3, 3)),
        (everything(), (None, None)),
        (causal() & band(4, 4), (4, 0)),
        (sliding_window(3) | distance(7), (7, 0)),
        (~causal(), (-1, None)),
        (causal().at(q_offset=2), (None, 2)),
        (sliding_window(4).at(q_offset=2), (1, 2)),
    ],
)
def test_reach_is_as_narrow_as_the_pattern(pattern, reach):
    assert pattern.reach == reach


@pytest.mark.parametrize(
    ("pattern", "window"),
    [
        (causal(), (None, 0)),
        (everything(), (None, None)),
        (causal() & sliding_window(4), (3, 0)),
        (~causal(), (-1, None)),
        (~(~causal() & ~causal().at(q_offset=1)), (None, 1)),
        (~distance(1), None),
        (causal() | distance(-1), None),
        (prefix(2), None),
        (nothing(), None),
    ],
)
def test_window_tells_kernels_what_is_a_window(pattern, window):
    assert pattern.window == window


def test_positions_matter_or_not():
    assert causal().positional
    assert prefix(1).positional
    assert not everything().positional
    assert not nothing().positional
    assert everything().at(q_offset=3) is everything()
    assert everything().at(k_offset=3) is everything()


@pytest.mark.parametrize("pattern", [causal(), sliding_window(4), band(2, 5), distance(-3), nothing()], ids=str)
def test_a_distance_does_not_change_when_both_positions_are_shifted(pattern):
    """So that a sliding cache asks within one pattern, whatever has fallen out of it."""
    for first in (1, 7, -3):
        assert pattern.at(q_offset=first, k_offset=first) == pattern
        assert pattern.at(q_offset=first + 2, k_offset=first) == pattern.at(q_offset=2)
        assert pattern.at(k_offset=first) == pattern.at(q_offset=-first)


def test_a_prefix_moves_with_both_positions():
    moved = prefix(5).at(q_offset=3, k_offset=3)
    assert moved.mask(4, 4).tolist() == looped(lambda i, j: j + 3 < 5 or j <= i, 4, 4, 0)
    assert moved != prefix(5)
    assert moved.at(q_offset=-3, k_offset=-3) == prefix(5)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: sliding_window(0), ("sliding_window(w): w keys including the query itself", "got: 0", "from 1")),
        (lambda: sliding_window(-2), ("got: -2", "from 1")),
        (lambda: sliding_window(True), ("got: True", "whole number")),
        (lambda: sliding_window(2**41), (f"got: {2**41}", "2**40")),
        (lambda: band(-1, 2), ("keys before the query", "got: -1", "from 0")),
        (lambda: band(1, -2), ("keys after the query", "got: -2", "from 0")),
        (lambda: prefix(-1), ("keys that everyone sees", "got: -1", "from 0")),
        (lambda: distance(2**50), ("query - key", f"got: {2**50}")),
        (lambda: causal().at(q_offset=2**41), ("q_offset", f"got: {2**41}")),
        (lambda: causal().at(k_offset=2**41), ("k_offset: what is added to key positions", f"got: {2**41}")),
    ],
)
def test_numbers_out_of_bounds_say_so(make, told):
    with pytest.raises(MultiheadError) as error:
        make()
    for words in told:
        assert words in str(error.value)


@pytest.mark.usefixtures("unhooked")
@pytest.mark.parametrize("value", [2.5, "3", None])
def test_what_is_no_whole_number_says_so(value):
    with pytest.raises(MultiheadError, match="got: " + repr(value)):
        sliding_window(value)
