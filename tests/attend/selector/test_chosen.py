"""The pattern of what was chosen, against a table of truth values written out pair by pair."""

import itertools
import random

import pytest
import torch

from multihead.attend import attention, explain_backend, make_problem
from multihead.attend.lowering import mask_parts
from multihead.attend.selector import Chosen
from multihead.error import MultiheadError
from multihead.pattern import Tile, causal, document, from_callable, lower, padding, parse_pattern, sliding_window
from multihead.testing import check_backend


def blocks(batch=2, heads=2, q_len=40, kv_len=90, *, block=16, span=1, share=0.4, q_offset=0):
    """A choice of blocks, and its table (batch, heads, q_len, kv_len)."""
    chosen = torch.rand(batch, heads, -(-q_len // span), -(-kv_len // block)) < share
    table = torch.zeros(batch, heads, q_len, kv_len, dtype=torch.bool)
    for b, h, i, j in itertools.product(*map(range, table.shape)):
        table[b, h, i, j] = chosen[b, h, i // span, j // block]
    made = Chosen.from_blocks(chosen, block=block, kv_len=kv_len, span=span, q_len=q_len, q_offset=q_offset)
    return made, table


@pytest.mark.parametrize(("block", "span"), [(1, 1), (5, 3), (16, 1), (64, 1), (64, 7), (100, 64)])
def test_blocks_are_what_was_chosen(block, span):
    offset = random.randrange(9)
    chosen, table = blocks(block=block, span=span, q_offset=offset)
    assert torch.equal(chosen.mask(40, 90, q_offset=offset), table)
    q, k = torch.randint(40, (2, 11)), torch.randint(90, (13,))
    rows = torch.arange(2)[:, None, None, None], torch.arange(2)[None, :, None, None]
    assert torch.equal(chosen.allows(q + offset, k), table[(*rows, q[:, None, :, None], k)])
    assert torch.equal(chosen.allows(q[0] + offset, k), table[:, :, q[0]][..., k])
    assert torch.equal(chosen.allows(q[0] + offset, torch.arange(70, 85)), table[:, :, q[0], 70:85])
    moved = chosen.at(q_offset=2, k_offset=3)
    assert torch.equal(moved.mask(30, 80, q_offset=offset), table[:, :, 2:32, 3:83])
    left, right = moved.reach
    places = torch.arange(40)[:, None] + offset - 2 - (torch.arange(90) - 3)
    assert int(places.max()) <= left
    assert int(-places.min()) <= right


@pytest.mark.parametrize("columns", [64, 70, 128])
def test_truth_values_of_any_layout(columns):
    chosen = torch.rand(1, columns, 64) < 0.5
    layouts = chosen.mT[None], chosen[None, :, :1].expand(2, 3, 5, 64), chosen.permute(2, 0, 1)[None]
    for given in layouts:
        made = Chosen.from_blocks(given, block=1)
        assert torch.equal(made.mask(*given.shape[2:]), given)


def test_listed_keys_are_chosen_once():
    index = torch.randint(-1, 70, (2, 3, 20, 9))
    index[..., 4] = index[..., 2]
    table = torch.zeros(2, 3, 20, 70, dtype=torch.bool)
    for b, h, i, c in itertools.product(*map(range, index.shape)):
        if index[b, h, i, c] >= 0:
            table[b, h, i, index[b, h, i, c]] = True
    assert torch.equal(Chosen.from_keys(index, kv_len=70, q_offset=4).mask(20, 70, q_offset=4), table)
    one = Chosen.from_keys(index[:1, :1], kv_len=70)
    assert (one.batch, one.heads) == (None, None)
    assert torch.equal((one & causal()).mask(20, 70), table[:1, :1] & causal().mask(20, 70))


@pytest.mark.parametrize(("block", "span"), [(1, 1), (7, 1), (16, 5)])
def test_its_tiles_are_sound_and_exact(block, span):
    chosen, table = blocks(block=block, span=span, share=random.choice([0.05, 0.5, 0.95]))
    rows = torch.tensor([0, *sorted(random.sample(range(1, 40), 4)), 40])
    cols = torch.tensor([0, *sorted(random.sample(range(1, 90), 6)), 90])
    classes = chosen.tiles(rows, cols)
    for s, t in itertools.product(range(5), range(7)):
        tile = table[:, :, rows[s] : rows[s + 1], cols[t] : cols[t + 1]].flatten(2)
        want = torch.where(tile.all(2), Tile.FULL, torch.where(tile.any(2), Tile.PARTIAL, Tile.SKIP))
        assert torch.equal(classes[:, :, s, t].long(), want)
    assert torch.equal(lower(chosen & causal(), 40, 90, block=16).mask(), table & causal().mask(40, 90))


@pytest.mark.parametrize("cols", [[0, 64, 128, 192, 200], [0, 128, 200], [64, 192], [0, 64, 190]], ids=str)
def test_tiles_of_whole_words_are_judged_as_others_are(cols):
    """64 columns are a word of bits; the last word is short."""
    table = torch.rand(2, 2, 12, 200) < 0.02
    for first, last in ((0, 64), (64, 192), (128, 200)):
        table[..., random.randrange(8) :, first:last] = random.random() < 0.5
    chosen = Chosen.from_blocks(table, block=1, q_offset=3)
    classes = chosen.tiles(torch.tensor([0, 5, 9, 12]) + 3, torch.tensor(cols))
    for s, (top, bottom) in enumerate([(0, 5), (5, 9), (9, 12)]):
        for t, (left, right) in enumerate(itertools.pairwise(cols)):
            tile = table[:, :, top:bottom, left:right].flatten(2)
            want = torch.where(tile.all(2), Tile.FULL, torch.where(tile.any(2), Tile.PARTIAL, Tile.SKIP))
            assert torch.equal(classes[:, :, s, t].long(), want)


def test_its_text_reads_back():
    chosen, _ = blocks(block=5, span=3, q_offset=2)
    both = ~chosen | causal()
    assert parse_pattern(str(both), both.data) == both
    other, _ = blocks(block=5, span=3, q_offset=2)
    assert other != chosen
    assert hash(parse_pattern(str(chosen), chosen.data)) == hash(chosen)
    assert "block 3 of 5 keys" in chosen.why(4, 17, batch=0, head=0)


def spread(parts, q_len, kv_len):
    """The table that a map of tiles of 64 stands for, tile by tile."""
    table = torch.zeros(*parts.tile_class.shape[:2], q_len, kv_len, dtype=torch.bool)
    for b, h, s, t in itertools.product(*map(range, parts.tile_class.shape)):
        kind, cols = int(parts.tile_class[b, h, s, t]), range(min(64, kv_len - 64 * t))
        for r in range(min(64, q_len - 64 * s)):
            word = {0: 0, 2: -1}.get(kind)
            word = int(parts.tile_bits[int(parts.tile_index[b, h, s, t]), r]) if word is None else word
            table[b, h, 64 * s + r, 64 * t : 64 * t + 64] = torch.tensor([bool(word >> c & 1) for c in cols])
    return table


@pytest.mark.parametrize(("block", "start"), [(1, 0), (16, 0), (64, 0), (128, 64), (40, 7)])
def test_the_kernel_gets_tiles_of_bits(block, start, monkeypatch):
    q_len, kv_len = 70, 140
    made, table = blocks(1, 1, q_len, kv_len + start, block=block, share=0.5)
    chosen, table = made.at(k_offset=start), table[..., start:]

    def never(*_):
        raise AssertionError("a pair was asked")

    monkeypatch.setattr(Chosen, "_contains", never)
    keep = torch.rand(1, kv_len) < 0.9
    q, k = torch.randn(1, 1, q_len, 8), torch.randn(1, 1, kv_len, 8)
    parts = mask_parts(make_problem(q, k, k, mask=causal() & chosen & padding(keep), q_offset=0))
    assert torch.equal(parts.keep, keep)
    assert parts.window is not None
    assert torch.equal(spread(parts, q_len, kv_len), table)


def test_tiles_that_nobody_chose_are_left_out():
    inside = torch.zeros(1, 1, 256, 4, dtype=torch.bool)
    inside[:, :, :, 0] = True
    inside[:, :, 130, 2] = True
    q = torch.randn(1, 1, 256, 8)
    problem = make_problem(q, q, q, mask=causal() & Chosen.from_blocks(inside, block=64))
    assert mask_parts(problem).tile_class[0, 0].tolist() == [[2, 0, 0, 0], [2, 0, 0, 0], [2, 0, 1, 0], [2, 0, 0, 0]]
    assert "tile map" in str(explain_backend(q, q, q, mask=problem.mask))


def test_what_was_chosen_whole_is_not_looked_into():
    q, k = torch.randn(1, 1, 70, 8), torch.randn(1, 1, 130, 8)
    for block in (1, 7, 64):
        chosen = Chosen.from_blocks(torch.ones(1, 1, 70, -(-130 // block)).bool(), block=block, kv_len=130)
        parts = mask_parts(make_problem(q, k, k, mask=chosen, q_offset=0))
        assert parts.tile_class.tolist() == [[[[2, 2, 2], [2, 2, 2]]]]
        assert parts.tile_bits.shape == (0, 64)


def test_maps_of_tiles_are_joined():
    one, first = blocks(1, 2, 70, 130, block=64, share=0.5)
    other, second = blocks(2, 1, 70, 130, block=1, share=0.7)
    q, k, v = torch.randn(2, 2, 70, 8), torch.randn(2, 2, 130, 8), torch.randn(2, 2, 130, 8)
    odd = from_callable(lambda i, j: (i * j) % 3 < 2, name="odd")
    ids = document(torch.arange(130) // 50)
    mask = one & other & odd & ids & sliding_window(60)
    table = first & second & (odd & ids & sliding_window(60)).mask(70, 130)
    problem = make_problem(q, k, v, mask=mask, q_offset=0)
    assert torch.equal(spread(mask_parts(problem), 70, 130), first & second & (odd & sliding_window(60)).mask(70, 130))
    want = attention(q, k, v, mask=table, backend="reference")
    torch.testing.assert_close(attention(q, k, v, mask=mask, q_offset=0, backend="native"), want)


@pytest.mark.parametrize(
    "backend", ["native", "sdpa", "tiled", pytest.param("flex", marks=pytest.mark.slow), "reference"]
)
def test_every_backend_attends_to_what_was_chosen(backend):
    chosen, _ = blocks(2, 4, 33, 70, block=16, q_offset=37)
    few, _ = blocks(1, 1, 33, 70, block=1, share=0.05, q_offset=37)
    dtype = torch.float32 if backend in ("native", "flex") else torch.float64
    q, k, v = (torch.randn(2, *sizes, dtype=dtype) for sizes in ((4, 33, 8), (2, 70, 8), (2, 70, 8)))
    masks = (chosen, causal() & few, causal() & (chosen | sliding_window(3)))
    check_backend(backend, problems=[make_problem(q, k, v, mask=mask, q_offset=37) for mask in masks])


def test_no_queries_and_no_keys():
    chosen = Chosen.from_keys(torch.zeros(1, 2, 0, 0, dtype=torch.int64), kv_len=9)
    q, k = torch.randn(1, 2, 0, 4), torch.randn(1, 2, 9, 4)
    assert attention(q, k, k, mask=chosen, q_offset=0).shape == (1, 2, 0, 4)
    none = Chosen.from_keys(torch.zeros(1, 2, 3, 0, dtype=torch.int64), kv_len=9)
    assert not attention(torch.randn(1, 2, 3, 4), k, k, mask=none, q_offset=0).any()


REFUSED = {
    "keys as floats": (lambda: Chosen.from_keys(torch.zeros(1, 1, 2, 3), kv_len=4), "whole numbers"),
    "keys in three dimensions": (lambda: Chosen.from_keys(torch.zeros(1, 2, 3).long(), kv_len=4), "whole numbers"),
    "a key beyond": (lambda: Chosen.from_keys(torch.tensor([[[[4]]]]), kv_len=4), "keys from 0 to 3"),
    "a key before": (lambda: Chosen.from_keys(torch.tensor([[[[-2]]]]), kv_len=4), "or -1"),
    "blocks as numbers": (lambda: Chosen.from_blocks(torch.ones(1, 1, 2, 2), block=2), "truth values"),
    "too few blocks": (lambda: Chosen.from_blocks(torch.ones(1, 1, 2, 2).bool(), block=2, kv_len=9), "5 blocks of 2"),
    "a block of 0": (lambda: Chosen.from_blocks(torch.ones(1, 1, 2, 2).bool(), block=0), "at least 1"),
    "too few rows": (
        lambda: Chosen.from_blocks(torch.ones(1, 1, 2, 2).bool(), block=2, q_len=9),
        "9 rows of 1 words",
    ),
    "bits of another kind": (
        lambda: parse_pattern("chosen(#mine, 4)", {"mine": torch.ones(1, 1, 2, 1).bool()}),
        "words of 64 bits",
    ),
    "no index": (lambda: Chosen.from_keys([[0]], kv_len=4), "a tensor of keys"),
    "no blocks": (lambda: Chosen.from_blocks(None, block=4), "a boolean tensor"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_choice_is_refused(case, unhooked):
    make, told = REFUSED[case]
    with pytest.raises(MultiheadError, match=told):
        make()


def test_a_choice_is_for_its_own_call():
    chosen, _ = blocks(1, 1, 8, 20, block=4, q_offset=12)
    q, k = torch.randn(1, 1, 8, 4), torch.randn(1, 1, 20, 4)
    for backend in ("native", "tiled", "reference"):
        with pytest.raises(MultiheadError, match="made for query positions 12 to 19"):
            attention(q, k, k, mask=chosen, q_offset=0, backend=backend)
        longer = torch.randn(1, 1, 21, 4)
        with pytest.raises(MultiheadError, match="made for key positions 0 to 19"):
            attention(q, longer, longer, mask=chosen, q_offset=12, backend=backend)
