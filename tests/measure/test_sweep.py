"""What must not matter (tiles, order of heads, padding), what is left out (NaN, rows with nothing to see), memory."""

import dataclasses

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from measure.calls import assert_same, expect, in_double, make_call, take
from measure.oracle import weights_of
from measure.oracle_outputs import outputs_of
from multihead.attend import Softmax, make_problem
from multihead.error import MultiheadError
from multihead.hooks import Projection, Tokens
from multihead.measure import DEFAULT, Contribution, build_scene, sweep
from multihead.measure.block import cut_blocks, restrict
from multihead.measure.statistic.cka import CKA
from multihead.measure.statistic.contract import OfTile, nothing
from multihead.measure.sweep import sweep_blocks
from multihead.pattern import band, causal, padding
from multihead.record import Quantity


@pytest.mark.parametrize("rows", [1, 3, 7, 1000])
@pytest.mark.parametrize("mask", [None, causal(), band(3, 2)], ids=str)
def test_the_size_of_a_tile_does_not_matter(rows, mask):
    call = make_call(q_len=29, mask=mask)
    want = take(call)
    assert_same(take(call, rows=rows), want, names=_arrays(want), atol=1e-6)


def test_permuted_heads_have_permuted_statistics():
    call = make_call(heads=5, mask=causal(), normaliser=Softmax(sinks=torch.randn(5)), bias=torch.randn(1, 5, 13, 13))
    order = torch.randperm(5)
    problem = call.problem
    permuted = dataclasses.replace(
        call,
        problem=dataclasses.replace(
            problem,
            q=problem.q[:, order],
            k=problem.k[:, order],
            v=problem.v[:, order],
            bias=problem.bias[:, order],
            normaliser=Softmax(sinks=problem.normaliser.sinks[order]),
        ),
        output=call.output[:, :, order],
        projection=Projection(weight=call.projection.weight.unflatten(1, (5, -1))[:, order].flatten(1)),
    )
    want = {name: _pick(name, part, order.numpy()) for name, part in take(call).items()}
    assert_same(take(permuted), want, names=_arrays(want), atol=1e-6)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing(side):
    bare = make_call(batch=1, mask=causal())
    pad = 5
    keep = torch.nn.functional.pad(torch.ones(1, 13, dtype=torch.bool), (pad, 0) if side == "left" else (0, pad))

    def widened(tensor, axis, fill):
        shape = list(tensor.shape)
        shape[axis] = pad
        extra = torch.full(shape, fill, dtype=tensor.dtype)
        return torch.cat([extra, tensor] if side == "left" else [tensor, extra], axis)

    problem = bare.problem
    q, k, v = (widened(t, 2, 7.0) for t in (problem.q, problem.k, problem.v))
    # The id of the padding is that of a real token, as in models that pad with their end-of-text token.
    tokens = Tokens(ids=widened(bare.keys.ids, 1, int(bare.keys.ids[0, 0])), keep=keep)
    padded = dataclasses.replace(
        bare,
        problem=make_problem(q, k, v, mask=causal() & padding(keep)),
        output=widened(bare.output, 1, float("nan")),
        residual=widened(bare.residual, 1, 0.0),
        queries=tokens,
        keys=tokens,
    )
    want, got = take(bare), take(padded)
    assert got["rows_padded"][0].min() == pad
    assert_same(got, want, names=[n for n in _arrays(want) if n != "rows_padded"], atol=1e-6)


def test_rows_with_nan_are_left_out_and_counted():
    call = make_call(batch=2, heads=3, q_len=10)
    q = call.problem.q.clone()
    q[0, 1, 4] = torch.nan
    q[1, 2, 7] = torch.inf
    broken = dataclasses.replace(call, problem=dataclasses.replace(call.problem, q=q))
    got, whole = take(broken), take(call)
    lost = np.zeros((2, 3))
    lost[0, 1] = lost[1, 2] = 1
    np.testing.assert_array_equal(got["rows_nonfinite"][0], lost)
    np.testing.assert_array_equal(got["rows_counted"][0], 10 - lost)
    for name, part in got.items():
        if not isinstance(part, str):
            assert np.isfinite(part[0]).all(), name
            _same_where(part, whole[name], lost == 0, name)
    keep = torch.ones(2, 10, dtype=torch.bool)
    keep[0, 4] = False
    without = take(dataclasses.replace(call, queries=Tokens(ids=call.queries.ids, keep=keep)))
    for name in _arrays(whole):
        if not name.startswith(("rows_", "output_", "effective_rank", "cka")):
            _same_where(got[name], without[name], (0, 1), name)


