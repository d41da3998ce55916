"""A text as tokens, each with its place in the text: read once, long texts piece by piece."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from multihead.corpus.tokenizer import Tokenizer
from multihead.corpus.words import KINDS, WordReader, shown

PIECE = 131_072
"""Characters that are tokenised at a time: tokenizers need more memory, some more time, the longer a text is."""

# Characters read on both sides of a border, so that both sides see the same tokens somewhere in between.
_OVERLAP = 2_048
# Tokens that must agree.
_AGREE = 8
_BORDERS = (re.compile(r"\n\s*\n"), re.compile(r"\n"), re.compile(r"\s"))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tokens:
    """The tokens of a text without special tokens around.

    Args:
        ids: Their ids.
        starts: First character of each.
        stops: End of each.
    """

    ids: NDArray[np.int64]
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]

    def __len__(self) -> int:
        """How many tokens there are."""
        return len(self.ids)

    def within(self, start: int, stop: int) -> slice:
        """The tokens that begin in a stretch of the text."""
        return slice(*np.searchsorted(self.starts, (start, stop), side="left").tolist())


def cut_text(text: str, *, size: int = PIECE) -> list[tuple[int, int]]:
    r"""Cut a long text into pieces of at most `size` characters, behind paragraphs, else lines, else spaces.

    Example:
        >>> cut_text("one two\n\nthree", size=12)
        [(0, 9), (9, 14)]
    """
    pieces: list[tuple[int, int]] = []
    start = 0
    while len(text) - start > size:
        low, high = start + size // 2, start + size
        ends = (_last_end(border, text, low, high) for border in _BORDERS)
        stop = next((end for end in ends if end), high)
        pieces.append((start, stop))
        start = stop
    return [*pieces, (start, len(text))]


def _last_end(border: re.Pattern[str], text: str, low: int, high: int) -> int:
    return max((match.end() for match in border.finditer(text, low, high)), default=0)


def tokenize(tokenizer: Tokenizer, reader: WordReader, text: str) -> Tokens:
    """The tokens of a text and where they stand.

    A text of more than 131,072 characters is read in pieces. Where the tokenizer tells the places of its tokens, pieces
    overlap and are joined where both give the same eight tokens, so that the borders leave no mark; else pieces end
    behind paragraphs. Both depend on the text alone.

    Args:
        tokenizer: Any tokenizer.
        reader: Made with the same tokenizer; it finds the places where the tokenizer does not tell.
        text: What to read.
    """
    pieces = cut_text(text, size=PIECE)
    if not getattr(tokenizer, "is_fast", False):
        return _joined([_placed(tokenizer, reader, text, piece) for piece in pieces])
    parts: list[Tokens] = []
    for start, stop in pieces:
        wide = max(0, start - _OVERLAP), min(len(text), stop + _OVERLAP)
        part = _told(tokenizer, text, wide)
        if parts:
            parts[-1], part = _stitch(parts[-1], part, start)
        parts.append(part)
    return _joined(parts)


def _told(tokenizer: Tokenizer, text: str, span: tuple[int, int]) -> Tokens:
    # Only fast tokenizers take the argument, so the protocol does not know it.
    encoded = cast(Any, tokenizer)(text[slice(*span)], add_special_tokens=False, return_offsets_mapping=True)
    places = np.asarray(encoded["offset_mapping"], dtype=np.int64).reshape(-1, 2) + span[0]
    # Normalisers that move characters can tell places that step back: the furthest so far is where the text is read to.
    starts = np.maximum.accumulate(places[:, 0]) if len(places) else places[:, 0]
    return Tokens(ids=_array(encoded["input_ids"]), starts=starts, stops=np.maximum(places[:, 1], starts))


def _placed(tokenizer: Tokenizer, reader: WordReader, text: str, span: tuple[int, int]) -> Tokens:
    piece = text[slice(*span)]
    ids = [int(i) for i in tokenizer(piece, add_special_tokens=False)["input_ids"]]
    places = np.asarray(reader.place(piece, ids), dtype=np.int64).reshape(-1, 2) + span[0]
    return Tokens(ids=_array(ids), starts=places[:, 0], stops=places[:, 1])


def _stitch(one: Tokens, two: Tokens, border: int) -> tuple[Tokens, Tokens]:
    """Both without what the other has, cut where they agree, as near behind the border as possible."""
    left, right = one.within(border, border + _OVERLAP), two.within(border, border + _OVERLAP)
    rows = [_rows(one, left), _rows(two, right)]
    known = {row: place for place, row in enumerate(rows[1])}
    for place, row in enumerate(rows[0][: 1 - _AGREE]):
        other = known.get(row, -1)
        if other >= 0 and rows[0][place : place + _AGREE] == rows[1][other : other + _AGREE]:
            return _part(one, slice(0, left.start + place)), _part(two, slice(right.start + other, len(two)))
    return _part(one, slice(0, left.start)), _part(two, slice(right.start, len(two)))


def _rows(tokens: Tokens, part: slice) -> list[tuple[int, ...]]:
    columns = np.stack([tokens.ids[part], tokens.starts[part], tokens.stops[part]], axis=1)
    return [tuple(row) for row in columns.tolist()]


def _part(tokens: Tokens, part: slice) -> Tokens:
    return Tokens(ids=tokens.ids[part], starts=tokens.starts[part], stops=tokens.stops[part])


def _joined(parts: Sequence[Tokens]) -> Tokens:
    if len(parts) == 1:
        return parts[0]
    ids, starts, stops = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("ids", "starts", "stops")
    )
    return Tokens(ids=ids, starts=starts, stops=stops)


def _array(ids: Any) -> NDArray[np.int64]:
    return np.asarray(ids, dtype=np.int64).reshape(-1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Script:
    """A whole document as the tokens of one tokenizer, and the words they are pieces of.

    Args:
        text: The text.
        tokens: Its tokens.
        units: For each token the number of its unit in the document, from 0; -1 for special tokens.
        starts: For each token the first character of its unit.
        stops: For each token the end of its unit.
        kinds: For each token the kind of its unit, as a place in `KINDS`; -1 for special tokens.
        classes: For each token the number of its class in `CLASSES`.
    """

    text: str
    tokens: Tokens
    units: NDArray[np.int64]
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    kinds: NDArray[np.int8]
    classes: NDArray[np.int8]

    def __len__(self) -> int:
        """How many tokens there are."""
        return len(self.tokens)

    def begins(self, place: int) -> bool:
        """Whether a word (or a special token) begins at a token, or the text has ended."""
        return place <= 0 or place >= len(self) or bool(self.units[place] != self.units[place - 1])

    def stretch(self, start: int, stop: int) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """For tokens from start to stop the number of their unit, counted from 0 among these, and the units' texts."""
        found, numbers = np.unique(self.units[start:stop], return_inverse=True)
        special = int(len(found) > 0 and found[0] < 0)
        firsts = [start + int(np.argmax(self.units[start:stop] == unit)) for unit in found[special:]]
        texts = tuple(shown(self.text[self.starts[place] : self.stops[place]]) for place in firsts)
        return tuple((numbers - special).tolist()), texts


