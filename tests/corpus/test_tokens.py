import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpus.vocabularies import Slow, pieces_with_bytes, unigram
from multihead.corpus import KINDS, WordReader, cut_text, default_texts, read_script, tokenize, words_of
from multihead.corpus.tokens import PIECE
from workflow.fakes import LetterTokenizer


def novel(draw, length):
    """Paragraphs of sentences from the words of the default texts, in random order."""
    words = [word for text in default_texts() for word in text.content.split()[:200]]
    ends = [". ", "! ", ".\n", ".\n\n", "\n\n  "]
    parts = []
    while sum(map(len, parts)) < length:
        parts.append(" ".join(words[i] for i in draw.integers(0, len(words), 40)) + ends[draw.integers(len(ends))])
    return "".join(parts)


@given(text=st.text(alphabet="ab \n", max_size=200), size=st.integers(2, 30))
def test_pieces_join_to_the_text(text, size):
    pieces = cut_text(text, size=size)
    assert "".join(text[start:stop] for start, stop in pieces) == text
    assert all(0 < stop - start <= size for start, stop in pieces) or pieces == [(0, 0)]
    for _, stop in pieces[:-1]:
        window = text[stop - size // 2 : stop] if size > 3 else ""
        assert text[stop - 1] in " \n" or not any(c in window for c in " \n"), (text, stop)


def test_pieces_end_behind_paragraphs_before_lines_before_spaces():
    assert cut_text("one two\n\nthree", size=12) == [(0, 9), (9, 14)]
    assert cut_text("one two\nthree four", size=12) == [(0, 8), (8, 18)]
    assert cut_text("one two three four", size=12) == [(0, 8), (8, 18)]
    assert cut_text("x" * 30, size=12) == [(0, 12), (12, 24), (24, 30)]


@pytest.mark.parametrize("name", ["minilm", "smollm2"])
def test_a_long_text_in_pieces_has_the_tokens_of_the_whole(name, request, seed):
    tokenizer = request.getfixturevalue(name)
    text = novel(np.random.default_rng(seed), 2.5 * PIECE)
    whole = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    tokens = tokenize(tokenizer, WordReader(tokenizer), text)
    assert tokens.ids.tolist() == whole["input_ids"]
    assert list(zip(tokens.starts.tolist(), tokens.stops.tolist(), strict=True)) == whole["offset_mapping"]


@pytest.mark.parametrize("make", [unigram, pieces_with_bytes])
def test_pieces_of_tokenizers_that_mark_the_first_word_leave_no_mark(make, seed):
    """Each piece by itself would begin with a mark that is not in the text."""
    tokenizer = make()
    text = novel(np.random.default_rng(seed), 1.2 * PIECE)
    tokens = tokenize(tokenizer, WordReader(tokenizer), text)
    assert tokens.ids.tolist() == tokenizer(text, add_special_tokens=False)["input_ids"]


def test_a_long_text_of_a_tokenizer_that_tells_no_places_loses_nothing(minilm, monkeypatch):
    monkeypatch.setattr("multihead.corpus.tokens.PIECE", 1000)
    text = "the cat sat on the mat. it slept.\n\n" * 100
    slow = Slow(minilm)
    tokens = tokenize(slow, WordReader(slow), text)
    whole = minilm(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    assert tokens.ids.tolist() == whole["input_ids"]
    assert list(zip(tokens.starts.tolist(), tokens.stops.tolist(), strict=True)) == whole["offset_mapping"]


def test_each_piece_is_read_once(monkeypatch):
    monkeypatch.setattr("multihead.corpus.tokens.PIECE", 1000)
    asked = []

    class Counting(LetterTokenizer):
        def __call__(self, text, **more):
            asked.append(len(text))
            return super().__call__(text, **more)

    tokenizer = Counting()
    tokenize(tokenizer, WordReader(tokenizer), "ab cd. " * 400)
    assert sum(asked) == 2800
    assert len(asked) == 3


def test_a_script_has_the_words_of_the_text(smollm2):
    text = default_texts()[5].content
    script = read_script(smollm2, WordReader(smollm2), text)
    words = words_of(smollm2, text, smollm2(text)["input_ids"])
    assert script.units.tolist() == words.units.tolist()
    assert [KINDS[kind] for kind in script.kinds] == [words.kinds[unit] for unit in words.units]
    assert script.classes.tolist() == words.classes.tolist()
    units, texts = script.stretch(3, 30)
    assert units == tuple(unit - words.units[3] for unit in words.units[3:30])
    assert texts == words.texts[words.units[3] : words.units[29] + 1]


def test_words_go_on_over_the_pieces_of_a_long_text(minilm):
    text = "the cat unfastened it.\n\n" * (3 * PIECE // 24)
    script = read_script(minilm, WordReader(minilm), text)
    count = len(text) // 24
    assert len(script) == 7 * count
    assert script.units.tolist() == [5 * n + k for n in range(count) for k in (0, 1, 2, 2, 2, 3, 4)]
    assert script.stretch(7 * (count - 1), 7 * count) == (
        (0, 1, 2, 2, 2, 3, 4),
        ("the", "cat", "unfastened", "it", "."),
    )
    assert [script.begins(place) for place in range(8)] == [True, True, True, False, False, True, True, True]
    assert script.begins(len(script))
