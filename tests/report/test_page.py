import base64
import hashlib
import re
from dataclasses import replace

import numpy as np
import pytest

from multihead.error import MultiheadError
from multihead.record import Note, Quantity
from multihead.report import render_page
from multihead.report.number import show
from multihead.report.speech import load_speech
from report.reading import Reader, data_of, floats, stat
from report.samples import TEXTS, make_record, thousand_heads

SLOW = pytest.mark.slow
EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"' \u202eRTL\u2028 שלום \U0001f642 {{ 7 * 7 }}"


def without(record, *names):
    """The record without some statistics."""

    def cut(statistics):
        kept = tuple(q for q in statistics.quantities if q.name not in names)
        return replace(statistics, quantities=kept)

    return replace(record, texts=cut(record.texts), repeats=record.repeats and cut(record.repeats))


def with_scalar(record, name, values):
    """The record with one more number a head, measured on the texts."""
    texts = record.texts
    new = Quantity(name=name, title=f"title of {name}", unit="nats", formula="mine")
    shape = (len(texts.documents), len(texts))
    return replace(
        record,
        texts=replace(
            texts,
            quantities=(*texts.quantities, new),
            sums=dict(texts.sums) | {name: np.broadcast_to(values, shape)},
            counts=dict(texts.counts) | {name: np.ones(shape)},
        ),
    )


def speaking(text, seed=0):
    """A record in which every text from outside is this one."""
    notes = (Note(about=text, quantity=text, text=text),)
    record = make_record(2, 3, seed=seed, name=text, documents=(text, "b"), notes=notes)

    def told(statistics):
        quantities = tuple(
            replace(
                q,
                title=text,
                formula=text,
                unit=q.unit if q.unit == "share" else text,
                labels=tuple(x + text for x in q.labels),
            )
            for q in statistics.quantities
        )
        documents = tuple(replace(d, name=text) for d in statistics.documents)
        words = tuple(
            replace(e, queries=(text,) * len(e.queries), keys=(text,) * len(e.keys)) for e in statistics.examples
        )
        return replace(statistics, quantities=quantities, documents=documents, examples=words)

    return replace(
        record,
        model=replace(record.model, architecture=text, special_tokens=(text,)),
        texts=told(record.texts),
        repeats=told(record.repeats),
        settings={text: text},
        versions={text: text},
        created=text,
    )


@pytest.fixture(scope="module")
def record_seed(request):
    """One seed for all of this file, another each run: tests of the same sizes then share a record."""
    return request.config.run_seed


def test_the_same_record_gives_the_same_bytes(record_seed):
    pages = [render_page(make_record(seed=record_seed)) for _ in range(2)]
    assert pages[0] == pages[1]


@pytest.mark.parametrize(
    ("layers", "heads", "causal"),
    [
        (1, 1, False),
        pytest.param(4, 8, False, marks=SLOW),
        (8, 4, True),
        pytest.param(6, 12, False, marks=SLOW),
        pytest.param(12, 12, True, marks=SLOW),
    ],
)
def test_the_page_stays_small(layers, heads, causal, record_seed):
    page = render_page(make_record(layers, heads, causal=causal, seed=record_seed))
    assert len(page.encode()) <= 150_000 + 5_500 * layers * heads


@pytest.mark.slow
def test_the_page_of_a_thousand_heads_stays_small():
    assert len(thousand_heads().encode()) <= 150_000 + 5_500 * 1_000


def test_pictures_take_what_room_is_left(record_seed):
    record = make_record(3, 4, seed=record_seed)
    big = tuple(replace(e, picture=bytes(40_000)) for e in record.texts.examples)
    page = render_page(replace(record, texts=replace(record.texts, examples=big)))
    assert len(page.encode()) <= 150_000 + 5_500 * 12
    assert len(data_of(page)["examples"]) < len(data_of(render_page(record))["examples"])


