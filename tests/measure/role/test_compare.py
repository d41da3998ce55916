from dataclasses import replace

import numpy as np
import pytest

from measure.role.test_label import record
from multihead.error import MultiheadError
from multihead.measure.role import compare
from multihead.record import HeadAddress, HeadStatistics


def test_a_record_against_itself_shows_nothing():
    made = record({"previous": [0.9, 0.1], "entropy": [1.0, 2.0]})
    found = compare(made, made)
    assert (found.flips, found.same_documents) == ((), True)
    assert [d.quantity.name for d in found.drifts] == ["previous", "entropy"]
    assert all(d.size() == 0 and not d.apart.any() for d in found.drifts)


def test_labels_that_flip_and_numbers_that_move():
    a, b = record({"previous": [0.9, 0.1, 0.1]}), record({"previous": [0.2, 0.1, 0.5]})
    found = compare(a, b)
    assert [(str(f.before.head), f.before.key, f.after.key, f.sure) for f in found.flips] == [
        ("L0.H0", "previous", "none", True),
        ("L0.H2", "none", "previous", True),
    ]
    (drift,) = found.drifts
    assert drift.change == pytest.approx([-0.7, 0.0, 0.4])
    assert drift.size() == pytest.approx(np.sqrt((0.49 + 0.16) / 3))


@pytest.mark.parametrize(("spread", "apart"), [(0.09, True), (0.11, False), (0.0, False)])
def test_differences_are_told_apart_by_their_intervals(monkeypatch, spread, apart):
    monkeypatch.setattr(
        HeadStatistics, "interval", lambda s, name, level=0.95: (s.value(name) - spread, s.value(name) + spread)
    )
    (drift,) = compare(record({"entropy": [1.0, 1.0]}), record({"entropy": [1.2, np.nan]})).drifts
    assert drift.apart.tolist() == [apart, False]


def test_heads_are_matched_by_address():
    a, b = record({"self": [0.1, 0.2]}), record({"self": [0.2, 0.1]})
    b = replace(b, texts=replace(b.texts, heads=b.texts.heads[::-1]))
    found = compare(a, b)
    assert found.drifts[0].change.tolist() == [0.0, 0.0]
    assert [label.head for label in found.after] == list(a.texts.heads)


def test_numbers_of_one_record_alone_are_left_out():
    a = record({"self": [0.1], "previous": [0.1]}, {"induction": [0.1]})
    assert [d.quantity.name for d in compare(a, record({"self": [0.1]})).drifts] == ["self"]


def test_other_documents_are_noticed():
    a = record({"self": [0.1]})
    b = replace(a, texts=replace(a.texts, documents=tuple(replace(d, digest="x") for d in a.texts.documents)))
    assert not compare(a, b).same_documents


def test_models_of_another_shape_are_refused():
    a = record({"self": [0.1, 0.2]})
    b = record({"self": [0.1, 0.2, 0.3]})
    b = replace(b, model=replace(b.model, name="larger"))
    with pytest.raises(MultiheadError) as refused:
        compare(a, b)
    assert str(refused.value).count("1 layers × 2 heads") == 1
    assert "larger: 1 layers × 3 heads" in str(refused.value)
    stacks = replace(b, texts=replace(b.texts, heads=tuple(HeadAddress(s, 0, 0) for s in ("encoder", "cross", "x"))))
    with pytest.raises(MultiheadError, match="encoder 1 layers × 1 heads, cross 1 layers × 1 heads"):
        compare(a, stacks)


def test_models_that_read_something_else_are_refused():
    a = record({"self": [0.1]})
    with pytest.raises(MultiheadError, match="m reads text, m reads images"):
        compare(a, replace(a, reads="images"))
