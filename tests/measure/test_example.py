"""Stretches for the reader: exact against whole matrices of weights, in every kind of stack, with rows drawn or not."""

import dataclasses

import numpy as np
import pytest
import torch

from hooks.families import FAMILIES, ids
from measure.test_models import CLASSES, DOCUMENTS, eager_weights
from multihead.measure import Batch, Run, Span, observe
from multihead.record import Document


def span(row, start, units, **given):
    texts = tuple(f"u{n}" for n in range(max(units) + 1))
    return Span(row=row, start=start, units=units, texts=texts, **given)


def expect(weights, queries, keys, in_sink):
    """Links, sink and elsewhere of one head: weights (q_len, kv_len) in plain loops."""
    count = (len(queries.texts), len(keys.texts))
    links, sink, elsewhere = np.zeros(count), np.zeros(count[0]), np.zeros(count[0])
    for u in range(count[0]):
        pieces = [queries.start + n for n, unit in enumerate(queries.units) if unit == u]
        for i in pieces:
            told = 0.0
            for j, weight in enumerate(weights[i]):
                place = j - keys.start
                unit = keys.units[place] if 0 <= place < len(keys.units) else -1
                if in_sink[j]:
                    sink[u] += weight / len(pieces)
                elif unit >= 0:
                    links[u, unit] += weight / len(pieces)
                else:
                    elsewhere[u] += weight / len(pieces)
                told += weight
            sink[u] += (1 - told) / len(pieces)
    return links, sink, elsewhere