def test_texts_of_any_length_are_cut():
    long = "\U0001f642word " * 20_000
    record, plain = make_record(3, 4), make_record(3, 4).texts
    examples = tuple(replace(e, queries=(long,) * len(e.queries), keys=(long,) * len(e.keys)) for e in plain.examples)
    documents = tuple(replace(d, name=long) for d in plain.documents)
    notes = (Note(about=long, quantity=long, text=long),)
    texts = replace(plain, examples=examples, documents=documents, notes=notes)
    model = replace(record.model, special_tokens=(long,) * 5, name=long, architecture=long)
    page = render_page(replace(record, texts=texts, model=model, settings={long: long}))
    assert len(page.encode()) <= 150_000 + 5_500 * 12
    assert long[:100] in page
    assert len(render_page(speaking(long))) < 400_000


@pytest.mark.slow
def test_long_models_of_many_heads_keep_small_maps():
    page = render_page(make_record(21, 20))
    assert data_of(page)["map"]["shape"] == [16, 16]
    assert len(page.encode()) <= 150_000 + 5_500 * 420


def test_the_table_holds_the_first_numbers_of_every_head(record_seed):
    record = make_record(3, 4, seed=record_seed)
    page = render_page(record)
    reader, first = Reader(page), [s["id"] for s in data_of(page)["stats"] if "first" in s]
    assert [row[0] for row in reader.body_rows] == [str(address) for address in record.texts.heads]
    parts = {"texts": record.texts, "repeats": record.repeats}
    for h, row in enumerate(reader.body_rows):
        for told, cell in zip(first, row[2:], strict=True):
            part, name = told.split("/")
            if name != "nearest":
                statistics = parts[part]
                assert cell == show(float(statistics.value(name)[h]), statistics.quantity(name).unit)
    assert first[:4] == ["texts/sink", "texts/entropy_share", "texts/span90", "texts/previous"]
    assert first[-1] == "texts/nearest"


def test_a_new_statistic_appears_by_itself(record_seed):
    page = render_page(with_scalar(make_record(seed=record_seed), "brand_new", 0.77))
    assert '<input type="radio" name="stat" value="texts/brand_new"' in page
    assert re.search(r'data-sort="texts/brand_new"[^>]*><bdi>brand new<', page)
    assert floats(stat(data_of(page), "texts/brand_new")["values"]) == pytest.approx([0.77] * 12)
    assert "title of brand_new" in Reader(page).text


def test_a_statistic_without_any_value_offers_no_colour(record_seed):
    record = make_record(seed=record_seed)
    counts = dict(record.texts.counts) | {"output_ratio": np.zeros((3, 12)), "entropy": np.zeros((3, 12))}
    page = render_page(replace(record, texts=replace(record.texts, counts=counts), repeats=None))
    assert 'value="texts/output_ratio"' not in page
    assert np.isnan(floats(stat(data_of(page), "texts/entropy")["values"])).all()


def test_numbers_have_names_for_people(record_seed):
    labels = re.findall(r"<label title[^>]*>.*?<bdi>(.*?)</bdi>", render_page(make_record(seed=record_seed)))
    assert labels[:4] == ["sink", "spread", "reach", "before"]
    assert not any("_" in label for label in labels)


def test_every_formula_is_printed(record_seed):
    record = make_record(seed=record_seed)
    text = Reader(render_page(record)).text
    assert all(q.formula in text for q in record.texts.quantities)
    assert all(load_speech("en").title(q) in text for q in record.texts.quantities)


def test_thresholds_and_the_absence_of_a_verdict_are_printed(record_seed):
    text = Reader(render_page(make_record(seed=record_seed))).text
    assert "at least 40% of the weight on the token just before ([CLS] and [SEP] set aside)" in text
    assert "at least 50% of the weight on [CLS] and [SEP], and none of the jobs above" in text
    assert "entropy at least 70% of what an even spread would have" in text
    assert "No head was switched off, so none is called dead, useless or needed" in text
    rest = text.replace("none is called dead, useless or needed", "")
    assert not re.search(r"\b(dead|useless|redundant)\b", rest)


