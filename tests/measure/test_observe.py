"""Runs over documents: sums, merging, interruptions, notes, what is refused."""

import functools

import numpy as np
import pytest
import torch
import transformers

from hooks.families import FAMILIES, ids
from multihead.corpus import TokenClasses
from multihead.error import MultiheadError
from multihead.hooks import watching
from multihead.measure import DEFAULT, Batch, Contribution, Interrupted, OfWhole, Run, observe
from multihead.pattern import causal, distance, pairs
from multihead.record import Document, Note, Quantity


def documents(*names):
    return [Document(name=name, digest=name, tokens=7) for name in names]


def batch(*rows, length=7):
    return Batch(inputs={"input_ids": ids(len(rows), length)}, document=rows)


def batch_of(row, document):
    return Batch(inputs={"input_ids": row}, document=(document,))


def shifted(batches, by):
    return [Batch(inputs=b.inputs, document=tuple(i + by for i in b.document)) for b in batches]


@pytest.fixture
def bert():
    return FAMILIES["bert"].build()


@pytest.fixture
def gpt2():
    return FAMILIES["gpt2"].build()


def test_merged_records_are_the_record_of_the_whole_bit_for_bit(gpt2):
    first, second = [batch(0, 1), batch(1, length=5)], [batch(0, length=9), batch(0, 1, length=4)]
    one = observe(gpt2, first, documents=documents("a", "b"), name="m")
    two = observe(gpt2, second, documents=documents("c", "d"), name="m")
    whole = observe(gpt2, [*first, *shifted(second, 2)], documents=documents("a", "b", "c", "d"), name="m")
    assert one.merge(two) == whole
    assert whole.notes, "a causal model has rows that see one key"


def test_rows_of_a_document_add_up_in_any_batches(bert):
    rows = [ids(1, 7) for _ in range(3)]
    together = [Batch(inputs={"input_ids": torch.cat(rows)}, document=(0, 1, 0))]
    apart = [batch_of(row, d) for row, d in zip(rows, (0, 1, 0), strict=True)]
    each = observe(bert, [batch_of(row, d) for d, row in enumerate(rows)], documents=documents("a", "b", "c"))
    for plan in (together, apart):
        record = observe(bert, plan, documents=documents("a", "b"))
        for name in (q.name for q in record.quantities if q.fold == "mean"):
            for got, want in ((record.sums, each.sums), (record.counts, each.counts)):
                expected = np.stack([want[name][0] + want[name][2], want[name][1]])
                np.testing.assert_allclose(got[name], expected, rtol=1e-5, atol=1e-5, err_msg=name)


def test_the_largest_score_is_the_largest_of_all_rows_of_a_document(bert):
    rows = [ids(1, 7) for _ in range(3)]
    alone = [
        observe(bert, [Batch(inputs={"input_ids": row}, document=(0,))], documents=documents("a")).value("logit_max")
        for row in rows
    ]
    plan = [Batch(inputs={"input_ids": row}, document=(0,)) for row in rows]
    together = observe(bert, plan, documents=documents("a"))
    np.testing.assert_array_equal(together.value("logit_max"), np.max(alone, axis=0))


def test_documents_are_told_when_their_last_batch_is_done(bert):
    told = []
    plan = [batch(1), batch(0, 1), batch(2)]
    observe(bert, plan, documents=documents("a", "b", "c"), run=Run(on_document=told.append))
    assert told == [0, 1, 2]


def test_ctrl_c_keeps_the_documents_that_were_finished(bert):
    plan = [batch(0), batch(1), batch(2), batch(1)]
    whole = observe(bert, plan, documents=documents("a", "b", "c"), name="m")
    alone = observe(bert, plan[:1], documents=documents("a"), name="m")

    def stop(index):
        if index == 2:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted, match="interrupted after 2 documents") as stopped:
        observe(bert, plan, documents=documents("a", "b", "c"), name="m", run=Run(on_document=stop))
    kept = stopped.value.statistics
    assert [d.name for d in kept.documents] == ["a", "c"]
    for name, sums in kept.sums.items():
        np.testing.assert_array_equal(sums, whole.sums[name][[0, 2]])
        np.testing.assert_array_equal(sums[:1], alone.sums[name])
    assert isinstance(stopped.value, KeyboardInterrupt)


def test_ctrl_c_within_the_first_document_keeps_nothing(bert):
    def stop(*_):
        raise KeyboardInterrupt

    bert.encoder.layer[1].register_forward_pre_hook(stop)
    with pytest.raises(Interrupted) as stopped:
        observe(bert, [batch(0)], documents=documents("a"))
    assert stopped.value.statistics.documents == ()


