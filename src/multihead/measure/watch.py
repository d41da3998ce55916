"""Measure the heads of a model while somebody else runs it."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager

from torch import nn

from multihead.corpus import TokenClasses
from multihead.error import MultiheadError
from multihead.hooks import Call, watching
from multihead.hooks.locate import check_model
from multihead.measure.given import given_statistics
from multihead.measure.page import Slot, slot_of
from multihead.measure.reading import Read, absolute, check_begins, goes_on
from multihead.measure.recorder import Recorder
from multihead.measure.statistic import DEFAULT, Statistic
from multihead.pattern import Pattern
from multihead.record import Document, HeadStatistics

RELATIVE = (
    "pooled_map",
    "pooled_map_content",
    "entropy_by_position",
    "sink_by_position",
    "received",
    "received_top",
    "effective_rank",
    "cka",
)
"""Statistics that place a row within the length of its sequence, or see many rows at once."""

_STEPWISE = "the sequence was read in steps: its length, and rows side by side, are not known while it is measured"


class Watch:
    """A model under watch: each row of each pass becomes a document named `pass 0, row 0`.

    A pass that reads what earlier ones left in a cache goes on with their documents. Documents of a pass that raised
    an exception are left out.

    Args:
        recorder: What measures.
        name: Name of the model in the record.
    """

    def __init__(self, recorder: Recorder, name: str) -> None:
        self._recorder, self._name = recorder, name
        self._documents: list[Document] = []
        self._pass: tuple[int, ...] = ()
        self._passes = 0
        self._read: dict[Slot, Read] = {}
        self._measured = False
        self._failed: set[int] = set()
        self._raised = 0

    def take(self, call: Call) -> None:
        """Measure a call; a layer that was seen before and reads no cache begins another pass.

        Raises:
            MultiheadError: The call reads keys from a cache, and they are not those of the documents at hand.
        """
        self._measured = True
        slot = slot_of(call)
        before = self._read.get(slot)
        on = before is not None and goes_on(call, before)
        if not on:
            check_begins(call, before)
            if not self._read or before is not None:
                self._begin(call)
        read = before.then(call) if before is not None and on else Read.first(call)
        first = not self._read or next(iter(self._read)) == slot
        self._read[slot] = read
        self._recorder.take(absolute(call, read) if on else call, self._pass)
        self._recorder.ledger.post(step=on)
        if on:
            self._step(read, describe=first)

    def end(self, well: bool) -> None:  # noqa: FBT001 - called by the hooks
        """A pass has ended; one that raised is left out, with the documents it went on with."""
        self._raised += not well
        if self._measured and not well:
            self._failed.update(self._pass)
            self._read.clear()
        self._measured = False

    def statistics(self) -> HeadStatistics:
        """The record of all passes so far that ended well.

        Raises:
            MultiheadError: The model was not run.
        """
        finished = [index for index in range(len(self._documents)) if index not in self._failed]
        if not finished:
            raised = f"{self._raised} pass{'es' if self._raised > 1 else ''} that raised an exception, and no other"
            raise MultiheadError(
                asked="statistics of a watched model",
                arrived=raised if self._raised else "no pass",
                remedy="run the model inside the block, to its end: `with watch(model) as w: model(**inputs)`",
            )
        return self._recorder.record(self._name, self._documents, finished)

    def _begin(self, call: Call) -> None:
        start = len(self._documents)
        read = Read.first(call)
        self._documents += [read.document(row, f"pass {self._passes}, row {row}") for row in range(call.problem.batch)]
        self._pass = tuple(range(start, len(self._documents)))
        self._passes += 1
        self._read.clear()

    def _step(self, read: Read, *, describe: bool) -> None:
        """The documents have grown."""
        for row, document in enumerate(self._pass):
            self._recorder.ledger.leave_out(document, RELATIVE, _STEPWISE)
            if describe:
                self._documents[document] = read.document(row, self._documents[document].name)


@contextmanager
def watch(
    model: nn.Module,
    *,
    statistics: Sequence[Statistic] = DEFAULT,
    targets: Mapping[str, Pattern] | None = None,
    classes: TokenClasses | None = None,
    name: str = "",
) -> Generator[Watch]:
    """Measure every attention head while the model is run in the block, in whatever mode it is run.

    Every row of every pass is a document of its own. Passes that read a cache go on with the documents that filled it,
    so that watching `generate` gives what one pass over the finished sequence gives (its last token is not read), but
    for statistics that place a row within the length of its sequence: these are left out, and a note says so. Caches
    whose rows change places, as in beam search, and caches that were filled before are refused.

    Args:
        model: A transformers model, or one built on `MultiHeadAttention`.
        statistics: What to measure.
        targets: Patterns by name, see `observe`.
        classes: Classes of tokens and which are special, from `token_classes`; None leaves them out.
        name: Name of the model in the record.

    Yields:
        The watch; `.statistics()` gives the record, inside the block and after it.

    Raises:
        MultiheadError: See `observe`; or a pass reads a cache that the passes before it did not fill.

    Example:
        >>> with watch(model) as w:  # doctest: +SKIP
        ...     model(**inputs)
        >>> w.statistics()["L3.H7"].entropy  # doctest: +SKIP
        2.31
    """
    check_model(model)
    statistics = given_statistics(statistics, targets=targets, classes=classes)
    watched = Watch(Recorder(statistics, targets=targets, classes=classes), name)
    with watching(model, watched.take, on_pass=watched.end):
        yield watched
