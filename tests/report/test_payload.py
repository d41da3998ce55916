import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from multihead.report import render_page
from multihead.report.payload import pack, to_json
from report.reading import data_of, unpack
from report.samples import make_record


@pytest.fixture(params=[False, True], ids=["both ways", "causal"])
def record(request, seed):
    return make_record(3, 4, causal=request.param, seed=seed)


def test_every_number_of_the_record_is_in_the_page(record):
    data = data_of(render_page(record))
    assert list(data["parts"]) == ["texts", "repeats"]
    for name, statistics in (("texts", record.texts), ("repeats", record.repeats)):
        part = data["parts"][name]
        assert [q["name"] for q in part["quantities"]] == [q.name for q in statistics.scalars()]
        for quantity in statistics.scalars():
            want = statistics.value(quantity.name)
            assert np.allclose(part["values"][quantity.name], want, rtol=1e-5, atol=0)
            each = statistics.per_document(quantity.name)
            low, high = part["spread"][quantity.name]
            assert np.allclose(low, each.min(0), rtol=1e-2, atol=0)
            assert np.allclose(high, each.max(0), rtol=1e-2, atol=0)


def test_every_array_of_the_record_is_in_the_page(record):
    data = data_of(render_page(record))
    for name, statistics in (("texts", record.texts), ("repeats", record.repeats)):
        for quantity in (q for q in statistics.quantities if q.shape):
            packed = data["parts"][name]["arrays"][quantity.name]
            want = statistics.value(quantity.name).reshape(len(statistics), -1)
            if packed["lower"]:
                want = want[:, np.tril(np.ones(quantity.shape)).ravel() > 0]
            got, span = unpack(packed, len(statistics)), packed["high"] - packed["low"]
            # Half a step of the root is a step of the value that grows with the root.
            bound = span * (np.sqrt(np.abs(want) / max(span, 1e-9)) + 1 / 254) / 254 + 1e-12
            assert (np.abs(got - want) <= bound).all()
            assert (packed["labels"], packed["shape"]) == (list(quantity.labels), list(quantity.shape))
    assert data["parts"]["texts"]["arrays"]["pooled_map"]["lower"] == record.model.causal


def test_heads_carry_their_place_and_their_fact(seed):
    record = make_record(2, 4, group=2, stacks=("encoder", "cross"), seed=seed)
    data = data_of(render_page(record))
    assert data["names"] == [str(address) for address in record.texts.heads]
    assert [h[:4] for h in data["heads"]] == [
        [["encoder", "cross"].index(a.stack), a.layer, a.head, a.head // 2] for a in record.texts.heads
    ]
    for head, row in enumerate(data["heads"]):
        values = data["rules"][row[4]]["values"]
        assert values is None or values[head] >= data["rules"][row[4]]["threshold"] - 0.0005


@given(hnp.arrays(np.float64, (3, 4), elements=st.floats(-1e3, 1e3) | st.just(math.nan) | st.just(math.inf)))
def test_packing_keeps_values_to_a_step(values):
    packed = pack(values)
    got, known = unpack(packed, 3), np.isfinite(values)
    assert np.array_equal(np.isfinite(got), known)
    if known.any():
        step = (packed["high"] - packed["low"]) / 254
        assert np.abs(got[known] - values[known]).max() <= (2 if packed["power"] == 2 else 0.51) * step + 1e-9


def test_missing_and_infinite_numbers_stay_apart(seed):
    record = make_record(1, 3, seed=seed, documents=("a", "b"))
    sums, counts = dict(record.texts.sums), dict(record.texts.counts)
    sums["entropy"] = np.array([[1.0, np.inf, 0.0], [2.0, 1.0, 0.0]])
    counts["entropy"] = np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0]])
    data = data_of(render_page(replace(record, texts=replace(record.texts, sums=sums, counts=counts))))
    assert data["parts"]["texts"]["values"]["entropy"] == [1.5, "∞", None]
    assert data["parts"]["texts"]["spread"]["entropy"] == [[1, 1, None], [2, "∞", None]]


def test_json_cannot_leave_its_element():
    hostile = {"</script>": "<!--<script>\u2028\u2029&amp;\U0001f642"}
    text = to_json(hostile)
    assert not set("<>&\u2028\u2029") & set(text)
    assert text.isascii()
    assert json.loads(text) == hostile


@pytest.mark.parametrize(
    ("labels", "flip"),
    [
        (("ahead 2+", "ahead 1", "self", "back 1", "back 2+"), True),
        (("back 2+", "back 1", "self", "ahead 1"), False),
        (("0", "1", "2-3"), True),
        (("3", "0", "-3"), False),
        (("-3", "0", "3"), True),
    ],
)
def test_what_lies_back_is_drawn_at_the_left(labels, flip):
    record = make_record(1, 2, repeats=False)
    short = tuple(
        replace(q, shape=(len(labels),), labels=labels) if q.name == "distance_histogram" else q
        for q in record.texts.quantities
    )
    flat = {"distance_histogram": np.ones((3, 2, len(labels)))}
    texts = replace(
        record.texts, quantities=short, sums=dict(record.texts.sums) | flat, counts=dict(record.texts.counts) | flat
    )
    data = data_of(render_page(replace(record, texts=texts)))
    assert data["parts"]["texts"]["arrays"]["distance_histogram"]["flip"] is flip