def test_nan_in_keys_that_nobody_sees_reaches_nobody():
    keep = torch.ones(2, 13, dtype=torch.bool)
    keep[:, 9:] = False
    call = make_call(k_keep=keep, mask=padding(keep))
    k = call.problem.k.clone()
    k[:, :, 10] = torch.nan
    broken = dataclasses.replace(call, problem=dataclasses.replace(call.problem, k=k))
    assert take(broken)["rows_nonfinite"][0].sum() == 0
    assert_same(take(broken), expect(call))


def test_rows_with_nan_outputs_are_left_out_of_output_statistics():
    call = make_call(batch=1, heads=2, q_len=10)
    output = call.output.clone()
    output[0, 3, 1] = torch.nan
    got, want = take(dataclasses.replace(call, output=output)), take(call)
    assert got["output_norm"][1].tolist() == [[10, 9]]
    np.testing.assert_array_equal(got["output_norm"][0][:, 0], want["output_norm"][0][:, 0])
    assert np.isfinite(got["output_norm"][0]).all()
    assert np.isfinite(got["output_ratio"][0]).all()
    weight = call.projection.weight.double().numpy()
    whole_rows = [i for i in range(10) if i != 3]
    ratio = outputs_of(output[0].double().numpy(), weight, None, whole_rows)["output_ratio"]
    np.testing.assert_allclose(got["output_ratio"][0][0], ratio[0], rtol=1e-5)
    np.testing.assert_allclose(got["output_ratio"][1][0], ratio[1], rtol=1e-5)


def test_rows_without_a_choice_count_in_no_statistic_of_weights():
    mask = torch.ones(1, 1, 6, 6, dtype=torch.bool)
    mask[0, 0, 1] = False  # sees nothing
    mask[0, 0, 2, 1:] = False  # sees one key
    call = make_call(batch=1, heads=2, q_len=6, mask=mask)
    got = take(call)
    assert got["entropy"][1].tolist() == [[4, 4]]
    assert got["rows_short"][0].tolist() == [[2, 2]]
    assert got["logit_max"][1].tolist() == got["output_norm"][1].tolist() == [[5, 5]]
    assert_same(got, expect(call))


def test_without_a_projection_or_a_block_the_reason_is_told():
    call = make_call()
    bare = dataclasses.replace(call, projection=Projection(weight=None, reason="it is gated"), residual=None)
    assert take(bare)["output_norm"] == take(bare)["output_ratio"] == "it is gated"
    assert "no block" in take(dataclasses.replace(call, residual=None))["output_share"]


def test_an_output_of_nothing_has_length_nothing():
    call = make_call()
    zero = dataclasses.replace(call, projection=Projection(weight=torch.zeros_like(call.projection.weight)))
    got = take(zero)
    assert got["output_norm"][0].max() == 0
    assert got["output_ratio"][1].max() == 0, "no ratio to a layer that writes nothing"


