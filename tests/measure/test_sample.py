"""Some rows in place of all: which are drawn, what they estimate, and how often the intervals hold the truth."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from hooks.families import FAMILIES
from measure.calls import classes, in_double, make_call, take
from multihead.attend import Softmax
from multihead.corpus import default_texts, token_classes
from multihead.error import MultiheadError
from multihead.hooks import watching
from multihead.measure import DEFAULT, Batch, Run, build_scene, observe, sample
from multihead.measure.recorder import Recorder
from multihead.measure.sample import Sampler, ceiling, is_worth_it, sample_block
from multihead.pattern import band, causal, padding, sliding_window
from multihead.position import ALiBi
from multihead.record import GROUPS, Document
from multihead.workflow.opening import open_model

OUTPUTS = ("output_norm", "output_ratio", "output_share")


def record_of(calls, sampler=None, *, statistics=DEFAULT, vocabulary=None):
    recorder = Recorder(statistics, classes=vocabulary, sampler=sampler)
    for call in calls:
        recorder.take(call, tuple(range(call.problem.batch)), key="k")
    recorder.ledger.post()
    documents = [Document(name=f"d{i}", digest="", tokens=9) for i in range(calls[0].problem.batch)]
    return recorder.record("m", documents, range(len(documents)))


def test_every_group_has_a_row_of_every_stratum():
    for length, rows in ((65, 64), (1000, 100), (4096, 512), (129, 128)):
        draw = Sampler(rows=rows).draw(length, "key")
        drawn, strata = draw.groups.numpy(), draw.groups.shape[1]
        assert drawn.shape[0] == GROUPS
        assert draw.first >= 3 * draw.last >= 12
        assert 0 <= drawn.size + draw.first + draw.last - rows // GROUPS * GROUPS < strata
        assert (length - draw.first - draw.last) % strata == 0, "all strata are of one size"
        assert len(np.unique(drawn)) == drawn.size, "no row twice"
        assert drawn.min() >= draw.first
        assert drawn.max() < length - draw.last
        # Strata are neighbours: all rows drawn from one lie before all of the next.
        assert (drawn.max(0)[:-1] < drawn.min(0)[1:]).all()
        wide = drawn.max(0) - drawn.min(0) + 1
        assert wide.max() <= -(-(length - draw.first - draw.last) // strata)
        every, cuts = draw.rows()
        ends = [*range(draw.first), *range(length - draw.last, length)]
        assert every[: len(ends)].tolist() == ends
        assert [every[cut].tolist() for cut in cuts[2:]] == drawn.tolist()


def test_the_key_and_the_seed_say_which_rows():
    draw = Sampler(rows=64).draw
    assert torch.equal(draw(500, "a").groups, draw(500, "a").groups)
    assert not torch.equal(draw(500, "a").groups, draw(500, "b").groups)
    assert not torch.equal(draw(500, "a").groups, Sampler(rows=64, seed=1).draw(500, "a").groups)


def test_every_row_between_the_ends_has_the_same_chance():
    length, times = 97, 1500
    hits = np.zeros(length)
    for seed in range(times):
        hits[Sampler(rows=64, seed=seed).draw(length, "").groups.numpy().ravel()] += 1
    assert not hits[:12].any()
    assert not hits[-4:].any()
    hits = hits[12:-4]
    share = 48 / len(hits)
    error = np.sqrt(times * share * (1 - share))
    # Rows near the ends of strata have a little more or less, as chance makes strata longer by one.
    assert (abs(hits - times * share) < 5 * error + 0.03 * times).all()


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"mask": causal(), "bias": None},
        {"mask": band(40, 9), "normaliser": Softmax(off_by_one=True)},
        {"mask": torch.rand(2, 1, 150, 150) > 0.5, "bias": torch.randn(1, 4, 150, 150)},
        {"mask": causal(), "bias": ALiBi(torch.rand(4))},
        {"kv_heads": 2, "softcap": 5.0, "q_offset": 30, "kv_len": 180, "mask": causal()},
        {"cross": True, "kv_len": 70},
    ],
    ids=lambda given: " ".join(given) or "plain",
)
def test_the_estimate_is_what_the_drawn_rows_bring(given):
    call = in_double(make_call(q_len=150, **given))
    draw = Sampler(rows=64).draw(150, "k")
    vocabulary = classes()
    scene = build_scene(call, (0, 1), vocabulary=vocabulary)
    block = sample_block(scene, DEFAULT, draw)

    def alone(rows):
        keep = torch.zeros(2, 150, dtype=torch.bool)
        keep[:, rows] = True
        return take(dataclasses.replace(call, queries=dataclasses.replace(call.queries, keep=keep)), statistics=DEFAULT)

    # Marking the other rows as padding moves the first token of queries in cross-attention: positions are not compared.
    drawn, ends = alone(draw.groups.flatten()), alone([*range(draw.first), *range(150 - draw.last, 150)])
    relative = ("pooled_map", "entropy_by_position", "distance", "distance_absolute", "offsets", "distance_histogram")
    relative += ("span90", "previous", "next", "self", "sink_by_position")
    scale = (150 - draw.first - draw.last) / 48
    for name, part in drawn.items():
        if isinstance(part, str) or name.startswith(("rows_", "output_", "received", "effective")) or name == "cka":
            continue
        if call.site.cross and name.startswith(relative):
            continue
        known, got = ends[name], block.taken[name]
        held = [np.where(one[1] > 0, one[0], -np.inf) for one in (known, part)]
        largest = np.where(known[1] + part[1] > 0, np.maximum(*held), 0.0)
        total = largest if name == "logit_max" else known[0] + scale * part[0]
        np.testing.assert_allclose(got.sum, total, rtol=1e-4, atol=1e-4, err_msg=name)
        np.testing.assert_allclose(got.count, known[1] + scale * part[1], rtol=1e-4, atol=1e-4, err_msg=name)


def test_statistics_of_outputs_are_those_of_every_row():
    call = make_call(q_len=150, mask=causal())
    whole, some = record_of([call]), record_of([call], Sampler(rows=64))
    for quantity in whole.quantities:
        if quantity.name in OUTPUTS:
            np.testing.assert_allclose(some.sums[quantity.name], whole.sums[quantity.name], rtol=1e-6)
            assert quantity.name not in some.sampling
            assert np.array_equal(some.sampling_interval(quantity.name), [some.value(quantity.name)] * 2)


def test_weight_received_is_weight_of_all_rows_on_as_many_keys():
    call = make_call(batch=1, q_len=700, heads=2)
    whole, some = record_of([call]), record_of([call], Sampler(rows=320))
    assert np.array_equal(whole.counts["received"], some.counts["received"])
    assert whole.counts["received"].sum() == 2 * 700, "keys of two blocks are counted once"
    np.testing.assert_allclose(some.value("received"), whole.value("received"), rtol=0.5)
    assert np.isnan(some.value("received_top")).all()
    assert [n.text for n in some.notes if n.quantity == "received_top"] == [
        "only some rows were measured, and these do not tell it"
    ]


@pytest.mark.slow
def test_estimates_are_right_on_the_mean_and_their_variances_too():
    call = make_call(batch=1, heads=3, q_len=200, mask=causal())
    chosen = tuple(s for s in DEFAULT if s.quantities[0].name in ("entropy", "max_weight", "same_token"))
    truth = record_of([call], statistics=chosen)
    runs = [record_of([call], Sampler(rows=80, seed=s), statistics=chosen) for s in range(150)]
    for name in ("entropy", "max_weight", "same_token"):
        sums = np.stack([r.sums[name][0] for r in runs])
        counts = np.stack([r.counts[name][0] for r in runs])
        off, off_count = sums - truth.sums[name][0], counts - truth.counts[name][0]
        for got, told in (
            ((off * off).mean(0), "sums"),
            ((off_count * off_count).mean(0), "counts"),
            ((off * off_count).mean(0), "both"),
        ):
            want = np.mean([getattr(r.sampling[name], told)[0] for r in runs], axis=0)
            large = np.sqrt(np.mean(off**2, 0) * np.mean(off_count**2, 0)) if told == "both" else want
            assert (abs(got - want) <= 0.6 * large + 1e-9).all(), (name, told)
        spread = sums.std(0) / np.sqrt(len(runs))
        assert (abs(off.mean(0)) < 5 * spread + 0.01 * truth.sums[name][0]).all(), name


def least_of(draws, chance):
    """The share that so many draws stay below with less than this chance, where every one hits with 0.95."""
    below = np.cumsum([math.comb(draws, k) * 0.95**k * 0.05 ** (draws - k) for k in range(draws + 1)])
    return int(np.searchsorted(below, chance)) / draws


def hits_of(truth, runs):
    """For every number a head that was sampled and is not known exactly: hits (draws, heads)."""
    hits = {}
    for quantity in truth.scalars():
        name, value = quantity.name, truth.value(quantity.name)
        known = np.isfinite(value)
        if name not in runs[0].sampling or quantity.fold == "max" or not known.any():
            continue
        slack = 1e-5 * abs(value) + 1e-8
        ends = [run.sampling_interval(name) for run in runs]
        hits[name] = np.stack([((low - slack <= value) & (value <= high + slack))[known] for low, high in ends])
    return hits


# Statistics of outputs are exact.
SCALARS = tuple(s for s in DEFAULT if any(q.shape == () for q in s.quantities) and not getattr(s, "outputs", False))
QUICK = tuple(s for s in SCALARS if s.quantities[0].shape == ())

# Numbers all of whose rows are much alike, so that theory holds well.
TAME = ("entropy", "entropy_share", "entropy_content", "distance", "distance_absolute", "participation")


def assert_covered(truth, runs, *, chance, tame=TAME):
    """Pooled over heads: no statistic is held too seldom, and those of tame rows not more often than was said."""
    hits = hits_of(truth, runs)
    assert len(hits) > 25
    least = least_of(len(runs), chance)
    few = {name: round(float(hit.mean()), 3) for name, hit in hits.items() if hit.mean() < least}
    assert not few, f"less than {least:.3f}: {few}"
    shares = {name: float(hits[name].mean()) for name in tame}
    assert np.mean(list(shares.values())) <= 0.99, f"too wide: {shares}"


@pytest.mark.parametrize(
    ("length", "draws", "chosen"), [(200, 20, QUICK), pytest.param(480, 200, SCALARS, marks=pytest.mark.slow)]
)
@pytest.mark.timeout(1800)
def test_intervals_hold_the_exact_values_and_not_much_more(length, draws, chosen):
    calls = [make_call(batch=1, heads=12, q_len=length, mask=causal())]
    truth = record_of(calls, statistics=chosen)
    runs = [record_of(calls, Sampler(rows=96, seed=s), statistics=chosen) for s in range(draws)]
    assert_covered(truth, runs, chance=1e-5)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("name", "layers", "rows"), [("minilm", (0, 2, 5), 128), ("smollm2", (0, 5, 14, 29), 256)])
def test_intervals_hold_the_exact_values_of_real_models(name, layers, rows):
    opened = open_model(name)
    text = "\n".join(text.content for text in opened.texts or default_texts())
    length = 512 if name == "minilm" else 1536
    ids = torch.tensor(opened.tokenizer(text[: 8 * length])["input_ids"][:length])[None]
    calls = []
    with torch.no_grad(), watching(opened.model.eval(), calls.append):
        opened.model(input_ids=ids)
    calls = [calls[layer] for layer in layers]
    vocabulary = token_classes(opened.tokenizer, size=opened.model.get_input_embeddings().weight.shape[0])
    truth = record_of(calls, statistics=SCALARS, vocabulary=vocabulary)
    runs = [record_of(calls, Sampler(rows=rows, seed=s), statistics=SCALARS, vocabulary=vocabulary) for s in range(200)]
    # The same rows of the same text every time: nothing but the method decides.
    assert_covered(truth, runs, chance=0.025, tame=(*TAME, "span90", "first_token", "sink"))


def test_arrays_have_intervals_where_enough_rows_were_drawn():
    calls = [make_call(batch=1, heads=3, q_len=600, mask=causal())]
    chosen = tuple(s for s in DEFAULT if s.quantities[0].name == "entropy_by_position")
    truth = record_of(calls, statistics=chosen).value("entropy_by_position")
    hits = []
    for seed in range(10):
        low, high = record_of(calls, Sampler(rows=320, seed=seed), statistics=chosen).sampling_interval(
            "entropy_by_position"
        )
        finite = np.isfinite(low) & np.isfinite(high)
        # Eight rows of a bin are drawn; fewer only where nearly all of it is measured anyhow.
        assert finite.mean() > 0.9
        hits.append(((low - 1e-4 <= truth) & (truth <= high + 1e-4))[finite])
    assert 0.85 < np.mean(np.concatenate(hits)) < 0.995


def test_the_largest_score_has_a_bound_that_holds():
    keep = torch.ones(2, 150, dtype=torch.bool)
    keep[1, 90:] = False
    biased = {"bias": torch.randn(1, 4, 150, 150) * 3}
    for given in ({}, {"softcap": 2.0}, biased, {"kv_heads": 2, "scale": -0.7}, {"mask": padding(keep)}):
        call = make_call(q_len=150, **given)
        truth = record_of([call]).value("logit_max")
        low, high = record_of([call], Sampler(rows=64)).sampling_interval("logit_max")
        # The same score from products of other sizes is rounded otherwise.
        assert (low <= truth + 1e-5 * np.abs(truth)).all()
        assert (truth <= high).all()
        assert np.isfinite(high).all()
    assert torch.isinf(ceiling(make_call(bias=ALiBi(torch.rand(4))).problem)).all()


@pytest.mark.parametrize("rows", [130, 1000])
def test_calls_with_no_more_rows_are_measured_whole(rows):
    model = FAMILIES["bert"].build()
    plan = [Batch(inputs={"input_ids": torch.randint(5, 90, (1, 60))}, document=(0,))]
    given = {"documents": [Document(name="a", digest="a", tokens=60)]}
    assert observe(model, plan, **given, run=Run(rows=rows)) == observe(model, plan, **given)


def test_smaller_tiles_of_drawn_rows_change_nothing(monkeypatch):
    call = in_double(make_call(batch=1, heads=3, q_len=700, mask=causal()))
    usual = record_of([call], Sampler(rows=320))
    monkeypatch.setattr(sample, "LONG", 100)
    narrow = record_of([call], Sampler(rows=320))
    for name in usual.sums:
        np.testing.assert_allclose(narrow.sums[name], usual.sums[name], rtol=1e-9, atol=1e-9, err_msg=name)
        np.testing.assert_allclose(narrow.counts[name], usual.counts[name], rtol=1e-9, err_msg=name)


def test_a_narrow_window_is_measured_whole_as_that_costs_less():
    wide, narrow = (
        make_call(batch=1, heads=1, q_len=2000, mask=mask).problem for mask in (causal(), sliding_window(8))
    )
    assert is_worth_it(wide, 128)
    assert not is_worth_it(narrow, 1024)
    assert not is_worth_it(wide, 1500), "half of all pairs are none"
    assert not is_worth_it(wide, 2000)


def test_merged_sampled_records_are_the_record_of_the_whole():
    model = FAMILIES["bert"].build()
    rows = [torch.randint(5, 90, (1, n)) for n in (64, 10, 61, 64)]
    documents = [Document(name=f"d{i}", digest=f"d{i}", tokens=9) for i in range(4)]

    # More positions than it knows: what it computes does not matter here, that it is the same does.
    def record(start, stop):
        plan = [Batch(inputs={"input_ids": rows[d]}, document=(d - start,)) for d in range(start, stop)]
        return observe(model, plan, documents=documents[start:stop], run=Run(rows=64))

    whole = record(0, 4)
    for cut in (1, 2, 3):
        assert record(0, cut).merge(record(cut, 4)) == whole


def test_few_rows_are_refused():
    model = FAMILIES["bert"].build()
    plan = [Batch(inputs={"input_ids": torch.randint(5, 90, (1, 60))}, document=(0,))]
    with pytest.raises(MultiheadError, match="64 or more query rows of every call\n  got: rows=63"):
        observe(model, plan, documents=[Document(name="a", digest="", tokens=60)], run=Run(rows=63))


def test_a_sampled_call_is_one_unit():
    call = make_call(batch=1, heads=2, q_len=1100)
    assert record_of([call]).units == (0, 0, 0)
    some = record_of([call], Sampler(rows=64))
    assert some.units == (0,)
    assert some.interval_units == "1 chunk of 1 document"
    np.testing.assert_allclose(some.unit_sums["entropy"], some.sums["entropy"], rtol=1e-6)
