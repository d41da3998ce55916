"""Two checkups held against each other: what the comparison says, and its page."""

from pathlib import Path

from multihead.error import MultiheadError
from multihead.measure.role import Comparison
from multihead.measure.role import compare as compare_records
from multihead.record import write_file
from multihead.report import render_comparison
from multihead.workflow.report import Report

PAGE = "index.html"
SHAPING = ("max_length", "rows", "repeats", "dtype")
"""Settings of a checkup that change its numbers."""


class Compared:
    """Two checkups of models with the same heads.

    Args:
        before: The first.
        after: The second.

    Raises:
        MultiheadError: The models do not have the same heads, or read different things.
    """

    def __init__(self, before: Report, after: Report) -> None:
        for given in (before, after):
            if not isinstance(given, Report):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise MultiheadError(
                    asked="two reports to compare",
                    arrived=f"{type(given).__name__} {str(given)[:60]!r}",
                    remedy="load them first: mh.compare(mh.load_checkup(before), mh.load_checkup(after))",
                )
        self.before, self.after = before, after
        self.comparison: Comparison = compare_records(before.record, after.record)

    @property
    def different_settings(self) -> dict[str, tuple[str, str]]:
        """Settings that shape the numbers and were not the same, each with both values."""
        first, second = self.before.record.settings, self.after.record.settings
        told = {name: (first.get(name, "unknown"), second.get(name, "unknown")) for name in SHAPING}
        return {name: values for name, values in told.items() if values[0] != values[1]}

    def save(self, folder: str | Path = "comparison", *, lang: str = "en") -> Path:
        """Write `index.html`: one offline page.

        Args:
            folder: Where to; it is made.
            lang: Language of the page, `"en"` or `"zh"`.

        Returns:
            The path of the page.

        Raises:
            RecordError: The folder cannot be written.
        """
        page = Path(folder) / PAGE
        write_file(page, render_comparison(self.before.record, self.after.record, lang=lang).encode("utf-8"))
        return page

    def __repr__(self) -> str:
        names = f"{self.before.record.model.name!r}, {self.after.record.model.name!r}"
        return f"Compared({names}, {len(self.comparison.flips)} of {len(self.comparison.heads)} labels differ)"


def compare(before: Report, after: Report) -> Compared:
    """Hold two checkups against each other, head by head: two checkpoints, before and after a change, two seeds.

    Args:
        before: The first.
        after: The second; its model must have the same heads.

    Returns:
        Which labels flipped and how far every number moved (`.comparison`), and a page (`.save(folder)`).

    Raises:
        MultiheadError: The models do not have the same heads, or read different things.

    Example:
        >>> compared = mh.compare(mh.load_checkup("old"), mh.load_checkup("new"))  # doctest: +SKIP
        >>> [str(flip.before.head) for flip in compared.comparison.flips]  # doctest: +SKIP
        ['L3.H1']
    """
    return Compared(before, after)
