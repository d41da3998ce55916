"""Intervals against the slow obvious bootstrap, against normal theory, and at their edges."""

import math
from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest

from multihead.error import MultiheadError
from multihead.record import GROUPS, Document, HeadAddress, HeadStatistics, Quantity, Sampling
from multihead.record.interval import _student
from record.samples import statistics

ENTROPY = Quantity(name="entropy", title="entropy", unit="nats", formula="-sum A log A")
SHARE = Quantity(name="share", title="share", unit="share", formula="A")
TOP = Quantity(name="top", title="top", unit="logit", formula="max s", fold="max")
CKA = Quantity(name="cka", title="cka", unit="share", formula="S/sqrt", shape=(3,), fold="cosine", pairs=True)
HEADS = (HeadAddress("", 0, 0), HeadAddress("", 0, 1), *(HeadAddress("", 1, h) for h in range(3)))


@pytest.fixture
def rng(seed):
    return np.random.default_rng(seed)


def record(quantity, sums, counts, *, heads=HEADS, **given):
    documents = tuple(Document(name=f"d{i}", digest=f"{i:016x}", tokens=100) for i in range(len(sums)))
    return HeadStatistics(
        model="m",
        heads=heads[: sums.shape[1]],
        kv_heads=(0,) * sums.shape[1],
        documents=documents,
        quantities=(quantity,),
        sums={quantity.name: sums},
        counts={quantity.name: counts},
        **given,
    )


def slow_bootstrap(value, units, rng, *, level=0.95, times=4000):
    """Ends of the percentile bootstrap of a function of chosen units, one draw after another."""
    found = sorted(value([int(rng.integers(units)) for _ in range(units)]) for _ in range(times))
    return found[int(times * (1 - level) / 2)], found[int(times * (1 + level) / 2)]


@pytest.mark.parametrize("quantity", [ENTROPY, TOP, CKA], ids=lambda q: q.fold)
def test_the_interval_is_that_of_a_slow_bootstrap(rng, quantity):
    units = 12
    if quantity is CKA:
        x = rng.standard_normal((units, 5, 6)) + 1.0
        sums = np.zeros((units, 5, 3))
        for h, address in enumerate(HEADS):
            for g, other in enumerate(HEADS):
                if other.layer == address.layer:
                    sums[:, h, other.head] = (x[:, h] * x[:, g]).sum(-1)
    else:
        sums = rng.gamma(2.0, 3.0, (units, 5))
    counts = np.broadcast_to(rng.integers(5, 9, (units,) + (1,) * (sums.ndim - 1)), sums.shape).astype(float)
    # Few values can be the largest of a resample: at this level none of them lies on the edge.
    level = 0.88
    low, high = record(quantity, sums, counts).interval(quantity.name, level=level)

    def mean(chosen):
        return sums[chosen, 3].sum() / counts[chosen, 3].sum()

    def top(chosen):
        return sums[chosen, 3].max()

    def cosine(chosen):
        s = sums[chosen]
        return s[:, 3, 0].sum() / math.sqrt(s[:, 3, 1].sum() * s[:, 2, 0].sum())

    place = (3, 0) if quantity is CKA else 3
    want = slow_bootstrap({"mean": mean, "max": top, "cosine": cosine}[quantity.fold], units, rng, level=level)
    width = want[1] - want[0]
    assert low[place] == pytest.approx(want[0], abs=0.15 * width)
    assert high[place] == pytest.approx(want[1], abs=0.15 * width)


def test_many_documents_are_covered_as_normal_theory_says(rng):
    units, trials = 60, 400
    sums = rng.standard_normal((units, trials)) + 2.0
    heads = tuple(HeadAddress("", 0, h) for h in range(trials))
    low, high = record(ENTROPY, sums, np.ones_like(sums), heads=heads).interval("entropy", level=0.9)
    hit = np.mean((low <= 2.0) & (high >= 2.0))
    assert abs(hit - 0.9) < 0.06, "four standard errors, and the percentile interval is a little short"
    error = sums.std(0, ddof=1) / math.sqrt(units)
    want = NormalDist().inv_cdf(0.95) * error
    np.testing.assert_allclose((high - low) / 2, want, rtol=0.25)


def test_the_draws_follow_from_the_documents(rng):
    sums = rng.gamma(2.0, 1.0, (9, 5))
    one = record(ENTROPY, sums, np.ones_like(sums))
    assert np.array_equal(one.interval("entropy"), one.interval("entropy"))
    other = replace(one, documents=tuple(replace(d, digest="x") for d in one.documents))
    assert not np.array_equal(one.interval("entropy"), other.interval("entropy"))


