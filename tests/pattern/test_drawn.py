import pytest
import torch

from multihead.error import MultiheadError
from multihead.pattern import Tile, random_blocks, random_pairs
from multihead.pattern.drawn import drawn
from pattern.slow import hashed, picked_blocks, random_block, random_pair


def test_the_hash_is_that_of_plain_python():
    counters = torch.randint(-(2**40), 2**40, (50, 2))
    seed = int(torch.randint(2**40, ()))
    for a, b in counters.tolist():
        got = drawn(seed, torch.tensor(a), torch.tensor(b))
        assert int(got) % 2**64 == hashed(seed, a, b)


def test_the_hash_is_the_published_one():
    """The first numbers of splitmix64 from the state 1234567, as its author's program prints them."""
    known = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    gamma = 0x9E3779B97F4A7C15
    assert [hashed((1234567 + step * gamma) % 2**64) for step in range(3)] == known
    assert int(drawn(1234567, torch.tensor(0))) % 2**64 == hashed(1234567, 0)


@pytest.mark.parametrize("share", [0.0, 0.25, 0.9, 1.0])
def test_random_pairs_are_the_double_loop(share):
    seed = int(torch.randint(2**40, ()))
    mask = random_pairs(share, seed=seed).mask(13, 11, q_offset=-3)
    assert mask[0, 0].tolist() == [[random_pair(share, seed, i, j) for j in range(11)] for i in range(-3, 10)]


def test_the_share_is_the_share():
    seed = int(torch.randint(2**40, ()))
    mask = random_pairs(0.3, seed=seed).mask(400, 400).float()
    assert abs(mask.mean() - 0.3) < 6 * (0.21 / 160_000) ** 0.5
    # Rows, columns and neighbours know nothing of one another.
    for side in (2, 3):
        assert (mask.mean(side) - 0.3).abs().max() < 6 * (0.21 / 400) ** 0.5
    apart = mask[..., 1:, 1:] * mask[..., :-1, :-1]
    assert abs(apart.mean() - 0.09) < 0.01


def test_other_seeds_are_others():
    first = random_pairs(0.5, seed=1)
    assert first == random_pairs(0.5, seed=1)
    assert first != random_pairs(0.5, seed=2)
    assert 0.4 < (first.mask(100, 100) == random_pairs(0.5, seed=2).mask(100, 100)).float().mean() < 0.6
    assert random_blocks(1, 3, seed=1).mask(60, 60).ne(random_blocks(1, 3, seed=2).mask(60, 60)).any()


SETTINGS = [
    (2, 1, None, 0, 0),
    (3, 2, None, 1, 1),
    (1, 3, None, 0, 2),
    (2, 0, None, 0, 0),
    (2, 2, 23, 0, 0),
    (3, 2, 24, 1, 1),
    (1, 4, 20, 2, 1),
    (4, 9, 14, 0, 0),
    (5, 1, 3, 1, 1),
]


@pytest.mark.parametrize("setting", SETTINGS)
def test_random_blocks_are_the_double_loop(setting):
    size, per_row, length, near, ends = setting
    seed = int(torch.randint(2**40, ()))
    mask = random_blocks(size, per_row, seed=seed, length=length, near=near, ends=ends).mask(32, 28, q_offset=-4)
    slow = [[random_block(i, j, size, per_row, seed, length, near, ends) for j in range(28)] for i in range(-4, 28)]
    assert mask[0, 0].tolist() == slow


@pytest.mark.parametrize("setting", SETTINGS)
def test_tiles_of_random_blocks_are_exact(setting):
    """Any pick that a tile holds is counted, and no other; a tile of part of a block is full as well."""
    size, per_row, length, near, ends = setting
    pattern = random_blocks(size, per_row, seed=int(torch.randint(2**40, ())), length=length, near=near, ends=ends)
    rows, cols = (torch.randint(1, 7, (6,)).cumsum(0) - start for start in (4, 1))
    classes = pattern.tiles(rows, cols)[0, 0]
    for s in range(5):
        for t in range(5):
            q, k = torch.arange(int(rows[s]), int(rows[s + 1])), torch.arange(int(cols[t]), int(cols[t + 1]))
            inside = pattern.allows(q, k)
            assert (classes[s, t] == Tile.SKIP) == (not inside.any())
            assert (classes[s, t] == Tile.FULL) == bool(inside.all())