def test_an_interrupted_run_says_so():
    assert "interrupted" not in Reader(render_page(make_record())).text
    text = Reader(render_page(make_record(complete=False))).text
    assert "This run was interrupted: the page shows what was measured until then, 3 documents" in text


def test_words_that_rest_on_one_text_are_called_chance():
    told = "so a word given here may be chance: read more"
    assert told in Reader(render_page(make_record(documents=TEXTS[:1]))).text
    assert told not in Reader(render_page(make_record())).text
    record = make_record()
    once = replace(record, repeats=make_record(documents=TEXTS[:1]).texts)
    text = Reader(render_page(once)).text
    assert told not in text
    assert "The repeated tokens were too few for their numbers to have intervals" in text


def test_places_of_pictures_are_not_called_tokens():
    page = render_page(replace(make_record(), reads="images"))
    assert " positions</span>" in page
    assert "positions back" in page
    assert "tokens back" not in page
    assert "tokens back" in render_page(make_record())


def test_a_note_is_told_once_with_its_heads():
    notes = [Note(about=f"L0.H{h}", quantity="self", text="no such key") for h in range(9)]
    notes += [Note(about="", quantity="", text="2 rows held NaN"), Note(about="L1", quantity="next", text="n/a")]
    text = Reader(render_page(make_record(notes=notes, repeats=False))).text
    assert "3 things to know" in text
    assert "L0.H0, L0.H1, L0.H2, L0.H3, L0.H4, L0.H5 and 3 more, weight on its own token: no such key" in text
    assert "2 rows held NaN" in text
    assert "L1, weight on the token after: n/a" in text


@pytest.mark.parametrize(
    ("layers", "want"),
    [
        (range(12), "L0–L11"),
        ([3, 4, 5, 9], "L3–L5 and L9"),
        ([2, 3], "L2 and L3"),
        ([11, 0, 2, 1], "L0–L2 and L11"),
        (range(0, 24, 2), "L0, L2, L4, L6, L8, L10 and 6 more"),
    ],
)
def test_a_note_of_many_layers_tells_their_range(layers, want):
    """Where only some layers are sampled, each of them has its note."""
    told = "only some rows were measured, and these do not tell it"
    notes = tuple(Note(about=f"L{layer}", quantity="received_top", text=told) for layer in layers)
    text = Reader(render_page(make_record(2, 2, repeats=False, notes=notes))).text
    assert text.count(told) == 1
    assert f"{want}, share of all weight on one token: {told}" in text.replace("\n", "")


def test_a_note_of_many_layers_keeps_stacks_apart():
    notes = tuple(Note(about=f"{s}.L{i}", quantity="", text="said") for s in ("encoder", "cross") for i in range(4))
    text = Reader(render_page(make_record(1, 2, repeats=False, notes=notes))).text
    assert "encoder.L0–L3 and cross.L0–L3: said" in text


def test_a_note_of_several_statistics_is_told_once():
    notes = tuple(Note(about="", quantity=name, text="no token ids") for name in ("same_token", "induction"))
    text = Reader(render_page(make_record(1, 2, repeats=False, notes=notes))).text
    assert text.count("no token ids") == 1
    assert "weight on the same token and weight on what followed a copy: no token ids" in text


def test_a_note_of_both_parts_is_told_once():
    record = make_record(notes=[Note(about="", quantity="", text="both"), Note(about="", quantity="", text="one")])
    record = replace(record, repeats=replace(record.repeats, notes=(Note(about="", quantity="", text="both"),)))
    text = Reader(render_page(record)).text
    assert text.count("both") == text.count("looks both ways") + 1
    assert "one (on the documents)" in text


def test_the_first_line_tells_model_shape_and_texts():
    text = Reader(render_page(make_record(5, 4, group=2, causal=True, name="small", old=True))).text
    assert "5 layers × 4 heads, sharing 2 key and value heads a layer, looks back only" in text
    assert "22.7 M parameters" in text
    assert re.search(r"3 documents, [\d,]+ tokens", text)
    several = Reader(render_page(make_record(2, 2, stacks=("encoder", "cross")))).text
    assert "encoder 2 layers × 2 heads; cross 2 layers × 2 heads" in several


