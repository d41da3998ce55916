"""Heads of real models whose job is known from elsewhere."""

import re

import numpy as np
import pytest
import torch

from multihead.corpus import PUBLISHED, align, repeated_tokens
from multihead.measure import Batch, observe
from multihead.pattern import pairs
from multihead.record import Document
from multihead.workflow import open_model


def accuracy_of_heads(gold, weights_of_call):
    """Share of product atoms whose best reactant atom of the same element is right, read in both directions."""
    hits = {}
    for reaction, calls in zip(gold, weights_of_call, strict=True):
        answers = {}
        for product, reactant in reaction.pairs:
            answers.setdefault(product, set()).add(reactant)
        arrow = reaction.tokens.index(">>")
        element = [re.sub(r"H\d*|[^A-Za-z]", "", t.strip("[]")).upper() for t in reaction.tokens]
        atoms = [i for i, t in enumerate(reaction.tokens[1:arrow], 1) if re.match(r"\[?[A-Za-z]", t)]
        for layer, weights in enumerate(calls):
            for head, w in enumerate(weights):
                for product, right in answers.items():
                    same = torch.tensor([element[i] == element[product] for i in atoms])
                    best = atoms[int(((w[product, atoms] + w[atoms, product]) * same).argmax())]
                    hits[layer, head] = hits.get((layer, head), 0) + (best in right)
    return {place: count / sum(len(g.queries) for g in gold) for place, count in hits.items()}


def test_the_alignment_head_of_rxnmapper_leads_by_twenty_points():
    """Product atom to reactant atom, on reactions its authors published: head 5, read at layer 10 (arXiv:2012.06051).

    ALBERT's layers share their weights: L3.H5 to L11.H5 are one head applied again and again, and align alike. The
    lead is over every other head.
    """
    opened = open_model("rxnmapper")
    gold = [align(reaction, opened.tokenizer) for reaction in PUBLISHED]
    batches = [Batch(inputs={"input_ids": torch.tensor([g.ids])}, document=(i,)) for i, g in enumerate(gold)]
    documents = [
        Document(name=r.name, digest="0" * 16, tokens=len(g.ids)) for r, g in zip(PUBLISHED, gold, strict=True)
    ]
    seen = observe(opened.model, batches, documents=documents, targets={"atom": [pairs(g.pairs) for g in gold]})
    assert seen.counts["atom_argmax"].sum(axis=0).tolist() == [sum(len(g.queries) for g in gold)] * 96
    raw = {(a.layer, a.head): v for a, v in zip(seen.heads, seen.value("atom_argmax"), strict=True)}

    opened.model.set_attn_implementation("eager")
    with torch.no_grad():
        calls = [opened.model(**b.inputs, output_attentions=True).attentions for b in batches]
    as_published = accuracy_of_heads(gold, [[weights[0] for weights in call] for call in calls])
    for accuracy in (raw, as_published):
        others = max(value for (_, head), value in accuracy.items() if head != 5)
        assert accuracy[10, 5] >= others + 0.20
    assert as_published[10, 5] == max(as_published.values()) == 1.0


@pytest.mark.slow
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
