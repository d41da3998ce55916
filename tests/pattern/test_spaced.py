import pytest

from multihead.error import MultiheadError
from multihead.pattern import Tile, causal, dilated, every, everything, keys_every, sliding_window

SIZES = [(1, 1, 0), (9, 9, 0), (3, 12, 8), (12, 3, 0), (6, 9, -5)]


def looped(inside, q_len, kv_len, q_offset):
    return [[[[bool(inside(i, j)) for j in range(kv_len)] for i in range(q_offset, q_offset + q_len)]]]


CASES = [
    (lambda: every(1), lambda i, j: True),
    (lambda: every(3), lambda i, j: (i - j) in range(-60, 60, 3)),
    (lambda: every(50), lambda i, j: i == j),
    (lambda: dilated(1, 4), lambda i, j: i == j),
    (lambda: dilated(4, 1), lambda i, j: j in (i, i - 1, i - 2, i - 3)),
    (lambda: dilated(3, 2), lambda i, j: j in (i, i - 2, i - 4)),
    (lambda: dilated(2, 5), lambda i, j: j in (i, i - 5)),
    (lambda: keys_every(1, 0), lambda i, j: True),
    (lambda: keys_every(4, 0), lambda i, j: j in (0, 4, 8, 12)),
    (lambda: keys_every(4, 2, 2), lambda i, j: j in (2, 3, 6, 7, 10, 11)),
    (lambda: keys_every(4, -1, 2), lambda i, j: j in (0, 3, 4, 7, 8, 11, 12)),
    (lambda: keys_every(5, 23, 3), lambda i, j: j in (0, 3, 4, 5, 8, 9, 10)),
]


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize(("factory", "inside"), CASES)
def test_mask_is_the_double_loop(factory, inside, sizes):
    q_len, kv_len, q_offset = sizes
    assert factory().mask(q_len, kv_len, q_offset=q_offset).tolist() == looped(inside, *sizes)


@pytest.mark.parametrize(("factory", "inside"), CASES)
def test_every_tile_has_its_exact_class(factory, inside):
    spans = [range(a, b) for a in range(7) for b in range(a + 1, 8)]
    pattern = factory()
    for rows in spans:
        for cols in spans:
            found = [inside(i, j) for i in rows for j in cols]
            exact = Tile.FULL if all(found) else Tile.PARTIAL if any(found) else Tile.SKIP
            assert pattern.tile(rows, cols).item() == exact, (rows, cols)


def test_what_is_a_window_says_so():
    assert dilated(5, 1).window == sliding_window(5).window
    assert dilated(1, 7).window == (0, 0)
    assert every(1).window == everything().window
    assert every(2).window is None
    assert dilated(2, 2).window is None


def test_reach_is_as_narrow_as_the_pattern():
    assert dilated(4, 3).reach == (9, 0)
    assert every(3).reach == (None, None)
    assert (causal() & every(3)).reach == (None, 0)
    assert keys_every(3, 0).reach == (None, None)


def test_positions_matter_or_not():
    assert every(3).positional
    assert not keys_every(3, 0).positional
    moved = keys_every(5, 1, 2).at(q_offset=3, k_offset=7)
    assert moved.mask(1, 12)[0, 0, 0].tolist() == [(j + 7) % 5 in (1, 2) for j in range(12)]


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: every(0), ("every(stride): the step", "got: 0", "from 1")),
        (lambda: dilated(0, 2), ("keys including the query itself", "got: 0", "from 1")),
        (lambda: dilated(2, 0), ("the step between keys", "got: 0", "from 1")),
        (lambda: dilated(2**30, 2**30), ("(window - 1) * dilation", "2**40")),
        (lambda: keys_every(0, 0), ("the period, at least 1", "got: 0")),
        (lambda: keys_every(4, 0, 0), ("columns in a run, at least 1", "got: 0")),
        (lambda: keys_every(4, 0, 5), ("at most period=4 columns", "got: count=5", "from 1 to 4")),
    ],
)
def test_numbers_out_of_bounds_say_so(make, told):
    with pytest.raises(MultiheadError) as error:
        make()
    for words in told:
        assert words in str(error.value)