def test_the_model_runs_in_eval_mode_and_keeps_its_flags(bert):
    bert.train()
    bert.encoder.layer[0].eval()
    before = [module.training for module in bert.modules()]
    seen = []
    bert.register_forward_pre_hook(lambda module, _: seen.append((module.training, torch.is_grad_enabled())))
    with pytest.raises(ZeroDivisionError):
        observe(bert, [batch(0)], documents=documents("a"), run=Run(on_document=lambda _: 1 / 0))
    assert seen == [(False, False)]
    assert [module.training for module in bert.modules()] == before


def test_targets_come_on_top_of_the_default_ones(gpt2):
    record = observe(gpt2, [batch(0)], documents=documents("a"), targets={"two_back": distance(2)})
    offsets = record.value("offsets")
    # Six of seven rows count, five of them have a token two before.
    np.testing.assert_allclose(record.value("two_back"), offsets[:, 18] * 6 / 5, rtol=1e-5)
    np.testing.assert_allclose(record.value("previous"), offsets[:, 17], rtol=1e-5)
    assert np.isnan(record.value("next")).all()
    either = observe(gpt2, [batch(0)], documents=documents("a"), targets={"either": distance(1) | distance(3)})
    np.testing.assert_allclose(
        either.sums["either"], either.sums["offsets"][..., 17] + either.sums["offsets"][..., 19], rtol=1e-5
    )
    assert (either.sums["either_argmax"] >= either.sums["previous_argmax"]).all()
    assert record["L1.H2"].self == pytest.approx(offsets[6, 16], rel=1e-5)


def test_a_target_may_differ_by_document(bert):
    plan = [batch(0, 1)]
    gold = [pairs([(3, 5), (4, 0)]), pairs([(1, 2)])]
    record = observe(bert, plan, documents=documents("a", "b"), targets={"gold": gold})
    assert record.counts["gold"][:, 0].tolist() == [2, 1]
    with torch.no_grad():
        twin = FAMILIES["bert"].build("eager")
        twin.load_state_dict(bert.state_dict())
        told = twin(**plan[0].inputs, output_attentions=True).attentions
    for layer in (0, 1):
        for head in range(4):
            a, b = told[layer][:, head]
            got = record.sums["gold"][:, layer * 4 + head]
            np.testing.assert_allclose(got, [float(a[3, 5] + a[4, 0]), float(b[1, 2])], rtol=1e-5)
            hits = record.sums["gold_argmax"][:, layer * 4 + head].tolist()
            assert hits == [float(a[3].argmax() == 5) + float(a[4].argmax() == 0), float(b[1].argmax() == 2)]


def test_targets_count_positions_from_the_first_real_token(bert):
    row = ids(1, 7)
    keep = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1, 1, 1]])
    left = {
        "input_ids": torch.cat([ids(1, 3), row], 1),
        "attention_mask": keep,
        "position_ids": (keep.cumsum(1) - 1).clamp(0),
    }
    target = {"pair": pairs([(2, 6)])}
    bare = observe(bert, [Batch(inputs={"input_ids": row}, document=(0,))], documents=documents("a"), targets=target)
    padded = observe(bert, [Batch(inputs=left, document=(0,))], documents=documents("a"), targets=target)
    for name in ("pair", "previous", "distance", "pooled_map", "received", "first_token"):
        np.testing.assert_allclose(padded.value(name), bare.value(name), rtol=1e-4, atol=1e-5, err_msg=name)


def test_notes_say_what_could_not_be_measured(gpt2):
    record = observe(gpt2, [batch(0), batch(1)], documents=documents("a", "b"))
    assert tuple(note for note in record.notes if "weights were measured" not in note.text) == (
        Note(about="", quantity="special_token", text="which tokens are special was not told"),
        Note(
            about="",
            quantity="rows_short",
            text="rows that see fewer than 2 keys count in no statistic of weights; rows_short is their share",
        ),
    )
    assert (record.sums["rows_short"] == 1).all()


def test_notes_say_which_heads_met_nan(bert):
    with torch.no_grad():
        bert.encoder.layer[1].attention.self.query.weight[8:16] = torch.nan
        bert.encoder.layer[1].attention.self.value.weight[16:24] = torch.inf
    record = observe(bert, [batch(0)], documents=documents("a"))
    told = [note for note in record.notes if note.quantity in ("rows_nonfinite", "output_norm")]
    assert told == [
        Note(
            about="L1.H1",
            quantity="rows_nonfinite",
            text="a: 7 of 7 rows have NaN or infinite scores and count in no statistic of weights",
        ),
        Note(
            about="L1.H2",
            quantity="output_norm",
            text="a: 7 of 7 rows have NaN or infinite outputs and count in no statistic of outputs",
        ),
    ]
    assert np.isnan(record["L1.H1"].entropy)
    assert np.isnan(record["L1.H2"].output_norm)
    assert np.isfinite([record["L1.H0"].entropy, record["L1.H2"].entropy, record["L1.H0"].output_norm]).all()