@pytest.mark.parametrize("mask", [None, causal()], ids=str)
def test_memory_does_not_grow_with_the_square(mask):
    length, rows = 700, 15
    call = make_call(batch=1, heads=2, q_len=length, mask=mask, dim=4)
    largest = 0

    class Sizes(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            nonlocal largest
            found = function(*args, **(kwargs or {}))
            for tensor in found if isinstance(found, tuple | list) else (found,):
                if isinstance(tensor, torch.Tensor):
                    largest = max(largest, tensor.untyped_storage().nbytes() // tensor.element_size())
            return found

    scene = build_scene(call, (0,))
    with Sizes():
        # Blocks of 512 outputs are compared with themselves, whatever the length.
        sweep(scene, [s for s in DEFAULT if s is not CKA], rows=rows, backend="torch")
    assert largest < max(2 * rows * 2 * length, 40 * length)
    assert 40 * length < length * length / 10


def test_another_statistic_is_one_function():
    quantity = Quantity(name="cubes", title="cubes", unit="share", formula="mean over rows of sum_j A_ij^3")
    cubes = OfTile(
        quantities=(quantity,),
        prepare=nothing,
        take=lambda tile, facts: (Contribution(tile.total((tile.weights**3).sum(-1))),),
    )
    call = make_call(batch=1, heads=2)
    want = (weights_of(call.problem)[0] ** 3).sum((-1, -2))
    np.testing.assert_allclose(take(call, statistics=(cubes,))["cubes"][0], want, rtol=1e-5)


def test_tokens_of_another_length_are_refused():
    call = dataclasses.replace(make_call(), keys=Tokens(ids=torch.zeros(2, 12, dtype=torch.long)))
    with pytest.raises(MultiheadError, match=r"tokens for 13 positions\n  got: ids of shape \(2, 12\)"):
        build_scene(call, (0, 1))


def test_rows_that_belong_to_no_document_are_refused():
    with pytest.raises(MultiheadError, match=r"3 documents for 2 rows in layers.0.attention"):
        build_scene(make_call(), (0, 1, 2))


def test_windows_of_one_picture_belong_to_one_document():
    scene = build_scene(make_call(batch=6), (4, 9))
    assert scene.documents == (4, 4, 4, 9, 9, 9)


def test_ids_beyond_the_table_of_classes_are_refused():
    ids = torch.full((2, 13), 99)
    call = dataclasses.replace(make_call(), keys=Tokens(ids=ids), queries=Tokens(ids=ids))
    with pytest.raises(MultiheadError, match=r"token ids from 0 to 11.*\n  got: ids from 99 to 99"):
        take(call)


def _arrays(taken):
    return [name for name, part in taken.items() if not isinstance(part, str)]


PAIRS = ("similarity", "similarity_content", "cka")


def _pick(name, part, order):
    if isinstance(part, str):
        return part
    picked = tuple(array[:, order] for array in part)
    return tuple(array[:, :, order] for array in picked) if name in PAIRS else picked


def _same_where(part, whole, where, name):
    # Ratios to the layer's mean change for every head when one head loses a row.
    if name != "output_ratio":
        # Of pairs of heads, those of two heads that lost nothing.
        where = where[:, :, None] & where[:, None] if name in PAIRS and isinstance(where, np.ndarray) else where
        for got, want in zip(part, whole, strict=True):
            np.testing.assert_allclose(got[where], want[where], rtol=1e-5, atol=1e-6, err_msg=name)


def test_blocks_are_of_512_rows_and_a_short_end_joins():
    def sizes(length):
        cuts = cut_blocks(length)
        assert [c.start for c in cuts[1:]] == [c.stop for c in cuts[:-1]]
        return [c.stop - c.start for c in cuts]

    assert sizes(1) == [1]
    assert sizes(512) == [512]
    assert sizes(575) == [575]
    assert sizes(576) == [512, 64]
    assert sizes(1024 + 63) == [512, 575]
    assert sizes(1600) == [512, 512, 512, 64]


@pytest.mark.parametrize("given", [{"mask": causal()}, {"cross": True, "kv_len": 40}, {"q_offset": 30, "kv_len": 630}])
def test_blocks_add_up_to_the_call(given):
    call = in_double(make_call(batch=1, heads=2, q_len=600, **given))
    scene = build_scene(call, (0,), factor=torch.eye(8).expand(2, 8, 8))
    blocks = list(sweep_blocks(scene, DEFAULT))
    assert [block.wholes[0].scene.problem.q_len for block in blocks] == [512, 88]
    whole, (one,) = sweep(scene, DEFAULT)[1], sweep_blocks(scene, DEFAULT, cuts=[slice(0, 600)])
    for name, part in one.taken.items():
        if name == "received_top":
            continue  # the largest of each block, as it is defined
        got = whole[name]
        if hasattr(part, "sum"):
            np.testing.assert_allclose(got.sum, part.sum, rtol=1e-5, atol=1e-5, err_msg=name)
            np.testing.assert_allclose(got.count, part.count, rtol=1e-5, err_msg=name)
    top = sum(block.taken["received_top"].sum for block in blocks)
    np.testing.assert_allclose(whole["received_top"].sum, top)


@pytest.mark.parametrize("rows", [slice(3, 9), torch.tensor([8, 2, 5])], ids=["slice", "indices"])
def test_some_rows_of_a_call_are_the_call_of_these_rows(rows):
    bias = torch.randn(1, 1, 13, 20)
    call = make_call(q_len=13, kv_len=20, q_offset=7, mask=band(4, 1), bias=bias)
    scene = build_scene(call, (0, 1))
    some = restrict(scene, rows)
    places = torch.arange(13)[rows]
    assert torch.equal(some.problem.q_positions(), places + 7)
    torch.testing.assert_close(some.problem.scores(), scene.problem.scores()[:, :, rows])
    torch.testing.assert_close(some.unmasked.scores(), scene.unmasked.scores()[:, :, rows])
    assert torch.equal(some.center, scene.center[:, rows])
    assert torch.equal(some.queries.ids, scene.queries.ids[:, rows])
    assert torch.equal(some.call.output, call.output[:, rows])
    assert torch.equal(some.call.residual, call.residual[:, rows])
    assert some.nearest(slice(0, 3)) == (int(places[:3].min()) + 7, int(places[:3].max()) + 7)
