import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpus.vocabularies import Bytes, Ends, Slow, byte_level, pieces_with_bytes, unigram
from multihead.corpus import CLASSES, default_texts, place_classes, shown, split_words, words_of
from workflow.fakes import LetterTokenizer

BYTE_LEVEL, PIECES, UNIGRAM = byte_level(), pieces_with_bytes(), unigram()


def read(tokenizer, text):
    """(units, texts) with the tokenizer's own places, found to be the same without them."""
    encoded = tokenizer(text, return_offsets_mapping=True)
    words = words_of(tokenizer, text, encoded["input_ids"], offsets=encoded["offset_mapping"])
    blind = words_of(tokenizer, text, encoded["input_ids"])
    assert words.units.tolist() == blind.units.tolist()
    assert words.classes.tolist() == blind.classes.tolist()
    assert words.texts == blind.texts
    return words


def groups(tokenizer, words, ids):
    """The tokens of each unit, as the vocabulary writes them."""
    back = {place: token for token, place in tokenizer.get_vocab().items()}
    return [" ".join(back[i] for i, u in zip(ids, words.units, strict=True) if u == n) for n in range(len(words.texts))]


def test_wordpiece(minilm):
    text = "Marta unfastened 3.5 lemons, don't!\n北京👍🏽"
    ids = minilm(text)["input_ids"]
    words = read(minilm, text)
    assert words.texts == ("Marta", "unfastened", "3.5", "lemons", ",", "don't", "!", "北", "京", "👍🏽")
    assert groups(minilm, words, ids) == [
        "marta",
        "un ##fast ##ened",
        "3 . 5",
        "lemon ##s",
        ",",
        "don ' t",
        "!",
        "北",
        "京",
        "[UNK]",
    ]
    assert words.units[0] == words.units[-1] == -1
    assert words.kinds == ("word", "word", "number", "word", "sign", "word", "sign", "word", "word", "sign")


def test_byte_level(smollm2):
    text = "Hello  world中文 👍🏽!\n\n    def f(12): don't\n"
    ids = smollm2(text)["input_ids"]
    words = read(smollm2, text)
    assert words.texts == (
        "Hello",
        "␣",
        "world",
        "中",
        "文",
        "👍🏽",
        "!",
        "↵",
        "def",
        "f",
        "(",
        "12",
        "):",
        "don't",
        "↵",
    )
    assert groups(smollm2, words, ids)[-2] == "Ġdon 't"
    assert groups(smollm2, words, ids)[7] == "ĊĊĠĠĠ"
    assert [CLASSES[c] for c in words.classes] == [
        *("word_start", "whitespace", "word_start", "word_start", "word_start"),
        *["punctuation"] * 7,
        *("newline", "word_start", "word_start", "punctuation", "digit", "digit"),
        *("punctuation", "word_start", "continuation", "newline"),
    ]


@pytest.mark.parametrize("text", ["中文 👍🏽 🇩🇪é", "👨‍👩‍👧‍👦 ক্ষ น้ำ"])
@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, PIECES])
def test_bytes_of_one_character_or_emoji_are_one_unit(tokenizer, text):
    words = read(tokenizer, text)
    assert words.texts == tuple(text[start:stop] for start, stop in split_words(text))


def test_sentence_pieces():
    text = "the cat  don't 中 12.5\nlemons"
    words = read(UNIGRAM, text)
    assert words.texts == ("the", "cat", "␣", "don't", "中", "12.5", "↵", "lemons")
    # The mark as a token of its own is the first piece of the word behind it.
    kinds = dict(zip(words.texts, (words.classes[words.units == n] for n in range(len(words.texts))), strict=True))
    assert CLASSES[kinds["中"][0]] == "word_start"
    assert {CLASSES[c] for c in kinds["12.5"]} == {"digit"}
    assert [CLASSES[c] for c in kinds["don't"]] == ["word_start"] + ["continuation"] * (len(kinds["don't"]) - 1)


def test_characters():
    tokenizer = LetterTokenizer()
    text = "The Cat, 12 é sat."
    words = words_of(tokenizer, text, tokenizer(text)["input_ids"])
    assert words.texts[:4] == ("The", "␣", "Cat", ",")
    assert words.texts[-2:] == ("sat", ".")
    assert words.units.tolist()[:8] == [-1, 0, 0, 0, 1, 2, 2, 2]


def test_bytes_without_places():
    text = "né 中!"
    words = words_of(Bytes(), text, Bytes()(text)["input_ids"])
    assert words.units.tolist() == [0, 0, 0, 1, 2, 2, 2, 3, -1]
    assert words.texts == ("né", "␣", "中", "!")