def test_texts_from_outside_never_become_markup(record_seed):
    page = render_page(speaking(EVIL, record_seed))
    reader, kind = Reader(page), Reader(render_page(speaking("plain", record_seed)))
    assert reader.tags == kind.tags
    assert not any(name.startswith("on") or name == "style" for _, name, _ in reader.attributes)
    assert EVIL in reader.text
    assert "49" not in re.findall(r"RTL.{30}", reader.text)[0]
    assert data_of(page)["model"].startswith(EVIL[:60])


def test_the_policy_names_the_one_style_and_the_one_script(record_seed):
    reader = Reader(render_page(speaking(EVIL, record_seed)))
    (policy,) = [v for t, n, v in reader.attributes if t == "meta" and n == "content" and v.startswith("default-src")]
    assert policy.startswith("default-src 'none'; img-src data:; style-src")
    for tag, kind, content in reader.scripts:
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert (f"'sha256-{digest}'" in policy) == (kind is None), tag
    assert policy.count("sha256-") == 2
    assert not any(n in ("src", "srcset", "action", "formaction") for _, n, _ in reader.attributes)
    assert all(v.startswith("#") for _, n, v in reader.attributes if n == "href")


@pytest.mark.parametrize(
    "names",
    [
        ("pooled_map",),
        ("token_class", "offsets", "distance_histogram", "received", "entropy_by_position", "pooled_map"),
        ("previous", "next", "self", "previous2", "first_token", "special_token", "sink", "entropy_share"),
        ("sink", "sink_by_position", "pooled_map_content", "similarity", "similarity_content", "cka"),
    ],
)
def test_a_missing_statistic_leaves_its_chart_or_rule_out(names, record_seed):
    gone = (*names, *(f"{n}_content" for n in names))
    page = render_page(without(make_record(seed=record_seed), *gone))
    data = data_of(page)
    assert not set(gone) & {*(s["id"].split("/")[1] for s in data["stats"]), *data["arrays"]}
    assert ("data:image/png" in page) == ("pooled_map" not in names)
    assert (data["map"] is None) == ("pooled_map" in names)


def test_a_record_of_the_first_version_has_a_page(record_seed):
    page = render_page(make_record(seed=record_seed, old=True))
    data = data_of(page)
    assert "plain" in data["map"]
    assert data["examples"] == []
    assert 'name="sink"' not in page
    assert "(not measured)" in page


def test_a_record_without_values_is_still_a_page():
    record = make_record(repeats=False)
    sums, counts = ({name: v[:0] for name, v in part.items()} for part in (record.texts.sums, record.texts.counts))
    empty = replace(record.texts, documents=(), sums=sums, counts=counts)
    reader = Reader(render_page(replace(record, texts=empty, complete=False)))
    assert [row[1:] for row in reader.body_rows] == [["no single job"]] * 12
    assert "0 documents, 0 tokens" in reader.text


def test_a_record_without_heads_is_refused():
    record = make_record(1, 1, repeats=False)
    sums, counts = ({name: v[:, :0] for name, v in part.items()} for part in (record.texts.sums, record.texts.counts))
    bare = replace(record.texts, heads=(), kv_heads=(), sums=sums, counts=counts)
    with pytest.raises(
        MultiheadError, match=r"at least one head\n  got: a record of 'sample-base' with 0 heads\n  fix: run"
    ):
        render_page(replace(record, texts=bare))


def test_the_grid_needs_no_script(record_seed):
    record = make_record(3, 4, seed=record_seed)
    page = render_page(record)
    reader = Reader(page)
    cells = [v for t, n, v in reader.attributes if n == "class" and v.startswith("cell ")]
    assert len(cells) == 12
    assert {c.split()[1] for c in cells} == {"p0", "p1", "p2"}
    assert page.count("data:image/png;base64,") == 3
    assert [v for t, n, v in reader.attributes if t == "div" and n == "id" and re.match(r"L\d", v)] == [
        str(a) for a in record.texts.heads
    ]
