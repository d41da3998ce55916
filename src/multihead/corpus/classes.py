"""What kind of token each entry of a vocabulary is, read from the tokens themselves."""

import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from multihead.corpus.splitting import LINE_ENDS
from multihead.corpus.tokenizer import Tokenizer
from multihead.error import MultiheadError

CLASSES = ("special", "word_start", "continuation", "punctuation", "digit", "whitespace", "newline", "other")
"""Names of the classes; a class's number is its place here."""

_PLACEHOLDER = re.compile(r"[\[<]\|?(?:unused|extra_id|reserved|dummy|placeholder)[^\]>]*[\]>]", re.IGNORECASE)
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_UNSPACED = ("CJK ", "HIRAGANA ", "KATAKANA ")
"""Scripts written without spaces, by the first word of their letters' Unicode names."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenClasses:
    """The class of every token id.

    Args:
        names: Names of the classes.
        table: For each id the place of its class in `names` (vocab,).
        special: True where the id is a special token (vocab,).
        marks: How the tokenizer marks words: `"##"`, `"Ġ"`, `"▁"`, or `""` where each token stands by itself.
    """

    names: tuple[str, ...]
    table: Int[Tensor, " vocab"]
    special: Bool[Tensor, " vocab"]
    marks: str

    def ids(self, *names: str) -> Int[Tensor, " found"]:
        """Ids of the tokens in some classes, in rising order.

        Raises:
            MultiheadError: There is no class of that name.
        """
        unknown = [name for name in names if name not in self.names]
        if unknown:
            raise MultiheadError(
                asked=f"token classes among {', '.join(self.names)}", arrived=repr(unknown[0]), remedy="use one of them"
            )
        wanted = torch.tensor([self.names.index(name) for name in names], dtype=torch.int64)
        return torch.isin(self.table, wanted).nonzero().flatten()


def token_classes(tokenizer: Tokenizer, *, size: int | None = None) -> TokenClasses:
    """Sort a vocabulary into classes by what its tokens say.

    The rules, first match wins; the word mark that most of the vocabulary uses (`##`, `Ġ` or `▁`) is taken off first:

    - special: the tokenizer calls it special.
    - other: no token has the id; a placeholder such as `[unused7]`; bytes that are no whole character.
    - newline: line ends, perhaps with spaces (`Ċ`, `<0x0A>`); whitespace: spaces and tabs only (`▁▁`).
    - word_start / continuation: it holds a letter. It continues a word after `##`, or without `Ġ` or `▁` (or a space)
      where the vocabulary uses those; else it starts one. Where nothing is marked (characters, whole words) every token
      stands by itself and starts one, and so do Chinese characters and Japanese kana, which are written without spaces.
      The first word of a text has no mark in byte-level vocabularies: it counts as a continuation (`place_classes`
      looks at the text and knows better). So does a sign that sits on the letter before it.
    - digit: digits, perhaps with signs (`1987`, `3.`, `½`).
    - punctuation: all the rest: punctuation and symbols.

    Args:
        tokenizer: Any tokenizer with a vocabulary.
        size: Length of the table, e.g. the rows of the model's embedding; by default the largest id + 1.

    Raises:
        MultiheadError: The vocabulary is empty, or larger than `size`.

    Example:
        `token_classes(tokenizer).table[input_ids]` has the shape of `input_ids`.
    """
    vocabulary = tokenizer.get_vocab()
    reserved = sorted(special_ids(tokenizer))
    needed = max([*vocabulary.values(), *reserved], default=-1) + 1
    length = needed if size is None else size
    if not needed or length < needed:
        raise MultiheadError(
            asked=f"the classes of {length} token ids",
            arrived=f"a vocabulary of {len(vocabulary)} tokens, the largest id {needed - 1}",
            remedy="pass a tokenizer with a vocabulary, and size=None or the rows of the model's embedding",
        )
    marks = word_marks(vocabulary)
    decode = _reader(marks)
    table = torch.full((length,), CLASSES.index("other"), dtype=torch.int64)
    special = torch.zeros(length, dtype=torch.bool)
    special[reserved] = True
    for token, place in vocabulary.items():
        table[place] = CLASSES.index(_class_of(token, decode))
    table[special] = CLASSES.index("special")
    return TokenClasses(names=CLASSES, table=table, special=special, marks=marks)


def special_ids(tokenizer: Tokenizer) -> set[int]:
    """Ids of special tokens: those the tokenizer lists, and added tokens flagged as special."""
    added: Mapping[int, object] = getattr(tokenizer, "added_tokens_decoder", {})
    return {*tokenizer.all_special_ids, *(place for place, token in added.items() if getattr(token, "special", False))}


def word_marks(vocabulary: Mapping[str, int]) -> str:
    """The word mark most tokens begin with, where one is used at all.

    A mark alone is no evidence: vocabularies of characters may hold every one of the three as a letter.
    """
    counts = {mark: sum(t.startswith(mark) and len(t) > len(mark) for t in vocabulary) for mark in ("##", "Ġ", "▁")}
    best = max(counts, key=lambda mark: counts[mark])
    return best if counts[best] else ""


def _reader(marks: str) -> Callable[[str], tuple[str, bool] | None]:
    """How to read a token of this kind of vocabulary: (text without mark, starts a word), or None for broken bytes."""
    if marks == "##":
        return lambda token: (token.removeprefix("##"), not token.startswith("##"))
    if marks == "▁":
        return _read_pieces
    return _read_bytes if marks == "Ġ" else lambda token: (token, True)


def _read_pieces(token: str) -> tuple[str, bool] | None:
    byte = _BYTE.fullmatch(token)
    if byte is None:
        return token.replace("▁", " ").lstrip(" ") or " ", token.startswith(("▁", " "))
    value = int(byte[1], 16)
    # A byte above 127 is a part of a character, nobody can say which.
    return (chr(value), False) if value < 128 else None


def _read_bytes(token: str) -> tuple[str, bool] | None:
    if any(letter not in BYTE_OF for letter in token):
        return token, True  # added as it stands, past the byte alphabet
    try:
        text = bytes(BYTE_OF[letter] for letter in token).decode()
    except UnicodeDecodeError:
        return None
    return text.lstrip() or text, text[:1].isspace()


def _byte_alphabet() -> dict[str, int]:
    """The letters byte-level vocabularies write bytes with: printable Latin-1 as it is, the rest from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


BYTE_OF = _byte_alphabet()
"""The byte that each letter of a byte-level vocabulary stands for."""


def _class_of(token: str, decode: Callable[[str], tuple[str, bool] | None]) -> str:
    read = None if _PLACEHOLDER.fullmatch(token) else decode(token)
    if read is None or not read[0]:
        return "other"
    text, starts = read
    if text.isspace():
        return "whitespace" if LINE_ENDS.isdisjoint(text) else "newline"
    kinds = {unicodedata.category(letter)[0] for letter in text}
    if "L" in kinds:
        letter = next(letter for letter in text if unicodedata.category(letter)[0] == "L")
        unspaced = unicodedata.name(letter, "").startswith(_UNSPACED)
        return "word_start" if starts or unspaced else "continuation"
    if "M" in kinds:
        return "continuation"
    if "N" in kinds:
        return "digit"
    return "punctuation" if kinds & {"P", "S"} else "other"
