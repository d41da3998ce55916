import pytest
import torch

from multihead.error import MultiheadError
from multihead.pattern import (
    after_same_token,
    band,
    block_band,
    causal,
    chunk,
    dilated,
    document,
    every,
    from_callable,
    global_blocks,
    global_tokens,
    grid_window,
    keys_every,
    neighbourhood,
    padding,
    per_head,
    random_blocks,
    random_pairs,
    same_token,
    sliding_window,
)

IDS = torch.tensor([7, 8, 7, 9])


@pytest.mark.parametrize(
    ("pattern", "i", "j", "told"),
    [
        (sliding_window(4), 9, 2, "query 9 -> key 2: outside sliding_window(4)"),
        (causal() & sliding_window(4), 9, 2, "query 9 -> key 2: outside sliding_window(4)"),
        (causal() & sliding_window(4), 9, 12, "query 9 -> key 12: outside causal and outside sliding_window(4)"),
        (causal() & sliding_window(4), 9, 8, "query 9 -> key 8: inside causal and inside sliding_window(4)"),
        (
            causal() & (sliding_window(4) | global_tokens([0])),
            9,
            0,
            "query 9 -> key 0: inside causal and inside global_tokens([0])",
        ),
        (
            sliding_window(4) | global_tokens([0]),
            9,
            2,
            "query 9 -> key 2: outside sliding_window(4) and outside global_tokens([0])",
        ),
        (~causal(), 9, 2, "query 9 -> key 2: outside ~causal"),
        (~causal() & band(9, 9), 2, 9, "query 2 -> key 9: inside ~causal and inside band(9, 9)"),
        (
            ~(causal() & band(3, 3)),
            9,
            2,
            "query 9 -> key 2: inside ~(causal & band(3, 3)) (outside band(3, 3))",
        ),
        (sliding_window(4).at(q_offset=5), 0, 2, "query 0 -> key 2: inside sliding_window(4).at(5)"),
        (chunk(4), 9, 2, "query 9 -> key 2: outside chunk(4) (block 2 at query 9, block 0 at key 2)"),
        (
            chunk(4).at(q_offset=2, k_offset=2),
            1,
            2,
            "query 1 -> key 2: outside chunk(4).at(2, 2) (block 0 at query 3, block 1 at key 4)",
        ),
        (
            ~block_band(4, 1, 0),
            9,
            5,
            "query 9 -> key 5: outside ~block_band(4, 1, 0) (block 2 at query 9, block 1 at key 5)",
        ),
        (
            global_blocks(4, [0]),
            9,
            5,
            "query 9 -> key 5: outside global_blocks(4, [0]) (block 2 at query 9, block 1 at key 5)",
        ),
        (dilated(3, 2), 9, 5, "query 9 -> key 5: inside dilated(3, 2) (distance 4)"),
        (causal() & every(4), 9, 2, "query 9 -> key 2: outside every(4) (distance 7)"),
        (
            keys_every(4, 2),
            9,
            5,
            "query 9 -> key 5: outside keys_every(4, 2, 1) (key 5 is 3 after the last run began)",
        ),
        (
            neighbourhood(3, 4, 3),
            0,
            7,
            "query 0 -> key 7: outside neighbourhood(3, 4, 3) (place (0, 0) at query 0, place (1, 3) at key 7)",
        ),
        (
            grid_window(3, 4, 3),
            5,
            12,
            "query 5 -> key 12: outside grid_window(3, 4, 3) (place (1, 1) at query 5, no place at key 12)",
        ),
        (
            random_blocks(2, 2, seed=0),
            8,
            1,
            "query 8 -> key 1: outside random_blocks(2, 2, 0) (block 4 picked [1, 2], key 1 is in block 0)",
        ),
        (random_pairs(1.0, seed=0), 8, 1, "query 8 -> key 1: inside random_pairs(1.0, 0)"),
        (from_callable(lambda q, k: q > k, name="later"), 1, 8, "query 1 -> key 8: outside callable(#later)"),
    ],
)
def test_why_names_the_parts_that_decided(pattern, i, j, told):
    assert pattern.why(i, j) == told


