"""A text to measure on, and the texts that ship with the library."""

import hashlib
from dataclasses import dataclass, field
from importlib import resources


@dataclass(frozen=True, slots=True)
class Text:
    r"""One document.

    Args:
        name: File name, row of a file (`rows.jsonl:12`) or title; unique within one reading.
        content: The text, line ends as `\n`.

    Attributes:
        digest: First 16 hex digits of the SHA-256 of the content in UTF-8.

    Example:
        >>> Text("note", "one two").digest
        '8ab63e29a4ba14e4'
    """

    name: str
    content: str
    digest: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # File names may hold bytes that are no UTF-8, and control characters that would act on a terminal.
        shown = self.name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
        object.__setattr__(self, "name", "".join(c if c.isprintable() else ascii(c)[1:-1] for c in shown))
        object.__setattr__(self, "digest", digest_of(self.content.encode()))


def digest_of(content: bytes) -> str:
    """First 16 hex digits of the SHA-256 of some bytes: the form in which records name a document's content."""
    return hashlib.sha256(content).hexdigest()[:16]


def default_texts() -> tuple[Text, ...]:
    """The texts a checkup reads when none are given.

    A story, an essay, a dialogue, a Python program, a recipe, a report full of figures, a Chinese tale and a German
    one, each 400 to 500 tokens of a BERT tokenizer. All were written for this library and carry its licence.

    Example:
        >>> [text.name for text in default_texts()][:3]
        ['01-prose', '02-essay', '03-dialogue']
    """
    folder = resources.files("multihead.corpus") / "texts"
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".txt")), key=lambda file: file.name)
    return tuple(Text(file.name.removesuffix(".txt"), file.read_text(encoding="utf-8")) for file in files)