def test_notes_of_a_whole_model_are_one_sentence(bert):
    with torch.no_grad():
        bert.embeddings.word_embeddings.weight[:] = torch.nan
    record = observe(bert, [batch(0)], documents=documents("a"))
    assert [n.about for n in record.notes if n.quantity == "rows_nonfinite"] == [""]
    assert np.isnan(record.value("entropy")).all()


def test_one_token_gives_a_record_without_values(bert):
    record = observe(bert, [batch(0, length=1)], documents=documents("a"))
    assert np.isnan(record.value("entropy")).all()
    assert np.isfinite(record.value("output_norm")).all()


def test_a_changed_projection_is_seen(bert):
    plan = [batch(0)]
    before = observe(bert, plan, documents=documents("a")).value("output_norm")

    def double(index):
        with torch.no_grad():
            for layer in bert.encoder.layer:
                layer.attention.output.dense.weight.mul_(2)

    # Within one run too: the second document is measured with the weights it ran with.
    both = observe(bert, [*plan, *shifted(plan, 1)], documents=documents("a", "b"), run=Run(on_document=double))
    first_layer = both.per_document("output_norm")[:, :4]
    np.testing.assert_allclose(first_layer[0], before[:4], rtol=1e-6)
    np.testing.assert_allclose(first_layer[1], 2 * before[:4], rtol=1e-5)


@pytest.mark.parametrize(
    ("plan", "given", "told"),
    [
        (((0,),), ("a", "b"), "1 batches, 2 documents, no row of document 1"),
        (((0, 1),), ("a",), "1 batches, 1 documents, rows of document 1"),
    ],
)
def test_batches_that_do_not_fit_the_documents_are_refused(bert, plan, given, told):
    with pytest.raises(MultiheadError, match=f"batches with rows of every document\n  got: {told}\n"):
        observe(bert, [batch(*rows) for rows in plan], documents=documents(*given))


def test_rows_without_a_document_are_refused(bert):
    plan = [Batch(inputs={"inputs_embeds": torch.randn(3, 7, 32)}, document=(0, 0))]
    with pytest.raises(MultiheadError, match=r"2 documents for 3 rows in encoder\.layer\.0\.attention\.self"):
        observe(bert, plan, documents=documents("a"))


def test_a_list_of_patterns_of_another_length_is_refused(bert):
    with pytest.raises(MultiheadError, match="one for each of 1 as target 'gold'\n  got: 2 patterns"):
        observe(bert, [batch(0)], documents=documents("a"), targets={"gold": [causal(), causal()]})


@pytest.mark.parametrize("name", ["Two words", "_x", ""])
def test_names_that_are_no_identifiers_are_refused(bert, name):
    with pytest.raises(MultiheadError, match=f"a letter first\n  got: {name!r}"):
        observe(bert, [batch(0)], documents=documents("a"), targets={name: causal()})


@pytest.mark.parametrize("name", ["entropy", "previous_argmax"])
def test_names_that_are_taken_are_refused(bert, name):
    with pytest.raises(MultiheadError, match=f"got: '{name}' twice"):
        observe(bert, [batch(0)], documents=documents("a"), targets={name: causal()})


def test_a_model_without_attention_is_refused():
    with pytest.raises(MultiheadError, match="attention"):
        observe(
            torch.nn.Linear(2, 2), [Batch(inputs={"input": torch.randn(1, 2)}, document=(0,))], documents=documents("a")
        )


def test_ids_without_a_class_are_refused(bert):
    classes = TokenClasses(
        names=("a",), table=torch.zeros(4, dtype=torch.long), special=torch.zeros(4).bool(), marks=""
    )
    with pytest.raises(MultiheadError, match="token ids from 0 to 3"):
        observe(bert, [batch(0)], documents=documents("a"), classes=classes)


def test_a_chosen_list_of_statistics_is_all_that_is_measured(bert):
    record = observe(bert, [batch(0)], documents=documents("a"), statistics=DEFAULT[:1])
    assert [q.name for q in record.quantities] == [
        "entropy",
        "entropy_content",
        *(
            f"{name}{end}"
            for name in ("previous", "next", "self", "previous2")
            for end in ("", "_argmax", "_even", "_content")
        ),
    ]


def test_the_targets_that_are_always_measured_keep_their_names(bert):
    batch = Batch(inputs={"input_ids": torch.randint(3, 20, (1, 6))}, document=(0,))
    documents = [Document(name="a", digest="", tokens=6)]
    with pytest.raises(MultiheadError, match="besides previous, next, self, previous2"):
        observe(bert, [batch], documents=documents, targets={"previous": distance(2)})