@pytest.mark.parametrize(
    ("pattern", "i", "j", "told"),
    [
        (document(IDS), 2, 1, "outside document(#{}) (id 7 at query 2, id 8 at key 1)"),
        (document(IDS), 2, 0, "inside document(#{}) (id 7 at query 2, id 7 at key 0)"),
        (document(IDS).at(q_offset=1), 1, 1, "outside document(#{}).at(1) (id 7 at query 2, id 8 at key 1)"),
        (~document(IDS), 2, 1, "inside ~document(#{}) (id 7 at query 2, id 8 at key 1)"),
        (same_token(IDS), 2, 2, "outside same_token(#{}) (token 2 is the query itself)"),
        (after_same_token(IDS), 2, 1, "inside after_same_token(#{}) (id 7 at query 2, id 7 at key 0)"),
        (after_same_token(IDS), 2, 3, "outside after_same_token(#{}) (token 2 is the query itself)"),
        (after_same_token(IDS), 2, 0, "outside after_same_token(#{}) (nothing precedes key 0)"),
        (padding(IDS > 7), 2, 0, "outside padding(#{}) (key 0 is padding)"),
        (padding(IDS > 7), 2, 1, "inside padding(#{})"),
    ],
)
def test_why_tells_what_the_text_leaves_out(pattern, i, j, told):
    (name,) = pattern.data
    assert pattern.why(i, j) == f"query {i} -> key {j}: " + told.format(name)


def test_why_looks_at_the_row_and_the_head():
    pattern = document(torch.stack([IDS, IDS * 0])) & per_head([causal(), band(0, 0)])
    assert pattern.why(2, 1, batch=1, head=0).startswith("row 1, head 0, query 2 -> key 1: inside document")
    assert "(id 0 at query 2, id 0 at key 1)" in pattern.why(2, 1, batch=1)
    assert pattern.why(2, 1, batch=1, head=1) == "row 1, head 1, query 2 -> key 1: outside band(0, 0)"


@pytest.mark.parametrize(
    ("ask", "told"),
    [
        (lambda: causal().why(-1, 0), ("a query position, counted from 0", "got: -1")),
        (lambda: causal().why(0, -1), ("a key position, counted from 0", "got: -1")),
        (lambda: document(IDS[None]).why(0, 0, batch=1), ("a batch row of a pattern made for 1", "got: 1", "0 to 0")),
        (lambda: per_head([causal()] * 3).why(0, 0, head=3), ("a head of a pattern made for 3", "got: 3", "0 to 2")),
        (lambda: causal().why(0, 0, head=-1), ("a head, counted from 0", "got: -1")),
        (lambda: per_head([causal()]).draw(2, 2, head=1), ("a head of a pattern made for 1", "got: 1")),
        (lambda: document(IDS[None]).draw(2, 2, batch=2), ("a batch row of a pattern made for 1", "got: 2")),
        (lambda: causal().draw(0, 2), ("draw(q_len, kv_len): the number of queries, at least 1", "got: 0")),
        (lambda: causal().draw(2, 0), ("draw(q_len, kv_len): the number of keys, at least 1", "got: 0")),
        (lambda: causal().draw(2, 2, block=0), ("block: the side of a tile", "got: 0")),
        (lambda: causal().draw(2, 2, q_offset=2**41), ("q_offset: the position of the first query",)),
        (lambda: document(IDS).draw(5, 4), ("document(ids)", "needs length 5", "got: length 4")),
    ],
)
def test_what_cannot_be_shown_says_so(ask, told):
    with pytest.raises(MultiheadError) as error:
        ask()
    for words in told:
        assert words in str(error.value)


def test_draw_elements():
    drawn = band(1, 1).draw(3, 4, q_offset=9).splitlines()
    assert drawn[0] == "band(1, 1): queries 9..11 down, keys 0..3 across"
    assert drawn[1] == "█ inside  · outside"
    assert drawn[2:] == [" 9 ····", "10 ····", "11 ····"]
    assert causal().draw(2, 3).splitlines()[2:] == ["0 █··", "1 ██·"]


def test_draw_tiles():
    drawn = causal().draw(8, 7, block=3).splitlines()
    assert drawn[0] == "causal: queries 0..7 down, keys 0..6 across, a character is 3 x 3"
    assert drawn[1] == "█ all inside  ▒ some  · none"
    assert drawn[2:] == ["0 ▒··", "3 █▒·", "6 ███"]


@pytest.mark.parametrize(("length", "side"), [(64, 1), (65, 2), (128, 2), (129, 4), (1000, 16)])
def test_a_long_drawing_fits(length, side):
    drawn = causal().draw(length, 3).splitlines()
    assert len(drawn) - 2 == -(-length // side)
    assert (f"{side} x {side}" in drawn[0]) is (side > 1)


def test_draw_one_row_and_head():
    pattern = per_head([causal(), ~causal()]) & padding(torch.tensor([[True, True], [True, False]]))
    assert pattern.draw(2, 2, batch=1, head=0).splitlines()[2:] == ["0 █·", "1 █·"]
    assert pattern.draw(2, 2, batch=0, head=1).splitlines()[2:] == ["0 ·█", "1 ··"]