def test_a_row_sees_as_many_blocks_as_were_asked_for():
    for length in (None, 160):
        pattern = random_blocks(4, 3, seed=5, length=length, near=1, ends=1)
        seen = pattern.mask(160, 160)[0, 0].view(40, 4, 40, 4)
        assert seen.any((1, 3)).equal(seen.all((1, 3)))
        counts = seen.any((1, 3)).sum(1)
        if length is None:
            assert counts.tolist() == [min(max(row - 2, 0), 3) for row in range(40)]
        else:
            assert counts.tolist() == [3] * 40


def test_all_sets_of_blocks_are_picked_alike():
    """Of 5 candidates 2 are picked: each of the 10 pairs as often as another, over the seeds."""
    counts = {}
    for seed in range(600):
        picked = tuple(sorted(picked_blocks(5, 1, 2, seed)))
        counts[picked] = counts.get(picked, 0) + 1
    assert len(counts) == 10
    assert max(abs(count - 60) for count in counts.values()) < 6 * 54**0.5


def test_what_is_drawn_is_the_same_whatever_the_length_and_torch_s_seed():
    pattern = random_blocks(2, 2, seed=3)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    long = pattern.mask(90, 90)
    torch.manual_seed(2)
    assert pattern.mask(7, 12, q_offset=60)[0, 0].equal(long[0, 0, 60:67, :12])
    torch.manual_seed(1)
    assert torch.get_rng_state().equal(state)


def test_what_is_drawn_is_the_same_on_every_machine():
    blocks, single = random_blocks(1, 2, seed=3), random_pairs(0.1, seed=9)
    assert blocks.mask(8, 8)[0, 0].nonzero()[:, 1].tolist() == [0, 0, 1, 0, 2, 0, 1, 0, 4, 0, 3, 3, 4]
    assert single.mask(6, 30)[0, 0].nonzero().tolist() == [
        [0, 1],
        [0, 23],
        [1, 0],
        [1, 5],
        [1, 27],
        [2, 8],
        [2, 17],
        [3, 3],
        [3, 4],
        [3, 19],
        [3, 23],
        [3, 25],
        [3, 28],
        [4, 2],
        [4, 13],
        [4, 14],
        [4, 29],
        [5, 2],
        [5, 24],
    ]


def test_reach():
    assert random_blocks(4, 2, seed=0).reach == (None, -1)
    assert random_blocks(4, 2, seed=0, near=2).reach == (None, -9)
    assert random_blocks(4, 2, seed=0, length=40).reach == (39, 39)


def test_printed_with_all_its_digits():
    assert str(random_pairs(0.1, seed=4)) == "random_pairs(0.1, 4)"
    assert str(random_pairs(1.0, seed=4)) == "random_pairs(1.0, 4)"
    assert str(random_pairs(1e-7, seed=4)) == "random_pairs(0.0000001, 4)"
    assert str(random_blocks(4, 2, seed=1, near=1)) == "random_blocks(4, 2, 1, 1, 0)"
    assert str(random_blocks(4, 2, seed=1, length=8)) == "random_blocks(4, 2, 1, 0, 0, 8)"


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: random_pairs(-0.1, seed=0), ("from 0 to 1", "got: -0.1", "pass 0.1 for a tenth")),
        (lambda: random_pairs(1.5, seed=0), ("from 0 to 1", "got: 1.5")),
        (lambda: random_pairs(float("nan"), seed=0), ("from 0 to 1", "got: nan")),
        (lambda: random_pairs(0.5, seed=-1), ("random_pairs(share), seed", "got: -1")),
        (lambda: random_blocks(0, 1, seed=0), ("positions in a block", "got: 0")),
        (lambda: random_blocks(4, -1, seed=0), ("blocks a row of blocks sees", "got: -1")),
        (lambda: random_blocks(4, 1025, seed=0), ("at most 1024 blocks", "per_row=1025", "random_pairs(share)")),
        (lambda: random_blocks(4, 1, seed=-1), ("seed: a whole number from 0", "got: -1")),
        (lambda: random_blocks(4, 1, seed=0, near=-1), ("near: blocks that are not picked", "got: -1")),
        (lambda: random_blocks(4, 1, seed=0, ends=-1), ("ends: blocks that are not picked", "got: -1")),
        (lambda: random_blocks(4, 1, seed=0, length=0), ("length: positions of the sequence", "got: 0")),
    ],
)
def test_numbers_out_of_bounds_say_so(make, told):
    with pytest.raises(MultiheadError) as error:
        make()
    for words in told:
        assert words in str(error.value)
