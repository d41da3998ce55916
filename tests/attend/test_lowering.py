"""What the compiled kernel is given, read back bit by bit: exactly the mask and the bias that were meant."""

import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from attend.oracle import qkv
from laws.strategies import closed_patterns, known_patterns, lengths, slow_mask
from multihead.attend import Softmax, lowering, make_problem
from multihead.attend.lowering import bias_parts, mask_parts, sink_logits
from multihead.error import MultiheadError
from multihead.pattern import (
    band,
    block_band,
    causal,
    chunk,
    dilated,
    distance,
    document,
    every,
    everything,
    fixed,
    from_callable,
    global_tokens,
    keys_at,
    keys_every,
    lower,
    nothing,
    padding,
    per_head,
    prefix,
    random_pairs,
    same_token,
    sliding_window,
)
from multihead.position import ALiBi, RelativeTable, alibi_slopes


def problem_of(mask, *, batch=1, heads=1, q_len=6, kv_len=6, q_offset=0, **others):
    q, k, v = qkv(batch=batch, heads=heads, kv_heads=1, q_len=q_len, kv_len=kv_len)
    return make_problem(q, k, v, mask=mask, q_offset=q_offset, **others)


def read_back(parts, *, batch, heads, q_len, kv_len, q_offset):
    """The mask the parts stand for, pair by pair, as csrc/multihead.h says."""
    allowed = torch.ones(batch, heads, q_len, kv_len, dtype=torch.bool)

    def of(part, b, h):
        return part[min(b, part.shape[0] - 1), min(h, part.shape[1] - 1)]

    for b, h, i, j in torch.cartesian_prod(*map(torch.arange, (batch, heads, q_len, kv_len))).view(-1, 4).tolist():
        told = []
        if parts.window is not None:
            low, high = of(parts.window, b, h).tolist()
            told.append(low <= q_offset + i - j <= high)
        if parts.q_ids is not None:
            told.append(int(of(parts.q_ids[:, None], b, h)[i]) == int(of(parts.k_ids[:, None], b, h)[j]))
        if parts.keep is not None:
            told.append(bool(of(parts.keep[:, None], b, h)[j]))
        if parts.dense is not None:
            told.append(bool(parts.dense.expand(batch, heads, q_len, kv_len)[b, h, i, j]))
        if parts.tile_class is not None:
            s, t = i // 64, j // 64
            kind = int(of(parts.tile_class, b, h)[s, t])
            word = int(parts.tile_bits[int(of(parts.tile_index, b, h)[s, t]), i % 64]) if kind == 1 else 0
            told.append(kind == 2 or (kind == 1 and bool(word >> (j % 64) & 1)))
        allowed[b, h, i, j] = all(told)
    return allowed


@given(known_patterns(), lengths())
def test_the_parts_are_the_mask_exactly(drawn, sizes):
    (known, world), (q_len, kv_len, q_offset) = drawn, sizes
    at = {"batch": world.batch or 1, "heads": world.heads or 1, "q_len": q_len, "kv_len": kv_len, "q_offset": q_offset}
    parts = mask_parts(problem_of(known.pattern, **at))
    assert read_back(parts, **at).equal(slow_mask(known, world, q_len, kv_len, q_offset))


@given(known_patterns(), closed_patterns(), st.integers(0, 9))
def test_the_parts_of_and_are_the_mask_exactly(drawn, other, q_offset):
    known, world = drawn
    at = {"batch": world.batch or 1, "heads": world.heads or 1, "q_len": 5, "kv_len": 7, "q_offset": q_offset}
    pattern = known.pattern & other.pattern & causal()
    assert read_back(mask_parts(problem_of(pattern, **at)), **at).equal(
        pattern.mask(5, 7, q_offset=q_offset).expand(at["batch"], at["heads"], 5, 7)
    )


@given(closed_patterns(), st.integers(-9, 9))
def test_queries_may_stand_before_any_key(known, q_offset):
    at = {"batch": 1, "heads": 1, "q_len": 4, "kv_len": 3, "q_offset": q_offset}
    want = [[known.rule(0, 0, i, j) for j in range(3)] for i in range(q_offset, q_offset + 4)]
    assert read_back(mask_parts(problem_of(known.pattern, **at)), **at)[0, 0].tolist() == want


@pytest.mark.parametrize("shape", [(2, 3, 130, 70), (2, 1, 130, 70), (1, 3, 1, 70), (2, 3, 130, 1), (2, 1, 1, 70)])
def test_boolean_tensors_are_not_copied_unless_they_are_a_list_of_keys(shape):
    mask = torch.rand(shape) < 0.5
    parts = mask_parts(problem_of(mask, batch=2, heads=3, q_len=130, kv_len=70))
    if shape[1] == shape[2] == 1:
        assert parts.keep.equal(mask[:, 0, 0])
        assert parts.dense is None
    else:
        assert parts.dense.data_ptr() == mask.data_ptr()
        assert parts.dense.stride() == mask.stride()


