"""Text cut into what people read as one unit: words, numbers, signs, line ends; spaces lie between them."""

import re
import unicodedata
from collections.abc import Collection, Iterator

LINE_ENDS = frozenset("\n\r\v\f\x85\u2028\u2029")
"""Characters that end a line."""

_GIVEN = {
    **dict.fromkeys(LINE_ENDS, "N"),
    "\u200b": "w",  # a place to break between words, without width
    **dict.fromkeys("'’·‧׳״", "'"),
    **dict.fromkeys("-‐‑", "-"),
    **dict.fromkeys(".,:٫٬", "."),
    "_": "_",
    "\u200d": "z",
    **dict.fromkeys("\ufe0e\ufe0f", "v"),
    "\u20e3": "K",
    **dict.fromkeys("ーｰ", "P"),
    **dict.fromkeys("々〆〇", "h"),
    **dict.fromkeys("เแโใไເແໂໃໄ", "l"),
    **dict.fromkeys("ะาำๅະາຳຽ", "o"),
    **dict.fromkeys("\u1039\u17d2", "C"),
}
_RANGES = (
    (0x1F1E6, 0x1F1FF, "f"),
    (0x1F3FB, 0x1F3FF, "s"),
    (0x1F000, 0x1FAFF, "e"),
    (0x2600, 0x27BF, "e"),
    (0xE0020, 0xE007F, "T"),
)
# Letters of scripts that are written without spaces.
_UNSPACED = (
    *((low, high, "t") for low, high in ((0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x1950, 0x19DF))),
    *((low, high, "t") for low, high in ((0x1A20, 0x1AAF), (0xA980, 0xA9FF), (0xAA60, 0xAADF))),
    *((low, high, "g") for low, high in ((0x3041, 0x309F), (0x1B001, 0x1B11F), (0x1B150, 0x1B152))),
    *((low, high, "k") for low, high in ((0x30A0, 0x30FF), (0x31F0, 0x31FF), (0xFF66, 0xFF9D), (0x1B164, 0x1B167))),
    *((low, high, "h") for low, high in ((0x2E80, 0x2FDF), (0x3021, 0x3029), (0x3105, 0x312F), (0x31A0, 0x31BF))),
    *((low, high, "h") for low, high in ((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x3FFFF))),
)


class _Codes(dict[int, str]):
    """One letter for the kind of each character, found when it is first met: `str.translate` asks it."""

    def __missing__(self, point: int) -> str:
        self[point] = code = _code(chr(point))
        return code


def _code(character: str) -> str:
    point = ord(character)
    if character in _GIVEN:
        return _GIVEN[character]
    if character.isspace():
        return "w"
    kind = unicodedata.category(character)
    for low, high, code in _RANGES + (_UNSPACED if kind[0] == "L" or kind == "Nl" else ()):
        if low <= point <= high:
            return code
    if kind in ("Cf", "Cc"):
        return "c"
    return {"L": "a", "M": "m", "P": "p", "S": "p", "C": "x"}.get(kind[0], "d" if kind == "Nd" else "n")


_CODES = _Codes()
# Marks, joiners and format characters belong to what they follow (UAX 29, rule WB4).
_X = "[mczv]*"
_EMOJI = rf"(?:[es]|p(?=v))v?s?T*(?:z(?:e|p(?=v))v?s?)*{_X}"
_CLUSTER = r"(?:l?t|l)(?:[mczvo]|Ct?)*"
_UNIT = re.compile(
    rf"(?P<emoji>ff?|[dp]v?K|{_EMOJI})"
    rf"|(?P<word>_*[adn](?:[adn_mczv]+|(?<=[am])'(?=a)|(?<=[am][am])-(?=a)|(?<=[am])-(?=a[am])|(?<=d)\.(?=d))*)"
    rf"|(?P<unspaced>h{_X}|g[gPmczv]*|[kP][kPmczv]*|{_CLUSTER}|[moC][mczvoC]*)"
    rf"|(?P<newline>N+)"
    rf"|(?P<sign>_+|[p'\-.KTv]{_X})"
    rf"|(?P<other>x)"
)
_STRETCH = re.compile(r"[hgkPlto](?:[hgkPltomczvC])*")
_PIECE = re.compile(rf"h{_X}|[gkP]{_X}|{_CLUSTER}|.", re.DOTALL)


