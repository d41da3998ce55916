from dataclasses import replace

import numpy as np
import pytest

from multihead.measure.role import judge
from multihead.record import Example
from multihead.report.example import A_HEAD, choose_examples, describe
from multihead.report.part import parts_of
from multihead.report.payload import add_examples
from report.samples import CYCLE, make_record


def read(shown, *, row):
    """What is packed for one head: a list for each query of ([(place, weight)], sink, elsewhere)."""
    data, at, wide = shown.data, 0, len(shown.example.keys) > 256
    for head in range(len(shown.heads)):
        out = []
        for _ in shown.example.queries:
            n, links = data[at], []
            at += 1
            for _ in range(n):
                place = data[at] + (256 * data[at + 1] if wide else 0)
                at += 3 if wide else 2
                links.append((place, (data[at - 1] / 255) ** 2))
            out.append((links, (data[at] / 255) ** 2, (data[at + 1] / 255) ** 2))
            at += 2
        if head == row:
            return out
    raise AssertionError("no such head")


def example(words, links, *, heads=1, keys=None, sink=0.1, **facts):
    """One stretch in which every head has the same links: {query: [(key, weight), ...]}."""
    shape = (heads, len(words), 6)
    places, weights = np.full(shape, -1, dtype=np.int16), np.zeros(shape, dtype=np.float32)
    for query, found in links.items():
        for k, (place, weight) in enumerate(found):
            places[:, query, k], weights[:, query, k] = place, weight
    return Example(
        document=0,
        start=0,
        stack="",
        heads=tuple(range(heads)),
        queries=tuple(words),
        keys=tuple(keys or words),
        places=places,
        weights=weights,
        sink=np.full(shape[:2], sink, dtype=np.float32),
        elsewhere=np.full(shape[:2], 0.2, dtype=np.float32),
        **facts,
    )


def with_examples(*examples, repeats=(), heads=1):
    record = make_record(1, heads, old=True)
    return replace(
        record,
        texts=replace(record.texts, examples=examples),
        repeats=replace(record.repeats, examples=tuple(repeats)),
    )


def chosen(record, room=100_000):
    return choose_examples(parts_of(record), judge(record), room=room)


def test_links_are_kept_with_their_weights(seed):
    record = make_record(2, 3, seed=seed)
    shown, _ = chosen(record)
    for one in shown:
        for row in range(len(one.heads)):
            for i, (links, sink, elsewhere) in enumerate(read(one, row=row)):
                places, weights = one.example.places[row, i], one.example.weights[row, i]
                want = [(int(p), float(w)) for p, w in zip(places, weights, strict=True) if p >= 0 and w >= 0.03]
                assert [p for p, _ in links][: len(want)] == [p for p, _ in want]
                assert np.allclose([w for _, w in links][: len(want)], [w for _, w in want], atol=0.005)
                assert sink == pytest.approx(float(one.example.sink[row, i]), abs=0.005)
                assert elsewhere == pytest.approx(float(one.example.elsewhere[row, i]), abs=0.005)


def test_faint_links_are_left_out_unless_they_are_much_of_what_is_left():
    faint = {1: [(0, 0.029), (1, 0.5)], 2: [(1, 0.004)]}
    (plain,), _ = chosen(with_examples(example("abc", faint)))
    assert [[p for p, _ in links] for links, _, _ in read(plain, row=0)] == [[], [1], []]
    (left,), _ = chosen(with_examples(example("abc", {2: [(1, 0.02)]}, sink=0.8)))
    assert [[p for p, _ in links] for links, _, _ in read(left, row=0)] == [[], [], [1]]
    (noise,), _ = chosen(with_examples(example("abc", {2: [(1, 0.02)]}, sink=0.95)))
    assert [[p for p, _ in links] for links, _, _ in read(noise, row=0)] == [[], [], []]


