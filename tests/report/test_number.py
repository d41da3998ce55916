import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multihead.measure.role.printed import round_share
from multihead.report.number import cut, show
from multihead.report.speech import load_speech


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.6949, "share", "69.5%"),
        (0.0004, "share", "0.0%"),
        (1.0, "share", "100.0%"),
        (1.234, "share", "123.4%"),
        (-0.0004, "share", "0.0%"),
        (0.125, "nats", "0.13"),
        (2.5, "nats", "2.50"),
        (31.14, "logit", "31.1"),
        (431.5, "tokens", "432"),
        (12345.6, "tokens", "12,346"),
        (-3.2, "tokens", "−3.20"),
        (0.0412, "norm", "0.041"),
        (0.0012, "norm", "1.2e-3"),
        (3e9, "norm", "3.0e9"),
        (0.0, "nats", "0.00"),
        (math.nan, "share", "–"),
        (math.inf, "logit", "∞"),
        (-math.inf, "share", "−∞"),
    ],
)
def test_a_number_is_printed(value, unit, text):
    assert show(value, unit) == text


@given(st.floats(0, 1))
def test_a_threshold_is_judged_on_what_is_printed(share):
    assert round_share(share) == pytest.approx(float(show(share, "share").rstrip("%")) / 100, abs=1e-12)


@given(st.floats(-1e12, 1e12).filter(lambda v: abs(v) > 1e-9))
def test_what_is_printed_is_the_number_to_two_digits(value):
    printed = float(show(value, "nats").replace("−", "-").replace(",", ""))
    assert printed == pytest.approx(value, rel=0.051)


def test_counts_and_lists_are_words():
    english, chinese = load_speech("en"), load_speech("zh")
    told = [english.count("count.head", n) for n in (0, 1, 2, 1024)]
    assert told == ["0 heads", "1 head", "2 heads", "1,024 heads"]
    assert chinese.count("count.document", 1024) == "1,024 篇文档"
    assert [english.listing(["a", "b", "c"][:n]) for n in (1, 2, 3)] == ["a", "a and b", "a, b and c"]


def test_long_texts_are_cut():
    assert cut("abcd", 4) == "abcd"
    assert cut("abcde", 4) == "abc…"
