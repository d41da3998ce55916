"""Statistics of whole models equal those of the weights their eager twins return."""

import numpy as np
import pytest
import torch

from hooks.families import FAMILIES, VOCAB, twin
from measure.calls import assert_same
from measure.oracle import Facts, statistics_of, weights_of
from measure.oracle_outputs import outputs_of
from multihead.corpus import TokenClasses
from multihead.hooks import addresses, watching
from multihead.measure import Batch, observe
from multihead.record import Document, HeadAddress

EAGER = {"encoder": "encoder_attentions", "decoder": "decoder_attentions", "cross": "cross_attentions"}
DOCUMENTS = [Document(name="one", digest="", tokens=9), Document(name="two", digest="", tokens=9)]
CLASSES = TokenClasses(
    names=("a", "b", "c"), table=torch.arange(VOCAB) % 3, special=torch.arange(VOCAB) % 7 == 0, marks=""
)


def eager_weights(model, family, inputs):
    """Weights by stack and layer, from a twin of the model under eager attention."""
    with torch.no_grad():
        told = twin(family, model)(**inputs, output_attentions=True)
    stacks = {name: told[key] for name, key in EAGER.items() if told.get(key)} or {"": told["attentions"]}
    return {(stack, layer): weights.double() for stack, found in stacks.items() for layer, weights in enumerate(found)}


def sides(stack, inputs, q_len, kv_len):
    """Ids and attention mask of the queries and of the keys as the inputs tell them."""
    text = (inputs.get("input_ids"), inputs.get("attention_mask"))
    other = (inputs.get("decoder_input_ids"), None)
    queries, keys = {"": (text, text), "encoder": (text, text), "decoder": (other, other), "cross": (other, text)}[
        stack
    ]
    return [
        (ids, torch.ones(2, length, dtype=torch.bool) if keep is None else keep.bool())
        for (ids, keep), length in ((queries, q_len), (keys, kv_len))
    ]


def facts(stack, inputs, weights, b, *, sink):
    (q_ids, q_keep), (k_ids, k_keep) = sides(stack, inputs, *weights.shape[-2:])
    return Facts(
        q_keep=q_keep[b].numpy(),
        k_keep=k_keep[b].numpy(),
        q_ids=None if q_ids is None else q_ids[b].numpy(),
        k_ids=None if k_ids is None else k_ids[b].numpy(),
        special=frozenset(torch.where(CLASSES.special)[0].tolist()),
        class_of=dict(enumerate(CLASSES.table.tolist())),
        classes=3,
        cross=stack == "cross",
        sink=sink,
    )


def watched_calls(model, inputs):
    calls = []
    with torch.no_grad(), watching(model, calls.append) as watched:
        model(**inputs)
    places = addresses(watched.sites)
    return {places[call.site]: call for call in calls}


def rows_level(weights, visible, of_row):
    """Rows of each head whose two largest weights are equal but for rounding: one token twice, as far away.

    Layers that tell places apart by a table of distances alone (T5) have such rows, and which of the two is the largest
    is then the kernel's to say.
    """
    seen = torch.from_numpy(visible & of_row.k_keep[None])
    first, second = weights.nan_to_num().masked_fill(~seen, 0.0).topk(2, dim=-1).values.unbind(-1)
    real = torch.from_numpy(of_row.q_keep) & (seen.sum(-1) >= 2)
    return (real & (first - second <= 1e-5 * first)).sum(-1).numpy()


def one_kernel_a_padding():
    """Every family under every kernel and with every padding, but not all of both: kernels take turns.

    Statistics are worked out beside the kernel; that no kernel sees a change, with any padding, is tested in `hooks`.
    """
    for turn, family in enumerate(FAMILIES.values()):
        for at, padding in enumerate(family.paddings):
            first = (turn + at) % len(family.kernels)
            kernels = family.kernels if len(family.paddings) == 1 else family.kernels[first : first + 1]
            yield from ((family.name, kernel, padding) for kernel in kernels)


@pytest.mark.parametrize(("name", "kernel", "padding"), tuple(one_kernel_a_padding()))
def test_statistics_equal_those_of_eager_weights(name, kernel, padding):
    family = FAMILIES[name]
    model, inputs = family.build(kernel), family.inputs(padding)
    record = observe(model, [Batch(inputs=inputs, document=(0, 1))], documents=DOCUMENTS, classes=CLASSES)
    told, calls = eager_weights(model, family, inputs), watched_calls(model, inputs)
    assert {(a.stack, a.layer) for a in record.heads} == set(told)
    for (stack, layer), weights in told.items():
        call = calls[stack, layer]
        columns = [i for i, a in enumerate(record.heads) if (a.stack, a.layer) == (stack, layer)]
        assert [record.heads[i].head for i in columns] == list(range(weights.shape[1]))
        scores = weights_of(call.problem)[2]
        sink = call.problem.normaliser.sinks is not None
        for b in (0, 1):
            of_row = facts(stack, inputs, weights, b, sink=sink)
            visible = (scores[b] > -1e30).expand_as(weights[b]).numpy()
            got = {
                q.name: tuple(a[q.name][b, columns] for a in (record.sums, record.counts)) for q in record.quantities
            }

            def defined(weights=weights[b], visible=visible, scores=scores[b], of_row=of_row, sink=sink):
                heads = [
                    statistics_of(
                        weights[h].nan_to_num(),
                        visible[h],
                        of_row,
                        sinks=1 - weights[h].sum(-1).numpy() if sink else None,
                        scores=scores[h].numpy(),
                    )
                    for h in range(len(weights))
                ]
                return {
                    n: tuple(np.stack([np.asarray(h[n][i], dtype=float) for h in heads]) for i in (0, 1))
                    for n in heads[0]
                }

            want = defined()
            want |= written(call, b, visible[0] & of_row.k_keep, of_row.q_keep)
            names = [n for n in want if known(n, of_row)]
            assert_same(got, want, names=names, level=rows_level(weights[b], visible, of_row), again=defined)
            for lost in set(want) - set(names):
                assert not got[lost][1].any(), f"{lost} cannot be known here"


def written(call, b, seen, q_keep):
    """Output statistics from the outputs and projection the model used."""
    rows = [i for i in np.flatnonzero(q_keep) if seen[i].any()]
    residual = None if call.residual is None else call.residual[b].double().numpy()
    return outputs_of(call.output[b].double().numpy(), call.projection.weight.detach().double().numpy(), residual, rows)


def known(name, of_row):
    if name.startswith(("special_token", "token_class")):
        return of_row.k_ids is not None
    return not name.startswith(("same_token", "induction")) or (of_row.k_ids is not None and of_row.q_ids is not None)


def test_grouped_heads_name_the_key_and_value_head_they_share():
    family = FAMILIES["llama"]
    record = observe(family.build(), [Batch(inputs=family.inputs(), document=(0, 1))], documents=DOCUMENTS)
    assert record.kv_heads == (0, 0, 1, 1) * 2


def test_encoder_decoder_and_cross_attention_stand_apart():
    family = FAMILIES["whisper"]
    record = observe(family.build(), [Batch(inputs=family.inputs(), document=(0, 1))], documents=DOCUMENTS)
    assert [str(a) for a in record.heads[::2]] == [
        *(f"encoder.L{layer}.H{head}" for layer in (0, 1) for head in (0, 2)),
        *(f"decoder.L{layer}.H0" for layer in (0, 1)),
        *(f"cross.L{layer}.H0" for layer in (0, 1)),
    ]
    assert HeadAddress("cross", 1, 1) in record.heads
    about = {note.about for note in record.notes if note.quantity == "induction"}
    assert about == {"encoder", "cross"}
