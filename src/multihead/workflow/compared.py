"""Two checkups held against each other: what the comparison says, and its page."""

from pathlib import Path

from multihead.error import MultiheadError, kind_and_text
from multihead.measure.role import Comparison
from multihead.measure.role import compare as compare_records
from multihead.record import CheckupRecord, write_file
from multihead.report import render_comparison
from multihead.workflow.folder import needed_folder
from multihead.workflow.report import Report, load_checkup

PAGE = "index.html"
Checked = Report | CheckupRecord | str | Path
"""A checkup that was made: a report, its record, or the folder it was saved to."""
SHAPING = ("max_length", "rows", "repeats", "dtype")
"""Settings of a checkup that change its numbers."""


class Compared:
    """Two checkups of models with the same heads.

    Args:
        before: The first: a report, its record, or the folder it was saved to.
        after: The second.

    Raises:
        MultiheadError: The models do not have the same heads, or read different things; or these are no checkups.
    """

    def __init__(self, before: Checked, after: Checked) -> None:
        self.before, self.after = _report(before), _report(after)
        self.comparison: Comparison = compare_records(self.before.record, self.after.record)

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
        page = needed_folder("a folder to save to", folder) / PAGE
        write_file(page, render_comparison(self.before.record, self.after.record, lang=lang).encode("utf-8"))
        return page

    def __repr__(self) -> str:
        names = f"{self.before.record.model.name!r}, {self.after.record.model.name!r}"
        return f"Compared({names}, {len(self.comparison.flips)} of {len(self.comparison.heads)} labels differ)"


def _report(given: object) -> Report:
    if isinstance(given, CheckupRecord):
        return Report(given)
    if isinstance(given, str | Path):
        return load_checkup(given)
    if not isinstance(given, Report):
        raise MultiheadError(
            asked="two reports to compare",
            arrived=kind_and_text(given),
            remedy="pass what mh.checkup or mh.load_checkup gave, or the folders of two checkups",
        )
    return given


def compare(before: Checked, after: Checked) -> Compared:
    """Hold two checkups against each other, head by head: two checkpoints, before and after a change, two seeds.

    Args:
        before: The first: a report, its record, or the folder it was saved to.
        after: The second; its model must have the same heads.

    Returns:
        Which labels flipped and how far every number moved (`.comparison`), and a page (`.save(folder)`).

    Raises:
        MultiheadError: The models do not have the same heads, or read different things.

    Example:
        >>> compared = mh.compare("old", "new")  # doctest: +SKIP
        >>> [str(flip.before.head) for flip in compared.comparison.flips]  # doctest: +SKIP
        ['L3.H1']
    """
    return Compared(before, after)
