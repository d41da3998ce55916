"""Costs asked for with nonsense."""

import math
from fractions import Fraction

import pytest
import torch

from multihead.advice import LAWS, Sizes, break_even, estimate_cost, measure_cost
from multihead.advice.law import GROUP, grouped_heads
from multihead.advice.law_chosen import BLOCK, BLOCKS
from multihead.error import MultiheadError


@pytest.mark.parametrize(
    ("ask", "wrong", "named"),
    [
        (lambda each: Sizes(4, causal=each), (None, 1, "yes", torch.ones(2)), "causal"),
        (lambda each: Sizes(4, dtype=each), (None, [], {}, torch.float32), "dtype"),
        (lambda each: estimate_cost(each, Sizes(4)), (None, [], {}, "latents"), "kind of attention"),
        (lambda each: estimate_cost("linear", each), (None, 4, "x", {}), "sizes"),
        (lambda each: break_even("linear", each), (None, 4, "x", {}), "sizes"),
        (lambda each: break_even("linear", Sizes(1), longest=each), (None, 0, True, 1.5, float("inf")), "longest"),
        (lambda each: measure_cost("linear", each), (None, 4, "x", {}), "sizes"),
        (lambda each: measure_cost("linear", Sizes(4), step=each), (None, [], "fit"), "step"),
        (lambda each: measure_cost("linear", Sizes(4), rounds=each), (None, 0, True, 1.5, float("inf")), "rounds"),
        (lambda each: measure_cost("linear", Sizes(4), limit=each), (None, -1, True, float("nan"), "2"), "limit"),
    ],
)
def test_what_cannot_be_asked_is_refused_by_name(ask, wrong, named, unhooked):
    for each in wrong:
        with pytest.raises(MultiheadError, match=named):
            ask(each)


def test_a_measurement_uses_up_nobodys_random_numbers():
    before = torch.get_rng_state()
    measure_cost("linear", Sizes(4, heads=2, head_dim=4), rounds=1)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("sizes", [{"q_len": 2**41}, {"q_len": 1, "kv_len": 2**70}, {"q_len": 1, "batch": 2**70}])
def test_sizes_beyond_any_text_are_refused_by_name(sizes):
    name, size = list(sizes.items())[-1]
    with pytest.raises(MultiheadError) as refused:
        Sizes(**sizes)
    assert refused.value.arrived == f"{name}={size}"


@pytest.mark.parametrize("family", LAWS)
@pytest.mark.parametrize("causal", [True, False])
def test_costs_of_the_largest_sizes_are_whole_numbers_that_do_not_run_over(family, causal):
    most = 2**40
    cost = estimate_cost(family, Sizes(most, batch=most, heads=most, head_dim=most, causal=causal))
    counts = (cost.forward, cost.backward, cost.projections, cost.activations, cost.layer, cost.training, cost.cache)
    assert all(type(count) is int and count >= 0 for count in counts)
    # Each is in proportion to the number of sequences, to the last unit.
    one = estimate_cost(family, Sizes(most, heads=most, head_dim=most, causal=causal))
    assert cost.forward == most * one.forward


def test_blocks_are_counted_to_the_last_one():
    """Where a quotient of floats would be rounded: 2**79 pairs and a few."""
    sizes = Sizes(2**40 - 3, heads=1, head_dim=1)
    blocks = Fraction(sizes.pairs, BLOCK)
    assert estimate_cost("top_blocks", sizes).forward == math.ceil(blocks) + 2 * sizes.chosen(BLOCK, BLOCKS)
    assert float(blocks) != blocks


def test_grouped_heads_are_the_next_divisor_below_a_quarter():
    for heads in range(1, 300):
        slow = max(n for n in range(1, heads + 1) if heads % n == 0 and n <= max(heads // GROUP, 1))
        assert grouped_heads(heads) == slow


def test_a_time_at_sizes_that_fit_into_no_memory_is_refused():
    with pytest.raises(MultiheadError, match="fits into a memory"):
        measure_cost("linear", Sizes(2**40))
