import math
from dataclasses import replace

import numpy as np
import pytest

from multihead.error import MultiheadError
from multihead.record import HeadAddress
from record.samples import everything, statistics


@pytest.fixture
def rng(seed):
    return np.random.default_rng(seed)


def test_value_is_sum_over_count_of_all_documents(rng):
    record = statistics(rng, documents=5)
    for name in ("entropy", "offsets", "pooled_map"):
        got = record.value(name)
        for place in np.ndindex(got.shape):
            total = math.fsum(record.sums[name][(d, *place)] for d in range(5))
            count = sum(record.counts[name][(d, *place)] for d in range(5))
            if count == 0:
                assert math.isnan(got[place])
            else:
                assert got[place] == pytest.approx(total / count, rel=1e-12)


def test_maximum_ignores_documents_without_rows(rng):
    record = statistics(rng, documents=4)
    for head, value in enumerate(record.value("logit_max")):
        seen = [record.sums["logit_max"][d, head] for d in range(4) if record.counts["logit_max"][d, head]]
        assert (math.isnan(value) and not seen) or value == max(seen)


def test_per_document_values(rng):
    record = statistics(rng)
    got = record.per_document("entropy")
    for d, h in np.ndindex(got.shape):
        count = record.counts["entropy"][d, h]
        assert math.isnan(got[d, h]) if count == 0 else got[d, h] == record.sums["entropy"][d, h] / count


def test_merge_is_the_record_of_both_document_lists_bit_for_bit(rng):
    whole = statistics(rng, documents=7)
    for cut in range(8):
        parts = [
            replace(
                whole,
                documents=whole.documents[span],
                sums={k: v[span] for k, v in whole.sums.items()},
                counts={k: v[span] for k, v in whole.counts.items()},
            )
            for span in (slice(0, cut), slice(cut, 7))
        ]
        merged = parts[0].merge(parts[1])
        assert merged == whole
        for q in whole.quantities:
            assert np.array_equal(merged.value(q.name), whole.value(q.name), equal_nan=True)


@pytest.mark.parametrize("field", ["model", "heads", "kv_heads", "quantities"])
def test_merge_refuses_records_that_do_not_belong_together(rng, field):
    one = statistics(rng)
    changed = {
        "model": "another",
        "heads": one.heads[::-1],
        "kv_heads": (0, 1, 2, 3),
        "quantities": one.quantities[::-1],
    }
    other = replace(one, **{field: changed[field]})
    with pytest.raises(MultiheadError, match=f"differ in `{field}`"):
        one.merge(other)


def test_equality_sees_one_bit(rng):
    one = statistics(rng)
    sums = {k: v.copy() for k, v in one.sums.items()}
    assert replace(one, sums=sums) == one
    sums["entropy"][0, 0] = np.nextafter(sums["entropy"][0, 0], np.inf)
    assert replace(one, sums=sums) != one
    assert one != "something else"


def test_heads_are_found_by_address_and_statistics_by_attribute(rng):
    record = statistics(rng)
    head = record["L1.H0"]
    assert head.address == HeadAddress("", 1, 0)
    assert isinstance(head.entropy, float)
    assert np.array_equal(head.offsets, record.value("offsets")[2], equal_nan=True)
    assert "entropy" in dir(head)
    assert [str(h.address) for h in record] == ["L0.H0", "L0.H1", "L1.H0", "L1.H1"]
    assert len(record) == 4


def test_unknown_heads_and_statistics_are_named(rng):
    record = statistics(rng)
    with pytest.raises(MultiheadError, match=r"head L9\.H9\n  got: 4 heads, L0\.H0 to L1\.H1"):
        record["L9.H9"]
    with pytest.raises(AttributeError, match="'entrpy'"):
        _ = record["L0.H0"].entrpy
    with pytest.raises(MultiheadError, match="holds entropy, logit_max"):
        record.value("entrpy")


def test_arrays_of_another_shape_are_refused(rng):
    record = statistics(rng)
    with pytest.raises(MultiheadError, match=r"sums of entropy for 3 documents and 4 heads"):
        replace(record, sums=dict(record.sums) | {"entropy": record.sums["entropy"][:, :3]})


def test_table_has_a_row_a_head_and_none_where_there_is_no_value(rng):
    record = statistics(rng)
    counts = {k: v.copy() for k, v in record.counts.items()}
    counts["entropy"][:, 0] = 0
    rows = replace(record, counts=counts).table()
    assert [r["head"] for r in rows] == ["L0.H0", "L0.H1", "L1.H0", "L1.H1"]
    assert rows[0]["entropy"] is None
    assert set(rows[0]) == {"head", "stack", "layer", "index", "entropy", "logit_max"}


def test_repr_is_short(rng):
    record = statistics(rng)
    assert repr(record) == "HeadStatistics('model', 4 heads, 3 documents, 4 statistics)"
    assert repr(record["L1.H0"]) == "HeadView(L1.H0)"


def test_merging_keeps_every_field_in_its_place(rng):
    one, other = everything(rng, documents=3), everything(rng, documents=4)
    both = one.merge(other)
    assert both.units == (*one.units, *(u + 3 for u in other.units))
    assert np.array_equal(
        both.unit_sums["entropy"], np.concatenate([one.unit_sums["entropy"], other.unit_sums["entropy"]])
    )
    assert [e.document for e in both.examples] == [0, 2, 3, 6]
    assert np.array_equal(both.sampling["offsets"].third[3:], other.sampling["offsets"].third)
    assert not one.merge(one).merge(one).units, "nine documents need none"
    assert one.merge(replace(other, units=(), unit_sums={}, unit_counts={})).units == ()
    mixed = one.merge(replace(other, sampling={}))
    assert (mixed.sampling["entropy"].sums[3:] == 0).all()
    assert np.array_equal(mixed.sampling["entropy"].known_counts[3:], other.counts["entropy"])
    assert np.array_equal(mixed.sampling["entropy"].known_sums[3:], other.sums["entropy"])
    assert np.array_equal(mixed.sampling["logit_max"].sums[3:], other.sums["logit_max"])


@pytest.mark.parametrize("field", ["unit_sums", "unit_counts", "sampling", "examples"])
def test_equality_sees_every_field(rng, field):
    one = everything(rng)
    assert replace(one) == one
    assert replace(one, **{field: getattr(everything(rng), field)}) != one
