"""Measuring while somebody else runs the model."""

import numpy as np
import pytest
import torch
from transformers import DynamicCache

from hooks.families import FAMILIES, ids
from hooks.tail_fallback import FALLBACK
from measure.oracle import weights_of
from multihead.error import MultiheadError
from multihead.hooks import watching
from multihead.measure import Batch, observe, watch
from multihead.measure.watch import RELATIVE
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


def test_a_pass_that_raised_before_any_attention_is_told():
    model = FAMILIES["bert"].build()
    with watch(model) as w:
        with pytest.raises(IndexError):
            model(input_ids=torch.tensor([[10**6]]))
        with pytest.raises(
            MultiheadError,
            match=r"got: 1 pass that raised an exception, and no other\n  fix: run the model inside the block",
        ):
            w.statistics()
        model(input_ids=torch.tensor([[5, 6, 7]]))
    assert [d.name for d in w.statistics().documents] == ["pass 0, row 0"]


def generated(model, inputs, new=6, **extra):
    """The record of watching `generate`, and the tokens that were read."""
    model.generation_config.eos_token_id = None
    with watch(model) as w:
        tokens = model.generate(**inputs, max_new_tokens=new, do_sample=False, pad_token_id=0, **extra)
    return w.statistics(), tokens[:, :-1]


def assert_same_sums(got, want, *, leaving=RELATIVE):
    for quantity in want.quantities:
        name = quantity.name
        if name in leaving:
            assert not got.counts[name].any(), f"{name} is left out"
            continue
        np.testing.assert_allclose(got.counts[name], want.counts[name], rtol=1e-5, atol=1e-5, err_msg=name)
        scale = np.maximum(want.counts[name], 1.0) if quantity.fold == "mean" else 1.0
        np.testing.assert_allclose(got.sums[name] / scale, want.sums[name] / scale, rtol=1e-4, atol=2e-5, err_msg=name)


@pytest.mark.parametrize(
    ("name", "cache", "padding"),
    [
        ("llama", "dynamic", "left"),
        ("llama", "static", "none"),
        ("gpt2", "dynamic", "left"),
        ("mistral", "dynamic", "none"),
        ("mistral", "static", "left"),
        *(
            pytest.param(*rest, marks=pytest.mark.slow)
            for rest in [
                ("llama", "dynamic", "none"),
                ("llama", "static", "left"),
                ("gpt2", "dynamic", "none"),
                ("mistral", "dynamic", "left"),
                ("mistral", "static", "none"),
            ]
        ),
    ],
)
def test_watching_generate_equals_watching_one_pass(name, cache, padding):
    family = FAMILIES[name]
    model, inputs = family.build(), family.inputs(padding)
    extra = {"disable_compile": True} if cache == "static" else {}
    record, read = generated(model, inputs, cache_implementation=cache, **extra)
    keep = torch.ones_like(read)
    if padding == "left":
        keep[:, : inputs["attention_mask"].shape[1]] = inputs["attention_mask"]
    with watch(model) as w, torch.no_grad():
        model(input_ids=read, attention_mask=keep, position_ids=(keep.cumsum(1) - 1).clamp(min=0))
    want = w.statistics()
    assert record.documents == want.documents
    assert_same_sums(record, want)
    told = {note.quantity for note in record.notes if "read in steps" in note.text}
    assert told == {name for name in RELATIVE if name in record.sums}


def test_a_decoder_that_writes_step_by_step_equals_one_pass():
    family = FAMILIES["bart"]
    model, inputs = family.build(), family.inputs()
    given = {"input_ids": inputs["input_ids"]}
    record, read = generated(model, given, num_beams=1)
    with watch(model) as w, torch.no_grad():
        model(**given, decoder_input_ids=read)
    assert_same_sums(record, w.statistics())


def test_steps_fill_one_unit():
    model = FAMILIES["llama"].build()
    record, read = generated(model, {"input_ids": ids(1, 9)})
    assert record.units == (0,)
    np.testing.assert_allclose(record.unit_sums["entropy"], record.sums["entropy"], rtol=1e-6)


def test_a_cache_may_be_filled_by_hand_in_pieces():
    model, row = FAMILIES["llama"].build(), ids(2, 9)
    with watch(model) as w, torch.no_grad():
        cache = DynamicCache(config=model.config)
        model(input_ids=row[:, :4], cache=cache)
        model(input_ids=row[:, 4:], cache=cache)
        model(input_ids=row)
    record = w.statistics()
    assert [d.tokens for d in record.documents] == [9] * 4
    assert [d.digest for d in record.documents[:2]] == [d.digest for d in record.documents[2:]]
    for name in ("entropy", "distance", "induction", "logit_max"):
        np.testing.assert_allclose(record.sums[name][:2], record.sums[name][2:], rtol=1e-4, atol=1e-5)


def test_beams_are_refused_with_the_reason():
    model = FAMILIES["gpt2"].build()
    model.generation_config.eos_token_id = None
    # Rows change places only if chance makes another beam better: here they do by hand.
    cache = DynamicCache(config=model.config)
    with torch.no_grad(), watch(model):
        model(input_ids=ids(2, 5), cache=cache)
        cache.reorder_cache(torch.tensor([1, 0]))
        with pytest.raises(MultiheadError, match=r"rows have changed places.*\n  fix: generate without beams"):
            model(input_ids=ids(2, 1), cache=cache)


def test_a_cache_that_was_filled_before_is_refused():
    model = FAMILIES["gpt2"].build()
    with torch.no_grad():
        cache = DynamicCache(config=model.config)
        model(input_ids=ids(1, 5), cache=cache)
        with watch(model), pytest.raises(MultiheadError, match="which has read nothing\n"):
            model(input_ids=ids(1, 1), cache=cache)


def test_generating_without_a_cache_gives_a_document_for_each_pass():
    model = FAMILIES["gpt2"].build()
    with watch(model) as w:
        model.generate(ids(1, 4), min_new_tokens=3, max_new_tokens=3, do_sample=False, use_cache=False)
    assert [d.tokens for d in w.statistics().documents] == [4, 5, 6]


def test_a_pass_that_fails_is_left_out():
    model, given = FAMILIES["bert"].build(), ids(1, 9)
    broken = model.encoder.layer[1].output
    with torch.no_grad(), watch(model) as whole:
        model(input_ids=given)
    with torch.no_grad(), watch(model) as watched:
        handle = broken.register_forward_pre_hook(lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            model(input_ids=ids(1, 7))
        with pytest.raises(MultiheadError, match="1 pass that raised an exception"):
            watched.statistics()
        handle.remove()
        model(input_ids=given)
        # This one fails before any attention, and takes nothing of the pass before it along.
        with model.embeddings.register_forward_pre_hook(lambda *_: 1 / 0), pytest.raises(ZeroDivisionError):
            model(input_ids=given)
    found = watched.statistics()
    assert [document.tokens for document in found.documents] == [9]
    assert all(np.array_equal(found.sums[name], whole.statistics().sums[name], equal_nan=True) for name in found.sums)


def test_what_cannot_be_seen_is_said():
    family = FALLBACK["led"]
    model = family.build()
    batch = Batch(inputs=family.inputs(), document=(0, 1))
    documents = [Document(name=name, digest=name, tokens=9) for name in "ab"]
    found = observe(model, [batch], documents=documents)
    said = [note.text for note in found.notes if "not measured" in note.text]
    assert said
    assert any("encoder" in text for text in said)
