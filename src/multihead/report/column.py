"""Every number a head has: what it is called, its values, its intervals, and which ones are shown first."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from multihead.measure.role import Judgement, Rule
from multihead.record import Quantity
from multihead.record.heads import Array
from multihead.report.part import Part
from multihead.report.speech import Speech

FIRST = (
    ("texts", ("sink", "first_token")),
    ("texts", ("entropy_share", "entropy")),
    ("texts", ("span90", "distance_absolute")),
    ("texts", ("previous",)),
    ("texts", ("next",)),
    ("texts", ("self",)),
    ("texts", ("neighbour",)),
    ("texts", ("same_row",)),
    ("texts", ("same_column",)),
    ("repeats", ("same_token",)),
    ("repeats", ("induction",)),
    ("texts", ("output_ratio",)),
    ("texts", ("nearest",)),
)
"""The numbers shown first, in order; of those in one bracket the first that was measured."""
_SEQUENTIAL = frozenset({"previous", "next"})
_DERIVED = ("_content", "_argmax", "_even")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Column:
    """One number a head.

    Args:
        part: Name of the part it was measured on.
        quantity: What it is.
        title: Its name in full.
        short: Its name in a list.
        values: (heads,); NaN where there is none.
        low: Lower end of its interval over documents.
        high: Upper end.
        sampled: Both ends of the interval that comes of measuring some rows only, or None.
        first: Whether it is one of those shown first.
        thresholds: What the rules hold it against.
    """

    part: str
    quantity: Quantity
    title: str
    short: str
    values: Array
    low: Array
    high: Array
    sampled: tuple[Array, Array] | None
    first: bool
    thresholds: tuple[float, ...]

    @property
    def id(self) -> str:
        """Its name on the page."""
        return f"{self.part}/{self.quantity.name}"

    def known(self) -> bool:
        """Whether any head has a value."""
        return not bool(np.isnan(self.values).all())


def columns_of(parts: Sequence[Part], judgement: Judgement, speech: Speech, *, reads: str) -> list[Column]:
    """All numbers of all parts, those shown first in front."""
    found = [_column(part, q, judgement, speech) for part in parts for q in part.statistics.scalars()]
    nearest = _nearest(parts[0], speech)
    if nearest is not None:
        found.append(nearest)
    by_id = {column.id: column for column in found}
    front: list[Column] = []
    for part, names in FIRST:
        if reads == "images" and names[0] in _SEQUENTIAL:
            continue
        known = [by_id[f"{part}/{name}"] for name in names if f"{part}/{name}" in by_id]
        front += [column for column in known if _tells(column)][:1]
    front += [column for column in found if column.part == "texts" and _is_users(column, speech) and _tells(column)]
    chosen = {column.id for column in front}
    return [_marked(column) for column in front] + [column for column in found if column.id not in chosen]


def _tells(column: Column) -> bool:
    """Whether any head has more than nothing of it."""
    return bool((np.nan_to_num(column.values) != 0).any())


def _is_users(column: Column, speech: Speech) -> bool:
    """Whether it is a target or a statistic of the user's own, and not a variant of one."""
    return speech.title(column.quantity) == column.quantity.title and not (
        speech.knows(f"stat.{column.quantity.name}") or column.quantity.name.endswith(_DERIVED)
    )


def _marked(column: Column) -> Column:
    return Column(
        part=column.part,
        quantity=column.quantity,
        title=column.title,
        short=column.short,
        values=column.values,
        low=column.low,
        high=column.high,
        sampled=column.sampled,
        first=True,
        thresholds=column.thresholds,
    )


def _column(part: Part, quantity: Quantity, judgement: Judgement, speech: Speech) -> Column:
    low, high = part.interval(quantity.name)
    return Column(
        part=part.name,
        quantity=quantity,
        title=speech.title(quantity),
        short=speech.short(quantity),
        values=part.value(quantity.name),
        low=low,
        high=high,
        sampled=part.sampling_interval(quantity.name),
        first=False,
        thresholds=tuple(
            rule.threshold
            for rule, reading in zip(judgement.rules, judgement.readings, strict=False)
            if _judges(rule, part.name, quantity.name, reading.names)
        ),
    )


def _judges(rule: Rule, part: str, name: str, read: Sequence[str]) -> bool:
    """Whether a rule is judged on this number; its plain version carries the same line."""
    return rule.part == part and (name in read or f"{name}_content" in read)


def _nearest(texts: Part, speech: Speech) -> Column | None:
    """The largest overlap with another head of the same layer."""
    name = next((n for n in ("similarity_content", "similarity") if texts.has(n, axes=1)), None)
    if name is None:
        return None
    heads = texts.statistics.heads
    overlap = texts.value(name).copy()
    for i, address in enumerate(heads):
        if address.head < overlap.shape[1]:
            overlap[i, address.head] = np.nan
    filled = np.where(np.isnan(overlap), -np.inf, overlap)
    values = filled.max(axis=1, initial=-np.inf)
    values = np.where(np.isfinite(values), values, np.nan)
    quantity = Quantity(name="nearest", title="nearest", unit="ratio", formula=speech("formula.nearest"))
    return Column(
        part="texts",
        quantity=quantity,
        title=speech.title(quantity),
        short=speech.short(quantity),
        values=values,
        low=values,
        high=values,
        sampled=None,
        first=False,
        thresholds=(0.9,),
    )
