"""Heads of several kinds in one layer are measured as if each kind were a layer of its own."""

import numpy as np
import pytest
import torch

from hooks.mixed import GROUPS, HEADS, LAYERS, VOCAB, apart, mixed, plain
from multihead.corpus import TokenClasses
from multihead.layer import Int8
from multihead.measure import Batch, Run, observe, watch
from multihead.pattern import distance
from multihead.record import Document
from multihead.report import render_page
from multihead.workflow import checkup
from workflow.fakes import LetterTokenizer

CLASSES = TokenClasses(
    names=("special", "other"),
    table=torch.tensor([0, *[1] * (VOCAB - 1)]),
    special=torch.tensor([True, *[False] * (VOCAB - 1)]),
    marks="",
)
KV_HEADS = [
    sum(g.kv_heads or g.heads for g in GROUPS[:i]) + h * (GROUPS[i].kv_heads or GROUPS[i].heads) // GROUPS[i].heads
    for i, h in HEADS
]


def rows(count, length):
    """No token twice in a row: of two keys that are equal, rounding would choose the larger weight."""
    return torch.stack([torch.randperm(VOCAB)[:length] for _ in range(count)])


def batches():
    ids = rows(3, 12)
    keep = torch.ones_like(ids)
    keep[1, :4] = 0
    return [
        Batch(inputs={"input_ids": ids, "attention_mask": keep}, document=(0, 1, 0)),
        Batch(inputs={"input_ids": rows(1, 20)}, document=(1,)),
    ]


def measured(model, given, **more):
    documents = [Document(name=name, digest=name, tokens=9) for name in "ab"]
    return observe(model, given, documents=documents, classes=CLASSES, targets={"third": distance(3)}, **more)


def twins(record, heads):
    """Places, in the record of the model built of plain layers, of the heads of the mixed one, in its order."""
    found = [(layer * len(GROUPS) + group, head) for layer in range(LAYERS) for group, head in heads]
    return [record.heads.index(type(record.heads[0])("", *one)) for one in found]


def test_every_statistic_is_that_of_plain_layers():
    model, given = mixed().double(), batches()
    record, other = measured(model, given), measured(apart(model).double(), given)
    assert [str(head) for head in record.heads] == [f"L{n}.H{h}" for n in range(LAYERS) for h in range(len(HEADS))]
    assert record.kv_heads == (*KV_HEADS, *KV_HEADS)
    places = twins(other, HEADS)
    for quantity in record.quantities:
        got, want = record.per_document(quantity.name), other.per_document(quantity.name)[:, places]
        if quantity.pairs:
            got, want = (alone(values, quantity) for values in (got, want))
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6, err_msg=quantity.name)
    for name in ("entropy", "output_norm", "previous"):
        for ours, theirs in zip(record.interval(name), other.interval(name), strict=True):
            np.testing.assert_allclose(ours, theirs[places], rtol=1e-5, atol=1e-6)
    noted = {(note.about, note.quantity) for note in record.notes if "kind by kind" in note.text}
    assert noted == {("", "")}
    assert not any("kind by kind" in note.text for note in other.notes)


def alone(values, quantity):
    """Pairs of heads of one kind, in the same order whatever the layer is called; nothing stands in other places."""
    rows = []
    for place in range(values.shape[1]):
        group, _ = HEADS[place % len(HEADS)]
        row, count = values[:, place], GROUPS[group].heads
        seen = np.flatnonzero(np.isfinite(row).any(0))
        first = HEADS.index((group, 0)) if row.shape[-1] == len(HEADS) else 0
        assert set(seen) <= set(range(first, first + count)), quantity.name
        rows.append(row[:, first : first + count].copy())
    return np.concatenate([row.ravel() for row in rows])


def test_records_of_mixed_layers_are_saved_merged_and_watched(tmp_path):
    model, given = mixed(), batches()[1:]
    given = [Batch(inputs=given[0].inputs, document=(0,))]
    documents = [Document(name="a", digest="a", tokens=20)]
    whole = observe(model, given, documents=documents, run=Run(journal=tmp_path / "journal"))
    again = observe(model, given, documents=documents, run=Run(journal=tmp_path / "journal"))
    assert again == whole
    assert whole.merge(whole).heads == whole.heads
    with watch(model) as seen:
        model(**given[0].inputs)
    np.testing.assert_allclose(seen.statistics().value("entropy"), whole.value("entropy"), rtol=1e-6)


@pytest.mark.parametrize("kind", [None, Int8()])
@pytest.mark.parametrize("build", [mixed, plain])
def test_a_sequence_that_is_read_through_caches_is_one_document(build, kind):
    model, ids = build(), rows(2, 10)
    keep = torch.ones_like(ids)
    keep[1, :2] = 0
    caches = [layer.attn.cache(batch=2, kind=kind) for layer in model.layers]
    with torch.no_grad():
        with watch(model) as whole:
            model(ids, keep)
        with watch(model) as steps:
            for stop, start in ((4, 0), (5, 4), (10, 5)):
                model(ids[:, start:stop], keep[:, :stop], caches)
    want, got = whole.statistics(), steps.statistics()
    assert [document.digest for document in got.documents] == [document.digest for document in want.documents]
    # Bytes are near the numbers they stand for.
    close = 2e-5 if kind is None else 0.05
    for name in ("entropy", "distance", "output_norm", "previous", "first_token"):
        np.testing.assert_allclose(
            got.per_document(name), want.per_document(name), rtol=close, atol=close, err_msg=name
        )


def test_rows_are_drawn_of_each_kind():
    model = mixed()
    ids = torch.randint(VOCAB, (1, 100))
    documents = [Document(name="a", digest="a", tokens=100)]
    given = [Batch(inputs={"input_ids": ids}, document=(0,))]
    some = observe(model, given, documents=documents, run=Run(rows=64))
    every = observe(model, given, documents=documents)
    low, high = some.sampling_interval("entropy")
    assert some.sampling
    assert np.isfinite(low).all()
    assert np.isfinite(high).all()
    np.testing.assert_allclose(some.value("output_norm"), every.value("output_norm"), rtol=1e-5)
    assert (np.abs(some.value("entropy") - every.value("entropy")) < 0.5).all()


def test_the_page_of_a_model_with_mixed_layers_shows_every_head():
    report = checkup(mixed(), LetterTokenizer(), ["a text to be read twice, a text"], repeats=1)
    heads = [str(head) for head in report.record.texts.heads]
    assert heads == [f"L{n}.H{h}" for n in range(LAYERS) for h in range(len(HEADS))]
    similar = report.record.texts.value("similarity").reshape(LAYERS, len(HEADS), len(HEADS))
    same_kind = np.array([[one[0] == other[0] for other in HEADS] for one in HEADS])
    for layer in similar:
        assert np.array_equal(np.isfinite(layer), same_kind)
    page = render_page(report.record)
    assert "kind by kind" in page