def test_two_dimensional_tensors_and_cut_ones_keep_their_strides():
    mask = torch.rand(9, 14) < 0.5
    parts = mask_parts(problem_of(mask[:, ::2], q_len=9, kv_len=7))
    assert parts.dense.stride()[2:] == (14, 2)
    assert parts.dense.shape == (1, 1, 9, 7)


CLOSED = {
    "causal": (causal(), ["window"]),
    "windows together": (sliding_window(4) & band(3, 3) & ~distance(0).at(q_offset=2) | causal(), ["tiles"]),
    "one of two windows": (causal() & band(3, 3), ["window"]),
    "nothing": (nothing(), ["window"]),
    "nothing in common": (distance(1) & distance(2), ["window"]),
    "everything": (everything(), []),
    "not causal": (~causal(), ["window"]),
    "shifted": (causal().at(q_offset=3), ["window"]),
    "heads": (per_head([causal(), everything(), nothing()]), ["window"]),
    "heads in and": (per_head([causal(), everything(), nothing()]) & band(2, 2), ["window"]),
    "documents": (document(torch.arange(40) // 3), ["ids"]),
    "documents, shifted": (document(torch.arange(40) // 3).at(q_offset=4) & causal(), ["window", "ids"]),
    "same token in another text": (same_token(torch.arange(40) % 3, keys=torch.arange(40) % 4), ["ids"]),
    "same token": (same_token(torch.arange(40) % 3), ["tiles"]),
    "two of documents": (document(torch.arange(40) // 3) & document(torch.arange(40) // 5), ["ids"]),
    "documents of a cache": (document(torch.arange(40) // 3).at(q_offset=4, k_offset=4), ["ids"]),
    "chunk": (causal() & chunk(4), ["window", "ids"]),
    "chunk of a cache": (causal() & chunk(4).at(q_offset=3, k_offset=3), ["window", "ids"]),
    "dilated": (dilated(3, 2), ["window", "ids"]),
    "dilated, shifted": (dilated(3, 2).at(q_offset=5), ["window", "ids"]),
    "dilated, without gaps": (dilated(3, 1), ["window"]),
    "dilated, one key": (dilated(1, 7), ["window"]),
    "every": (every(3) & causal(), ["window", "ids"]),
    "all ids": (chunk(9) & every(2) & document(torch.arange(40) // 7), ["ids"]),
    "not a chunk": (~chunk(4), ["tiles"]),
    "band of blocks": (block_band(4, 1, 0), ["tiles"]),
    "columns": (keys_every(4, 3) & causal(), ["window", "keep"]),
    "columns of a cache": (keys_every(4, 3).at(q_offset=9, k_offset=9) & padding(torch.ones(40).bool()), ["keep"]),
    "fixed": (fixed(4, 1, heads=3), ["tiles"]),
    "drawn": (random_pairs(0.5, seed=1), ["tiles"]),
    "padding": (padding(torch.rand(40) < 0.5) & causal(), ["window", "keep"]),
    "some keys": (keys_at([0, 2]) & ~padding(torch.rand(40) < 0.5), ["keep"]),
    "sink and window": (causal() & (sliding_window(3) | keys_at([0])), ["tiles"]),
    "heads and places": (per_head([causal(), everything(), nothing()]) & global_tokens([1]), ["window", "tiles"]),
    "prefix": (prefix(3), ["tiles"]),
    "all": (
        causal() & document(torch.arange(40) // 9) & padding(torch.rand(40) < 0.5) & global_tokens([1]),
        ["ids", "keep", "tiles"],
    ),
}


@pytest.mark.parametrize("name", CLOSED)
def test_what_has_a_closed_form_is_not_stored(name):
    pattern, expected = CLOSED[name]
    parts = mask_parts(problem_of(pattern, heads=3))
    there = {"window": parts.window, "ids": parts.q_ids, "keep": parts.keep, "tiles": parts.tile_class}
    assert [part for part, held in there.items() if held is not None] == expected
    assert (parts.q_ids is None) == (parts.k_ids is None)
    sizes = {"batch": 1, "heads": 3, "q_len": 6, "kv_len": 6, "q_offset": 0}
    assert read_back(parts, **sizes).equal(pattern.mask(6, 6).expand(1, 3, 6, 6))


def test_windows_of_heads_are_one_for_each():
    window = mask_parts(problem_of(per_head([causal(), everything(), distance(2)]), heads=3)).window
    limits = torch.iinfo(torch.int64)
    assert window.tolist() == [[[0, limits.max], [limits.min, limits.max], [2, 2]]]


@pytest.mark.parametrize("least", [-(2**40), 2**40])
def test_large_ids_are_numbered_anew(least):
    # Alike in their lowest 32 bits.
    ids, keys = (torch.randint(4, (2, 40)) * 2**32 + least for _ in range(2))
    pattern = document(ids, keys=keys)
    at = {"batch": 2, "heads": 1, "q_len": 9, "kv_len": 8, "q_offset": 3}
    parts = mask_parts(problem_of(pattern, **at))
    assert parts.q_ids.dtype == parts.k_ids.dtype == torch.int32
    assert read_back(parts, **at).equal((ids[:, 3:12, None] == keys[:, None, :8])[:, None])


def test_ids_of_several_patterns_are_equal_where_all_are():
    ids, keys = (torch.randint(3, (2, 40)) * 2**33 for _ in range(2))
    pattern = document(ids, keys=keys).at(q_offset=2, k_offset=5) & document(torch.randint(3, (40,))) & chunk(11)
    at = {"batch": 2, "heads": 1, "q_len": 30, "kv_len": 33, "q_offset": 4}
    parts = mask_parts(problem_of(pattern, **at))
    assert parts.tile_class is None
    assert parts.q_ids.shape == (2, 30)
    assert parts.q_ids.dtype == torch.int32
    assert read_back(parts, **at).equal(pattern.mask(30, 33, q_offset=4))


def test_chunks_stay_in_order_beside_documents():
    """The kernel skips what has no id in common by the least and greatest of them: neighbours have neighbouring ids."""
    parts = mask_parts(problem_of(chunk(8) & every(2), q_len=64, kv_len=64))
    first = parts.k_ids[0].view(8, 8)
    assert (first.amin(1)[1:] > first.amax(1)[:-1]).all()


@pytest.mark.parametrize(
    ("pattern", "told"),
    [
        (
            document(torch.arange(8)).at(q_offset=-3, k_offset=4),
            r"document\(ids\) at key positions up to 9, which needs length 10",
        ),
        (document(torch.arange(8)), r"document\(ids\) at query positions up to 8, which needs length 9"),
        (document(torch.arange(8)).at(q_offset=-4), r"document\(ids\) at query positions -1 to 4"),
        (document(torch.arange(20), keys=torch.arange(3)), r"document\(keys\) at key positions up to 5"),
        (padding(torch.ones(5).bool()), r"padding\(keep\) at key positions up to 5"),
    ],
    ids=str,
)
def test_message_positions_outside_of_what_is_held(pattern, told):
    """The same words as from the mask itself."""
    problem = problem_of(pattern, q_offset=3)
    with pytest.raises(MultiheadError, match=told):
        mask_parts(problem)
    with pytest.raises(MultiheadError, match=told):
        pattern.mask(6, 6, q_offset=3)


def test_a_pattern_is_lowered_once_for_all_its_calls(monkeypatch):
    asked = []
    monkeypatch.setattr(lowering, "lower", lambda *a, **o: asked.append(a) or lower(*a, **o))
    monkeypatch.setattr(lowering, "_MEMORY", type(lowering._MEMORY)())
    ids = torch.randint(3, (40,))
    first = mask_parts(problem_of(same_token(ids)))
    assert mask_parts(problem_of(same_token(ids.clone()))) is first
    assert len(asked) == 1
    mask_parts(problem_of(same_token(ids), q_offset=1))
    mask_parts(problem_of(same_token(ids), q_len=5))
    mask_parts(problem_of(same_token(1 - ids)))
    assert len(asked) == 4


def test_what_is_remembered_is_bounded(monkeypatch):
    memory = type(lowering._MEMORY)()
    monkeypatch.setattr(lowering, "_MEMORY", memory)
    monkeypatch.setattr(lowering, "_KEPT", 3)
    for length in range(1, 9):
        mask_parts(problem_of(prefix(length), q_len=20, kv_len=20))
    assert [key[0] for key in memory] == [prefix(6), prefix(7), prefix(8)]
    mask_parts(problem_of(prefix(6), q_len=20, kv_len=20))
    assert [key[0] for key in memory] == [prefix(7), prefix(8), prefix(6)]
    monkeypatch.setattr(lowering, "_BYTES", 2 * 600)
    mask_parts(problem_of(prefix(2), q_len=20, kv_len=20))
    assert [key[0] for key in memory] == [prefix(6), prefix(2)]
    monkeypatch.setattr(lowering, "_BYTES", 100)
    mask_parts(problem_of(prefix(1), q_len=20, kv_len=20))
    assert not memory


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("q_len", "kv_len", "q_offset"), [(5, 9, 4), (9, 5, -9), (1, 60, 59), (40, 70, 0), (3, 0, 0)])
def test_a_relative_table_is_a_number_for_each_distance(bidirectional, q_len, kv_len, q_offset):
    bias = RelativeTable(torch.randn(8, 3), bidirectional=bidirectional, max_distance=12)
    parts = bias_parts(problem_of(None, heads=3, q_len=q_len, kv_len=kv_len, q_offset=q_offset, bias=bias))
    distance = q_offset + torch.arange(q_len)[:, None] - torch.arange(kv_len)
    read = parts.table[:, (distance - parts.first).clamp(0, parts.table.shape[1] - 1)]
    assert read.equal(bias.scores(q_offset + torch.arange(q_len), torch.arange(kv_len))[0])
    assert parts.table.shape[1] <= 25


def test_the_other_biases():
    slopes = alibi_slopes(3).bfloat16().requires_grad_()
    parts = bias_parts(problem_of(None, heads=3, bias=ALiBi(slopes)))
    assert parts.slopes.equal(slopes.detach().float())
    assert not parts.slopes.requires_grad
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        bias = torch.randn(1, 3, 6, 1, dtype=dtype)
        assert bias_parts(problem_of(None, heads=3, bias=bias)).dense.data_ptr() == bias.data_ptr()
    double = torch.randn(6, 6, dtype=torch.float64)
    assert bias_parts(problem_of(None, heads=3, bias=double)).dense.equal(double.float()[None, None])
    assert bias_parts(problem_of(None)).tensors() == [None, None, None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sinks_are_one_logit_a_head(dtype):
    sinks = torch.randn(3, dtype=dtype)
    assert sink_logits(problem_of(None, heads=3)) is None
    assert sink_logits(problem_of(None, heads=3, normaliser=Softmax(off_by_one=True))).tolist() == [0.0] * 3
    assert sink_logits(problem_of(None, heads=3, normaliser=Softmax(sinks=sinks))).equal(sinks.float())
    both = sink_logits(problem_of(None, heads=3, normaliser=Softmax(sinks=sinks, off_by_one=True)))
    assert both.tolist() == pytest.approx([math.log(1 + math.exp(sink)) for sink in sinks.tolist()], rel=1e-6)


def test_the_parts_in_words():
    def words(mask, **sizes):
        return str(mask_parts(problem_of(mask, **sizes)))

    assert words(None) == ""
    assert words(causal() & document(torch.zeros(6).int())) == "mask in closed form (bounds of distance, ids)"
    assert words(padding(torch.ones(6).bool())) == "mask in closed form (list of keys)"
    assert words(torch.ones(6, 6).bool()) == "boolean mask as it is"
    assert words(prefix(3), q_len=64, kv_len=64) == "tile map of 0.5 KiB, 1 bit tiles"
    assert words(chunk(2) & keys_every(2, 0)) == "mask in closed form (ids, list of keys)"
    asked = from_callable(lambda q, k: q > k, name="mine") | from_callable(lambda q, k: q < k, name="yours")
    assert words(asked, q_len=64, kv_len=64) == (
        "tile map of 0.5 KiB, 1 bit tiles, #mine and #yours asked pair by pair, once (a bit each: up to 0.5 KiB)"
    )


def test_what_is_made_under_pretence_is_not_remembered():
    """In FakeTensorMode every tensor is made without numbers; the next real call must not find one."""
    masks = (sliding_window(11), prefix(11) & causal(), padding(torch.rand(9) < 0.5))
    bias = RelativeTable(torch.randn(8, 1), max_distance=11)
    with FakeTensorMode(allow_non_fake_inputs=True):
        q = torch.empty(1, 1, 9, 8)
        for mask in masks[:1]:
            assert mask_parts(make_problem(q, q, q, mask=mask)).window is not None
        bias_parts(make_problem(q, q, q, bias=bias))
    for mask in masks:
        parts = mask_parts(problem_of(mask, q_len=9, kv_len=9)).tensors()
        assert not any(isinstance(part, FakeTensor) for part in parts)
    assert not isinstance(bias_parts(problem_of(None, bias=bias, q_len=9, kv_len=9)).table, FakeTensor)


def test_another_default_device_changes_nothing():
    with torch.device("meta"):
        parts = [mask_parts(problem_of(mask, q_len=9, kv_len=9)) for mask in (sliding_window(12), prefix(4))]
    assert {part.device.type for of in parts for part in of.tensors() if part is not None} == {"cpu"}
