"""How a run of `observe` goes: which rows are measured, what is kept on disk meanwhile, and who is told."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Run:
    """How a run goes; nothing of it changes what is measured but `rows` and `seed`.

    Args:
        rows: Query rows to measure of every longer call, 64 or more, rounded down to a multiple of 16; None for all.
        seed: Which rows are drawn; the same seed draws the same rows of the same documents.
        journal: Folder that keeps what every batch brought, so that a run that was ended by force can be begun again
            and goes on: its record is, bit for bit, that of a run that was not. One run at a time may use it.
            `discard_journal` deletes it.
        settings: What shaped the batches, by name, as text; a journal is told from that of a run with others by it.
        backend: What measures the weights of a call: `"native"` for the compiled kernel, `"torch"`, or `"auto"`: the
            kernel where it can, or else torch. The record's notes say which did; they agree but for rounding.
        on_batch: Called with the index of each batch when it is finished, also where the journal held it.
        on_document: Called with the index of each document when it is finished.

    Example:
        >>> Run(rows=512).seed
        0
    """

    rows: int | None = None
    seed: int = 0
    journal: str | Path | None = None
    settings: Mapping[str, str] = field(default_factory=dict[str, str])
    backend: str = "auto"
    on_batch: Callable[[int], None] | None = None
    on_document: Callable[[int], None] | None = None
