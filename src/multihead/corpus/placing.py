"""Where in a text each of its tokens stands, found from the tokens alone: for tokenizers that do not tell."""

import codecs
import re
import unicodedata
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import lru_cache

from multihead.corpus.classes import BYTE_OF, special_ids, word_marks
from multihead.corpus.tokenizer import Tokenizer

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
# Tokens and characters that are weighed against each other where tokens do not spell the text.
_TOKENS, _CHARACTERS = 16, 96


class Spelling:
    """What each token of a vocabulary writes.

    Args:
        tokenizer: Any tokenizer with a vocabulary.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        vocabulary = tokenizer.get_vocab()
        self.marks = word_marks(vocabulary)
        self.unknown: int | None = getattr(tokenizer, "unk_token_id", None)
        self.special = frozenset(special_ids(tokenizer)) - {self.unknown}
        self.tokens: Mapping[int, str] = {place: token for token, place in vocabulary.items()}
        # The mark of a word as a token of its own.
        self.mark = vocabulary.get(self.marks) if self.marks in ("Ġ", "▁") else None
        self._raw: dict[int, bytes | None] = {}
        self._bytes = _reads_bytes(vocabulary)

    def raw(self, token: int) -> bytes | None:
        """The bytes a token stands for, a word mark as a space; None for the unknown token."""
        if token not in self._raw:
            self._raw[token] = self._spell(token)
        return self._raw[token]

    def _spell(self, token: int) -> bytes | None:
        written = self.tokens.get(token)
        if written is None or token == self.unknown:
            return None
        if self.marks == "Ġ" and all(letter in BYTE_OF for letter in written):
            return bytes(BYTE_OF[letter] for letter in written)
        if self._bytes and len(written) == 1:
            return written.encode("latin-1")
        byte = _BYTE.fullmatch(written) if self.marks == "▁" else None
        if byte is not None:
            return bytes([int(byte[1], 16)])
        return _without_marks(written, self.marks).encode("utf-8", "replace")

    def text(self, token: int) -> str:
        """What a token writes, bytes that are no whole character as signs of replacement."""
        raw = self.raw(token)
        return self.tokens.get(token, "") if raw is None else raw.decode("utf-8", "replace")


def _reads_bytes(vocabulary: Mapping[str, int]) -> bool:
    """Whether its characters are bytes, written as the first 256 characters (ByT5)."""
    return all(chr(byte) in vocabulary for byte in range(128, 256)) and not any(
        len(token) == 1 and ord(token) > 255 for token in vocabulary
    )


def _without_marks(token: str, marks: str) -> str:
    if marks == "##":
        return token.removeprefix("##")
    if marks == "▁":
        return token.replace("▁", " ")
    for end in ("</w>", "@@"):
        if len(token) > len(end):
            token = token.removesuffix(end)
    return token


def place_tokens(tokenizer: Tokenizer, text: str, ids: Sequence[int]) -> list[tuple[int, int]]:
    """Find the stretch of the text each token stands for, whatever its tokenizer did to the text.

    Tokens are spelled and followed through the text, case, accents and compatibility forms aside (NFKD). Tokens that
    spell nothing that is there (`[UNK]`, characters made up by a normaliser) share the stretch up to the next place
    where tokens and text agree. Tokens that are parts of one character all have its place.

    Args:
        tokenizer: Any tokenizer with a vocabulary.
        text: What it read.
        ids: What it gave, with or without special tokens around.

    Returns:
        For each token (start, stop); both are the same where it stands for no text, such as special tokens.

    Example:
        `place_tokens(tokenizer, "Déjà vu", ids)` is `[(0, 4), (5, 7)]` where the ids spell `deja` and `vu`.
    """
    return place_spelled(Spelling(tokenizer), text, ids)


def place_spelled(spelling: Spelling, text: str, ids: Sequence[int]) -> list[tuple[int, int]]:
    """`place_tokens` with the spelling at hand."""
    groups = _groups(spelling, ids)
    folded = _Folded(text)
    places = [(0, 0)] * len(ids)
    for (first, last, _), span in zip(groups, _follow(folded, [piece for *_, piece in groups]), strict=True):
        places[first:last] = [span] * (last - first)
    at = 0
    for place, token in enumerate(ids):
        # A special token stands where the text has been read to, and for none of it.
        places[place] = (at, at) if token in spelling.special else places[place]
        at = places[place][1]
    return places


def _groups(spelling: Spelling, ids: Sequence[int]) -> list[tuple[int, int, str | None]]:
    """Tokens put together until they are whole characters: (first, end, text or None for an unknown one)."""
    groups: list[tuple[int, int, str | None]] = []
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    begun, text = 0, ""
    for place, token in enumerate(ids):
        special = int(token) in spelling.special
        raw = None if special else spelling.raw(int(token))
        if raw is None and begun < place:  # bytes that never became a character
            groups.append((begun, place, _fold(text + decoder.decode(b"", final=True))))
        elif raw is not None:
            text += decoder.decode(raw)
            if decoder.getstate()[0]:
                continue
        if not special:
            groups.append((place if raw is None else begun, place + 1, None if raw is None else _fold(text)))
        begun, text = place + 1, ""
        decoder.reset()
    if begun < len(ids):
        groups.append((begun, len(ids), _fold(text + decoder.decode(b"", final=True))))
    return groups


@lru_cache(maxsize=65536)
def _fold_character(character: str) -> str:
    folded = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", character).casefold())
    return " " * len(character) if character.isspace() or character == "▁" else folded


def _fold(text: str) -> str:
    if text.isspace():
        return text
    return "".join(map(_fold_character, text)) if not text.isascii() else text.lower()


def _is_ink(letter: str) -> bool:
    return not letter.isspace() and (letter.isascii() or not unicodedata.combining(letter))


class _Folded:
    """A text without case and accents, and the way back: `start[i]` is the character that folded place i came from."""

    def __init__(self, text: str) -> None:
        parts = [c if c.isspace() else _fold_character(c) for c in text]
        self.text = "".join(parts)
        self.start = [place for place, part in enumerate(parts) for _ in part]
        self.start.append(len(text))
        # The same without spaces and accents, for looking ahead: tokens keep or drop them in many ways.
        self.inked = [place for place, c in enumerate(self.text) if _is_ink(c)]
        self.dense = "".join(self.text[place] for place in self.inked)
        self.inked.append(len(self.text))

    def inked_span(self, at: int, ink: str) -> tuple[int, int]:
        """Where these letters stand if the text goes on with them, spaces and accents aside; else nothing, at `at`."""
        first = bisect_left(self.inked, at)
        if not ink or not self.dense.startswith(ink, first):
            return at, at
        return self.inked[first], self.inked[first + len(ink) - 1] + 1

    def span(self, start: int, stop: int) -> tuple[int, int]:
        """Stretch of the text itself."""
        if stop <= start:
            return self.start[start], self.start[start]
        return self.start[start], self.start[stop - 1] + 1


def _follow(folded: _Folded, pieces: Sequence[str | None]) -> list[tuple[int, int]]:
    spans = [(0, 0)] * len(pieces)
    inks = [None if piece is None else "".join(filter(_is_ink, piece)) for piece in pieces]
    at = index = 0
    while index < len(pieces):
        piece = pieces[index]
        span = None if piece is None else _match(folded.text, at, piece)
        if span is not None:
            spans[index] = folded.span(*span)
            at = span[1]
            index += 1
            continue
        lost, stop = _resume(folded, at, inks, index)
        if (lost, stop) == (0, at):
            # Its letters are there, and spaces or accents differ: without this step it would be tried for ever.
            span = folded.inked_span(at, inks[index] or "")
            spans[index], at, index = folded.span(*span), span[1], index + 1
            continue
        shares = _share(folded.text, (at, stop), [ink != "" for ink in inks[index : index + lost]])
        spans[index : index + lost] = [folded.span(*share) for share in shares]
        at, index = stop, index + lost
    return spans


def _share(text: str, gap: tuple[int, int], inked: Sequence[bool]) -> list[tuple[int, int]]:
    """The gap shared out among tokens that do not spell it: a word each if that comes out even, else letters.

    Tokens of space alone, and all if there is nothing to share, stand before what the next one has.
    """
    words = [match.span() for match in re.compile(r"\S+").finditer(text, *gap)]
    sharers = sum(inked)
    if sharers != len(words):
        start, stop = (words[0][0], words[-1][1]) if words else (gap[0], gap[0])
        words = [
            (start + (stop - start) * k // sharers, start + (stop - start) * (k + 1) // sharers) for k in range(sharers)
        ]
    given = iter(words)
    shares: list[tuple[int, int]] = []
    at = gap[0]
    for takes in inked:
        shares.append(next(given) if takes else (at, at))
        at = shares[-1][1]
    return shares


def _match(text: str, at: int, piece: str) -> tuple[int, int] | None:
    """Where the piece stands if the text goes on with it: spaces before it and accents within it are passed over."""
    ink = piece.lstrip()
    if not ink:
        return _match_space(text, at, piece)
    begin = at
    while begin < len(text) and text[begin] != ink[0] and not _is_ink(text[begin]):
        begin += 1
    if text.startswith(ink, begin):
        return begin, begin + len(ink)
    end = begin
    for letter in ink:
        while end < len(text) and text[end] != letter and unicodedata.combining(text[end]):
            end += 1
        if end == len(text) or text[end] != letter:
            return None
        end += 1
    return begin, end


def _match_space(text: str, at: int, piece: str) -> tuple[int, int]:
    """A space that is not there, such as the mark of a first word, stands for nothing."""
    end = at
    while end < len(text) and text[end].isspace():
        if text.startswith(piece, end):
            return end, end + len(piece)
        end += 1
    return at, at


def _resume(folded: _Folded, at: int, inks: Sequence[str | None], index: int) -> tuple[int, int]:
    """How many tokens spell nothing that is there, and up to which place of the text: (tokens, place)."""
    dense_at = bisect_left(folded.inked, at)
    next_two, next_many = (range(index, min(index + n, len(inks))) for n in (2, 64))
    found = (
        _ahead(folded.dense, dense_at, inks, lost=next_two, letters=8, window=8)
        or _ahead(folded.dense, dense_at, inks, lost=next_two, letters=4, window=3)
        or _near(folded.dense, dense_at, inks, index)
        or _ahead(folded.dense, dense_at, inks, lost=next_many, letters=12, window=4096)
    )
    if found is not None:
        return found[0] - index, folded.inked[found[1]]
    rest = inks[index : index + _TOKENS]
    if not any(rest) and index + len(rest) == len(inks):
        return len(rest), len(folded.text)
    return 1, at


def _near(dense: str, at: int, inks: Sequence[str | None], index: int) -> tuple[int, int] | None:
    """The way through the next tokens and characters on which most letters agree: (token, place) of the first.

    `rows[i][p]` is the number of letters that agree from token i and character p on, less a little for each character
    passed over, which no token spells.
    """
    window, tokens = dense[at : at + _CHARACTERS], inks[index : index + _TOKENS]
    rows = [[0.0] * (len(window) + 1)]
    for ink in reversed(tokens):
        later, row = rows[-1], [0.0] * (len(window) + 1)
        for place in range(len(window), -1, -1):
            best = later[place]
            if place < len(window):
                best = max(best, row[place + 1] - 0.01)
            if ink and window.startswith(ink, place):
                best = max(best, len(ink) + later[place + len(ink)])
            row[place] = best
        rows.append(row)
    rows.reverse()
    lost = place = 0
    while lost < len(tokens) and rows[lost][place] > 0:
        ink, here = tokens[lost], rows[lost][place]
        if ink and window.startswith(ink, place) and here == len(ink) + rows[lost + 1][place + len(ink)]:
            return index + lost, at + place
        if here == rows[lost + 1][place]:
            lost += 1
        else:
            place += 1
    return None


def _ahead(
    dense: str, at: int, inks: Sequence[str | None], *, lost: range, letters: int, window: int
) -> tuple[int, int] | None:
    """The first of some tokens from which on a number of letters stand in the text ahead: (its place, theirs)."""
    for place in lost:
        ink = ""
        for more in inks[place : place + 2 * letters]:
            if more is None:
                break
            ink += more
        found = dense.find(ink[:letters], at, at + window + letters) if len(ink) >= letters else -1
        if found >= 0:
            return place, found
    return None