def test_fewer_than_two_documents_give_no_interval(rng):
    sums = rng.gamma(2.0, 1.0, (3, 5))
    counts = np.ones_like(sums)
    counts[1:, 0] = 0
    for quantity in (ENTROPY, TOP):
        low, high = record(quantity, sums, counts).interval(quantity.name)
        assert np.isnan([low[0], high[0]]).all()
        assert np.isfinite([low[1:], high[1:]]).all()
        assert (low <= high)[1:].all()
        assert np.isnan(record(quantity, sums[:1], counts[:1]).interval(quantity.name)).all()


def test_blocks_stand_for_few_documents(rng):
    units = (0, 0, 0, 1, 1)
    parts = rng.gamma(2.0, 1.0, (5, 4))
    whole = statistics(rng, documents=2)
    scalars = {"entropy", "logit_max"}
    given = {
        "units": units,
        "unit_sums": dict.fromkeys(scalars, parts),
        "unit_counts": dict.fromkeys(scalars, np.ones_like(parts)),
    }
    some = replace(whole, **given)
    assert some.interval_units == "5 blocks of 512 tokens of 2 documents"
    assert whole.interval_units == "2 documents"
    # As if every block were a document, the draws those of the same digests.
    want = record(ENTROPY, parts, np.ones_like(parts))
    object.__setattr__(want, "documents", some.documents)
    assert np.array_equal(some.interval("entropy"), want.interval("entropy"))
    assert np.array_equal(some.interval("offsets"), whole.interval("offsets"), equal_nan=True)


@pytest.mark.parametrize("level", [0.0, 1.0, 95.0, -0.1])
@pytest.mark.parametrize("which", ["interval", "sampling_interval"])
def test_a_level_that_is_no_share_is_refused(rng, level, which):
    with pytest.raises(MultiheadError, match=f"between 0 and 1\n  got: level={level}"):
        getattr(statistics(rng), which)("entropy", level=level)


def test_units_of_another_number_are_refused(rng):
    with pytest.raises(MultiheadError, match="unit_sums of entropy for 2 units and 4 heads"):
        replace(statistics(rng), units=(0, 1), unit_sums={}, unit_counts={})


def sampled(quantity, value, variance, *, rows=100.0, count=1000.0, sums=None, **given):
    """Five heads, alike: `rows` of `count` were drawn, so that each stands for many."""
    shape = (1, 5)
    none = np.zeros(shape)
    fields = dict.fromkeys(("counts", "both", "third", "known_sums", "known_counts"), none)
    fields |= {"sums": np.full(shape, variance), "coins": np.full(shape, count**2 / rows)}
    fields |= {name: np.full(shape, one) for name, one in given.items()}
    sums = np.full(shape, value * count) if sums is None else sums
    return record(quantity, sums, np.full(shape, count), sampling={quantity.name: Sampling(**fields)})


def test_a_sampled_value_has_the_interval_of_its_variance():
    low, high = sampled(ENTROPY, 2.0, 50.0**2).sampling_interval("entropy")
    # Student's t with 15 degrees of freedom.
    np.testing.assert_allclose(low, 2.0 - 2.1314 * 0.05, rtol=1e-3)
    np.testing.assert_allclose(high, 2.0 + 2.1314 * 0.05, rtol=1e-3)


def test_five_rows_have_four_degrees_of_freedom():
    low, _ = sampled(ENTROPY, 2.0, 50.0**2, rows=5.0).sampling_interval("entropy")
    np.testing.assert_allclose(low, 2.0 - 2.776 * 0.05, rtol=5e-3)


def test_a_share_is_held_against_rows_that_would_be_as_uncertain():
    # Variance as of 50 rows that say yes or no.
    low, high = sampled(SHARE, 0.1, 1000.0**2 * 0.09 / 50).sampling_interval("share")
    for end in (low, high):
        np.testing.assert_allclose((0.1 - end) ** 2, 2.1314**2 * end * (1 - end) / 50, rtol=5e-3)
    assert (low > 0.03).all()
    assert (low < 0.1).all()
    assert (high > 0.1).all()