def test_unknown_tokens_are_the_words_they_stand_for():
    text = "The lemons the quince!"
    words = words_of(Ends(), text, Ends()(text)["input_ids"])
    assert words.texts == ("The", "lemons", "the", "quince", "!")
    assert words.units.tolist() == [0, 1, 1, 1, 2, 3, 4]


def test_atoms_are_words(smiles):
    text = "C[C@H](Cl)Br>>CC"
    words = words_of(smiles, text, smiles(text)["input_ids"])
    assert words.texts == ("C", "[C@H]", "(", "Cl", ")", "Br", ">>", "C", "C")
    assert words.units.tolist() == [-1, *range(9), -1]
    assert words.kinds[:3] == ("word", "word", "sign")


def test_units_that_one_token_writes_are_one():
    text = "ab cd"
    words = words_of(LetterTokenizer(), text, [3, 4, 5], offsets=[(0, 1), (1, 4), (4, 5)])
    assert words.texts == ("ab cd",)
    assert words.units.tolist() == [0, 0, 0]


def test_a_word_of_very_many_pieces_falls_apart():
    text = "the " + "xyz" * 20
    words = read(BYTE_LEVEL, text)
    assert words.texts[0] == "the"
    assert len(words.texts) > 20
    assert words.units.tolist() == list(range(len(words.texts)))
    assert words.kinds[-1] == "word"
    assert CLASSES[words.classes[-1]] == "continuation"


def test_no_text_and_no_tokens():
    words = words_of(LetterTokenizer(), "", [1, 2])
    assert words.units.tolist() == [-1, -1]
    assert words.texts == ()
    assert words_of(LetterTokenizer(), "!?", []).units.tolist() == []


def test_a_dictionary_makes_words(minilm):
    text = "我我们"
    ids = minilm(text, add_special_tokens=False)["input_ids"]
    assert words_of(minilm, text, ids, dictionary={"我们"}).texts == ("我", "我们")


def test_place_classes_of_known_text(minilm):
    text = "Don't pay 1,200 lemons"
    ids = minilm(text)["input_ids"]
    assert [CLASSES[c] for c in place_classes(minilm, text, ids).tolist()] == [
        "special",
        *("word_start", "continuation", "continuation"),
        "word_start",
        *("digit", "digit", "digit"),
        *("word_start", "continuation"),
        "special",
    ]


@pytest.mark.parametrize("name", ["minilm", "smollm2"])
def test_the_first_piece_of_each_word_starts_it_and_no_other(name, request):
    """Judged by the words as they are written, for real texts."""
    tokenizer = request.getfixturevalue(name)
    for text in default_texts():
        words = read(tokenizer, text.content)
        seen = set()
        for unit, kind in zip(words.units.tolist(), words.classes.tolist(), strict=True):
            if unit >= 0 and words.kinds[unit] == "word":
                assert CLASSES[kind] == ("continuation" if unit in seen else "word_start")
            seen.add(unit)
        numbers = [t for t, kind in zip(words.texts, words.kinds, strict=True) if kind == "number"]
        assert all(any(c.isdigit() for c in t) for t in numbers)


@given(text=st.text(max_size=40))
@pytest.mark.parametrize(
    "tokenizer", [BYTE_LEVEL, PIECES, UNIGRAM, Slow(BYTE_LEVEL), LetterTokenizer(), Bytes(), Ends()]
)
def test_any_text_has_units_in_reading_order(tokenizer, text):
    ids = tokenizer(text)["input_ids"]
    words = words_of(tokenizer, text, ids)
    special = np.isin(ids, [i for i in tokenizer.all_special_ids if i != getattr(tokenizer, "unk_token_id", None)])
    assert ((words.units == -1) == special).all()
    plain = words.units[words.units >= 0]
    assert plain.tolist() == sorted(plain.tolist())
    assert set(plain.tolist()) == set(range(len(words.texts)))
    assert ((words.classes == CLASSES.index("special")) == special).all()
    assert (words.starts <= words.stops).all()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (" word", "word"),
        ("\n\n", "↵"),
        ("  ", "␣"),
        ("", "␣"),
        ("x" * 100_000, "x" * 39 + "…"),
        ("y" * 40, "y" * 40),
        ("z" * 41, "z" * 39 + "…"),
        ("a\n  b", "a b"),
        ("a\x00\x85z\u202eb", "a␀ zb"),
        ("שלום", "שלום"),
    ],
)
def test_what_a_reader_is_shown(text, told):
    assert shown(text) == told
