import pytest
import torch

from multihead.error import MultiheadError
from multihead.pattern import Tile, after_same_token, document, padding, same_token

N = 11


def random_ids(*shape, kinds=3):
    return torch.randint(kinds, shape)


def looped(inside, rows, q_len, kv_len, q_offset):
    queries = range(q_offset, q_offset + q_len)
    return [[[[inside(row, i, j) for j in range(kv_len)] for i in queries]] for row in rows]


RULES = [
    (document, lambda t, i, j: t[i] == t[j]),
    (same_token, lambda t, i, j: i != j and t[i] == t[j]),
    (after_same_token, lambda t, i, j: j >= 1 and j - 1 != i and t[j - 1] == t[i]),
    (lambda ids: padding(ids.bool()), lambda t, i, j: t[j] != 0),
]


@pytest.mark.parametrize("sizes", [(N, N, 0), (3, N, 8), (N, 4, 0), (2, 5, 3)])
@pytest.mark.parametrize(("factory", "inside"), RULES)
def test_mask_is_the_double_loop(factory, inside, sizes):
    ids = random_ids(2, N)
    pattern = factory(ids)
    assert pattern.batch == 2
    assert pattern.mask(*sizes[:2], q_offset=sizes[2]).tolist() == looped(inside, ids.tolist(), *sizes)
    shared = factory(ids[0])
    assert shared.batch is None
    assert shared.mask(*sizes[:2], q_offset=sizes[2]).tolist() == looped(inside, [ids[0].tolist()], *sizes)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_any_integers_are_ids(dtype):
    ids = random_ids(2, N, kinds=100).to(dtype)
    assert document(ids) == document(ids.long())


CROSSED = [
    (document, lambda t, u, i, j: t[i] == u[j]),
    (same_token, lambda t, u, i, j: t[i] == u[j]),
    (after_same_token, lambda t, u, i, j: j >= 1 and u[j - 1] == t[i]),
]


@pytest.mark.parametrize(("factory", "inside"), CROSSED)
def test_two_sequences_have_no_self_to_leave_out(factory, inside):
    ids, keys = random_ids(2, 5), random_ids(2, 9)
    mask = factory(ids, keys=keys).mask(5, 9)
    slow = [
        [[[inside(t, u, i, j) for j in range(9)] for i in range(5)]]
        for t, u in zip(ids.tolist(), keys.tolist(), strict=True)
    ]
    assert mask.tolist() == slow
    assert factory(ids, keys=keys[0]).batch == 2
    assert factory(ids[0], keys=keys).mask(5, 9).shape == (2, 1, 5, 9)


def test_induction_sums_over_all_copies():
    ids = torch.tensor([5, 6, 5, 7, 5])
    assert after_same_token(ids).mask(5, 5)[0, 0, 4].nonzero().flatten().tolist() == [1, 3]
    assert after_same_token(ids).mask(5, 5)[0, 0, 0].nonzero().flatten().tolist() == [3]


def test_padding_asks_nothing_of_the_query():
    pattern = padding(torch.tensor([[True, False]]))
    assert not pattern.positional
    assert pattern.at(q_offset=9) is pattern
    assert pattern.mask(3, 2, q_offset=100).tolist() == [[[[True, False]] * 3]]


def test_documents_ask_for_the_query():
    assert document(random_ids(4)).positional
    assert document(random_ids(4), keys=random_ids(3)).positional


def test_tiles_of_packed_documents_are_exact():
    pattern = document(torch.tensor([0, 0, 0, 1, 1, 1]))
    assert pattern.tile(range(3), range(3)) == Tile.FULL
    assert pattern.tile(range(3), range(3, 6)) == Tile.SKIP
    assert pattern.tile(range(2, 4), range(3)) == Tile.PARTIAL
    keep = padding(torch.tensor([[True, True, False, False], [True, False, False, True]]))
    assert keep.tile(range(4), range(2)).flatten().tolist() == [Tile.FULL, Tile.PARTIAL]
    assert keep.tile(range(4), range(2, 3)).flatten().tolist() == [Tile.SKIP, Tile.SKIP]


def test_tiles_of_repeated_tokens_leave_out_the_query_itself():
    same = same_token(torch.zeros(8, dtype=torch.int64))
    assert same.tile(range(4), range(4, 8)) == Tile.FULL
    assert same.tile(range(4), range(3, 8)) == Tile.PARTIAL
    after = after_same_token(torch.zeros(8, dtype=torch.int64))
    assert after.tile(range(4, 8), range(1, 5)) == Tile.FULL
    assert after.tile(range(4, 8), range(5)) == Tile.PARTIAL
    assert after.tile(range(4, 8), range(1, 6)) == Tile.PARTIAL
    assert after.tile(range(4, 8), range(1)) == Tile.SKIP


