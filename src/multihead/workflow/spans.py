"""Which stretches of the texts are shown as examples: chosen from the texts alone, never from what was measured."""

import unicodedata
from collections.abc import Iterator, Sequence

from multihead.corpus import KINDS, LINE_ENDS, Script, TokenRun, WordReader
from multihead.measure import Span

MOST_SPANS = 6
SHORTEST, LONGEST = 16, 40
# Tokens looked through for the beginning of a stretch: a novel has enough of them at its start.
_LOOK = 4096
_ENDS = frozenset(".!?…。！？؟।။។")
_CLOSING = frozenset("\"'”’»)]」』）")
_WORD, _NUMBER, _SIGN, _NEWLINE, _SPACE = (KINDS.index(kind) for kind in KINDS[:5])


def spans_by_document(documents: int) -> dict[int, int]:
    """How many stretches each document gives, six in all: spread over many documents, several of each where few.

    Example:
        >>> spans_by_document(4), list(spans_by_document(60))
        ({0: 2, 1: 2, 2: 1, 3: 1}, [0, 10, 20, 30, 40, 50])
    """
    if documents >= MOST_SPANS:
        return {k * documents // MOST_SPANS: 1 for k in range(MOST_SPANS)}
    return {d: MOST_SPANS // documents + (d < MOST_SPANS % documents) for d in range(documents)}


def choose_stretches(script: Script, chunks: Sequence[tuple[int, int]], *, count: int) -> list[tuple[int, int]]:
    """Stretches of 16 to 40 tokens of one document, each within one chunk: whole words from the start of a sentence.

    The document is divided evenly. Of the sentences that begin in a part the first is taken that holds a word twice and
    ends with a sentence; else one that does either; else the part's first words.

    Args:
        script: The document.
        chunks: The first token and the end of each chunk.
        count: How many at most; short documents give fewer.

    Returns:
        (first token, end) of each, in reading order; they do not overlap.
    """
    parts = min(count, max(1, len(script) // LONGEST))
    stretches: list[tuple[int, int]] = []
    for part in range(parts):
        low, high = (len(script) * n // parts for n in (part, part + 1))
        low = max(low, stretches[-1][1] if stretches else 0)
        found = _best(script, chunks, low, min(high, low + _LOOK))
        if found is not None:
            stretches.append(found)
    return stretches


def _best(script: Script, chunks: Sequence[tuple[int, int]], low: int, high: int) -> tuple[int, int] | None:
    best: tuple[int, int] | None = None
    most = -1
    for start in _sentence_starts(script, low, high):
        stop, ended = _stop(script, start, _chunk_end(chunks, start))
        if stop - start < SHORTEST:
            continue
        worth = 2 * _repeats(script, start, stop) + ended
        if worth > most:
            best, most = (start, stop), worth
        if most == 3:
            break
    return best or _first(script, chunks, low, high)


def _first(script: Script, chunks: Sequence[tuple[int, int]], low: int, high: int) -> tuple[int, int] | None:
    """The longest of the stretches that begin at the part or at a chunk, where no sentence is long enough."""
    starts = [place for place in range(low, high + 1) if script.begins(place)][:1] if low < high else []
    starts += [start for start, _ in chunks if low < start < high]
    found = [(start, _stop(script, start, _chunk_end(chunks, start))[0]) for start in starts]
    long = [(start, stop) for start, stop in found if stop - start >= 2]
    return max(long, key=lambda s: s[1] - s[0], default=None)


def _chunk_end(chunks: Sequence[tuple[int, int]], place: int) -> int:
    return next((stop for start, stop in chunks if start <= place < stop), place)


def _sentence_starts(script: Script, low: int, high: int) -> Iterator[int]:
    """Places where a word, number or opening sign follows the end of a sentence or a line."""
    ended = low == 0
    for place in range(low, high):
        if not script.begins(place):
            continue
        kind, text = int(script.kinds[place]), _text(script, place)
        begins = kind in (_WORD, _NUMBER) or (kind == _SIGN and _opens(script, place, text))
        if begins and (ended or _line_before(script, place)):
            yield place
        ended = _ends(kind, text) or (ended and not begins)


def _opens(script: Script, place: int, text: str) -> bool:
    straight = text[0] == '"' and script.text[max(0, script.starts[place] - 1) : script.starts[place]].strip() == ""
    return straight or unicodedata.category(text[0]) in ("Ps", "Pi")


def _line_before(script: Script, place: int) -> bool:
    """Whether a line ends between two tokens, for tokenizers that have no token for it."""
    between = script.text[script.stops[place - 1] : script.starts[place]] if 0 < place < len(script) else ""
    return not LINE_ENDS.isdisjoint(between)


def _ends(kind: int, text: str) -> bool:
    return kind == _NEWLINE or (kind == _SIGN and not _ENDS.isdisjoint(text))


def _stop(script: Script, start: int, end: int) -> tuple[int, bool]:
    """The end of a stretch, and whether a sentence ends there: the last that does, else the last whole word."""
    last = sentence = start
    for place in range(start + 1, min(start + LONGEST, end, len(script)) + 1):
        if not script.begins(place) and place != end:
            continue
        last = place
        if place - start >= SHORTEST and _closes(script, start, place):
            sentence = place
    stop = sentence if sentence > start else last
    # The end of a line says nothing at the end of a stretch.
    while stop - start > SHORTEST and int(script.kinds[stop - 1]) in (_NEWLINE, _SPACE):
        stop -= 1
    return stop, sentence > start


def _closes(script: Script, start: int, place: int) -> bool:
    """Whether a sentence or a line ends right before a place, quotation marks and brackets aside."""
    if _line_before(script, place):
        return True
    while place > start:
        place -= 1
        kind, text = int(script.kinds[place]), _text(script, place)
        if kind != _SIGN or not _CLOSING.issuperset(text) or _opens(script, place, text):
            return _ends(kind, text)
    return False


def _text(script: Script, place: int) -> str:
    return script.text[script.starts[place] : script.stops[place]]


def _repeats(script: Script, start: int, stop: int) -> bool:
    """Whether a word stands there twice; words of one to three Latin letters do not count."""
    seen: set[str] = set()
    for place in range(start, stop):
        if int(script.kinds[place]) != _WORD or not (place == start or script.begins(place)):
            continue
        word = _text(script, place).casefold()
        if word in seen:
            return True
        if len(word) > 3 or not word.isascii():
            seen.add(word)
    return False


def text_span(script: Script, stretch: tuple[int, int], *, chunk: int, frame: int, before: int) -> Span:
    """The span of a stretch of a document.

    Args:
        script: The document.
        stretch: Its first token and its end.
        chunk: First token of the chunk it lies in.
        frame: Special tokens before the chunk.
        before: Tokens of the document in earlier chunks, special tokens included.
    """
    units, texts = script.stretch(*stretch)
    return Span(row=0, start=frame + stretch[0] - chunk, units=units, texts=texts, before=before)


def run_span(reader: WordReader, run: TokenRun) -> Span:
    """The end of a run's second copy and the start of its third: 24 tokens each, or as many as there are."""
    half = min(24, run.period)
    middle = run.start + min(2, run.repeats - 1) * run.period
    start, stop = middle - half, middle + half
    texts = reader.texts(run.ids[start:stop])
    return Span(row=0, start=start, units=tuple(range(len(texts))), texts=texts)
