import pytest
import torch

from multihead.error import MultiheadError
from multihead.pattern import Tile, global_tokens, keys_at, pairs


def test_global_tokens_see_and_are_seen():
    spots = [0, 3]
    mask = global_tokens(spots).mask(4, 6, q_offset=1)
    assert mask.tolist() == [[[[i in spots or j in spots for j in range(6)] for i in range(1, 5)]]]


def test_keys_at_are_columns_for_every_query():
    mask = keys_at([2, 2, 0]).mask(3, 4, q_offset=7)
    assert mask.tolist() == [[[[j in (0, 2) for j in range(4)]] * 3]]
    assert not keys_at([0]).positional
    assert global_tokens([0]).positional


def test_no_places_is_no_pair():
    assert not global_tokens([]).mask(3, 3).any()
    assert not keys_at([]).mask(3, 3).any()


@pytest.mark.parametrize(
    "listed",
    [
        [(3, 1), (0, 5), (3, 1)],
        ((3, 1), (0, 5)),
        [[3, 1], [0, 5]],
        torch.tensor([[3, 1], [0, 5], [0, 5]]),
        torch.tensor([[3, 1], [0, 5]], dtype=torch.int16),
    ],
)
def test_pairs_are_the_listed_ones(listed):
    pattern = pairs(listed)
    assert pattern.batch is None
    assert pattern.mask(5, 6).nonzero()[:, 2:].tolist() == [[0, 5], [3, 1]]
    assert pattern.reach == (2, 5)
    assert pattern == pairs([(0, 5), (3, 1)])


def test_pairs_far_away_do_not_alias():
    pattern = pairs([(2**30, 1), (5, 2**33)])
    allowed = pattern.allows(torch.tensor([-1, 5, 2**30]), torch.tensor([-1, 1, 2**33]))
    assert allowed.nonzero()[:, 2:].tolist() == [[1, 2], [2, 1]]


def test_repeated_and_unordered_positions():
    allowed = pairs([(2, 1)]).allows(torch.tensor([2, 0, 2]), torch.tensor([1, 3, 1, 0]))
    assert allowed[0, 0].int().tolist() == [[1, 0, 1, 0], [0, 0, 0, 0], [1, 0, 1, 0]]


@pytest.mark.parametrize("listed", [[[(1, 0)], [(2, 2), (0, 1)]], [((1, 0),), [[2, 2], [0, 1]]]])
def test_pairs_per_row(listed):
    pattern = pairs(listed)
    assert pattern.batch == 2
    assert pattern.mask(3, 3).nonzero().tolist() == [[0, 0, 1, 0], [1, 0, 0, 1], [1, 0, 2, 2]]


def test_pairs_per_row_from_a_tensor():
    listed = torch.tensor([[[1, 0], [1, 1]], [[2, 2], [2, 2]]])
    assert pairs(listed) == pairs([[(1, 0), (1, 1)], [(2, 2)]])
    assert pairs(listed[:, :0]).batch == 2


def test_rows_without_pairs_count():
    pattern = pairs([[], [(1, 1)], []])
    assert pattern.batch == 3
    assert pattern.mask(2, 2).flatten(1).any(1).tolist() == [False, True, False]


def test_no_pairs_at_all():
    assert not pairs([]).mask(2, 2).any()
    assert pairs([]).batch is None
    assert pairs([]).reach == (0, 0)


def test_tiles_of_places_are_exact():
    full = pairs([(i, j) for i in range(2, 4) for j in range(4, 6)])
    assert full.tile(range(2, 4), range(4, 6)) == Tile.FULL
    assert full.tile(range(2, 5), range(4, 6)) == Tile.PARTIAL
    assert full.tile(range(2), range(9)) == Tile.SKIP
    assert full.tile(range(4, 5), range(4, 6)) == Tile.SKIP
    assert full.tile(range(2, 4), range(6, 7)) == Tile.SKIP
    assert keys_at([4, 5]).tile(range(9), range(4, 6)) == Tile.FULL
    assert keys_at([4, 5]).tile(range(9), range(5, 7)) == Tile.PARTIAL
    assert global_tokens([4]).tile(range(4, 5), range(3)) == Tile.FULL
    assert global_tokens([4]).tile(range(5, 9), range(3)) == Tile.SKIP


def test_later_changes_of_a_tensor_do_not_reach_the_pattern():
    listed = torch.tensor([[1, 0]])
    pattern = pairs(listed)
    listed.fill_(1)
    assert pattern == pairs([(1, 0)])


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: global_tokens([3, -1]), ("global_tokens(positions)", "got: -1", "from 0")),
        (lambda: keys_at([-4]), ("keys_at(positions)", "got: -4", "from 0")),
        (lambda: pairs([(1, -2)]), ("pairs(...)", "got: -2", "from 0")),
        (lambda: pairs(torch.tensor([[1, -2]])), ("pairs(...)", "got: -2", "from 0")),
    ],
)
def test_negative_positions_say_so(make, told):
    with pytest.raises(MultiheadError) as error:
        make()
    for words in told:
        assert words in str(error.value)


@pytest.mark.usefixtures("unhooked")
@pytest.mark.parametrize(
    ("listed", "arrived"),
    [
        ([(1, 2, 3)], "among the pairs"),
        ([1, 2], "1 among the rows"),
        ([[(1, 2), 3]], "3 among the pairs"),
        (["ab"], "'ab' among the rows"),
        ([(1, 2), "ab"], "'ab' among the pairs"),
        (torch.zeros(3, dtype=torch.int64), "of shape (3,)"),
        (torch.zeros(2, 3, dtype=torch.int64), "[0, 0, 0] among the"),
        (torch.zeros(1, 2), "got: 0.0"),
    ],
)
def test_what_is_no_list_of_pairs_says_so(listed, arrived):
    with pytest.raises(MultiheadError) as error:
        pairs(listed)
    assert "pairs(...)" in str(error.value)
    assert arrived in str(error.value)
