from hypothesis import given
from hypothesis import strategies as st

from corpus.vocabularies import byte_level
from multihead.corpus import Script, WordReader, default_texts, read_script, repeated_tokens
from multihead.workflow.encode import cut_script
from multihead.workflow.spans import choose_stretches, run_span, spans_by_document
from workflow.fakes import LetterTokenizer

TOKENIZER = byte_level()
LETTERS = LetterTokenizer()


def script(text, tokenizer=TOKENIZER) -> Script:
    return read_script(tokenizer, WordReader(tokenizer), text)


@given(st.integers(1, 40))
def test_six_stretches_are_spread_over_the_documents(documents):
    shown = spans_by_document(documents)
    assert sum(shown.values()) == 6
    assert list(shown) == sorted(shown)
    assert 0 in shown
    assert max(shown) < documents
    assert max(shown.values()) - min(shown.values()) <= 1
    if documents <= 6:
        assert len(shown) == documents
    else:
        gaps = [b - a for a, b in zip(shown, [*list(shown)[1:], documents], strict=True)]
        assert max(gaps) - min(gaps) <= 1


@given(
    text=st.text(alphabet='ab .\n"12', min_size=2, max_size=400),
    count=st.integers(0, 6),
    room=st.integers(2, 100),
)
def test_stretches_are_whole_words_within_one_chunk(text, count, room):
    found = script(text, LETTERS)
    if len(found) < 2:
        return
    chunks = list(cut_script(found, room))
    at = 0
    for start, stop in choose_stretches(found, chunks, count=count):
        assert at <= start
        assert 2 <= stop - start <= 40
        assert any(begin <= start and stop <= end for begin, end in chunks)
        assert found.begins(start) or start in [begin for begin, _ in chunks]
        assert found.begins(stop) or stop in [end for _, end in chunks]
        at = stop


def test_stretches_of_real_texts_begin_and_end_with_sentences(minilm):
    for text in default_texts()[:3]:
        found = script(text.content, minilm)
        chosen = choose_stretches(found, [(0, len(found))], count=3)
        assert len(chosen) == 3
        for start, stop in chosen:
            assert 16 <= stop - start <= 40
            before = found.text[: found.starts[start]].rstrip(' "')
            assert not before or before[-1] in ".!?\n"
            shown = found.text[found.starts[start] : found.stops[stop - 1]]
            behind = found.text[found.stops[stop - 1] :]
            assert shown.rstrip('"')[-1] in ".!?" or behind.startswith("\n")
            assert not shown.endswith('\n"')
            words = [word.casefold() for word in found.stretch(start, stop)[1] if len(word) > 3]
            assert len(words) > len(set(words)), shown


def test_a_stretch_with_a_word_twice_is_preferred_to_an_earlier_one():
    plain = "one two three four five six seven eight nine ten. "
    twice = "the lemons and the other lemons went down the hill again. "
    found = script(plain * 1 + twice)
    (chosen,) = choose_stretches(found, [(0, len(found))], count=1)
    assert found.text[found.starts[chosen[0]] : found.stops[chosen[1] - 1]] == twice.strip()


def test_short_documents_give_one_stretch_and_long_words_are_shown_short():
    found = script("ab cd")
    assert choose_stretches(found, [(0, len(found))], count=6) == [(0, len(found))]
    found = script("x" * 100_000 + " end")
    (chosen,) = choose_stretches(found, [(0, len(found))], count=1)
    assert max(map(len, found.stretch(*chosen)[1])) <= 40


def test_no_stretch_is_asked_none_is_given():
    found = script("one two three.")
    assert choose_stretches(found, [(0, len(found))], count=0) == []


def test_the_stretch_of_a_run_covers_the_second_and_third_copy():
    runs = repeated_tokens(LETTERS, runs=8, periods=(4, 28), repeats=4)
    reader = WordReader(LETTERS)
    for run in runs:
        span = run_span(reader, run)
        half = len(span.units) // 2
        assert half == min(24, run.period)
        assert span.start == run.start + 2 * run.period - half
        assert span.units == tuple(range(2 * half))
        back = {place: token for token, place in LETTERS.get_vocab().items()}
        raw = [back[i] for i in run.ids[span.start : span.start + 2 * half]]
        assert span.texts == tuple({" ": "␣", "\n": "↵"}.get(token, token) for token in raw)
