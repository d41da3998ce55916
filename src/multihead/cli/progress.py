"""How far a long run is: a bar on a terminal, a line now and then in a log file."""

import time
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from multihead.workflow import Progress

SECONDS_BETWEEN_LINES = 10.0


class PlaceProgress:
    """Tokens (positions of pictures and recordings) done, how many a second and the time left.

    Args:
        console: Where it is written; a bar if it is a terminal, else a line at once and then every ten seconds.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:.0f} of {task.total:.0f} {task.fields[unit]}"),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task: TaskID | None = None
        self._start = time.monotonic()
        # The first line comes at once: a sign of life, and a first guess at the time left.
        self._last_line = self._start - SECONDS_BETWEEN_LINES

    def __enter__(self) -> "PlaceProgress":  # noqa: PYI034 - beartype, in tests, cannot read Self
        self._start = time.monotonic()
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def update(self, progress: Progress) -> None:
        """Say how far the run is."""
        done, total, unit = progress.done, progress.total, progress.unit
        now = time.monotonic()
        rate = done / max(now - self._start, 1e-9)
        if self._task is None:
            self._task = self._bar.add_task("measuring", total=total, rate="", unit=unit)
        # Names are shown as they are: rich would read [words] in them.
        doing = escape(progress.doing[:30])
        self._bar.update(self._task, completed=done, description=doing, rate=f"{rate:,.0f} {unit}/s")
        if not self._console.is_terminal and now - self._last_line >= SECONDS_BETWEEN_LINES:
            self._last_line = now
            left = (total - done) / max(rate, 1e-9)
            self._console.print(
                f"{done:,} of {total:,} {unit}, {rate:,.0f} {unit}/s, {left:,.0f} s left ({progress.doing})",
                markup=False,
                highlight=False,
            )
