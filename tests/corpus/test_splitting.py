import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multihead.corpus import split_words
from multihead.corpus.splitting import split_units


def words(text, **more):
    return [text[start:stop] for start, stop in split_words(text, **more)]


CASES = {
    "I don't know... 3.5% of 1,000 at 12:30": "I|don't|know|...|3.5|%|of|1,000|at|12:30",
    "e-mail well-known x-ray state-of-the-art a-b 1990-95 --": (
        "e-mail|well-known|x-ray|state-of-the-art|a|-|b|1990|-|95|--"
    ),
    "l’homme 'quoted' dogs’ col·lega": "l’homme|'|quoted|'|dogs|’|col·lega",
    "__init__ snake_case ____ f(x)==y": "__init__|snake_case|____|f|(|x|)|==|y",
    "a.b, end.Next": "a|.|b|,|end|.|Next",
    "½ m² ₂ Ⅷ mp3": "½|m²|₂|Ⅷ|mp3",
    "e\u0301te\u0301 हिन्दी में": "e\u0301te\u0301|हिन्दी|में",
    "Grüße: “ja”—nein": "Grüße|:|“|ja|”|—|nein",
    "한국어는 띄어쓰기": "한국어는|띄어쓰기",
    "我喜欢水。々": "我|喜|欢|水|。|々",
    "カタカナー ひらがなと漢字": "カタカナー|ひらがなと|漢|字",
    "葛\U000e0100城": "葛\U000e0100|城",  # a variant of the character
    "สวัสดี เกาะ น้ำ": "ส|วั|ส|ดี|เกาะ|น้ำ",
    "ភាសាខ្មែរ": "ភា|សា|ខ្មែ|រ",
    "မြန်မာ": "မြ|န်|မာ",
    "ພາສາລາວ": "ພາ|ສາ|ລາ|ວ",
    "مرحبا بالعالم": "مرحبا|بالعالم",
    "צה״ל שלום": "צה״ל|שלום",
    "👨‍👩‍👧‍👦👍🏽🇩🇪🇫🇷": "👨‍👩‍👧‍👦|👍🏽|🇩🇪|🇫🇷",
    "1️⃣ ©️ ❤️‍🔥 😂😂": "1️⃣|©️|❤️‍🔥|😂|😂",
    "🏴󠁧󠁢󠁥󠁮󠁧󠁿!": "🏴󠁧󠁢󠁥󠁮󠁧󠁿|!",
    "a\n\n b\r\nc\td\u2028e": "a|\n\n|b|\r\n|c|d|\u2028|e",
    "": "",
    " \t\u200b": "",
}


@pytest.mark.parametrize("text", CASES)
def test_units_of_many_scripts(text):
    assert words(text) == [word for word in CASES[text].split("|") if word]


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("mp3 3.5 ½ ... \n 水 😂 🇩🇪 \ue000", "word number number sign newline word sign sign other"),
        ("1️⃣ 3rd _ ́", "sign word sign word"),
    ],
)
def test_kinds(text, kinds):
    assert [kind for *_, kind in split_units(text)] == kinds.split()


def test_a_dictionary_finds_the_longest_words_of_scripts_without_spaces():
    known = {"我们", "喜欢", "喜欢水", "สวัสดี", "night"}
    assert words("我们喜欢水,我喜欢nights", dictionary=known) == ["我们", "喜欢水", ",", "我", "喜欢", "nights"]
    assert words("สวัสดีครับ ok", dictionary=known) == ["สวัสดี", "ค", "รั", "บ", "ok"]
    # A tone mark never begins a word, even if the word before it is known without.
    assert words("น\u0e49า", dictionary={"น", "า"}) == ["น\u0e49", "า"]
    assert words("カタカナ", dictionary={"カタ"}) == ["カタ", "カ", "ナ"]


@given(st.text(max_size=60))
def test_units_stand_in_order_and_hold_everything_that_can_be_seen(text):
    at = 0
    for start, stop in split_words(text):
        assert at <= start < stop <= len(text)
        between = text[at:start]
        assert all(c.isspace() or unicodedata.category(c) in ("Cf", "Cc") for c in between), between
        at = stop
    assert all(c.isspace() or unicodedata.category(c) in ("Cf", "Cc") for c in text[at:])


@given(st.text(alphabet="aé1.,'-_ \n水ก้👍🏽🇩‍", max_size=40), st.text(alphabet="aé1 水", max_size=10))
def test_a_paragraph_has_the_same_units_whatever_follows(text, more):
    """So that a long text can be cut behind a paragraph."""
    assert split_units(f"{text}x\n\ny{more}")[: len(split_units(f"{text}x"))] == split_units(f"{text}x")


def test_a_long_run_takes_time_in_proportion():
    """Underscores that lead to no letter, and a word of 200,000 letters."""
    assert len(split_words("_" * 200_000)) == 1
    assert len(split_words("a'" * 100_000)) == 2
