"""Heads by their masks and tokens by remainder, against the formula over all pairs; and when "auto" takes it."""

import pytest
import torch

from attend.oracle import check_pairs, every_pair, qkv
from multihead.attend import Sigmoid, Softmax, attention, attention_lse, explain, make_problem, rearranged
from multihead.error import BackendRefused
from multihead.pattern import (
    band,
    causal,
    dilated,
    distance,
    every,
    nothing,
    padding,
    per_head,
    sliding_window,
    strided,
)
from multihead.position import ALiBi, alibi_slopes
from multihead.testing import check_backend


def drawn(*, length=23, dtype=torch.float64, **told):
    """Queries, keys and values, of sizes none of which is another."""
    return qkv(q_len=length, kv_len=length, head_dim=12, v_head_dim=9, dtype=dtype, **told)


MASKS = {
    "every": every(4),
    "every, before": causal() & every(4),
    "every, in a band": band(9, 6) & every(4),
    "every, in a band of less than a step": band(3, 2) & every(4),
    "every, in a window": every(5) & sliding_window(11) & band(30, 30),
    "dilated": dilated(3, 4),
    "a step of more than the length": causal() & every(40),
    "heads apart": per_head([causal(), sliding_window(3), causal(), band(2, 2)]),
    "groups whole": per_head([causal(), causal(), sliding_window(3), sliding_window(3)]),
    "strided": strided(4, heads=4),
    "all kinds": per_head(
        [every(3), padding(torch.arange(23) % 3 > torch.arange(2)[:, None]), causal(), dilated(2, 5)]
    ),
    "rows without keys": per_head([distance(2), causal(), causal() & every(3), nothing()]),
}


@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize("name", MASKS)
def test_results_and_gradients_are_those_of_all_pairs(name, softcap, sinks):
    q, k, v = drawn(grad=True)
    logits = torch.randn(4, dtype=torch.float64, requires_grad=True) if sinks else None
    mask = MASKS[name]
    wants = every_pair(q, k, v, mask.mask(23, 23), softcap=softcap, sinks=logits)
    problem = make_problem(q, k, v, mask=mask, softcap=softcap, normaliser=Softmax(sinks=logits))
    assert rearranged.why_not(problem) == []
    check_pairs(rearranged.run(problem), wants, [q, k, v] + [logits] * sinks)