def read_script(tokenizer: Tokenizer, reader: WordReader, text: str) -> Script:
    """Tokenize a text once and find the words its tokens are pieces of; long texts in pieces: see `tokenize`.

    Args:
        tokenizer: Any tokenizer.
        reader: Made with the same tokenizer.
        text: What to read.

    Example:
        `read_script(tokenizer, WordReader(tokenizer), "A novel.").units`
    """
    tokens = tokenize(tokenizer, reader, text)
    pieces = cut_text(text, size=PIECE)
    columns: list[tuple[NDArray[Any], ...]] = []
    count = 0
    for start, stop in pieces:
        part = tokens.within(start, stop if stop < len(text) else stop + 1)
        offsets = np.stack([tokens.starts[part], np.minimum(tokens.stops[part], stop)], axis=1) - start
        words = reader.read(text[start:stop], tokens.ids[part].tolist(), offsets)
        kinds = np.asarray([KINDS.index(kind) for kind in words.kinds] + [-1], dtype=np.int8)
        # The entry behind the last is that of special tokens, number -1.
        starts, stops = (np.append(ends, 0) + start for ends in (words.starts, words.stops))
        units = np.where(words.units < 0, -1, words.units + count)
        columns.append((units, starts[words.units], stops[words.units], kinds[words.units], words.classes))
        count += len(words.kinds)
    units, starts, stops, kinds, classes = (np.concatenate(column) for column in zip(*columns, strict=True))
    return Script(
        text=text,
        tokens=tokens,
        units=units,
        starts=starts,
        stops=stops,
        kinds=kinds,
        classes=classes.astype(np.int8),
    )
