import re
from dataclasses import replace

import numpy as np
import pytest

from multihead.error import MultiheadError
from multihead.measure.role import compare
from multihead.record import HeadStatistics
from multihead.report import render_comparison
from report.reading import Reader, data_of
from report.samples import make_record
from report.test_page import EVIL, speaking


@pytest.fixture
def pair():
    return make_record(2, 4, seed=1, name="before it"), make_record(2, 4, seed=2, name="after it")


def test_every_label_that_flipped_is_told(pair):
    found, page = compare(*pair), render_comparison(*pair)
    text = Reader(page).text
    assert f"Labels that changed ({len(found.flips)})" in text
    assert data_of(page)["flips"] == sorted(str(flip.before.head) for flip in found.flips)
    assert len(re.findall(r'class="cell [^"]* flip"', page)) == 2 * len(found.flips)
    assert found.flips


def test_both_grids_stand_side_by_side(pair):
    page = render_comparison(*pair)
    ids = [v for t, n, v in Reader(page).attributes if t == "div" and n == "id" and re.match(r"[ab]-L", v or "")]
    assert ids == [f"{p}-{head}" for p in "ab" for head in pair[0].texts.heads]
    assert page.count("data:image/png;base64,") == 4


def test_a_record_against_itself_has_nothing_to_say(pair):
    text = Reader(render_comparison(pair[0], pair[0])).text
    assert "All 8 heads look like the same thing in both." in text
    assert "No label changed." in text


def test_differences_beyond_their_intervals_come_first(monkeypatch, pair):
    monkeypatch.setattr(
        HeadStatistics, "interval", lambda s, name, level=0.95: (s.value(name) - 0.01, s.value(name) + 0.01)
    )
    text = Reader(render_comparison(*pair)).text
    assert "of numbers whose intervals do not overlap" in text
    monkeypatch.undo()
    flat = [replace(r, texts=one(r.texts), repeats=one(r.repeats)) for r in pair]
    assert "no intervals are apart, so all numbers are listed" in Reader(render_comparison(*flat)).text


def one(statistics):
    return replace(
        statistics,
        documents=statistics.documents[:1],
        sums={k: v[:1] for k, v in statistics.sums.items()},
        counts={k: v[:1] for k, v in statistics.counts.items()},
    )


def test_other_documents_are_told(pair):
    assert "not measured on the same documents" not in render_comparison(*pair)
    a, b = pair
    b = replace(b, texts=replace(b.texts, documents=tuple(replace(d, digest="x") for d in b.texts.documents)))
    assert "not measured on the same documents" in Reader(render_comparison(a, b)).text


def test_another_layout_is_refused(pair):
    with pytest.raises(MultiheadError, match="before it: 2 layers × 4 heads; larger: 3 layers × 4 heads"):
        render_comparison(pair[0], make_record(3, 4, name="larger"))


def test_values_that_are_missing_or_infinite_do_no_harm(pair):
    a, b = pair
    sums, counts = dict(b.texts.sums), dict(b.texts.counts)
    sums["entropy"] = np.full((3, 8), np.inf)
    counts["previous"] = np.zeros((3, 8))
    page = render_comparison(a, replace(b, texts=replace(b.texts, sums=sums, counts=counts)))
    assert "nan" not in page.replace("NaN", "").lower().split('id="data"')[0].split("</style>")[1]


def test_texts_from_outside_never_become_markup():
    page = render_comparison(speaking(EVIL, 1), speaking(EVIL, 2))
    plain = render_comparison(speaking("plain", 1), speaking("plain", 2))
    assert Reader(page).tags == Reader(plain).tags
    assert not any(name.startswith("on") or name == "style" for _, name, _ in Reader(page).attributes)


def test_a_chinese_page_has_chinese_words(pair):
    page = render_comparison(*pair, lang="zh")
    assert '<html lang="zh-Hans"' in page
    assert "变了的标签" in page
    assert "Labels that changed" not in page


@pytest.mark.parametrize(
    ("sure", "flips", "want"),
    [
        (0, 1, "1 looks like something else, near a threshold."),
        (0, 2, "2 look like something else, each near a threshold."),
        (1, 1, "1 looks like something else, well away from every threshold."),
        (1, 2, "2 look like something else, 1 of them well away from every threshold."),
        (2, 2, "2 look like something else, all well away from every threshold."),
    ],
)
def test_the_first_sentence_tells_how_sure_the_changes_are(monkeypatch, pair, sure, flips, want):
    found = compare(*pair)
    kept = tuple(replace(flip, sure=i < sure) for i, flip in enumerate(found.flips[:flips]))
    assert len(kept) == flips
    monkeypatch.setattr("multihead.report.comparison.compare", lambda a, b: replace(found, flips=kept))
    heading = re.search("<h1>(.*?)</h1>", render_comparison(*pair), re.DOTALL)
    assert want in " ".join(Reader(heading[1]).text.split())


def test_the_colours_of_both_grids_are_named(pair):
    found, page = compare(*pair), render_comparison(*pair)
    named = re.findall(r'<span><i class="sign r-(\w+)"', page)
    assert sorted(named) == sorted({label.key for label in (*found.before, *found.after)})
