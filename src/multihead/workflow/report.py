"""What a checkup gives back: the record with its page, ready to look at, query and save."""

import tempfile
import webbrowser
from pathlib import Path
from typing import Any

import pyarrow as pa

from multihead.record import CheckupRecord, HeadStatistics, save_checkup
from multihead.record import load_checkup as load_record
from multihead.report import render_page
from multihead.workflow.folder import needed_folder
from multihead.workflow.plan import UNITS

PAGE = "index.html"


class Report:
    """The result of a checkup.

    Args:
        record: Everything that was measured.

    Example:
        >>> report = mh.checkup(model, tokenizer, ["A text to read.", "Another text."])  # doctest: +SKIP
        >>> report.statistics["L3.H7"].entropy  # doctest: +SKIP
        2.31
        >>> report.save("checkup")  # doctest: +SKIP
    """

    def __init__(self, record: CheckupRecord) -> None:
        self.record = record

    @property
    def statistics(self) -> HeadStatistics:
        """Statistics of every head over the texts: `report.statistics["L3.H7"].entropy`."""
        return self.record.texts

    @property
    def repeats(self) -> HeadStatistics | None:
        """Statistics over random tokens repeated several times; None where they were not run."""
        return self.record.repeats

    def table(self) -> Any:
        """One row a head with every statistic that is one number: a `pyarrow.Table` (`.to_pandas()` where wanted)."""
        return pa.Table.from_pylist(self.record.texts.table())

    def save(self, folder: str | Path = "checkup", *, lang: str = "en") -> Path:
        """Write `index.html`, `record.json`, `record.safetensors` and `heads.parquet`: all of them or none.

        Args:
            folder: Where to; it is made.
            lang: Language of the page, `"en"` or `"zh"`.

        Returns:
            The path of the page.

        Raises:
            RecordError: The folder cannot be written.
        """
        folder = needed_folder("a folder to save to", folder)
        save_checkup(self.record, folder, beside={PAGE: render_page(self.record, lang=lang).encode("utf-8")})
        return folder / PAGE

    def open(self) -> Path:
        """Write the page to a temporary folder and show it in the browser.

        Returns:
            The path of the page.
        """
        page = self.save(Path(tempfile.mkdtemp(prefix="multihead-")))
        webbrowser.open(page.as_uri())
        return page

    def __eq__(self, other: object) -> bool:
        """Equal if the records are."""
        return self.record == other.record if isinstance(other, Report) else NotImplemented

    __hash__ = None  # pyright: ignore[reportAssignmentType]  # holds arrays

    def __repr__(self) -> str:
        texts = self.record.texts
        tokens = sum(d.tokens for d in texts.documents)
        state = "" if self.record.complete else ", interrupted"
        things, unit = UNITS[self.record.reads]
        size = f"{len(texts)} heads, {len(texts.documents)} {things}, {tokens} {unit}"
        return f"Report({self.record.model.name!r}, {size}{state})"


def load_checkup(folder: str | Path) -> Report:
    """Read a checkup that `Report.save` or `multihead checkup --out` wrote.

    Raises:
        RecordError: A file is missing, damaged, or of another format.
    """
    return Report(load_record(needed_folder("a folder that holds a checkup", folder)))