@pytest.mark.parametrize(("factory", "inside"), RULES)
def test_later_changes_of_a_tensor_do_not_reach_the_pattern(factory, inside):
    ids = random_ids(N)
    kept = ids.clone()
    pattern = factory(ids)
    before = pattern.mask(N, N)
    assert ids.equal(kept)
    ids.fill_(7)
    assert pattern.mask(N, N).equal(before)
    keep = torch.ones(N, dtype=torch.bool)
    padded = padding(keep)
    keep.fill_(0)
    assert padded.mask(1, N).all()
    for held in pattern.data.values():
        held.fill_(0)
    assert pattern.mask(N, N).equal(before)
    assert pattern == factory(kept)


@pytest.mark.parametrize(
    ("factory", "side", "name"),
    [
        (lambda: document(random_ids(6)), "query", "document(ids)"),
        (lambda: same_token(random_ids(2, 6)), "query", "same_token(ids)"),
        (lambda: after_same_token(random_ids(6)), "query", "after_same_token(ids)"),
    ],
)
def test_queries_beyond_the_ids_say_so(factory, side, name):
    for ask in (lambda p: p.mask(4, 6, q_offset=3), lambda p: p.tile(range(3, 7), range(6)), lambda p: p.why(6, 0)):
        with pytest.raises(MultiheadError) as error:
            ask(factory())
        told = str(error.value)
        assert f"{name} at query positions up to 6, which needs length 7" in told
        assert "got: length 6" in told
        assert "cached ones and new ones included" in told


@pytest.mark.parametrize(
    ("factory", "name"),
    [
        (lambda: document(random_ids(6)), "document(ids)"),
        (lambda: document(random_ids(9), keys=random_ids(6)), "document(keys)"),
        (lambda: same_token(random_ids(6)), "same_token(ids)"),
        (lambda: after_same_token(random_ids(2, 6)), "after_same_token(ids)"),
        (lambda: padding(random_ids(6).bool()), "padding(keep)"),
        (lambda: padding(random_ids(2, 6).bool()), "padding(keep)"),
    ],
)
def test_keys_beyond_the_ids_say_so(factory, name):
    for ask in (lambda p: p.mask(2, 8), lambda p: p.tile(range(2), range(8)), lambda p: p.why(0, 7)):
        with pytest.raises(MultiheadError) as error:
            ask(factory())
        assert f"{name} at key positions up to 7, which needs length 8" in str(error.value)
        assert "got: length 6" in str(error.value)


@pytest.mark.parametrize("factory", [document, same_token, after_same_token])
def test_negative_positions_do_not_wrap(factory):
    pattern = factory(random_ids(6))
    with pytest.raises(
        MultiheadError, match=r"query positions -1 to 2; positions are counted from 0\n  got: position -1"
    ):
        pattern.mask(4, 6, q_offset=-1)
    with pytest.raises(MultiheadError, match=r"query positions -2 to -1.*\n.*\n.*q_offset"):
        pattern.at(q_offset=-4).tile(range(2, 4), range(2))
    with pytest.raises(MultiheadError, match="key positions -1 to 1"):
        pattern.allows(torch.arange(2), torch.tensor([-1, 0, 1]))
    with pytest.raises(MultiheadError, match="key positions -1 to -1"):
        padding(torch.ones(3, dtype=torch.bool)).allows(torch.arange(2), torch.tensor([-1]))


@pytest.mark.usefixtures("unhooked")
@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: document(torch.rand(4)), ("document(ids): an integer tensor", "got: torch.float32 of shape (4,)")),
        (lambda: same_token(torch.ones(4).bool()), ("same_token(ids)", "torch.bool")),
        (lambda: document(random_ids(4), keys=torch.rand(3)), ("document(keys)", "torch.float32")),
        (
            lambda: after_same_token(random_ids(1, 2, 3)),
            ("after_same_token(ids)", "(1, 2, 3)", "one integer for every"),
        ),
        (
            lambda: padding(random_ids(2, 4)),
            ("padding(keep): a boolean tensor", "torch.int64", "attention_mask.bool()"),
        ),
        (lambda: padding(torch.ones(1, 1, 4, 4).bool()), ("got: torch.bool of shape (1, 1, 4, 4)",)),
    ],
)
def test_other_tensors_say_so(make, told):
    with pytest.raises(MultiheadError) as error:
        make()
    for words in told:
        assert words in str(error.value)


def test_query_and_key_ids_of_other_batch_sizes_say_so():
    with pytest.raises(MultiheadError, match="got: batch=2 and batch=3"):
        document(random_ids(2, 4), keys=random_ids(3, 4))