def assert_shows(example, head, links, sink, elsewhere):
    for u, row in enumerate(links):
        places = example.places[head, u]
        kept = places[places >= 0]
        np.testing.assert_allclose(example.weights[head, u, : len(kept)], row[kept], rtol=1e-4, atol=1e-6)
        assert (example.weights[head, u, len(kept) :] <= 0).all()
        assert len(kept) == min(example.places.shape[-1], int((row > 0).sum()))
        np.testing.assert_allclose(row[kept], np.sort(row)[::-1][: len(kept)], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(example.sink[head], sink, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(example.elsewhere[head], elsewhere, rtol=1e-4, atol=1e-5)


def sink_of(row, keep):
    """First real token and special ones; without classes by place."""
    special = CLASSES.special[row] & keep
    special[int(keep.int().argmax())] = True
    return special.tolist()


@pytest.mark.parametrize("name", ["bert", "llama", "gpt2"])
@pytest.mark.parametrize("padded", ["", "right", "left"])
def test_links_are_those_of_whole_weights(name, padded):
    family = FAMILIES[name]
    model, inputs = family.build(), family.inputs(padded)
    spans = (span(0, 2, (0, 0, 1, -1, 2)), span(1, 1, (0, 1, 2, 3, 4, 5), before=40))
    record = observe(model, [Batch(inputs=inputs, document=(0, 1), spans=spans)], documents=DOCUMENTS, classes=CLASSES)
    told = eager_weights(model, family, inputs)
    assert [(e.document, e.start, e.stack) for e in record.examples] == [(0, 2, ""), (1, 41, "")]
    for example, given in zip(record.examples, spans, strict=True):
        assert example.heads == tuple(range(len(record.heads)))
        assert example.queries == example.keys == given.texts
        keep = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"]))[given.row].bool()
        in_sink = sink_of(inputs["input_ids"][given.row], keep)
        for place, address in enumerate(record.heads):
            weights = told["", address.layer][given.row, address.head].nan_to_num().numpy()
            real = [keep[given.start + n] for n in range(len(given.units))]
            want = expect(weights, given, given, in_sink)
            if all(real):
                assert_shows(example, place, *want)


def test_encoder_decoder_and_cross_attention_show_their_sides():
    family = FAMILIES["t5"]
    model = family.build()
    inputs = {"input_ids": ids(1, 9), "decoder_input_ids": ids(1, 7)}
    spans = (span(0, 1, (0, 0, 1, 2)), span(0, 2, (0, 1, 1), side="decoder_input_ids"))
    record = observe(model, [Batch(inputs=inputs, document=(0,), spans=spans)], documents=DOCUMENTS[:1])
    told = eager_weights(model, family, inputs)
    assert sorted(e.stack for e in record.examples) == ["cross", "decoder", "encoder"]
    sides = {"encoder": (spans[0], spans[0]), "decoder": (spans[1], spans[1]), "cross": (spans[1], spans[0])}
    for example in record.examples:
        queries, keys = sides[example.stack]
        assert (example.queries, example.keys) == (queries.texts, keys.texts)
        assert all(record.heads[place].stack == example.stack for place in example.heads)
        for at, place in enumerate(example.heads):
            address = record.heads[place]
            weights = told[address.stack, address.layer][0, address.head].numpy()
            first = [j == 0 for j in range(weights.shape[1])]
            assert_shows(example, at, *expect(weights, queries, keys, first))


def test_examples_do_not_depend_on_the_rows_that_are_drawn_nor_on_a_journal(tmp_path):
    model = FAMILIES["llama"].build()
    length = 100
    plan = [
        Batch(inputs={"input_ids": ids(1, length)}, document=(d,), spans=(span(0, 3, (0, 1, 1, 2, 3)),)) for d in (0, 1)
    ]
    documents = [Document(name=n, digest=n, tokens=length) for n in "ab"]
    whole = observe(model, plan, documents=documents)
    kept = observe(model, plan, documents=documents, run=Run(journal=tmp_path / "run"))
    again = observe(model, plan, documents=documents, run=Run(journal=tmp_path / "run"))
    drawn = observe(model, plan, documents=documents, run=Run(rows=64))
    assert drawn.sampling
    assert len(whole.examples) == 2
    assert whole.examples == kept.examples == again.examples == drawn.examples


def test_pictures_are_known_by_their_length():
    family = FAMILIES["vit"]
    model, inputs = family.build(), family.inputs()
    tokens = 17
    at = torch.ones(2, tokens, dtype=torch.long)
    at[:, 0] = 0
    named = dataclasses.replace(CLASSES, names=("special", "patch", "x"))
    given = span(1, 1, tuple(range(16)), side="pixel_values", grid=(4, 4), picture=b"png")
    batch = Batch(inputs=inputs, document=(0, 1), classes={"pixel_values": at}, spans=(given,))
    record = observe(model, [batch], documents=DOCUMENTS, classes=named)
    (example,) = record.examples
    assert (example.document, example.grid, example.picture) == (1, (4, 4), b"png")
    np.testing.assert_allclose(record.value("token_class")[:, 0], record.value("first_token"), rtol=1e-5)
    np.testing.assert_allclose(record.value("token_class").sum(-1), 1, rtol=1e-5)
    np.testing.assert_allclose(record.value("token_class_content")[:, 1], 1, rtol=1e-5)
    np.testing.assert_allclose(record.value("special_token"), record.value("sink"), rtol=1e-6)


def test_spans_of_inputs_nobody_attends_to_are_left_out():
    model = FAMILIES["bert"].build()
    far = span(0, 1, (0, 1), side="pixel_values")
    record = observe(
        model, [Batch(inputs={"input_ids": ids(1, 7)}, document=(0,), spans=(far,))], documents=DOCUMENTS[:1]
    )
    assert record.examples == ()


def test_classes_of_places_win_over_those_of_ids():
    model = FAMILIES["bert"].build()
    row = ids(1, 7)
    at = torch.tensor([[0, 1, 1, 2, 2, 2, 0]])
    documents = DOCUMENTS[:1]
    by_place = Batch(inputs={"input_ids": row}, document=(0,), classes={"input_ids": at})
    record = observe(model, [by_place], documents=documents, classes=CLASSES)
    weights = eager_weights(model, FAMILIES["bert"], {"input_ids": row})
    for place, address in enumerate(record.heads):
        mean = weights["", address.layer][0, address.head].mean(0).numpy()
        want = [mean[at[0].numpy() == number].sum() for number in range(3)]
        np.testing.assert_allclose(record.value("token_class")[place], want, rtol=1e-4)
