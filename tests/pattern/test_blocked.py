import pytest
import torch

from multihead.error import MultiheadError
from multihead.pattern import Tile, block_band, causal, chunk, document, global_blocks
from pattern.test_spaced import SIZES, looped


def block(position, size):
    """By counting, where the library divides."""
    found = 0
    while position >= size:
        position, found = position - size, found + 1
    while position < 0:
        position, found = position + size, found - 1
    return found


CASES = [
    (lambda: chunk(1), lambda i, j: i == j),
    (lambda: chunk(3), lambda i, j: block(i, 3) == block(j, 3)),
    (lambda: chunk(50), lambda i, j: i >= 0),
    (lambda: block_band(1, 2, 1), lambda i, j: -1 <= i - j <= 2),
    (lambda: block_band(3, 1, 0), lambda i, j: block(j, 3) in (block(i, 3), block(i, 3) - 1)),
    (lambda: block_band(2, 0, 2), lambda i, j: block(j, 2) in [block(i, 2) + step for step in range(3)]),
    (lambda: global_blocks(3, []), lambda i, j: False),
    (lambda: global_blocks(3, [2, 0, 2]), lambda i, j: block(i, 3) in (0, 2) or block(j, 3) in (0, 2)),
    (lambda: global_blocks(1, [4]), lambda i, j: 4 in (i, j)),
]


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize(("factory", "inside"), CASES)
def test_mask_is_the_double_loop(factory, inside, sizes):
    q_len, kv_len, q_offset = sizes
    assert factory().mask(q_len, kv_len, q_offset=q_offset).tolist() == looped(inside, *sizes)


@pytest.mark.parametrize(("factory", "inside"), CASES[:6])
def test_every_tile_has_its_exact_class(factory, inside):
    spans = [range(a, b) for a in range(7) for b in range(a + 1, 8)]
    pattern = factory()
    for rows in spans:
        for cols in spans:
            found = [inside(i, j) for i in rows for j in cols]
            exact = Tile.FULL if all(found) else Tile.PARTIAL if any(found) else Tile.SKIP
            assert pattern.tile(rows, cols).item() == exact, (rows, cols)


def test_tiles_of_global_blocks():
    pattern = global_blocks(4, [1])
    assert pattern.tile(range(4, 8), range(20, 30)) == Tile.FULL
    assert pattern.tile(range(4, 9), range(20, 30)) == Tile.PARTIAL
    assert pattern.tile(range(8, 12), range(20, 30)) == Tile.SKIP
    assert pattern.tile(range(8, 12), range(5, 7)) == Tile.FULL


def test_chunks_with_causal_are_what_llama_4_does():
    """transformers: key > query - chunk, within one chunk, and key <= query; here with two tokens of padding before."""
    own = [max(position - 2, 0) for position in range(12)]
    pattern = causal() & document(torch.tensor([place // 4 for place in own]))
    for i in range(2, 12):
        for j in range(2, 12):
            assert bool(pattern.mask(12, 12)[0, 0, i, j]) == ((i - 2) // 4 == (j - 2) // 4 and j <= i)


def test_a_chunk_is_a_band_of_one_block():
    assert chunk(5).mask(23, 31).equal(block_band(5, 0, 0).mask(23, 31))


def test_shifted_by_whole_chunks_it_is_itself():
    assert chunk(4).at(q_offset=8, k_offset=8) == chunk(4)
    assert chunk(4).at(q_offset=9, k_offset=9) == chunk(4).at(q_offset=1, k_offset=1)
    assert str(chunk(4).at(q_offset=-3, k_offset=-3)) == "chunk(4).at(1, 1)"


def test_reach():
    assert chunk(4).reach == (3, 3)
    assert block_band(4, 2, 1).reach == (11, 7)
    assert (causal() & chunk(8192)).reach == (8191, 0)
    assert block_band(1, 2, 1).window == (2, 1)
    assert chunk(1).window == (0, 0)
    assert chunk(2).window is None


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: chunk(0), ("chunk(size): positions in a chunk", "got: 0", "from 1")),
        (lambda: block_band(0, 1, 1), ("positions in a block", "got: 0", "from 1")),
        (lambda: block_band(2, -1, 1), ("blocks before the query's", "got: -1", "from 0")),
        (lambda: block_band(2, 1, -1), ("blocks after the query's", "got: -1", "from 0")),
        (lambda: global_blocks(0, [1]), ("positions in a block", "got: 0")),
        (lambda: global_blocks(4, [1, -1]), ("numbers of blocks, counted from 0", "got: -1")),
    ],
)
def test_numbers_out_of_bounds_say_so(make, told):
    with pytest.raises(MultiheadError) as error:
        make()
    for words in told:
        assert words in str(error.value)
