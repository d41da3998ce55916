import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from multihead.record import Quantity
from multihead.report.axis import choose_axis


def quantity(unit="share", name="some"):
    return Quantity(name=name, title="t", unit=unit, formula="f")


@given(
    hnp.arrays(np.float64, st.integers(1, 20), elements=st.floats(-1e6, 1e6, width=32)),
    st.sampled_from(["share", "nats", "tokens"]),
)
def test_every_value_lies_on_its_scale(values, unit):
    axis = choose_axis(quantity(unit), values)
    assert axis.low < axis.high
    slack = 1e-5 * (axis.high - axis.low)
    assert axis.low - slack <= values.min()
    assert values.max() <= axis.high + slack
    assert axis.kind == "linear" or axis.low == 0
    assert all(axis.low - slack <= tick <= axis.high + slack for tick in axis.ticks)


def test_shares_that_crowd_at_zero_are_drawn_by_their_root_from_0_to_1():
    axis = choose_axis(quantity(), np.array([0.01, 0.02, 0.01, 0.9]))
    assert (axis.kind, axis.low, axis.high, axis.ticks) == ("root", 0, 1, (0, 0.05, 0.25, 0.5, 1))


def test_shares_in_the_middle_are_drawn_plainly():
    axis = choose_axis(quantity(), np.array([0.4, 0.6, 0.8]))
    assert (axis.kind, axis.low, axis.high) == ("linear", 0, 1)


def test_a_ratio_is_drawn_about_one():
    axis = choose_axis(quantity("ratio", "output_ratio"), np.array([0.3, 1.0, 0.0, 1.9, np.nan]))
    assert (axis.kind, axis.low, axis.high) == ("log", 0.25, 4)
    assert 1 in axis.ticks


@pytest.mark.parametrize("values", [[np.nan], [], [np.inf, np.nan], [0.0], [3.0, 3.0], [-2.0]])
def test_a_scale_exists_whatever_the_values(values):
    axis = choose_axis(quantity("nats"), np.array(values, dtype=float))
    assert axis.low < axis.high
