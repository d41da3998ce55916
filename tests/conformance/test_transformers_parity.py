"""Random tiny models of transformers on our attention: the logits and the texts of its own eager attention."""

import pytest
import torch

from conformance.hf_families import PARITY, WRITERS
from hooks.families import twin
from multihead.interop import register, register_transformers

RUNS = [(name, padding) for name, family in PARITY.items() for padding in family.paddings]


def ours_and_theirs(family):
    """The same random weights twice, on our attention and on eager."""
    theirs = family.build("eager")
    ours = twin(family, theirs)
    ours.set_attn_implementation(register_transformers())
    return ours, theirs


@pytest.fixture
def ran(monkeypatch):
    """One entry for each call our attention gets from a model."""
    calls, plain = [], register.attention
    monkeypatch.setattr(register, "attention", lambda *args, **given: calls.append(1) or plain(*args, **given))
    return calls


@pytest.mark.parametrize(("name", "padding"), RUNS)
def test_outputs_on_real_tokens(name, padding, ran, tally):
    family = PARITY[name]
    ours, theirs = ours_and_theirs(family)
    inputs = family.inputs(padding)
    tally("transformers, outputs", "auto")
    with torch.no_grad():
        want, got = theirs(**inputs)[0], ours(**inputs)[0]
    assert len(ran) == sum(number for _, number in family.layers)
    if family.reads == "tokens" and padding != "none":
        real = inputs["attention_mask"].bool()
        want, got = want[real], got[real]
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", WRITERS)
def test_what_is_written(name, cache, ran, tally):
    family = PARITY[name]
    inputs = {k: v for k, v in family.inputs("left").items() if k != "decoder_input_ids"}
    tally(f"transformers, generation, {cache} cache", "auto")
    written = []
    for model in ours_and_theirs(family):
        model.generation_config.eos_token_id = None
        options = {"disable_compile": True} if cache == "static" else {}
        made = model.generate(
            **inputs, max_new_tokens=5, do_sample=False, pad_token_id=0, cache_implementation=cache, **options
        )
        written.append(made)
    assert len(ran) >= 5
    assert torch.equal(*written)
