"""Heads of real models whose job is known from elsewhere."""

import numpy as np
import pytest
import torch

from multihead.corpus import PUBLISHED, align, repeated_tokens
from multihead.measure import Batch, observe
from multihead.pattern import pairs
from multihead.record import Document
from multihead.workflow import open_model


def one_document(ids, name="stimulus"):
    batch = Batch(inputs={"input_ids": torch.tensor([ids])}, document=(0,))
    return [batch], [Document(name=name, digest="0" * 16, tokens=len(ids))]


@pytest.mark.xdist_group("rxnmapper")
def test_the_alignment_head_of_rxnmapper_leads_by_twenty_points():
    """Product atom to reactant atom, on the reactions its authors published: head 5 of layer 10 (arXiv:2012.06051)."""
    opened = open_model("rxnmapper")
    hits = rows = 0
    for reaction in PUBLISHED:
        gold = align(reaction, opened.tokenizer)
        batches, documents = one_document(gold.ids, reaction.name)
        seen = observe(opened.model, batches, documents=documents, targets={"atom": pairs(gold.pairs)})
        hits = hits + seen.sums["atom_argmax"].sum(axis=0)
        rows = rows + seen.counts["atom_argmax"].sum(axis=0)
        assert set(seen.counts["atom_argmax"][0]) == {len(gold.queries)}
    accuracy = dict(zip(map(str, seen.heads), hits / rows, strict=True))
    ranked = sorted(accuracy, key=accuracy.get, reverse=True)
    assert ranked[0] == "L10.H5"
    assert accuracy[ranked[0]] - accuracy[ranked[1]] >= 0.20


@pytest.mark.xdist_group("smollm2")
def test_smollm2_shows_its_heads_on_repeated_random_tokens():
    opened = open_model("smollm2")
    runs = repeated_tokens(opened.tokenizer, runs=4)
    batches = [Batch(inputs={"input_ids": torch.tensor([run.ids])}, document=(i,)) for i, run in enumerate(runs)]
    documents = [Document(name=run.name, digest=run.digest, tokens=len(run.ids)) for run in runs]
    seen = observe(opened.model, batches, documents=documents, name="smollm2")
    assert len(seen) == 270
    assert seen["L18.H6"].induction > 0.7
    assert (seen.value("induction") > 0.5).sum() >= 5
    assert (seen.value("previous") > 0.7).sum() >= 1
    assert (seen.value("first_token") > 0.5).sum() >= 50
    # Different heads: the strongest of one kind is not the strongest of another.
    assert len({int(np.nanargmax(seen.value(n))) for n in ("induction", "previous", "first_token")}) == 3
