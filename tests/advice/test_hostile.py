"""Costs asked for with nonsense."""

import pytest
import torch

from multihead.advice import Sizes, break_even, estimate_cost, measure_cost
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
