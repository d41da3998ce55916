"""Measuring while somebody else runs the model."""

import numpy as np
import pytest
import torch

from hooks.families import FAMILIES, ids
from measure.oracle import weights_of
from multihead.error import MultiheadError
from multihead.hooks import watching
from multihead.measure import Batch, observe, watch
from multihead.record import Document


def test_every_row_of_every_pass_is_a_document():
    model = FAMILIES["gpt2"].build()
    first, second = ids(2, 7), ids(1, 5)
    with watch(model, name="m") as w:
        model(input_ids=first)
        model(input_ids=second)
    record = w.statistics()
    assert [d.name for d in record.documents] == ["pass 0, row 0", "pass 0, row 1", "pass 1, row 0"]
    assert [d.tokens for d in record.documents] == [7, 7, 5]
    plan = [Batch(inputs={"input_ids": first}, document=(0, 1)), Batch(inputs={"input_ids": second}, document=(2,))]
    want = observe(model, plan, documents=record.documents, name="m")
    assert record == want


def test_the_digest_is_that_of_the_tokens_without_padding():
    model, row = FAMILIES["bert"].build(), ids(1, 7)
    padded = torch.cat([row, torch.zeros(1, 3, dtype=torch.long)], 1)
    with watch(model) as w:
        model(input_ids=row)
        model(input_ids=padded, attention_mask=torch.tensor([[1] * 7 + [0] * 3]))
        model(input_ids=ids(1, 7))
    a, b, c = w.statistics().documents
    assert a.digest == b.digest != c.digest
    assert (a.tokens, b.tokens) == (7, 7)


def test_a_pass_with_shared_layers_is_one_document():
    family = FAMILIES["albert"]
    model = family.build()
    with watch(model) as w:
        model(**family.inputs())
    record = w.statistics()
    assert len(record.documents) == 2
    assert len(record.heads) == 12


def test_pictures_have_no_tokens_to_name_them_by():
    family = FAMILIES["vit"]
    model = family.build()
    with watch(model) as w:
        model(**family.inputs())
    document = w.statistics().documents[0]
    assert document == Document(name="pass 0, row 0", digest="", tokens=17)


def test_outputs_and_gradients_are_untouched():
    family = FAMILIES["llama"]
    model, inputs = family.build().train(), family.inputs()

    def run():
        model.zero_grad()
        torch.manual_seed(0)
        logits = model(**inputs).logits
        logits.square().sum().backward()
        return logits.detach(), [p.grad for p in model.parameters()]

    plain, gradients = run()
    with watch(model) as w:
        watched, under_watch = run()
    assert torch.equal(plain, watched)
    assert all(torch.equal(a, b) for a, b in zip(gradients, under_watch, strict=True))
    assert np.isfinite(w.statistics().value("entropy")).all()


def test_autocast_rounds_the_model_but_not_the_statistics():
    family = FAMILIES["bert"]
    model, inputs, calls = family.build(), family.inputs(), []
    with torch.autocast("cpu", dtype=torch.bfloat16), watching(model, calls.append), watch(model) as w:
        model(**inputs)
    assert calls[0].problem.q.dtype == torch.bfloat16
    record = w.statistics()
    for layer, call in enumerate(calls):
        weights = weights_of(call.problem)[0]
        entropy = -(weights * weights.log()).sum(-1).mean(-1)
        got = record.per_document("entropy")[:, 4 * layer : 4 * layer + 4]
        np.testing.assert_allclose(got, entropy.detach(), rtol=1e-5)


def test_a_model_made_and_run_in_inference_mode_is_measured():
    family = FAMILIES["gpt2"]
    with torch.inference_mode():
        model = family.build()
        with watch(model) as w:
            model(**family.inputs())
            model(**family.inputs())
    assert np.isfinite(w.statistics().value("output_norm")).all()


def test_statistics_of_a_model_that_was_not_run_are_refused():
    with watch(FAMILIES["bert"].build()) as w, pytest.raises(MultiheadError, match="got: no pass"):
        w.statistics()


def test_passes_that_read_a_cache_are_refused():
    model = FAMILIES["gpt2"].build()
    with watch(model), pytest.raises(MultiheadError, match="1 queries over 5 keys, from a cache"):
        model.generate(ids(1, 4), max_new_tokens=3, do_sample=False)


def test_generating_without_a_cache_gives_a_document_for_each_pass():
    model = FAMILIES["gpt2"].build()
    with watch(model) as w:
        model.generate(ids(1, 4), max_new_tokens=3, do_sample=False, use_cache=False)
    assert [d.tokens for d in w.statistics().documents] == [4, 5, 6]