def test_groups_that_differ_to_one_side_move_that_end_alone():
    variance = 1000.0**2 * 0.09 / 50
    even = sampled(SHARE, 0.1, variance).sampling_interval("share")
    up = sampled(SHARE, 0.1, variance, third=variance**1.5).sampling_interval("share")
    down = sampled(SHARE, 0.1, variance, third=-(variance**1.5)).sampling_interval("share")
    assert np.array_equal(up[0], even[0])
    assert (up[1] > even[1] + 0.01).all()
    assert np.array_equal(down[1], even[1])
    assert (down[0] < even[0]).all()


def wilson(share, rows):
    """The classic bounds at 95 %, for comparison."""
    grid = np.linspace(0, 1, 200001)
    inside = grid[(grid - share) ** 2 <= 1.959964**2 * grid * (1 - grid) / rows]
    return inside[0], inside[-1]


@pytest.mark.parametrize("value", [0.0, 0.02, 0.6, 1.0])
def test_rates_have_the_interval_of_as_many_rows(value):
    quantity = replace(SHARE, name="previous_argmax")
    # Whatever the groups say: of few rows they do not know.
    low, high = sampled(quantity, value, 3.0).sampling_interval("previous_argmax")
    want = wilson(value, 100)
    np.testing.assert_allclose(low, want[0], atol=1e-5)
    np.testing.assert_allclose(high, want[1], atol=1e-5)


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_what_no_row_showed_may_still_be_there(value):
    low, high = sampled(SHARE, value, 0.0).sampling_interval("share")
    want = wilson(value, 100)
    np.testing.assert_allclose(low, want[0], atol=1e-5)
    np.testing.assert_allclose(high, want[1], atol=1e-5)


def test_a_share_that_all_groups_agree_on_is_sure():
    low, high = sampled(SHARE, 0.25, 0.0).sampling_interval("share")
    np.testing.assert_allclose(low, 0.25, rtol=1e-12)
    np.testing.assert_allclose(high, 0.25, rtol=1e-12)


def test_what_is_known_is_not_doubted():
    # 200 of 1000 rows hold all of 0.2, and of the 800 others 80 showed nothing.
    given = {"known_sums": 200.0, "known_counts": 200.0, "coins": 800.0**2 / 80}
    low, high = sampled(SHARE, 0.2, 0.0, **given).sampling_interval("share")
    np.testing.assert_allclose(low, 0.2, rtol=1e-12)
    np.testing.assert_allclose(high, 0.2 + 0.8 * wilson(0.0, 80)[1], atol=1e-5)


def test_a_share_beyond_its_bounds_has_none():
    # Weights that need not add up to 1.
    low, high = sampled(SHARE, 1.5, 50.0**2).sampling_interval("share")
    np.testing.assert_allclose([low, high], [[1.5 - 0.1066] * 5, [1.5 + 0.1066] * 5], rtol=1e-3)


def test_few_rows_say_nothing_but_the_bounds():
    low, high = sampled(SHARE, 0.4, 1.0, rows=3.9).sampling_interval("share")
    assert (low.tolist(), high.tolist()) == ([0.0] * 5, [1.0] * 5)
    low, high = sampled(ENTROPY, 0.4, 1.0, rows=3.9).sampling_interval("entropy")
    assert np.isneginf(low).all()
    assert np.isposinf(high).all()


def test_without_sampling_both_ends_are_the_value(rng):
    one = statistics(rng)
    for name in ("entropy", "offsets", "logit_max"):
        for end in one.sampling_interval(name):
            assert np.array_equal(end, one.value(name), equal_nan=True)


def test_rows_that_were_all_seen_leave_no_doubt():
    given = {"known_sums": 250.0, "known_counts": 1000.0, "coins": 0.0}
    low, high = sampled(SHARE, 0.25, 0.0, **given).sampling_interval("share")
    assert low.tolist() == high.tolist() == [0.25] * 5


def test_the_bound_of_a_largest_value_is_that_of_all_documents():
    low, high = sampled(TOP, 0.0, 7.0, sums=np.full((1, 5), 3.0)).sampling_interval("top")
    assert low.tolist() == [3.0] * 5
    assert high.tolist() == [7.0] * 5


@pytest.mark.parametrize(("freedom", "want"), [(7, 2.3646), (15, 2.1314), (30, 2.0423), (1e9, 1.95996)])
def test_quantiles_of_student(freedom, want):
    assert _student(np.array([float(freedom)]), 0.95)[0] == pytest.approx(want, abs=2e-3)


def test_groups_are_sixteen():
    assert GROUPS == 16
