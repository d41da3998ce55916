"""Tokens put together to words: which word each token is a piece of, in any text, of any tokenizer."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from multihead.corpus.classes import CLASSES
from multihead.corpus.placing import Spelling, place_spelled
from multihead.corpus.splitting import LINE_ENDS, split_units
from multihead.corpus.tokenizer import Tokenizer

KINDS = ("word", "number", "sign", "newline", "space", "other")
"""Kinds of units; where one token writes several, the first of these names the whole."""

LONGEST = 40
"""Characters of a unit that are shown."""

# A unit of more pieces than this tells nothing: long runs of letters (proteins, base64) are read token by token.
_MOST_PIECES = 32
_CLASSES_OF_KINDS = np.asarray(
    [CLASSES.index(n) for n in ("word_start", "digit", "punctuation", "newline", "whitespace", "other")]
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Words:
    """The units of a text, and which one each token belongs to.

    Args:
        text: The text.
        units: For each place the number of its unit, from 0 in reading order; -1 for special tokens.
        starts: First character of each unit.
        stops: End of each unit.
        kinds: Kind of each unit: `word`, `number`, `sign`, `newline`, `space` or `other`.
        classes: For each place the number of its class in `CLASSES`.
    """

    text: str
    units: NDArray[np.int64]
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    kinds: tuple[str, ...]
    classes: NDArray[np.int64]

    @property
    def texts(self) -> tuple[str, ...]:
        """Each unit as it is read: see `shown`."""
        pairs = zip(self.starts.tolist(), self.stops.tolist(), strict=True)
        return tuple(shown(self.text[start:stop]) for start, stop in pairs)


def shown(text: str) -> str:
    r"""A unit as a reader is shown it: at most 40 characters, no spaces around it, a line end as ↵, a space as ␣.

    Control characters become their pictures; signs that would turn the direction of what follows are left out.

    Example:
        >>> shown("\n\n"), shown(" word"), shown("x" * 100_000)[-3:]
        ('↵', 'word', 'xx…')
    """
    bare = text.strip()
    if not bare:
        return "␣" if LINE_ENDS.isdisjoint(text) else "↵"
    # Much longer than what can be shown is not looked at.
    line = " ".join(bare[: 4 * LONGEST].split())
    clean = "".join(_picture(letter) for letter in line)
    return clean if len(bare) <= 4 * LONGEST and len(clean) <= LONGEST else clean[: LONGEST - 1] + "…"


def _picture(letter: str) -> str:
    point = ord(letter)
    if point < 0x20:
        return chr(0x2400 + point)
    if 0x7F <= point < 0xA0:
        return "\ufffd"
    return "" if 0x202A <= point <= 0x202E or 0x2066 <= point <= 0x2069 else letter


class WordReader:
    """Reads words with one tokenizer; what it knows of the tokenizer is found once.

    Args:
        tokenizer: Any tokenizer. If it has a method `split_words(text)`, that tells its words; see `SmilesTokenizer`.
        dictionary: Words of scripts without spaces, for `split_words`.
    """

    def __init__(self, tokenizer: Tokenizer, *, dictionary: Collection[str] | None = None) -> None:
        self.spelling = Spelling(tokenizer)
        self._dictionary = dictionary
        self._own = cast(Callable[[str], Sequence[tuple[int, int]]] | None, getattr(tokenizer, "split_words", None))

    def place(self, text: str, ids: Sequence[int]) -> list[tuple[int, int]]:
        """Where each token stands in the text, for tokenizers that do not tell: see `place_tokens`."""
        return place_spelled(self.spelling, text, ids)

    def read(self, text: str, ids: Sequence[int], offsets: Any = None) -> Words:
        """The words of a text; see `words_of`."""
        pairs = self.place(text, ids) if offsets is None else offsets
        spans = np.asarray(pairs, dtype=np.int64).reshape(-1, 2)
        special = np.fromiter((int(token) in self.spelling.special for token in ids), dtype=bool, count=len(ids))
        units = _Units(self._split(text))
        keys = _keys(units, spans, self._is_mark(ids, spans), self._is_blank(ids, spans))
        return _words(text, units, keys=keys, spans=spans, special=special)

    def texts(self, ids: Sequence[int]) -> tuple[str, ...]:
        """Each token by itself, as a reader is shown it."""
        return tuple(shown(self.spelling.text(int(token))) for token in ids)

    def _split(self, text: str) -> list[tuple[int, int, str]]:
        if self._own is None:
            return split_units(text, dictionary=self._dictionary)
        found: list[tuple[int, int, str]] = []
        for start, stop in self._own(text):
            kinds = [KINDS.index(kind) for *_, kind in split_units(text[start:stop])]
            found.append((start, stop, KINDS[min(kinds, default=len(KINDS) - 1)]))
        return found

    def _is_mark(self, ids: Sequence[int], spans: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Tokens that are the mark of the word that comes next, and nothing else: `▁` or `Ġ` as a token of its own."""
        mark = self.spelling.mark
        found = np.fromiter((int(token) == mark for token in ids), dtype=bool, count=len(ids))
        return found & (spans[:, 1] - spans[:, 0] <= 1)

    def _is_blank(self, ids: Sequence[int], spans: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Tokens of space that stand for nothing in the text, because what was around it has no token."""
        blank = np.zeros(len(ids), dtype=bool)
        for place in np.flatnonzero(spans[:, 0] == spans[:, 1]).tolist():
            token = int(ids[place])
            blank[place] = token != self.spelling.mark and self.spelling.text(token).isspace()
        return blank


class _Units:
    """The units of a text as columns, and the groups of those that one token writes together."""

    def __init__(self, found: Sequence[tuple[int, int, str]]) -> None:
        columns = [(start, stop, KINDS.index(kind)) for start, stop, kind in found]
        table = np.asarray(columns, dtype=np.int64).reshape(-1, 3)
        self.starts, self.stops, self.kinds = table[:, 0], table[:, 1], table[:, 2]
        self.group = np.arange(len(table))

    def join(self, first: NDArray[np.int64], last: NDArray[np.int64]) -> None:
        """Put the units from first to last of each pair into one group."""
        joined = np.zeros(len(self.starts) + 1, dtype=np.int64)
        np.add.at(joined, first + 1, 1)
        np.add.at(joined, last + 1, -1)
        # A unit begins a new group unless a pair reaches over its start.
        self.group = np.cumsum(np.cumsum(joined[:-1]) == 0) - 1

    def groups(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Start, stop and kind of each group; the first kind of `KINDS` in it names it."""
        begins = np.flatnonzero(np.diff(self.group, prepend=-1))
        if not len(begins):
            return self.starts, self.stops, self.kinds
        return (
            self.starts[begins],
            np.maximum.reduceat(self.stops, begins),
            np.minimum.reduceat(self.kinds, begins),
        )


def _keys(
    units: _Units, spans: NDArray[np.int64], mark: NDArray[np.bool_], blank: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """For each token 2 g + 1 where it is a piece of group g of units, 2 g where it stands in the space before it."""
    begin, end = spans[:, 0], spans[:, 1]
    count = len(units.starts)
    if not count:
        return np.zeros(len(spans), dtype=np.int64)
    first = np.searchsorted(units.stops, begin, side="right")
    last = np.searchsorted(units.starts, end, side="left") - 1
    near, before = np.minimum(first, count - 1), np.maximum(first - 1, 0)
    # A mark is a piece of the unit that begins where it ends; what stands for no text, of the unit at its place.
    empty = (begin == end) & (last < first) & ~blank
    next_to = (first < count) & (units.starts[near] == end) & (units.kinds[near] != KINDS.index("newline"))
    last = np.where((mark | empty) & next_to, first, last)
    behind = empty & ~next_to & (first > 0) & (units.stops[before] == begin)
    first = np.where(behind, before, first)
    last = np.where(behind, before, last)
    inside = first <= last
    units.join(first[inside], last[inside])
    # Space within a group is a piece of the group.
    bridged = ~inside & (first > 0) & (first < count) & (units.group[near] == units.group[before])
    group = np.where(first < count, units.group[near], units.group[-1] + 1)
    return 2 * group + (inside | bridged)


def _words(
    text: str, units: _Units, *, keys: NDArray[np.int64], spans: NDArray[np.int64], special: NDArray[np.bool_]
) -> Words:
    plain = np.flatnonzero(~special)
    key, begin, end = keys[plain], spans[plain, 0], spans[plain, 1]
    change = np.diff(key, prepend=-1) != 0
    run = np.cumsum(change) - 1
    long = np.bincount(run)[run] > _MOST_PIECES if len(run) else change
    # Pieces of one character stay together.
    starting = change | (long & (np.diff(begin, prepend=-1) > 0))
    places = np.flatnonzero(starting)
    starts, stops = begin[places], np.maximum.reduceat(end, places) if len(places) else end
    kinds = np.full(len(places), KINDS.index("space"))
    of = key[places] // 2
    whole = (key[places] % 2 == 1) & ~long[places]
    piece = (key[places] % 2 == 1) & long[places]
    group_starts, group_stops, group_kinds = units.groups()
    starts[whole], stops[whole] = group_starts[of[whole]], group_stops[of[whole]]
    kinds[whole | piece] = group_kinds[of[whole | piece]]
    for place in np.flatnonzero(~(whole | piece)):
        written = text[starts[place] : stops[place]]
        kinds[place] = KINDS.index("space" if not written or written.isspace() else "other")
    units_of = np.full(len(keys), -1, dtype=np.int64)
    units_of[plain] = np.cumsum(starting) - 1
    classes = np.full(len(keys), CLASSES.index("special"), dtype=np.int64)
    classes[plain] = _CLASSES_OF_KINDS[kinds[units_of[plain]]]
    classes[plain[~change & (classes[plain] == CLASSES.index("word_start"))]] = CLASSES.index("continuation")
    names = tuple(KINDS[kind] for kind in kinds)
    return Words(text=text, units=units_of, starts=starts, stops=stops, kinds=names, classes=classes)


def words_of(
    tokenizer: Tokenizer,
    text: str,
    ids: Sequence[int],
    *,
    offsets: Sequence[tuple[int, int]] | None = None,
    dictionary: Collection[str] | None = None,
) -> Words:
    """Which word each token of a text is a piece of, for any tokenizer.

    The units are those of `split_words`, so all pieces of a word, an emoji or a Chinese character have one number.
    Where one token writes several units, they are one. A token that stands for no text joins the word at its place.
    Spaces that are tokens are units between the words, but the mark of a word (`▁`, `Ġ`) as a token of its own is a
    piece of the word. A unit of more than 32 pieces falls apart into them.

    Args:
        tokenizer: Any tokenizer with a vocabulary.
        text: What it read.
        ids: What it gave, with or without special tokens around.
        offsets: (start, stop) of each token in the text, where the tokenizer tells; else found from the tokens.
        dictionary: Words of scripts without spaces, for `split_words`.

    Example:
        `words_of(tokenizer, "Unfastened!", ids).units` is `[-1, 0, 0, 0, 1, -1]` for `[CLS] un ##fast ##ened ! [SEP]`.
    """
    return WordReader(tokenizer, dictionary=dictionary).read(text, ids, offsets)


def place_classes(
    tokenizer: Tokenizer, text: str, ids: Sequence[int], *, offsets: Sequence[tuple[int, int]] | None = None
) -> Int[Tensor, " length"]:
    """The class of each token by the word it belongs to, as its number in `CLASSES`.

    The first piece of a word is `word_start`, also at the beginning of a text, where byte-level vocabularies set no
    mark; further pieces are `continuation`, an apostrophe within `don't` too. All pieces of a number are `digit`.

    Args:
        tokenizer: Any tokenizer with a vocabulary.
        text: What it read.
        ids: What it gave, with or without special tokens around.
        offsets: As in `words_of`.

    Example:
        `[CLASSES[c] for c in place_classes(tokenizer, "3.5 lemons", ids)]` is
        `["digit", "digit", "digit", "word_start", "continuation"]` for `3 . 5 lemon ##s`.
    """
    return torch.from_numpy(words_of(tokenizer, text, ids, offsets=offsets).classes)