def test_blocks_of_few_documents_are_units(gpt2):
    rows = [ids(1, 600), ids(1, 40), ids(1, 520)]
    gpt2 = wide_gpt2()
    plan = [batch_of(row, d) for row, d in zip(rows, (1, 0, 1), strict=True)]
    record = observe(gpt2, plan, documents=documents("a", "b"))
    assert record.units == (0, 1, 1, 1)
    assert record.interval_units == "4 blocks of 512 tokens of 2 documents"
    assert set(record.unit_sums) == {q.name for q in record.scalars()}
    for quantity in record.scalars():
        name = quantity.name
        sums, counts = record.unit_sums[name], record.unit_counts[name]
        if quantity.fold == "max":
            np.testing.assert_allclose(sums[1:].max(0), record.sums[name][1], rtol=1e-6)
        else:
            np.testing.assert_allclose(sums[1:].sum(0), record.sums[name][1], rtol=1e-5, atol=1e-6, err_msg=name)
        np.testing.assert_allclose(counts[1:].sum(0), record.counts[name][1], rtol=1e-6)
    # 512 rows, 88 rows, 520 rows in one, of which the first of a chunk sees nothing to choose from.
    assert record.unit_counts["entropy"][:, 0].tolist() == [39, 511, 88, 519]
    eight = observe(gpt2, [batch_of(ids(1, 5), d) for d in range(8)], documents=documents(*"abcdefgh"))
    assert (eight.units, dict(eight.unit_sums)) == ((), {})
    assert eight.interval_units == "8 documents"


def wide_gpt2():
    """One that knows more positions."""
    model = FAMILIES["gpt2"].model(transformers.GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=90))
    return model.eval()


def test_layers_that_are_cut_differently_have_units_side_by_side():
    family = FAMILIES["bart"]
    model = family.build()
    inputs = {"input_ids": ids(1, 9), "decoder_input_ids": ids(1, 4)}
    record = observe(model, [Batch(inputs=inputs, document=(0,))] * 2, documents=documents("a"))
    assert record.units == (0, 0)
    assert np.isfinite(record.interval("entropy")).all()


def test_pairs_of_heads_are_as_wide_as_the_widest_layer():
    cosine = Quantity(name="alike", title="", unit="share", formula="", shape=(0,), fold="cosine", pairs=True)

    def take(whole):
        o = whole.scene.call.output.double()
        found = torch.einsum("bihd,bigd->bhg", o, o)
        return (Contribution(found, torch.ones_like(found)),)

    model = FAMILIES["bart"].build()  # four heads in the encoder, two in the decoder
    inputs = {"input_ids": ids(1, 9), "decoder_input_ids": ids(1, 4)}
    calls = []
    with torch.no_grad(), watching(model, calls.append):
        model(**inputs)
    statistics = (OfWhole(quantities=(cosine,), take=take, outputs=True),)
    plan = [Batch(inputs=inputs, document=(d,)) for d in (0, 1)]
    record = observe(model, plan, documents=documents("a", "b"), statistics=statistics)
    assert record.quantity("alike").shape == (4,)
    value = record.value("alike")
    for i, address in enumerate(record.heads):
        call = calls[
            {"encoder": 0, "decoder": 2, "cross": 3}[address.stack] + address.layer * (1 + (address.stack != "encoder"))
        ]
        o = call.output.double()[0].transpose(0, 1).flatten(1)
        want = torch.nn.functional.cosine_similarity(o[address.head][None], o, dim=1)
        np.testing.assert_allclose(value[i, : len(o)], want, rtol=1e-5)
        assert np.isnan(value[i, len(o) :]).all()
    np.testing.assert_allclose(record.per_document("alike")[0], value, rtol=1e-6)
    low, high = record.interval("alike")
    np.testing.assert_allclose(low[~np.isnan(value)], value[~np.isnan(value)], rtol=1e-6)


@pytest.fixture(scope="module")
def stretch():
    """Records of some of nine documents by a model of one layer, each measured once."""
    model, rows, names = wide_gpt2(), [ids(1, 4 + d) for d in range(9)], documents(*"abcdefghi")

    @functools.cache
    def stretch(start, stop):
        plan = [batch_of(rows[d], d - start) for d in range(start, stop)]
        return observe(model, plan, documents=names[start:stop])

    return stretch


@pytest.mark.parametrize(("cut", "count"), [(1, 2), (4, 5), (1, 9), (4, 9), (8, 9)])
def test_merging_over_the_border_of_few_documents(stretch, cut, count):
    merged, whole = stretch(0, cut).merge(stretch(cut, count)), stretch(0, count)
    assert bool(whole.units) == (count < 8)
    assert merged == whole
    for quantity in whole.quantities:
        assert np.array_equal(merged.interval(quantity.name), whole.interval(quantity.name), equal_nan=True)
