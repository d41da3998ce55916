from dataclasses import replace

import numpy as np
import pytest

from multihead.measure.role import RULES, find_twins, judge, label_heads, rules_for
from multihead.record import CheckupRecord, HeadAddress, HeadStatistics, ModelFacts, Quantity
from multihead.record.quantity import Document

NEAR = ("self", "back 1", "back 2-3", "back 4-7", "ahead 1", "ahead 2-3", "ahead 4-7")


def statistics(values, *, documents=2, heads=None, **facts):
    """Heads with exactly these values: a list of numbers, or (labels, rows) for an array."""
    first = next(iter(values.values()))
    count = len(first[1]) if isinstance(first, tuple) else len(first)
    addresses = heads or tuple(HeadAddress("", 0, h) for h in range(count))
    quantities, sums, counts = [], {}, {}
    for name, given in values.items():
        labels, rows = given if isinstance(given, tuple) else ((), given)
        array = np.array(rows, dtype=float)
        known = np.isfinite(array)
        quantities.append(
            Quantity(
                name=name,
                title=name,
                unit="share",
                formula="",
                shape=array.shape[1:],
                labels=tuple(labels),
                even=f"{name}_even" if f"{name}_even" in values else "",
                content_of=name.removesuffix("_content") if name.endswith("_content") else "",
                pairs=name.startswith("similarity"),
            )
        )
        sums[name] = np.stack([np.where(known, array, 0.0)] * documents)
        counts[name] = np.stack([known.astype(float)] * documents)
    return HeadStatistics(
        model="m",
        heads=addresses,
        kv_heads=tuple(a.head for a in addresses),
        documents=tuple(Document(name=str(i), digest=str(i), tokens=9) for i in range(documents)),
        quantities=tuple(quantities),
        sums=sums,
        counts=counts,
        **facts,
    )


def record(values, repeats=None, reads="text"):
    model = ModelFacts(name="m", architecture="M", parameters=1, causal=None, max_length=None, special_tokens=())
    return CheckupRecord(
        model=model,
        texts=statistics(values),
        repeats=None if repeats is None else statistics(repeats),
        created="",
        versions={},
        settings={},
        reads=reads,
    )


def keys(*args, **facts):
    return [label.key for label in label_heads(record(*args, **facts))]


@pytest.mark.parametrize(
    ("name", "threshold", "key"),
    [
        ("previous", 0.4, "previous"),
        ("next", 0.4, "next"),
        ("previous2", 0.4, "previous2"),
        ("self", 0.4, "self"),
        ("sink", 0.5, "rest"),
        ("first_token", 0.5, "rest"),
        ("special_token", 0.5, "rest"),
        ("sink_mass", 0.5, "rest"),
        ("entropy_share", 0.7, "wide"),
    ],
)
def test_a_rule_is_met_from_its_threshold_on(name, threshold, key):
    assert keys({name: [threshold - 0.001, threshold, threshold + 0.2, np.nan]}) == ["none", key, key, "none"]


@pytest.mark.parametrize(
    ("label", "key"), [("punctuation", "punctuation"), ("digit", "digit"), ("whitespace", "newline"), ("other", "none")]
)
def test_the_kind_of_word_a_head_reads(label, key):
    assert keys({"token_class": (("word_start", label), [[0.6, 0.4], [0.61, 0.39]])}) == [key, "none"]


def test_repeats_are_judged_on_the_repeats():
    texts = {"induction": [0.9, 0.0, 0.0], "same_token": [0.0, 0.9, 0.0]}
    repeats = {"induction": [0.0, 0.4, 0.0], "same_token": [0.0, 0.0, 0.4]}
    assert keys(texts, repeats) == ["none", "induction", "same"]


def test_a_threshold_is_judged_on_the_printed_value():
    assert keys({"previous": [0.39951, 0.39949]}) == ["previous", "none"]


def test_the_first_rule_met_names_the_head():
    assert keys({"previous": [0.5, 0.1], "self": [0.45, 0.45], "entropy_share": [0.9, 0.9]}) == ["previous", "self"]


def test_the_value_with_the_sink_set_aside_is_judged_where_it_was_measured():
    assert keys({"previous": [0.5, 0.1], "previous_content": [0.1, 0.5]}) == ["none", "previous"]
    (first, second) = label_heads(record({"previous": [0.5, 0.1], "previous_content": [0.1, 0.5]}))
    assert (first.statistic, second.statistic, second.value) == ("", "previous_content", 0.5)


def test_what_is_left_beside_the_sink_is_read_only_where_enough_is_left():
    values = {"sink": [0.95, 0.9], "previous_content": [0.8, 0.8]}
    assert keys(values) == ["rest", "previous"]


def test_near_adds_up_the_distances_below_eight():
    labels = (*NEAR, "back 8-15", "ahead 8-15")
    rows = [[0.5 / 7] * 7 + [0.25] * 2, [0.49 / 7] * 7 + [0.255] * 2]
    assert keys({"distance_histogram": (labels, rows)}) == ["near", "none"]


def test_of_first_and_special_tokens_the_larger_counts():
    values = {"first_token": [0.2, 0.6, np.nan], "special_token": [0.7, 0.1, np.nan]}
    assert [label.value for label in label_heads(record(values))[:2]] == [0.7, 0.6]
    assert keys(values) == ["rest", "rest", "none"]