def test_many_keys_need_two_bytes():
    far = example("ab", {0: [(299, 0.5)]}, keys=tuple(f"k{i}" for i in range(300)))
    (shown,), _ = chosen(with_examples(far))
    assert read(shown, row=0)[0][0] == [(299, pytest.approx(0.5, abs=0.005))]


def test_a_head_is_shown_where_it_is_most_itself(seed):
    weak, strong = example("abcd", {2: [(1, 0.1)]}), example("abcd", {2: [(1, 0.8)]})
    assert chosen(with_examples(weak, strong))[1] == [1]
    assert chosen(with_examples(strong, weak))[1] == [0]
    record = make_record(3, 4, seed=seed)
    shown, best = chosen(record)
    keys = [judge(record).rules[i].key for i in judge(record).rule]
    for key, one in zip(keys, best, strict=True):
        assert (shown[one].part.name == "repeats") == (key in ("induction", "same"))


def test_a_head_that_rests_is_shown_where_it_rests_most():
    record = with_examples(example("abcd", {2: [(1, 0.9)]}, sink=0.1), example("abcd", {}, sink=0.9))
    sums = dict(record.texts.sums) | {"first_token": np.ones((3, 1)), "self": np.zeros((3, 1))}
    sums |= {"previous": np.zeros((3, 1)), "next": np.zeros((3, 1)), "token_class": np.zeros((3, 1, 6))}
    calm = dict(record.repeats.sums) | {"induction": np.zeros((2, 1)), "same_token": np.zeros((2, 1))}
    record = replace(record, texts=replace(record.texts, sums=sums), repeats=replace(record.repeats, sums=calm))
    assert judge(record).rules[judge(record).rule[0]].key == "rest"
    assert chosen(record)[1] == [1]


def test_what_does_not_fit_is_left_out_but_not_the_repeats():
    long = example([f"w{i}" for i in range(60)], {i: [(0, 0.5), (1, 0.2)] for i in range(60)})
    record = with_examples(*[long] * 9, repeats=[long])
    shown, _ = chosen(record)
    assert [one.part.name for one in shown].count("repeats") == 1
    assert 1 < len(shown) < 10
    assert sum(len(one.data) for one in shown) * 4 / 3 <= A_HEAD
    pictured = example("abcd", {}, grid=(2, 2), picture=b"x" * 20_000)
    assert chosen(with_examples(pictured), room=26_000)[0] == []
    assert len(chosen(with_examples(pictured), room=28_000)[0]) == 1
    assert chosen(record, room=0) == ([], [-1])


def test_examples_of_one_document_are_told_apart():
    record = with_examples(example("abcd", {}), example("efgh", {}))
    judgement, parts = judge(record), parts_of(record)
    told = add_examples({}, parts, [], judgement, room=90_000)["examples"]
    assert len({one["name"] for one in told}) == len(told) == 2
    assert [one["name"].rsplit(" ", 1)[1] for one in told] == ["(1)", "(2)"]


def test_an_example_is_told_with_its_document(seed):
    record = make_record(1, 3, seed=seed)
    shown, _ = chosen(record)
    told = [describe(one, [""]) for one in shown]
    assert [t["name"] for t in told] == ["story.txt", "list.txt", "code.py", "run 0"]
    assert told[-1]["words"] == list(CYCLE)
    assert all(t["keys"] is None and t["picture"] is None for t in told)
    picture = describe(chosen(with_examples(example("abcd", {}, grid=(2, 2), picture=b"png")))[0][0], [""])
    assert (picture["grid"], picture["picture"]) == ([2, 2], "data:image/png;base64,cG5n")


def test_the_heads_of_an_example_are_found_by_address(seed):
    record = make_record(1, 3, seed=seed)
    turned = replace(record.repeats, heads=record.texts.heads[::-1])
    shown, _ = chosen(replace(record, repeats=turned))
    assert shown[-1].heads == (2, 1, 0)
    assert shown[0].heads == (0, 1, 2)
