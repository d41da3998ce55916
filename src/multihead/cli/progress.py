"""How far a long run is: a bar on a terminal, a line now and then in a log file."""

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

SECONDS_BETWEEN_LINES = 10.0


class TokenProgress:
    """Tokens done, tokens a second and the time left.

    Args:
        console: Where it is written; a bar if it is a terminal, else a line at once and then every ten seconds.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:.0f} of {task.total:.0f} tokens"),
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

    def __enter__(self) -> "TokenProgress":  # noqa: PYI034 - beartype, in tests, cannot read Self
        self._start = time.monotonic()
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def update(self, done: int, total: int, doing: str) -> None:
        """Say how far the run is.

        Args:
            done: Tokens measured.
            total: Tokens in all.
            doing: What was measured last.
        """
        now = time.monotonic()
        rate = done / max(now - self._start, 1e-9)
        if self._task is None:
            self._task = self._bar.add_task("measuring", total=total, rate="")
        self._bar.update(self._task, completed=done, description=doing[:30], rate=f"{rate:,.0f} tokens/s")
        if not self._console.is_terminal and now - self._last_line >= SECONDS_BETWEEN_LINES:
            self._last_line = now
            left = (total - done) / max(rate, 1e-9)
            self._console.print(
                f"{done:,} of {total:,} tokens, {rate:,.0f} tokens/s, {left:,.0f} s left ({doing})",
                markup=False,
                highlight=False,
            )
