from dataclasses import replace

import numpy as np
import pytest

from multihead.record import HeadAddress
from multihead.report.part import parts_of
from multihead.report.rule import RULES, find_facts
from multihead.report.words import write_quiet, write_sentence
from report.samples import make_record

ALWAYS = {"previous": 0.0, "next": 0.0, "self": 0.0, "first_token": 0.0, "special_token": 0.0, "entropy_share": 0.0}


def with_values(values, repeats=None):
    """A record of heads with exactly these values on the texts (and on the repeats)."""
    record = make_record(1, len(next(iter(values.values()))), documents=("one",), repeats=repeats is not None)

    def put(statistics, new):
        sums, counts = dict(statistics.sums), dict(statistics.counts)
        for name, numbers in new.items():
            known = ~np.isnan(np.array(numbers, dtype=float))
            counts[name] = np.tile(known.astype(float), (len(statistics.documents), 1))
            sums[name] = np.tile(np.where(known, numbers, 0.0), (len(statistics.documents), 1))
        sums["distance_histogram"] = np.full_like(sums["distance_histogram"], 1 / 19)  # as much near as elsewhere
        return replace(statistics, sums=sums, counts=counts)

    nothing = {name: [zero] * len(next(iter(values.values()))) for name, zero in ALWAYS.items()}
    texts = put(record.texts, nothing | {"output_ratio": [1.0] * len(nothing["self"])} | values)
    if repeats is None:
        return replace(record, texts=texts)
    calm = {"induction": [0.0] * len(nothing["self"]), "same_token": [0.0] * len(nothing["self"])}
    return replace(record, texts=texts, repeats=put(record.repeats, calm | repeats))


def keys(record):
    facts = find_facts(parts_of(record))
    return [facts.rules[i].key for i in facts.rule]


@pytest.mark.parametrize(
    ("name", "threshold", "key"),
    [
        ("previous", 0.4, "previous"),
        ("next", 0.4, "next"),
        ("self", 0.4, "self"),
        ("first_token", 0.5, "rest"),
        ("special_token", 0.5, "rest"),
        ("entropy_share", 0.7, "wide"),
    ],
)
def test_a_fact_holds_from_its_threshold_on(name, threshold, key):
    values = [threshold - 0.001, threshold, threshold + 0.2, np.nan]
    assert keys(with_values({name: values})) == ["none", key, key, "none"]


def test_facts_of_the_repeats_are_read_from_the_repeats():
    record = with_values(
        {"induction": [0.9, 0.0, 0.0], "same_token": [0.0, 0.9, 0.0]},
        repeats={"induction": [0.0, 0.4, 0.0], "same_token": [0.0, 0.0, 0.4]},
    )
    assert keys(record) == ["none", "induction", "same"]


def test_a_threshold_is_judged_on_the_printed_value():
    assert keys(with_values({"previous": [0.39951, 0.39949]})) == ["previous", "none"]


def test_the_first_rule_that_holds_names_the_head():
    record = with_values({"previous": [0.5, 0.1], "self": [0.45, 0.45], "entropy_share": [0.9, 0.9]})
    assert keys(record) == ["previous", "self"]


def test_rules_without_their_statistic_are_named_as_not_read():
    facts = find_facts(parts_of(with_values({"previous": [0.5]})))
    assert [rule.key for rule in facts.unread] == ["induction", "same"]
    assert [rule.key for rule in facts.rules] == ["previous", "next", "self", "rest", "near", "wide", "none"]


def test_the_sentence_counts_each_head_once(seed):
    record = make_record(5, 7, seed=seed)
    facts = find_facts(parts_of(record))
    phrases = write_sentence(facts)
    assert sum(phrase.count for phrase in phrases) == 35
    assert all(phrase.count > 0 for phrase in phrases)
    joined = "".join(f"{p.before}{p.count} {p.text}" for p in phrases)
    assert " and " in joined
    assert "  " not in joined


def test_one_head_and_several_have_their_own_grammar():
    one, several, none = (with_values({"previous": v}) for v in ([0.5, 0.0], [0.5, 0.5], [0.1, 0.1]))
    said = [[(p.count, p.text) for p in write_sentence(find_facts(parts_of(r)))] for r in (one, several, none)]
    assert said == [
        [(1, "looks at the token before"), (1, "meets none of these")],
        [(2, "look at the token before")],
        [(2, "meet none of the thresholds below")],
    ]


def test_little_output_is_counted_below_its_threshold():
    quiet = write_quiet(find_facts(parts_of(with_values({"output_ratio": [0.44, 0.444, 0.45, 3.0, np.nan]}))))
    assert (quiet.count, quiet.text) == (2, "write less than 0.45 of their layer's mean")
    record = with_values({"output_ratio": [1.0]})
    fewer = tuple(q for q in record.texts.quantities if q.name != "output_ratio")
    assert write_quiet(find_facts(parts_of(replace(record, texts=replace(record.texts, quantities=fewer))))) is None


def test_near_adds_up_the_distances_below_eight():
    record = with_values({"previous": [0.1, 0.1]})
    labels = record.texts.quantity("distance_histogram").labels
    near = [
        label in ("self", "back 1", "back 2-3", "back 4-7", "ahead 1", "ahead 2-3", "ahead 4-7") for label in labels
    ]
    assert sum(near) == 7
    sums = np.where(near, [[0.5 / 7], [0.49 / 7]], 0.5 / 12)[None]
    texts = replace(record.texts, sums=dict(record.texts.sums) | {"distance_histogram": sums})
    assert keys(replace(record, texts=texts)) == ["near", "none"]


def test_the_strongest_head_of_each_fact_is_found():
    facts = find_facts(parts_of(with_values({"previous": [0.5, 0.9, 0.6], "self": [0.0, 0.0, 0.0]})))
    assert [(rule.key, head) for rule, head in facts.strongest()] == [("previous", 1)]


def test_heads_are_matched_by_address_between_the_parts():
    record = with_values({"previous": [0.0, 0.0, 0.0]}, repeats={"induction": [0.1, 0.9, 0.1]})
    turned = tuple(HeadAddress("", 0, h) for h in (2, 1, 5))
    shuffled = replace(record, repeats=replace(record.repeats, heads=turned))
    values = find_facts(parts_of(shuffled)).value[:, 0]
    assert values[1:].tolist() == [0.9, 0.1]
    assert np.isnan(values[0])


def test_words_claim_no_verdict():
    said = " ".join(f"{rule.one} {rule.many} {rule.measure} {rule.said} {rule.word}" for rule in RULES).lower()
    assert not any(word in said for word in ("dead", "useless", "redundant", "needed", "broken"))
