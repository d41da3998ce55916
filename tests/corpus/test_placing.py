import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpus.vocabularies import Bytes, Ends, Slow, byte_level, pieces_with_bytes, unigram
from multihead.corpus import default_texts, place_tokens
from multihead.corpus.placing import _fold, _Folded, _follow
from workflow.fakes import LetterTokenizer

TEXT = "Hello  world中文 👍🏽!\n\n    def f(12): don't naïve\n"


def placed(tokenizer, text):
    ids = tokenizer(text)["input_ids"]
    return [text[start:stop].strip() for start, stop in place_tokens(tokenizer, text, ids)]


@pytest.mark.parametrize("name", ["minilm", "smollm2"])
@pytest.mark.parametrize("text", [TEXT, *(text.content for text in default_texts())], ids=lambda text: text[:8])
def test_places_are_those_the_tokenizer_tells(name, text, request):
    """Found from ids and vocabulary alone; a seventh of the Chinese text is [UNK]."""
    tokenizer = request.getfixturevalue(name)
    encoded = tokenizer(text, return_offsets_mapping=True)
    found = place_tokens(tokenizer, text, encoded["input_ids"])
    told = [text[start:stop].strip() for start, stop in encoded["offset_mapping"]]
    assert [text[start:stop].strip() for start, stop in found] == told


@pytest.mark.parametrize("make", [unigram, pieces_with_bytes, byte_level])
@pytest.mark.parametrize("text", ["the cat don't lemons 12", "a  the\nabba é! 中文中 a", "the ﬁn cat", "", "  "])
def test_places_of_made_tokenizers(make, text):
    fast = make()
    encoded = fast(text, return_offsets_mapping=True)
    found = place_tokens(Slow(fast), text, encoded["input_ids"])
    marks = {"▁", "Ġ"}
    for token, (start, stop), (a, b) in zip(
        fast.convert_ids_to_tokens(encoded["input_ids"]), found, encoded["offset_mapping"], strict=True
    ):
        # The mark of a word without a space before it stands for nothing; tokenizers say many things of it.
        if token not in marks and token not in fast.all_special_tokens:
            assert text[start:stop].strip() == text[a:b].strip(), token


def test_lower_case_accents_and_compatibility_forms_are_followed(minilm):
    assert placed(minilm, "Déjà VU, naïve") == ["", "Dé", "jà", "VU", ",", "naïve", ""]
    assert "ﬁ" in placed(Slow(unigram()), "the ﬁ cat")


def test_bytes_of_one_character_have_its_place():
    text = "aé中👍"
    places = place_tokens(Bytes(), text, Bytes()(text)["input_ids"])
    assert places == [(0, 1), *[(1, 2)] * 2, *[(2, 3)] * 3, *[(3, 4)] * 4, (4, 4)]


def test_characters_without_a_token_are_passed_over():
    assert placed(LetterTokenizer(), "Cat, 12 été") == ["", "C", "a", "t", ",", "", "", "t", ""]
    text = "a(1)b[2]c{3}d" * 20
    assert placed(LetterTokenizer(), text) == ["", *"abcd" * 20, ""]


def test_unknown_tokens_have_what_no_other_token_spells():
    assert placed(Ends(), "The LEMONS the quince!") == ["The", "LEM", "ON", "S", "the", "quince", "!"]
    assert placed(Ends(), "quince medlar the pear") == ["quince", "medlar", "the", "pear"]
    assert placed(Ends(), "quince") == ["quince"]


def test_a_long_stretch_that_no_token_spells_is_passed():
    text = "the cat sat on the mat. " + "0123456789" * 200 + " hello world again and again."
    assert "".join(placed(LetterTokenizer(), text)) == "thecatsatonthemat.helloworldagainandagain."


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("pieces", "text", "want"),
    [
        (["abcdefgh", "ij"], "abcd efgh ij", ["abcd efgh", "ij"]),
        (["caf\u00e9s", "open"], "cafes open", ["cafes", "open"]),
        (["a", "\u00a8", "bcdefghi"], "a\u00a8bcdefghi", None),
        (["abcdefghXYZ", "ij"], "abcdefgh ij", None),
        (["\u0301", "bcdefghi"], "bcdefghi", ["", "bcdefghi"]),
    ],
)
def test_letters_that_agree_but_for_spaces_and_accents_end(pieces, text, want):
    folded = _Folded(text)
    spans = _follow(folded, [_fold(piece) for piece in pieces])
    assert all(0 <= start <= stop <= len(text) for start, stop in spans)
    assert want is None or [text[start:stop] for start, stop in spans] == want


def test_an_accent_that_stands_alone_ends():
    text = "aa\u00a8:\u00a5z\u00f4\u00fd\u00a8 `"
    for more in ("", "a", "a\u00a8"):
        places = place_tokens(Bytes(), text, Bytes()(more + text)["input_ids"])
        assert all(0 <= start <= stop <= len(text) for start, stop in places)


@given(text=st.text(max_size=50), more=st.text(alphabet="abc \n😀", max_size=20))
def test_any_ids_and_any_text_give_places_in_order(text, more):
    """Even tokens of another text."""
    for tokenizer in (LetterTokenizer(), Bytes(), Ends()):
        ids = tokenizer(more + text)["input_ids"]
        at = 0
        for start, stop in place_tokens(tokenizer, text, ids):
            assert at <= stop
            assert 0 <= start <= stop <= len(text)
            at = start


@given(text=st.text(max_size=60))
def test_bytes_always_find_their_characters(text):
    ids = Bytes()(text, add_special_tokens=False)["input_ids"]
    want = [(i, i + 1) for i, c in enumerate(text) for _ in c.encode()]
    assert place_tokens(Bytes(), text, ids) == want
