import json
from dataclasses import replace

import numpy as np
import pytest

from multihead.record import HeadStatistics
from multihead.report import render_page
from multihead.report.payload import to_json
from report.reading import data_of, ends, floats, stat, unpack
from report.samples import make_record


@pytest.fixture(params=[False, True], ids=["both ways", "causal"])
def record(request, seed):
    return make_record(3, 4, causal=request.param, seed=seed)


def test_every_number_of_the_record_is_in_the_page(record):
    data = data_of(render_page(record))
    for name, statistics in (("texts", record.texts), ("repeats", record.repeats)):
        for quantity in statistics.scalars():
            told = stat(data, f"{name}/{quantity.name}")
            assert np.allclose(floats(told["values"]), statistics.value(quantity.name), rtol=1e-4, atol=0)
            assert (told["of"], told["even"], told["unit"]) == (quantity.content_of, quantity.even, quantity.unit)
    known = {f"texts/{q.name}" for q in record.texts.scalars()} | {
        f"repeats/{q.name}" for q in record.repeats.scalars()
    }
    assert {s["id"] for s in data["stats"]} - known == {"texts/nearest"}


def test_intervals_are_in_the_page(record, monkeypatch):
    assert not any("ends" in s for s in data_of(render_page(replace(record, texts=no_spread(record.texts))))["stats"]
                   if s["id"].startswith("texts/"))  # fmt: skip
    monkeypatch.setattr(
        HeadStatistics, "interval", lambda s, name, level=0.95: (s.value(name) * 0.9, s.value(name) * 1.2)
    )
    data = data_of(render_page(record))
    for name in ("previous_content", "entropy"):
        told, value = stat(data, f"texts/{name}"), record.texts.value(name)
        low, high = ends(told["ends"], 12)
        assert np.allclose(low, value * 0.9, atol=1e-4 * value.max())
        assert np.allclose(high, value * 1.2, atol=1e-4 * value.max())


def no_spread(statistics):
    """The same values from one document: no interval can be known."""
    return replace(
        statistics,
        documents=statistics.documents[:1],
        sums={k: v[:1] for k, v in statistics.sums.items()},
        counts={k: v[:1] for k, v in statistics.counts.items()},
    )


def test_the_arrays_of_the_texts_are_in_the_page(record):
    data = data_of(render_page(record))
    for quantity in (q for q in record.texts.quantities if len(q.shape) == 1 and not q.pairs):
        packed = data["arrays"][quantity.name]
        want = record.texts.value(quantity.name).reshape(12, -1)
        got, span = unpack(packed, 12), packed["high"] - packed["low"]
        # Half a step of the root is a step of the value that grows with the root.
        bound = span * (np.sqrt(np.abs(want) / max(span, 1e-9)) + 1 / 254) / 254 + 1e-12
        assert (np.isnan(got) == np.isnan(want)).all()
        assert (np.nan_to_num(np.abs(got - want)) <= np.nan_to_num(bound)).all()
        assert (packed["size"], packed["of"]) == (quantity.shape[0], quantity.content_of)


def test_heads_carry_their_place_and_what_they_look_like(seed):
    record = make_record(2, 4, group=2, stacks=("encoder", "cross"), seed=seed)
    data = data_of(render_page(record))
    assert data["names"] == [str(address) for address in record.texts.heads]
    assert [h[:4] for h in data["heads"]] == [
        [["encoder", "cross"].index(a.stack), a.layer, a.head, a.head // 2] for a in record.texts.heads
    ]
    for head, row in enumerate(data["heads"]):
        rule = data["rules"][row[4]]
        assert "values" not in rule or floats(rule["values"])[head] >= rule["threshold"] - 0.0005


def test_missing_and_infinite_numbers_stay_apart(seed):
    record = make_record(1, 3, seed=seed, documents=("a", "b"))
    sums, counts = dict(record.texts.sums), dict(record.texts.counts)
    sums["entropy"] = np.array([[1.0, np.inf, 0.0], [2.0, 1.0, 0.0]])
    counts["entropy"] = np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0]])
    data = data_of(render_page(replace(record, texts=replace(record.texts, sums=sums, counts=counts))))
    assert floats(stat(data, "texts/entropy")["values"]).tolist() == pytest.approx([1.5, np.inf, np.nan], nan_ok=True)


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
    record = make_record(1, 2, repeats=False, old=True)
    short = tuple(
        replace(q, shape=(len(labels),), labels=labels) if q.name == "distance_histogram" else q
        for q in record.texts.quantities
    )
    flat = {"distance_histogram": np.ones((3, 2, len(labels)))}
    texts = replace(
        record.texts, quantities=short, sums=dict(record.texts.sums) | flat, counts=dict(record.texts.counts) | flat
    )
    data = data_of(render_page(replace(record, texts=texts)))
    assert data["arrays"]["distance_histogram"]["flip"] is flip