def split_words(text: str, *, dictionary: Collection[str] | None = None) -> list[tuple[int, int]]:
    """Where the words, numbers, signs and line ends of a text begin and stop, in any script, in the spirit of UAX 29.

    - A word is a run of letters, marks, digits and underscores. An apostrophe or a middle dot between two letters
      belongs to it (`don't`, `l'eau`), and so does a hyphen between letters if there are two of them on one side
      (`well-known`, `x-ray`; `a-b` is a difference). Points, commas and colons between digits belong to the number.
    - A sign stands by itself, equal signs in a row together (`...`, `==`). So do line ends.
    - An emoji with all that belongs to it (skin tone, joined people, flags, keycaps) is one unit.
    - Scripts without spaces: each Chinese character by itself; a run of hiragana or of katakana; in Thai, Lao, Khmer,
      Burmese and their kin a letter with its marks and the vowels written around it. With a dictionary: the longest
      entry that begins there, else one character with its marks.
    - Spaces and invisible characters between these belong to no unit.

    Args:
        text: Any text; right-to-left scripts are in reading order, as in every string.
        dictionary: Words of scripts without spaces.

    Example:
        >>> text = "I don't know... 3.5%"
        >>> [text[start:stop] for start, stop in split_words(text)]
        ['I', "don't", 'know', '...', '3.5', '%']
        >>> split_words("我喜欢水", dictionary={"喜欢"})
        [(0, 1), (1, 3), (3, 4)]

    Source: Unicode Standard Annex 29, "Unicode Text Segmentation".
    """
    return [(start, stop) for start, stop, _ in split_units(text, dictionary=dictionary)]


def split_units(text: str, *, dictionary: Collection[str] | None = None) -> list[tuple[int, int, str]]:
    """The units of `split_words` with their kinds: `word`, `number`, `sign`, `newline` or `other`."""
    codes = text.translate(_CODES)
    found: list[tuple[int, int, str]] = []
    at = 0
    if dictionary:
        longest = max(map(len, dictionary))
        for stretch in _STRETCH.finditer(codes):
            _cut(found, text, codes, (at, stretch.start()))
            words = _from_dictionary(text, codes, stretch.span(), dictionary, longest)
            found += [(start, stop, "word") for start, stop in words]
            at = stretch.end()
    _cut(found, text, codes, (at, len(text)))
    return found


def _cut(found: list[tuple[int, int, str]], text: str, codes: str, span: tuple[int, int]) -> None:
    for match in _UNIT.finditer(codes, *span):
        start, stop = match.span()
        kind = str(match.lastgroup)
        if kind == "word" and "a" not in match[0]:
            kind = "number"
        elif kind == "sign" and found and found[-1][1] == start and text[start - 1] == text[start]:
            start = found.pop()[0]
        found.append((start, stop, {"emoji": "sign", "unspaced": "word"}.get(kind, kind)))


def _from_dictionary(
    text: str, codes: str, span: tuple[int, int], dictionary: Collection[str], longest: int
) -> Iterator[tuple[int, int]]:
    at, end = span
    while at < end:
        sizes = range(min(longest, end - at), 0, -1)
        size = next((size for size in sizes if text[at : at + size] in dictionary), 0)
        piece = _PIECE.match(codes, at, end)
        stop = max(at + size, piece.end() if piece and not size else at + 1)
        # Marks never begin a word of their own.
        while stop < end and codes[stop] in "mczv":
            stop += 1
        yield at, stop
        at = stop
