import re
from dataclasses import replace
from importlib.resources import files

import numpy as np
import pytest

from measure.role.test_label import record as with_values
from multihead.error import MultiheadError
from multihead.measure.role import NONE, RULES, judge
from multihead.record import Quantity
from multihead.report import render_page
from multihead.report.part import parts_of
from multihead.report.speech import LANGUAGES, load_speech
from multihead.report.words import name_sink, pick_starts, write_second, write_sentence
from report.reading import Reader, data_of
from report.samples import make_record
from report.test_page import speaking

ENGLISH, CHINESE = load_speech("en"), load_speech("zh")


def test_both_dictionaries_have_the_same_keys_and_blanks():
    assert ENGLISH.words.keys() == CHINESE.words.keys()
    for key, text in ENGLISH.words.items():
        assert sorted(re.findall(r"\{\w+\}", text)) == sorted(re.findall(r"\{\w+\}", CHINESE.words[key])), key


def test_every_role_and_every_number_of_the_house_has_words():
    for rule in (*RULES, NONE):
        assert ENGLISH(f"role.{rule.key}") == rule.word
        for kind in ("said", "rule"):
            assert ENGLISH.knows(f"{kind}.{rule.key}")
    for quantity in make_record(1, 2).texts.quantities:
        if not quantity.shape:
            assert CHINESE.title(quantity) != quantity.title, quantity.name
            assert ENGLISH.short(quantity), quantity.name


def test_a_statistic_of_the_users_own_keeps_its_title():
    mine = Quantity(name="near_verb", title="weight on the nearest verb", unit="share", formula="")
    assert CHINESE.title(mine) == "weight on the nearest verb"
    assert CHINESE.short(mine) == "near verb"
    assert ENGLISH.title(replace(mine, name="previous2_content_argmax")).startswith("how often the largest weight")


def test_no_english_is_left_on_a_chinese_page():
    """Every text from outside is a sign, so each Latin word that is left is the page's own."""
    page = render_page(speaking("☃"), lang="zh")
    reader = Reader(page)
    shown = [reader.text, *(v for _, n, v in reader.attributes if n in ("aria-label", "title", "label"))]
    shown += list(data_of(page)["words"].values())
    kept = {
        "multihead",
        "Esc",
        "CKA",
        "SVG",
        "CSV",
        "PNG",
        "NaN",
        "json",
        "parquet",
        "record",
        "heads",
        "UTC",
        "n",
        "s",
    }
    names = {q.name for q in make_record(1, 2).texts.quantities} | {"nearest"}
    for text in shown:
        bare = re.sub(
            r"\{\w+\}|https?\S+|L\d+\.H\d+|(?<!\w)\d[\d.,e+-]*[MBk]?|\b(B|M|k)\b",
            " ",
            text.replace(ENGLISH("formula.nearest"), ""),
        )
        words = {w for w in re.findall(r"[A-Za-z_]\w*", bare) if w not in kept and w not in names}
        assert not words, (words, text[:200])


def test_another_language_is_refused():
    with pytest.raises(MultiheadError, match="en, zh\n  got: lang='fr'"):
        render_page(make_record(1, 1), lang="fr")
    assert LANGUAGES == ("en", "zh")


@pytest.mark.parametrize("lang", LANGUAGES)
def test_the_sentence_counts_each_head_once(lang, seed):
    record = make_record(5, 7, seed=seed)
    phrases = write_sentence(judge(record), "the sink", load_speech(lang))
    assert sum(phrase.count for phrase in phrases) == 35
    assert all(phrase.count > 0 for phrase in phrases)
    joined = "".join(f"{p.before}{p.count} {p.text}" for p in phrases)
    assert load_speech(lang)("others") in joined
    assert "  " not in joined


def said(values):
    return "".join(f"{p.before}{p.count} {p.text}" for p in write_sentence(judge(with_values(values)), "[X]", ENGLISH))


def test_one_head_and_several_have_their_own_grammar():
    assert said({"previous": [0.5, 0.0]}) == "1 reads the token before. The others: 1 has no single job"
    assert said({"previous": [0.5, 0.5], "next": [0, 0]}) == "2 read the token before"
    assert said({"previous": [0.5, 0.1, 0.1], "self": [0, 0.9, 0.9], "next": [0, 0, 0.8]}) == (
        "1 reads the token before, 1 reads the token after and 1 looks at itself"
    )
    assert said({"sink": [0.9, 0.9, 0.1]}) == "2 rest on [X] and 1 has no single job"


def test_the_second_sentence_tells_what_is_beside_the_roles():
    values = {"output_ratio": [0.4, 1.0, 1.0], "similarity_content": ((), [[1, 0.95, 0], [0.95, 1, 0], [0, 0, 1]])}
    told = [(p.key, p.count, p.text) for p in write_second(judge(with_values(values)), ENGLISH)]
    assert told == [("quiet", 1, "writes little"), ("twin", 2, "look like a neighbour")]
    assert [p.text for p in write_second(judge(with_values({"output_ratio": [1.0]})), ENGLISH)] == [
        "None writes little"
    ]
    assert write_second(judge(with_values({"self": [0.1]})), ENGLISH) == []


def test_heads_to_start_with_are_the_telling_ones():
    values = {"previous": [0.9, 0.5, 0, 0], "sink": [0, 0, 0.9, 0.95], "output_ratio": [1, 0.2, 1, 1]}
    record = with_values(values, {"induction": [0, 0, 0, 0.9]})
    starts = pick_starts(judge(record), parts_of(record), ENGLISH)
    assert starts == [
        (3, "strongest on repeats"),
        (0, "steadiest on the token before"),
        (2, "most at rest"),
        (1, "writes least"),
    ]
    assert pick_starts(judge(with_values({"self": [0.1]})), parts_of(with_values({"self": [0.1]})), ENGLISH) == []


def test_the_sink_is_called_by_its_name():
    record = make_record(1, 1)
    assert name_sink(record, ENGLISH)[0] == "[CLS] and [SEP]"
    causal = replace(record, model=replace(record.model, causal=True))
    assert name_sink(causal, CHINESE) == ("首词元", "首词元")
    other = replace(record, model=replace(record.model, special_tokens=("<pad>",)))
    assert name_sink(other, ENGLISH)[0] == "the first or a special token"
    assert name_sink(replace(record, reads="images"), ENGLISH)[0] == "the class token and registers"


def test_the_largest_output_is_not_needed():
    record = with_values({"output_ratio": [np.nan, np.nan]})
    assert pick_starts(judge(record), parts_of(record), ENGLISH) == []


def test_words_of_the_style_have_a_chinese_rule():
    """Row and column labels are written by the style sheet."""
    style = (files("multihead.report") / "page/page.css").read_text(encoding="utf-8")
    rules = re.findall(r'([^{}]+)\{content:((?:"[^"]*"|attr\([^)]*\)|\s)+)', style)
    spoken = [
        s.strip() for s, content in rules if any(re.search(r"[a-z]", w) for w in re.findall(r'"([^"]*)"', content))
    ]
    chinese = {selector.strip().replace(":lang(zh)", "") for selector, _ in rules if ":lang(zh)" in selector}
    assert spoken
    assert set(spoken) <= chinese
