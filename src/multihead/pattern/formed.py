"""Patterns that a few numbers describe: their text is how they were asked for."""

from dataclasses import dataclass

from multihead.pattern.algebra import Pattern


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Formed(Pattern):
    """A pattern whose text form says everything: `form` is how it was asked for, and reads back as the same."""

    form: str

    def _text(self) -> str:
        return self.form
