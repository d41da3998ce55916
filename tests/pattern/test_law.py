import pytest
import torch

from multihead.error import MultiheadError
from multihead.pattern import Tile, causal, document, everything, padding, per_head, sliding_window


def test_allows_has_four_sizes():
    assert causal().allows(torch.arange(3), torch.arange(5)).shape == (1, 1, 3, 5)
    assert causal().allows(torch.arange(6).view(2, 3), torch.arange(5)).shape == (2, 1, 3, 5)
    assert everything().allows(torch.arange(3), torch.arange(10).view(2, 5)).shape == (2, 1, 3, 5)
    assert padding(torch.ones(4, 5).bool()).allows(torch.arange(3), torch.arange(5)).shape == (4, 1, 3, 5)
    assert per_head([causal()] * 7).allows(torch.arange(0), torch.arange(5)).shape == (1, 7, 0, 5)
    assert padding(torch.ones(0, 5).bool()).mask(3, 5).shape == (0, 1, 3, 5)


def test_rows_look_up_their_own_positions():
    ids = torch.tensor([[0, 1, 0], [1, 1, 0]])
    allowed = document(ids).allows(torch.tensor([[2], [1]]), torch.tensor([[0, 1], [1, 2]]))
    assert allowed.int().tolist() == [[[[1, 0]]], [[[1, 0]]]]


@pytest.mark.parametrize("dtype", [torch.int16, torch.int32, torch.int64])
def test_narrow_integers_do_not_overflow(dtype):
    far = torch.tensor([torch.iinfo(dtype).max // 2], dtype=dtype)
    assert sliding_window(1).allows(far, far).all()
    assert causal().at(q_offset=2**30).allows(far, far).all()


def test_a_mask_is_new_and_can_be_written_to():
    mask = everything().mask(3, 4)
    mask[0, 0, 0, 0] = False
    assert mask.sum() == 11
    assert everything().mask(3, 4).all()


def test_a_mask_is_made_where_asked():
    assert causal().mask(2, 2, device="cpu").device.type == "cpu"
    assert everything().mask(2, 2, device="meta").device.type == "meta"


def test_an_empty_tile_has_nothing_to_compute():
    assert everything().tile(range(3, 3), range(4)).item() == Tile.SKIP


def test_tile_states_the_sizes_of_the_pattern():
    assert padding(torch.ones(2, 5).bool()).tile(range(3), range(5)).shape == (2, 1)
    assert per_head([causal(), everything()]).tile(range(3), range(3)).tolist() == [[Tile.PARTIAL, Tile.FULL]]


@pytest.mark.parametrize(
    ("ask", "told"),
    [
        (lambda: causal().mask(-1, 2), ("q_len: the number of queries", "got: -1")),
        (lambda: causal().mask(1, -2), ("kv_len: the number of keys", "got: -2")),
        (lambda: causal().mask(1, 2, q_offset=2**41), ("q_offset: the position of the first query", f"got: {2**41}")),
        (lambda: causal().tile(range(0, 4, 2), range(4)), ("neighbouring positions", "range(0, 4, 2)", "step 1")),
        (lambda: causal().tile(range(4), range(3, 0, -1)), ("neighbouring positions", "range(3, 0, -1)")),
        (
            lambda: causal().allows(torch.zeros(1, 1, 2).long(), torch.arange(2)),
            ("q_pos: absolute positions", "got: torch.int64 of shape (1, 1, 2)", "q_pos=torch.arange"),
        ),
        (
            lambda: causal().allows(torch.arange(2), torch.tensor(3)),
            ("k_pos: absolute positions", "got: torch.int64 of shape ()", "k_pos=torch.arange"),
        ),
        (
            lambda: causal().allows(torch.zeros(2, 4).long(), torch.zeros(3, 4).long()),
            ("one batch size in every pattern and position", "got: batch=2 and batch=3"),
        ),
        (
            lambda: document(torch.zeros(2, 4).long()).allows(torch.zeros(3, 4).long(), torch.arange(4)),
            (
                "one batch size in every pattern and position",
                "got: batch=2 and batch=3",
                "pass positions of shape (length,)",
            ),
        ),
    ],
)
def test_what_cannot_be_asked_says_so(ask, told):
    with pytest.raises(MultiheadError) as error:
        ask()
    for words in told:
        assert words in str(error.value)


@pytest.mark.usefixtures("unhooked")
@pytest.mark.parametrize("positions", [torch.rand(3), torch.ones(3).bool(), torch.ones(3, dtype=torch.complex64)])
def test_positions_are_integers(positions):
    with pytest.raises(MultiheadError, match=f"q_pos: absolute positions as integers.*\n.*got: {positions.dtype}"):
        causal().allows(positions, torch.arange(3))
