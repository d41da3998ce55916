"""Read what a rule asks for out of a record: values, baselines and intervals in the order of the texts' heads."""

from dataclasses import dataclass, replace

import numpy as np

from multihead.measure.role.rule import Rule, Source
from multihead.record import CheckupRecord, HeadStatistics, Quantity
from multihead.record.heads import Array


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reading:
    """What one rule read, one number a head; NaN where there is none.

    Args:
        names: The statistics it was read from.
        aside: Whether the sink was set aside.
        value: The value that is judged.
        low: Lower end of its interval.
        high: Upper end of its interval.
        even: What an even spread over the visible keys would have; NaN where it was not measured.
    """

    names: tuple[str, ...]
    aside: bool
    value: Array
    low: Array
    high: Array
    even: Array


def part_of(record: CheckupRecord, name: str) -> HeadStatistics | None:
    """The texts or the repeats."""
    return record.texts if name == "texts" else record.repeats


def holds(statistics: HeadStatistics | None, name: str) -> bool:
    """Whether a statistic was measured."""
    return statistics is not None and any(q.name == name for q in statistics.quantities)


def in_order_of(record: CheckupRecord, statistics: HeadStatistics, values: Array) -> Array:
    """Rows put in the order of the texts' heads; NaN for those that the part lacks."""
    place = {address: i for i, address in enumerate(statistics.heads)}
    rows = np.array([place.get(address, -1) for address in record.texts.heads], dtype=np.int64)
    return np.concatenate([values, np.full((1, *values.shape[1:]), np.nan)])[rows]


def read(record: CheckupRecord, rule: Rule) -> Reading | None:
    """The first source of a rule that was measured, or None."""
    statistics = part_of(record, rule.part)
    if statistics is None:
        return None
    for source in rule.sources:
        names = tuple(name for name in source.names if _offers(statistics, name, source.entries))
        if names:
            return _read(record, statistics, source, names)
    return None


def _offers(statistics: HeadStatistics, name: str, entries: tuple[str, ...]) -> bool:
    if not holds(statistics, name):
        return False
    quantity = statistics.quantity(name)
    if not entries:
        return quantity.shape == ()
    return any(entry in quantity.labels for entry in entries)


def _read(record: CheckupRecord, statistics: HeadStatistics, source: Source, names: tuple[str, ...]) -> Reading:
    found = [_one(statistics, name, source.entries) for name in names]
    value = np.stack([one[0] for one in found])
    # Of several statistics the largest counts, each head with the interval and the baseline of its own.
    best = np.where(np.isnan(value), -np.inf, value).argmax(axis=0)
    picked = [np.stack([one[k] for one in found])[best, np.arange(value.shape[1])] for k in range(4)]
    ordered = [in_order_of(record, statistics, values) for values in picked]
    return Reading(names=names, aside=source.aside, value=ordered[0], low=ordered[1], high=ordered[2], even=ordered[3])


def _one(statistics: HeadStatistics, name: str, entries: tuple[str, ...]) -> tuple[Array, Array, Array, Array]:
    """Value, both ends of the interval, and baseline of one statistic."""
    even = _baseline(statistics, name)
    if not entries:
        low, high = statistics.interval(name)
        return statistics.value(name), low, high, _spread(statistics, even, ())
    summed = _added_up(statistics, name, entries)
    low, high = summed.interval(name)
    return summed.value(name), low, high, _spread(statistics, even, entries)


def _baseline(statistics: HeadStatistics, name: str) -> str:
    quantity = statistics.quantity(name)
    if quantity.even or not quantity.content_of or not holds(statistics, quantity.content_of):
        return quantity.even
    return statistics.quantity(quantity.content_of).even


def _spread(statistics: HeadStatistics, even: str, entries: tuple[str, ...]) -> Array:
    if not even or not _offers(statistics, even, entries):
        return np.full(len(statistics), np.nan)
    return (_added_up(statistics, even, entries) if entries else statistics).value(even)


def _added_up(statistics: HeadStatistics, name: str, entries: tuple[str, ...]) -> HeadStatistics:
    """The same record with one statistic: some entries of an array as one number, so that it has its own interval."""
    quantity = statistics.quantity(name)
    places = [quantity.labels.index(entry) for entry in entries if entry in quantity.labels]
    whole = Quantity(name=name, title=quantity.title, unit=quantity.unit, formula=quantity.formula)
    return replace(
        statistics,
        quantities=(whole,),
        sums={name: statistics.sums[name][..., places].sum(axis=-1)},
        counts={name: statistics.counts[name][..., places].max(axis=-1)},
        units=(),
        unit_sums={},
        unit_counts={},
        sampling={},
        examples=(),
    )
