"""Run a model over batches and measure every head of it."""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from multihead.corpus import TokenClasses
from multihead.error import MultiheadError
from multihead.hooks import Call, watching
from multihead.hooks.locate import check_model
from multihead.measure.batch import Batch
from multihead.measure.example import Fed
from multihead.measure.given import given_batches, given_documents, given_run, given_statistics
from multihead.measure.heap import Heap
from multihead.measure.journal import Journal, keeping
from multihead.measure.recorder import Recorder
from multihead.measure.run import Run
from multihead.measure.sample import Sampler
from multihead.measure.scene import Target
from multihead.measure.statistic import DEFAULT, DEFAULT_TARGETS, Statistic
from multihead.pattern import Pattern
from multihead.record import FEW, Document, HeadStatistics


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during `observe`. What was measured until then is kept.

    Args:
        statistics: The record of the documents that were finished.
    """

    def __init__(self, statistics: HeadStatistics) -> None:
        super().__init__(f"interrupted after {len(statistics.documents)} documents")
        self.statistics = statistics


def observe(
    model: nn.Module,
    batches: Batch | Iterable[Batch],
    *,
    documents: Document | Iterable[Document],
    statistics: Sequence[Statistic] = DEFAULT,
    targets: Mapping[str, Target] | None = None,
    classes: TokenClasses | None = None,
    name: str = "",
    run: Run | None = None,
) -> HeadStatistics:
    """Measure every attention head of a model, in memory that grows with the length and not its square.

    The model runs as it is, on its own kernels, in eval mode and without gradients; its training flags are put back.
    Each row of each batch is measured by itself and added to its document in float64, so that the record of two lists
    of documents is, bit for bit, the merge of their records, if their batches are the same.

    With `run.rows` only so many query rows of longer calls are measured: neighbouring rows form strata, and 16 groups
    take one row by chance from each. Sums are then estimates for all rows, and `record.sampling_interval` tells how far
    off they may be. Statistics of outputs are taken of all rows, and so are layers where that costs less.

    Args:
        model: A transformers model, or one built on `MultiHeadAttention`.
        batches: What the model gets, in order; all of them are held in memory.
        documents: What the rows of the batches belong to; each has at least one row.
        statistics: What to measure.
        targets: Patterns by name, on top of the token before ("previous"), two before ("previous2"), after ("next") and
            itself ("self"). For each the weight on its pairs (`NAME`), what an even spread would put there
            (`NAME_even`), the weight with the sink set aside (`NAME_content`) and the share of rows whose largest
            weight is on one (`NAME_argmax`) are measured, over rows that see one. Positions count from the first real
            token of a row. A list holds one pattern for each document.
        classes: Classes of tokens and which are special, from `token_classes`; None leaves them out.
        name: Name of the model in the record.
        run: Which rows are measured, what is kept on disk meanwhile, and who is told: see `Run`; None for all rows,
            nothing and nobody.

    Returns:
        The record: one row for each document, one column for each head.

    Raises:
        MultiheadError: No batches, or they do not fit the documents; token ids without a class; a name taken twice; too
            few rows; a journal of another run, or one that another run is writing; or no attention to be seen.
        Interrupted: Ctrl-C; `.statistics` holds the documents finished until then.

    Example:
        >>> batch = Batch(inputs=dict(tokenizer("A text.", return_tensors="pt")), document=(0,))  # doctest: +SKIP
        >>> document = Document(name="text", digest="", tokens=5)  # doctest: +SKIP
        >>> observe(model, [batch], documents=[document])["L0.H0"].entropy  # doctest: +SKIP
        1.27
    """
    check_model(model)
    statistics = given_statistics(statistics, targets=targets, classes=classes)
    run = given_run(run)
    batches, documents = given_batches(batches), given_documents(documents)
    last = _last_batch(batches, documents)
    _check_targets(targets or {}, documents)
    sampler = None if run.rows is None else Sampler(rows=run.rows, seed=run.seed)
    recorder = Recorder(statistics, targets=targets, classes=classes, sampler=sampler, backend=run.backend)
    if len(documents) >= FEW:
        recorder.ledger.drop_units()
    finished: list[int] = []

    def finish(place: int) -> None:
        ended = sorted({index for index in batches[place].document if last[index] == place})
        # First of all: whoever is told may be interrupted, and what was measured counts.
        finished.extend(ended)
        if run.on_batch is not None:
            run.on_batch(place)
        for document in ended:
            if run.on_document is not None:
                run.on_document(document)

    try:
        about = {} if run.journal is None else recorder.describe(model, batches, documents)
        with keeping(run.journal, {**run.settings, **about, "name": name}) as kept:
            done = 0 if kept is None else _replay(kept, recorder, len(batches), finish)
            if done < len(batches):
                _run(model, _Plan(batches, documents, start=done), recorder, kept=kept, finish=finish)
    except KeyboardInterrupt as stop:
        raise Interrupted(recorder.record(name, documents, sorted(finished), batches)) from stop
    return recorder.record(name, documents, range(len(documents)), batches)


def _replay(kept: Journal, recorder: Recorder, batches: int, finish: Callable[[int], None]) -> int:
    """Add what a journal holds; the number of batches it holds."""
    done = 0
    for sheet in kept.sheets(batches):
        recorder.ledger.post(sheet)
        finish(done)
        done += 1
    return done


class _Plan:
    """The batches from one on, each with a key that tells it from others of its documents, wherever they stand."""

    def __init__(self, batches: Sequence[Batch], documents: Sequence[Document], *, start: int) -> None:
        keys: list[str] = []
        earlier = [0] * len(documents)
        for batch in batches:
            keys.append("|".join(f"{documents[d].digest}|{documents[d].name}|{earlier[d]}" for d in batch.document))
            for document in set(batch.document):
                earlier[document] += 1
        self.steps = list(enumerate(zip(batches, keys, strict=True)))[start:]


def _run(
    model: nn.Module, plan: _Plan, recorder: Recorder, *, kept: Journal | None, finish: Callable[[int], None]
) -> None:
    """Run the model over batches, and add up what each brings once it is through."""
    fed: Fed | None = None
    key = ""
    heap = Heap()

    def take(call: Call) -> None:
        assert fed is not None, "no call comes before the first batch"
        recorder.take(call, fed.batch.document, key=key, fed=fed)
        heap.give_back()

    with evaluating(model), torch.no_grad(), watching(model, take) as watched:
        for place, (batch, key) in plan.steps:  # noqa: B007 - read by `take`
            fed = Fed(place=place, batch=batch)
            model(**batch.inputs)
            for path, reason in watched.unseen.items():
                recorder.ledger.remark(f"{path or 'the model'}: not measured: {reason}")
            for path, text in watched.remarks.items():
                recorder.ledger.remark(f"{path or 'the model'}: {text}")
            if kept is not None:
                kept.write(place, recorder.ledger.sheet)
            recorder.ledger.post()
            finish(place)


@contextmanager
def evaluating(model: nn.Module) -> Generator[None]:
    """Eval mode, every module's own flag put back after."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _last_batch(batches: Sequence[Batch], documents: Sequence[Document]) -> dict[int, int]:
    """The last batch that holds a row of each document."""
    last = {index: place for place, batch in enumerate(batches) for index in batch.document}
    lost = sorted(set(range(len(documents))) - last.keys())
    strange = sorted(last.keys() - set(range(len(documents))))
    if lost or strange:
        told = [f"{len(batches)} batches, {len(documents)} documents"]
        told += [f"no row of document {index}" for index in lost[:1]]
        told += [f"rows of document {index}" for index in strange[:1]]
        raise MultiheadError(
            asked="batches with rows of every document",
            arrived=", ".join(told),
            remedy="pass the documents the batches were cut from; Batch.document counts them from 0",
        )
    return last


def _check_targets(targets: Mapping[str, Target], documents: Sequence[Document]) -> None:
    for name, given in targets.items():
        if name in DEFAULT_TARGETS:
            raise MultiheadError(
                asked=f"a name for a target of your own, besides {', '.join(DEFAULT_TARGETS)}",
                arrived=repr(name),
                remedy="these are always measured: give yours another name",
            )
        if not isinstance(given, Pattern) and len(given) != len(documents):
            raise MultiheadError(
                asked=f"one pattern for all documents or one for each of {len(documents)} as target {name!r}",
                arrived=f"{len(given)} patterns",
                remedy="pass a pattern, or a list as long as `documents`",
            )