@pytest.mark.parametrize("length", [1, 2, 7, 8, 64, 300])
@pytest.mark.parametrize("step", [2, 8, 17])
def test_lengths_that_do_and_do_not_divide(length, step):
    q, k, v = drawn(length=length)
    for mask in (strided(step, heads=4), every(step), band(20, 31) & every(step)):
        want = every_pair(q, k, v, mask.mask(length, length))
        found = rearranged.run(make_problem(q, k, v, mask=mask))
        for one, other in zip(found, want, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kv_heads", [1, 2, 3, 6])
def test_heads_that_share_keys(kv_heads):
    """Groups of heads are kept whole where they have one mask, and cut where they have not."""
    q, k, v = drawn(heads=6, kv_heads=kv_heads)
    kinds = [causal(), sliding_window(3), causal() & every(3)]
    for parts in ([0, 1, 2, 0, 1, 2], [0, 0, 1, 1, 2, 2], [0, 0, 0, 2, 2, 2], [1, 0, 0, 0, 0, 0]):
        mask = per_head([kinds[part] for part in parts])
        found = rearranged.run(make_problem(q, k, v, mask=mask))
        for one, other in zip(found, every_pair(q, k, v, mask.mask(23, 23)), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("mask", [causal() & every(3), band(5, 4) & every(3), dilated(3, 2)], ids=str)
def test_a_list_of_one_mask_is_for_all_heads(mask):
    q, k, v = drawn()
    found = rearranged.run(make_problem(q, k, v, mask=per_head([mask])))
    for one, other in zip(found, every_pair(q, k, v, mask.mask(23, 23)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("length", [1, 2, 23])
@pytest.mark.parametrize("step", [24, 10**9, 2**39])
def test_steps_of_more_than_the_length_take_no_memory(step, length):
    q, k, v = drawn(length=length)
    for mask in (causal() & every(step), every(step), band(2 * step, step) & every(step), dilated(2, step)):
        problem = make_problem(q, k, v, mask=mask)
        assert rearranged.why_not(problem) == []
        assert f"{max(length, 2)} remainders of up to 1 tokens" in rearranged.how(problem)
        for one, other in zip(rearranged.run(problem), every_pair(q, k, v, mask.mask(length, length)), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_the_rest_of_a_call_of_its_own_positions():
    """Heads apart need no positions of their own; every n-th key is of those of the queries."""
    q, k, v = drawn()
    mask = per_head([causal(), sliding_window(5), causal(), sliding_window(5)])
    found = rearranged.run(make_problem(q[:, :, 20:], k, v, mask=mask, q_offset=20))
    want = every_pair(q, k, v, mask.mask(23, 23))
    for one, other in zip(found, want, strict=True):
        torch.testing.assert_close(one, other[:, :, 20:], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_it_is_as_near_to_the_law_as_it_says(dtype):
    problems = [
        make_problem(*drawn(length=length, dtype=dtype), mask=mask)
        for mask in MASKS.values()
        for length in (23, 41)
        if mask.batch is None or length == 23
    ]
    report = check_backend("rearranged", problems=problems, seeds=(0, 1))
    assert not report.of("refused")
    assert {"inference", "training", "gradient of lse"} <= {result.mode for result in report.results}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "masks that differ by head, or are of every n-th key"),
        ({"mask": causal()}, "masks that differ by head, or are of every n-th key"),
        ({"mask": torch.ones(23, 23).bool()}, "masks that differ by head"),
        ({"mask": every(1) & causal()}, "masks that differ by head"),
        ({"mask": every(2) & every(3)}, "masks that differ by head"),
        ({"mask": every(2) & padding(torch.ones(23).bool())}, "masks that differ by head"),
        ({"mask": every(2) & ~causal()}, "masks that differ by head"),
        ({"mask": every(2) & distance(-2)}, "masks that differ by head"),
        ({"mask": every(2), "bias": ALiBi(alibi_slopes(4))}, "it has no bias"),
        ({"mask": every(2), "dropout": 0.5}, "it has no dropout"),
        ({"mask": every(2), "normaliser": Sigmoid()}, "softmax only"),
    ],
    ids=str,
)
def test_what_it_refuses(options, told):
    q, k, v = drawn()
    assert any(told in reason for reason in rearranged.why_not(make_problem(q, k, v, **options)))
    with pytest.raises(BackendRefused, match=told):
        attention(q, k, v, backend="rearranged", **options)


def test_positions_and_sizes_that_it_refuses():
    q, k, v = drawn()
    told = "every n-th key of other positions than those of the queries"
    assert rearranged.why_not(make_problem(q[:, :, 3:], k, v, mask=every(2), q_offset=3)) == [told]
    assert rearranged.why_not(make_problem(q, k, v, mask=every(2), q_offset=2)) == [told]
    assert rearranged.why_not(make_problem(q[:0], k[:0], v[:0], mask=every(2))) == [
        "there is nothing to put in order: a size is 0"
    ]


def test_auto_takes_it_where_the_kernel_cannot():
    q, k, v = drawn(dtype=torch.float32, grad=True)
    mask = strided(4, heads=4)
    found = attention_lse(q, k, v, mask=mask)
    assert found.backend == "rearranged"
    assert attention_lse(q, k, v, mask=causal()).backend == "sdpa"
    told = explain(make_problem(q, k, v, mask=mask), "auto")
    assert told.chosen == "rearranged"
    assert "2 heads: 4 remainders of up to 6 tokens, CPU flash kernel" in str(told)
