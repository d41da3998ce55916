"""From calls to records: measures each call as it comes and keeps the sums."""

import re
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from multihead.corpus import TokenClasses
from multihead.error import MultiheadError
from multihead.hooks import Call
from multihead.measure.batch import Batch
from multihead.measure.compiled import kernel_words
from multihead.measure.example import Fed, classes_of, see_spans
from multihead.measure.journal import describe_run, digest_of
from multihead.measure.ledger import Ledger
from multihead.measure.page import Slot, slot_of
from multihead.measure.sample import Sampler, is_worth_it, sample_block
from multihead.measure.scene import Scene, Target, build_scene
from multihead.measure.statistic import DEFAULT_TARGETS, Statistic, target, token_class
from multihead.measure.sweep import sweep_blocks
from multihead.pattern import Pattern
from multihead.record import Document, HeadStatistics, Quantity

_NAME = re.compile(r"[a-z][a-z0-9_]*")


class Recorder:
    """Measures calls and adds them up by document.

    Args:
        statistics: What to measure.
        targets: Patterns by name, besides the default ones.
        classes: Classes of tokens and which are special, or None.
        sampler: Which rows are measured, or None for all.
        backend: What measures the weights, see `sweep`.

    Attributes:
        ledger: Where it is added up; what is taken stays on its sheet until that is posted.

    Raises:
        MultiheadError: A name is no identifier or is taken twice.
    """

    def __init__(
        self,
        statistics: Sequence[Statistic],
        *,
        targets: Mapping[str, Target] | None = None,
        classes: TokenClasses | None = None,
        sampler: Sampler | None = None,
        backend: str = "auto",
    ) -> None:
        self._targets = {**DEFAULT_TARGETS, **(targets or {})}
        self._classes, self._sampler, self._backend = classes, sampler, backend
        self._statistics: tuple[Statistic, ...] = (
            *statistics,
            *(target(name) for name in self._targets),
            *([token_class(classes.names)] if classes is not None and classes.names else []),
        )
        self.ledger = Ledger(_checked(self._statistics), samples=sampler is not None)
        self._factors = _Factors()

    def take(self, call: Call, documents: Sequence[int], *, key: str = "", fed: Fed | None = None) -> None:
        """Measure one call.

        Args:
            call: What was seen.
            documents: Document of each row the model was fed.
            key: What tells its batch from the others of the same documents, for drawing rows.
            fed: The batch itself, where it tells classes by place or has stretches to be kept.
        """
        if not (call.problem.batch and call.problem.q_len and call.problem.kv_len):
            return
        # A model may run under autocast: what is measured is not to be rounded by it.
        with torch.no_grad(), torch.autocast(call.problem.q.device.type, enabled=False):
            scene = build_scene(
                call,
                documents,
                vocabulary=self._classes,
                targets=self._targets,
                factor=self._factors.of(call),
                classes=None if fed is None or self._classes is None else classes_of(call, fed.batch),
            )
            self._measure(scene, key)
            if fed is not None and fed.batch.spans:
                # Whatever rows are drawn: the reader sees whole stretches.
                self.ledger.add_seen(scene, see_spans(scene, fed))

    def describe(self, model: nn.Module, batches: Sequence[Batch], documents: Sequence[Document]) -> dict[str, str]:
        """All that the numbers of a run depend on, in words that tell it from any other."""
        classes = self._classes
        return describe_run(model, batches, documents) | {
            "statistics": ", ".join(quantity.name for quantity in self.ledger.quantities),
            "targets": "; ".join(f"{name}: {_told(given)}" for name, given in self._targets.items()),
            "classes": "none"
            if classes is None
            else f"{', '.join(classes.names)} {digest_of((classes.table, classes.special))}",
            "backend": f"{self._backend}, {kernel_words()}",
            "rows": "all" if self._sampler is None else f"{self._sampler.measured}, seed {self._sampler.seed}",
        }

    def _measure(self, scene: Scene, key: str) -> None:
        sampler, site, length = self._sampler, scene.call.site, scene.problem.q_len
        if sampler is not None and is_worth_it(scene.problem, sampler.measured):
            drawn = sampler.draw(length, f"{key}|{site.module}|{site.repeat}|{site.cross}")
            self.ledger.add(scene, [sample_block(scene, self._statistics, drawn, backend=self._backend)])
            return
        # Units of a document are those of all its layers: where one layer is sampled the whole call is a unit.
        as_one = sampler is not None and length > sampler.measured
        self.ledger.add(scene, sweep_blocks(scene, self._statistics, backend=self._backend), as_one=as_one)

    def record(
        self, name: str, documents: Sequence[Document], finished: Sequence[int], batches: Sequence[Batch] = ()
    ) -> HeadStatistics:
        """The record of the documents that are finished, in order, with the stretches of the batches."""
        return self.ledger.record(name, documents, finished, batches)


class _Factors:
    """For each head a small matrix R with ||R o|| = ||W_O o||: the triangular factor of its part of the projection.

    It is found once for each layer and again when the weight was changed.
    """

    def __init__(self) -> None:
        self._known: dict[Slot, tuple[Tensor, int, Tensor]] = {}

    def of(self, call: Call) -> Tensor | None:
        weight = call.projection.weight
        if weight is None:
            return None
        slot, version = slot_of(call), 0 if weight.is_inference() else weight._version
        known = self._known.get(slot)
        if known is not None and _is_same(known[0], weight) and known[1] == version:
            return known[2]
        per_head = weight.detach().double().unflatten(1, (call.problem.heads, -1)).transpose(0, 1)
        factor = torch.linalg.qr(per_head, mode="r").R.to(call.problem.wide)
        self._known[slot] = weight, version, factor
        return factor


def _is_same(held: Tensor, weight: Tensor) -> bool:
    """Whether both are the same memory, also where a part of a weight is cut out anew for every call."""
    alike = held.shape == weight.shape and held.stride() == weight.stride() and held.dtype == weight.dtype
    return alike and held.data_ptr() == weight.data_ptr() and held.device == weight.device


def _told(given: Target) -> str:
    return str(given) if isinstance(given, Pattern) else ", ".join(map(str, given))


def _checked(statistics: Sequence[Statistic]) -> tuple[Quantity, ...]:
    quantities = tuple(quantity for statistic in statistics for quantity in statistic.quantities)
    names = [quantity.name for quantity in quantities]
    for place, name in enumerate(names):
        if not _NAME.fullmatch(name):
            raise MultiheadError(
                asked="statistics and targets named by small letters, digits and _, a letter first",
                arrived=repr(name),
                remedy="give it another name, e.g. 'gold_pairs'",
            )
        if name in names[:place]:
            raise MultiheadError(
                asked="one name for each statistic and target (targets also take NAME_argmax, NAME_even, NAME_content)",
                arrived=f"{name!r} twice",
                remedy="give the target another name, or leave the statistic out",
            )
    return quantities