def test_a_label_brings_its_baseline():
    (head,) = label_heads(record({"previous": [0.9], "previous_even": [0.02], "previous_content": [0.95]}))
    assert (head.word, head.value, head.even, head.threshold) == ("token before", 0.95, 0.02, 0.4)
    (bare,) = label_heads(record({"previous": [0.9]}))
    assert np.isnan(bare.even)


@pytest.mark.parametrize(
    ("spread", "value", "unsure", "rival"),
    [(0.02, 0.45, False, ""), (0.06, 0.45, True, "self"), (0.06, 0.35, True, "previous"), (0.02, 0.35, False, "")],
)
def test_an_interval_across_a_threshold_makes_a_label_unsure(monkeypatch, spread, value, unsure, rival):
    def interval(self, name, *, level=0.95):
        values = self.value(name)
        return (values - spread, values + spread) if name == "previous" else (values, values)

    monkeypatch.setattr(HeadStatistics, "interval", interval)
    (head,) = label_heads(record({"previous": [value], "self": [0.6]}))
    assert head.key == ("previous" if value >= 0.4 else "self")
    assert (head.unsure, head.rival) == (unsure, rival)
    if head.key == "previous":
        assert (head.low, head.high) == (value - spread, value + spread)


def test_a_label_that_rests_on_one_document_is_unsure():
    lone = replace(record({"previous": [0.0, 0.0]}), texts=statistics({"previous": [0.9, 0.1]}, documents=1))
    some, none = label_heads(lone)
    assert (some.key, some.unsure, some.rival) == ("previous", True, "")
    assert (none.key, none.unsure) == ("none", False), "there is no label to be unsure of"
    assert not any(head.unsure for head in label_heads(replace(lone, texts=statistics({"previous": [0.9]}))))
    repeats = replace(lone, repeats=statistics({"induction": [0.9, 0.1]}))
    assert [head.unsure for head in label_heads(repeats)] == [False, False]
    assert judge(repeats).once.tolist() == [False, False]


def test_a_sum_of_entries_has_its_own_interval(monkeypatch):
    asked = []

    def interval(self, name, *, level=0.95):
        asked.append((name, self.value(name).tolist()))
        return self.value(name) - 0.01, self.value(name) + 0.01

    monkeypatch.setattr(HeadStatistics, "interval", interval)
    (head,) = label_heads(record({"distance_histogram": (("self", "back 1", "back 8-15"), [[0.3, 0.4, 0.3]])}))
    assert asked == [("distance_histogram", [pytest.approx(0.7)])]
    assert (head.key, head.low) == ("near", pytest.approx(0.69))


def test_pictures_have_rules_of_their_own():
    assert "induction" not in {rule.key for rule in rules_for("images")}
    values = {"previous": [0.9] * 4, "neighbour": [0.5, 0.1, 0.1, 0.1], "same_row": [0.6, 0.6, 0.1, 0.1]}
    values |= {"same_column": [0.1, 0.1, 0.4, 0.1], "sink": [0.1, 0.1, 0.1, 0.7]}
    assert keys(values, reads="images") == ["neighbour", "same_row", "same_column", "rest"]
    assert keys(values, reads="audio") == ["previous"] * 4
    assert {rule.key for rule in rules_for("text")} | {r.key for r in rules_for("images")} == {r.key for r in RULES}


def test_little_output_is_counted_below_its_threshold():
    values = {"output_ratio": [0.44, 0.444, 0.45, 3.0, np.nan]}
    assert [label.quiet for label in label_heads(record(values))] == [True, True, False, False, False]
    assert not judge(record({"self": [0.1]})).ratio_known


def test_twins_are_heads_of_one_layer_that_overlap():
    layers = tuple(HeadAddress("", layer, h) for layer in (0, 1) for h in (0, 1, 2))
    rows = [[1, 0.9, 0.894], [0.9, 1, 0.2], [0.894, 0.2, 1], [1, 0.2, 0.95], [0.2, 1, np.nan], [0.95, np.nan, 1]]
    made = record({"similarity_content": ((), rows), "similarity": ((), np.ones((6, 3)))})
    made = replace(made, texts=replace(made.texts, heads=layers))
    assert find_twins(made) == ((0, 1), (3, 5))
    assert [str(t) for t in label_heads(made)[3].twins] == ["L1.H2"]
    assert find_twins(record({"self": [0.1]})) == ()


def test_heads_are_matched_by_address_between_the_parts():
    made = record({"previous": [0.0, 0.0, 0.0]}, {"induction": [0.1, 0.9, 0.1]})
    turned = tuple(HeadAddress("", 0, h) for h in (2, 1, 5))
    made = replace(made, repeats=replace(made.repeats, heads=turned))
    values = judge(made).readings[0].value
    assert values[1:].tolist() == [0.9, 0.1]
    assert np.isnan(values[0])


def test_rules_without_their_statistic_are_named_as_not_read():
    found = judge(record({"previous": [0.5], "distance_histogram": (("back 1",), [[0.5]])}))
    assert [rule.key for rule in found.rules] == ["previous", "near", "none"]
    assert {"induction", "same", "next", "wide"} <= {rule.key for rule in found.unread}


def test_the_strongest_head_of_each_rule_is_found():
    found = judge(record({"previous": [0.5, 0.9, 0.6], "self": [0.0, 0.0, 0.0]}))
    assert [(rule.key, head) for rule, head in found.strongest()] == [("previous", 1)]
    assert found.counts() == [3, 0, 0]


def test_words_claim_no_verdict():
    said = " ".join(rule.word for rule in RULES).lower()
    assert not any(word in said for word in ("dead", "useless", "redundant", "needed", "broken"))
