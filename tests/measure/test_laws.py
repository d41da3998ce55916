"""Laws over random calls and random lists of documents."""

import hypothesis.strategies as st
import numpy as np
import torch
from hypothesis import given, settings

from hooks.families import FAMILIES, VOCAB
from measure.calls import assert_same, expect, make_call, take
from multihead.attend import Softmax
from multihead.measure import Batch, observe
from multihead.pattern import band, causal, padding, prefix, sliding_window
from multihead.record import Document

# Made when a test asks for them: the type checks of the test run draw random numbers, which a strategy must not do.
MASKS = {
    "nothing": lambda: None,
    "causal": causal,
    "window": lambda: sliding_window(5),
    "band": lambda: band(2, 5),
    "prefix": lambda: prefix(4),
}


@st.composite
def calls(draw):
    """Sizes and choices for a call."""
    group, kv_heads = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    kv_len, cross = draw(st.integers(1, 30)), draw(st.booleans())
    return {
        "heads": group * kv_heads,
        "kv_heads": kv_heads,
        "kv_len": kv_len,
        "cross": cross,
        "q_len": draw(st.integers(1, 30 if cross else kv_len)),
        "spans": draw(st.lists(st.tuples(*[st.integers(0, kv_len)] * 2).map(sorted), min_size=1, max_size=3)),
        "mask": "nothing" if cross else draw(st.sampled_from(sorted(MASKS))),
        "padded": draw(st.sampled_from(["no", "masked", "leaking"])),
        "off_by_one": draw(st.booleans()),
        "softcap": draw(st.sampled_from([None, 2.0])),
        "scale": draw(st.sampled_from([None, 0.0, 3.0])),
    }


def build(chosen):
    """The call of these choices."""
    spans, padded, mask = chosen.pop("spans"), chosen.pop("padded"), MASKS[chosen.pop("mask")]()
    cross, kv_len, q_len = chosen["cross"], chosen["kv_len"], chosen["q_len"]
    keep = torch.zeros(len(spans), kv_len, dtype=torch.bool)
    for row, (start, stop) in enumerate(spans):
        keep[row, start:stop] = True
    if padded == "masked":
        mask = padding(keep) if mask is None else mask & padding(keep)
    if padded != "no":
        chosen |= {"k_keep": keep, "q_keep": None if cross else keep[:, kv_len - q_len :]}
    softmax = Softmax(off_by_one=chosen.pop("off_by_one"))
    return make_call(
        batch=len(spans), mask=mask, normaliser=softmax, q_offset=None if cross else kv_len - q_len, **chosen
    )


@given(calls(), st.integers(0, 2**31), st.sampled_from([None, 1, 2, 7]))
def test_any_call_is_measured_as_defined(chosen, seed, rows):
    torch.manual_seed(seed)
    call = build(dict(chosen))
    got, want = take(call, rows=rows), expect(call)
    if chosen["scale"] == 0.0 or chosen["softcap"] is not None:
        # Weights that are equal but for rounding: which is the first of equals is not to be told.
        want = {name: part for name, part in want.items() if not name.endswith("_argmax")}
    assert_same(got, want, again=lambda: expect(call))


@given(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=2), min_size=2, max_size=4), st.data())
@settings(max_examples=4)
def test_merged_records_are_the_record_of_the_whole(lengths, data):
    cut = data.draw(st.integers(1, len(lengths) - 1))
    torch.manual_seed(data.draw(st.integers(0, 2**31)))
    model = FAMILIES[data.draw(st.sampled_from(["bert", "llama", "t5"]))].build()
    rows = [(d, torch.randint(5, VOCAB, (1, n))) for d, chunks in enumerate(lengths) for n in chunks]
    documents = [Document(name=f"d{i}", digest="", tokens=sum(chunks)) for i, chunks in enumerate(lengths)]

    def record(start, stop):
        inputs = [(d, {"input_ids": row, "decoder_input_ids": row}) for d, row in rows if start <= d < stop]
        if not hasattr(model, "decoder"):
            inputs = [(d, {"input_ids": given["input_ids"]}) for d, given in inputs]
        batches = [Batch(inputs=given, document=(d - start,)) for d, given in inputs]
        return observe(model, batches, documents=documents[start:stop])

    whole = record(0, len(lengths))
    assert record(0, cut).merge(record(cut, len(lengths))) == whole
    assert whole.units
    for name, sums in whole.sums.items():
        assert np.isfinite(sums).all(), name
