"""Measure the heads of a model while somebody else runs it."""

import hashlib
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager

from torch import nn

from multihead.corpus import TokenClasses
from multihead.error import MultiheadError
from multihead.hooks import Call, Site, watching
from multihead.measure.recorder import Recorder
from multihead.measure.statistic import DEFAULT, Statistic
from multihead.pattern import Pattern
from multihead.record import Document, HeadStatistics


class Watch:
    """A model under watch: each row of each pass becomes a document named `pass 0, row 0`.

    Args:
        recorder: What measures.
        name: Name of the model in the record.
    """

    def __init__(self, recorder: Recorder, name: str) -> None:
        self._recorder, self._name = recorder, name
        self._documents: list[Document] = []
        self._pass: tuple[int, ...] = ()
        self._passes = 0
        self._seen: set[Site] = set()

    def take(self, call: Call) -> None:
        """Measure a call; a layer that was seen before begins another pass.

        Raises:
            MultiheadError: The call reads keys from a cache.
        """
        _check_uncached(call)
        if not self._seen or call.site in self._seen:
            self._begin(call)
        self._seen.add(call.site)
        self._recorder.take(call, self._pass)
        self._recorder.ledger.post()

    def statistics(self) -> HeadStatistics:
        """The record of all passes so far.

        Raises:
            MultiheadError: The model was not run.
        """
        if not self._documents:
            raise MultiheadError(
                asked="statistics of a watched model",
                arrived="no pass",
                remedy="run the model inside the block: `with watch(model) as w: model(**inputs)`",
            )
        return self._recorder.record(self._name, self._documents, range(len(self._documents)))

    def _begin(self, call: Call) -> None:
        start = len(self._documents)
        self._documents += [
            _document(call, row, f"pass {self._passes}, row {row}") for row in range(call.problem.batch)
        ]
        self._pass = tuple(range(start, len(self._documents)))
        self._passes += 1
        self._seen.clear()


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

    Every row of every pass is a document of its own. Passes that read a cache are refused: their rows belong to a
    sequence that is not finished; run the finished sequence through the model once, which gives the same weights.

    Args:
        model: A transformers model, or one built on `MultiHeadAttention`.
        statistics: What to measure.
        targets: Patterns by name, see `observe`.
        classes: Classes of tokens and which are special, from `token_classes`; None leaves them out.
        name: Name of the model in the record.

    Yields:
        The watch; `.statistics()` gives the record, inside the block and after it.

    Raises:
        MultiheadError: See `observe`; or a pass reads a cache.

    Example:
        >>> with watch(model) as w:  # doctest: +SKIP
        ...     model(**inputs)
        >>> w.statistics()["L3.H7"].entropy  # doctest: +SKIP
        2.31
    """
    watched = Watch(Recorder(statistics, targets=targets, classes=classes), name)
    with watching(model, watched.take):
        yield watched


def _check_uncached(call: Call) -> None:
    problem = call.problem
    if not call.site.cross and problem.kv_len > problem.q_len:
        raise MultiheadError(
            asked="to watch whole passes",
            arrived=f"{problem.q_len} queries over {problem.kv_len} keys, from a cache, in {call.site.module}",
            remedy="pass use_cache=False, or generate first and then watch `model(sequence)`",
        )


def _document(call: Call, row: int, name: str) -> Document:
    tokens = call.queries
    kept = slice(None) if tokens.keep is None else tokens.keep[row].cpu()
    ids = b"" if tokens.ids is None else tokens.ids[row].cpu()[kept].long().numpy().tobytes()
    return Document(
        name=name,
        digest=hashlib.sha256(ids).hexdigest()[:16] if ids else "",
        tokens=call.problem.q_len if tokens.keep is None else int(tokens.keep[row].sum()),
    )
