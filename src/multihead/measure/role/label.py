"""What each head looks like: the first rule it meets, judged on the values as they are printed."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from multihead.measure.role.printed import round_ratio, round_share
from multihead.measure.role.read import Reading, holds, in_order_of, part_of, read
from multihead.measure.role.rule import LEFT, NONE, QUIET, TWINS, Rule, rules_for
from multihead.record import CheckupRecord, HeadAddress
from multihead.record.heads import Array

SIMILARITIES = ("similarity_content", "similarity")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadLabel:
    """What one head looks like. No head was switched off for it: it says where a head looks, not what it is for.

    Args:
        head: Address of the head.
        key: Key of the rule that was met; `"none"` if none was.
        word: Its words, e.g. `"continues a repeat"`.
        value: The number that met it; NaN for none.
        threshold: What it was held against.
        even: What an even spread over the visible keys would have; NaN where it was not measured.
        low: Lower end of the 95 % interval of the value over documents.
        high: Upper end.
        statistic: Name of the statistic.
        part: `"texts"` or `"repeats"`.
        unsure: Whether another document could well have brought another label: an interval reaches across a threshold,
            or there is no interval at all, as one document or piece of one was read.
        rival: Key of the label it might have instead, where an interval says so; else `""`.
        quiet: Whether it writes less than `QUIET` of its layer's mean.
        twins: Heads of its layer that look at the same places (`TWINS`).
    """

    head: HeadAddress
    key: str
    word: str
    value: float
    threshold: float
    even: float
    low: float
    high: float
    statistic: str
    part: str
    unsure: bool
    rival: str
    quiet: bool
    twins: tuple[HeadAddress, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Judgement:
    """All rules and all heads of a record.

    Args:
        rules: The rules that could be read, in order, then `NONE`.
        unread: The rules whose statistics the record lacks.
        readings: What each of `rules` but the last read.
        rule: For each head the index in `rules` of the first it meets.
        rival: For each head the index of the rule it is near the threshold of, -1 for none.
        quiet: Which heads write less than `QUIET` of their layer's mean; all False if it was not measured.
        ratio_known: Whether the output was measured at all.
        twins: Pairs of heads that look at the same places, by their places in the record, the earlier one first.
        twins_known: Whether the overlap of patterns was measured at all.
        once: Which heads have a label that rests on one document or piece of one, so that nothing says how sure it is.
    """

    rules: tuple[Rule, ...]
    unread: tuple[Rule, ...]
    readings: tuple[Reading, ...]
    rule: NDArray[np.int64]
    rival: NDArray[np.int64]
    quiet: NDArray[np.bool_]
    ratio_known: bool
    twins: tuple[tuple[int, int], ...]
    twins_known: bool
    once: NDArray[np.bool_]

    def counts(self) -> list[int]:
        """Number of heads under each of `rules`."""
        return [int((self.rule == i).sum()) for i in range(len(self.rules))]

    def strongest(self) -> list[tuple[Rule, int]]:
        """For each rule that some head meets the head that passes it by most."""
        found: list[tuple[Rule, int]] = []
        for i, reading in enumerate(self.readings):
            mine = np.where(self.rule == i, reading.value, -np.inf)
            if np.isfinite(mine.max(initial=-np.inf)):
                found.append((self.rules[i], int(mine.argmax())))
        return found


def judge(record: CheckupRecord, rules: Sequence[Rule] | None = None) -> Judgement:
    """Hold every head against every rule.

    Args:
        record: What was measured.
        rules: In the order in which they are tried; None for `rules_for(record.reads)`.
    """
    wanted = rules_for(record.reads) if rules is None else tuple(rules)
    found = [(rule, read(record, rule)) for rule in wanted]
    known = [(rule, reading) for rule, reading in found if reading is not None]
    kept, readings = tuple(rule for rule, _ in known), tuple(reading for _, reading in known)
    left = _left(record)
    meets = [_meets(reading.value, r.threshold) & (left | (not reading.aside)) for r, reading in known]
    reach = [
        _meets(reading.high, r.threshold) & ~_meets(reading.low, r.threshold) & (left | (not reading.aside))
        for r, reading in known
    ]
    rule = np.full(len(record.texts), len(kept), dtype=np.int64)
    for i in reversed(range(len(kept))):
        rule[meets[i]] = i
    known_ratio = holds(record.texts, "output_ratio")
    ratio = record.texts.value("output_ratio") if known_ratio else np.full(len(record.texts), np.nan)
    return Judgement(
        rules=(*kept, NONE),
        unread=tuple(rule for rule, reading in found if reading is None),
        readings=readings,
        rule=rule,
        rival=_rivals(rule, meets, reach),
        quiet=np.array([bool(r == r and round_ratio(float(r)) < QUIET) for r in ratio], dtype=np.bool_),
        ratio_known=known_ratio,
        twins=find_twins(record),
        twins_known=any(holds(record.texts, name) for name in SIMILARITIES),
        once=np.array([_alone(record, kept[i].part) if i < len(kept) else False for i in rule], dtype=np.bool_),
    )


def _alone(record: CheckupRecord, part: str) -> bool:
    """Whether so little was read that no value has an interval."""
    statistics = part_of(record, part)
    return statistics is not None and statistics.drawn < 2


def label_heads(record: CheckupRecord) -> tuple[HeadLabel, ...]:
    """What each head of a record looks like, in the order of `record.texts.heads`.

    The first rule that is met names the head. Rules are judged with the sink set aside where such a statistic was
    measured (and only where at least `LEFT` of the weight is off the sink), else on all weight; `NONE` is left.

    Args:
        record: What was measured.

    Example:
        >>> label_heads(record)[0].word  # doctest: +SKIP
        'token before'
    """
    found = judge(record)
    heads = record.texts.heads
    twins: dict[int, list[int]] = {}
    for a, b in found.twins:
        twins.setdefault(a, []).append(b)
        twins.setdefault(b, []).append(a)
    return tuple(
        _label(found, h, heads[h], tuple(heads[t] for t in sorted(twins.get(h, ())))) for h in range(len(heads))
    )


def find_twins(record: CheckupRecord) -> tuple[tuple[int, int], ...]:
    """Pairs of heads of one layer whose patterns overlap by at least `TWINS`, the sink set aside where it was.

    Args:
        record: What was measured.

    Returns:
        Places in `record.texts.heads`, the earlier head first; empty where no overlap was measured.
    """
    texts = record.texts
    name = next((name for name in SIMILARITIES if holds(texts, name)), None)
    if name is None:
        return ()
    overlap = texts.value(name)
    layers: dict[tuple[str, int], list[int]] = {}
    for i, address in enumerate(texts.heads):
        layers.setdefault((address.stack, address.layer), []).append(i)
    return tuple(
        (i, j)
        for members in layers.values()
        for i in members
        for j in members
        if i < j and _overlap(overlap, i, texts.heads[j].head) >= TWINS
    )


def _overlap(overlap: Array, head: int, other: int) -> float:
    value = float(overlap[head, other]) if other < overlap.shape[1] else np.nan
    return round_ratio(value) if np.isfinite(value) else -1.0


def _label(found: Judgement, head: int, address: HeadAddress, twins: tuple[HeadAddress, ...]) -> HeadLabel:
    place, rival = int(found.rule[head]), int(found.rival[head])
    rule = found.rules[place]
    reading = found.readings[place] if place < len(found.readings) else None
    return HeadLabel(
        head=address,
        key=rule.key,
        word=rule.word,
        value=float(reading.value[head]) if reading else float("nan"),
        threshold=rule.threshold,
        even=float(reading.even[head]) if reading else float("nan"),
        low=float(reading.low[head]) if reading else float("nan"),
        high=float(reading.high[head]) if reading else float("nan"),
        statistic=reading.names[0] if reading else "",
        part=rule.part,
        unsure=rival >= 0 or bool(found.once[head]),
        rival=found.rules[rival].key if rival >= 0 else "",
        quiet=bool(found.quiet[head]),
        twins=twins,
    )


def _left(record: CheckupRecord) -> NDArray[np.bool_]:
    """Which heads have enough weight off the sink for it to say something; all where the sink was not measured."""
    texts = record.texts
    if not holds(texts, "sink"):
        return np.ones(len(texts), dtype=np.bool_)
    sink = in_order_of(record, texts, texts.value("sink"))
    return np.array([not (s == s and round_share(1.0 - float(s)) < LEFT) for s in sink], dtype=np.bool_)


def _meets(values: Array, threshold: float) -> NDArray[np.bool_]:
    return np.array([bool(np.isfinite(v)) and round_share(float(v)) >= threshold for v in values], dtype=np.bool_)


def _rivals(
    rule: NDArray[np.int64], meets: Sequence[NDArray[np.bool_]], reach: Sequence[NDArray[np.bool_]]
) -> NDArray[np.int64]:
    """The rule that could take a head's label, or that it could fall to, if its value moved within its interval."""
    rival = np.full(len(rule), -1, dtype=np.int64)
    for head, mine in enumerate(rule.tolist()):
        earlier = next((i for i in range(min(mine, len(reach))) if reach[i][head]), -1)
        if earlier >= 0:
            rival[head] = earlier
        elif mine < len(reach) and reach[mine][head]:
            rival[head] = next((i for i in range(mine + 1, len(meets)) if meets[i][head]), len(meets))
    return rival
