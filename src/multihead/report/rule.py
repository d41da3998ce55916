"""The plain facts of the first sentence: which heads pass which printed threshold."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from multihead.record.heads import Array
from multihead.report.number import round_share
from multihead.report.part import Part

QUIET = 0.45
"""A head that writes less than this share of its layer's mean output is drawn small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One fact a head may state, read from statistics against a threshold.

    Args:
        key: Names the colour of its heads.
        word: Two or three words for legends and the table.
        one: Predicate for one head.
        many: Predicate for several heads.
        statistics: The statistics it reads; the largest of those that were measured counts.
        part: The part they are read from.
        threshold: The share from which on the fact holds.
        measure: What is compared with the threshold, to be read after "at least 40% of".
        said: How the card says it, with `{}` for the value.
        entries: Labels of the entries that are added up, where the statistic is an array with labels.
    """

    key: str
    word: str
    one: str
    many: str
    statistics: tuple[str, ...]
    part: str
    threshold: float
    measure: str
    said: str
    entries: tuple[str, ...] = ()


RULES = (
    Rule(
        key="induction",
        word="what followed a copy",
        one="looks at what followed an earlier copy",
        many="look at what followed an earlier copy",
        statistics=("induction",),
        part="repeats",
        threshold=0.4,
        measure="the weight on tokens that came after another copy of the same token, on random tokens that repeat",
        said="Where random tokens repeat, {} of its weight is on what came after another copy.",
    ),
    Rule(
        key="previous",
        word="token before",
        one="looks at the token before",
        many="look at the token before",
        statistics=("previous",),
        part="texts",
        threshold=0.4,
        measure="the weight on the token just before",
        said="On the texts {} of its weight is on the token just before.",
    ),
    Rule(
        key="next",
        word="token after",
        one="looks at the token after",
        many="look at the token after",
        statistics=("next",),
        part="texts",
        threshold=0.4,
        measure="the weight on the token just after",
        said="On the texts {} of its weight is on the token just after.",
    ),
    Rule(
        key="same",
        word="same token",
        one="looks at copies of its token",
        many="look at copies of their token",
        statistics=("same_token",),
        part="repeats",
        threshold=0.4,
        measure="the weight on other copies of the same token, on random tokens that repeat",
        said="Where random tokens repeat, {} of its weight is on other copies of the same token.",
    ),
    Rule(
        key="self",
        word="itself",
        one="looks at its own token",
        many="look at their own token",
        statistics=("self",),
        part="texts",
        threshold=0.4,
        measure="the weight on the token itself",
        said="On the texts {} of its weight is on the token itself.",
    ),
    Rule(
        key="rest",
        word="first or special",
        one="rests on the first token or a special one",
        many="rest on the first token or a special one",
        statistics=("first_token", "special_token"),
        part="texts",
        threshold=0.5,
        measure="the weight on the first token, or on special tokens",
        said="On the texts it rests on the first token or a special one with {} of its weight.",
    ),
    Rule(
        key="near",
        word="near",
        one="stays near",
        many="stay near",
        statistics=("distance_histogram",),
        part="texts",
        threshold=0.5,
        measure="the weight fewer than 8 tokens away, back or ahead",
        said="On the texts it stays near: {} of its weight is fewer than 8 tokens away.",
        entries=("self", *(f"{way} {span}" for way in ("back", "ahead") for span in ("1", "2-3", "4-7"))),
    ),
    Rule(
        key="wide",
        word="spread wide",
        one="spreads wide",
        many="spread wide",
        statistics=("entropy_share",),
        part="texts",
        threshold=0.7,
        measure="the entropy an even spread would have",
        said="On the texts it spreads wide: its entropy is {} of what an even spread would have.",
    ),
)
NONE = Rule(
    key="none",
    word="none of these",
    one="meets none of these",
    many="meet none of these",
    statistics=(),
    part="texts",
    threshold=0.0,
    measure="",
    said="It meets none of the thresholds.",
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Facts:
    """Which head states which fact.

    Args:
        rules: The rules that could be read from the record, then `NONE`.
        unread: The rules whose statistics the record lacks.
        rule: For each head the index in `rules` of the first that holds.
        value: For each head and each of `rules` but the last the value judged, (heads, rules - 1).
        quiet: Which heads write less than `QUIET` of their layer's mean; all False if it was not measured.
        ratio_known: Whether the output was measured at all.
    """

    rules: tuple[Rule, ...]
    unread: tuple[Rule, ...]
    rule: NDArray[np.int64]
    value: Array
    quiet: NDArray[np.bool_]
    ratio_known: bool

    def counts(self) -> list[int]:
        """Number of heads under each of `rules`."""
        return [int((self.rule == i).sum()) for i in range(len(self.rules))]

    def strongest(self) -> list[tuple[Rule, int]]:
        """For each rule that holds somewhere the head that passes it by most."""
        found: list[tuple[Rule, int]] = []
        for i, rule in enumerate(self.rules[:-1]):
            mine = np.where(self.rule == i, self.value[:, i], -np.inf)
            if np.isfinite(mine.max()):
                found.append((rule, int(mine.argmax())))
        return found


def find_facts(parts: Sequence[Part], rules: Sequence[Rule] = RULES) -> Facts:
    """Judge every head on the values as they are printed; the first rule that holds names the head."""
    by_name = {part.name: part for part in parts}
    heads = len(by_name["texts"].rows)
    values: list[Array] = []
    read: list[Rule] = []
    for rule in rules:
        columns = _columns(rule, by_name.get(rule.part))
        if columns:
            read.append(rule)
            stacked = np.stack(columns)
            values.append(np.where(np.isnan(stacked).all(axis=0), np.nan, np.nan_to_num(stacked, nan=-1.0).max(axis=0)))
    rule_of = np.full(heads, len(read), dtype=np.int64)
    for i in reversed(range(len(read))):
        holds = [np.isfinite(v) and round_share(float(v)) >= read[i].threshold for v in values[i]]
        rule_of[np.array(holds)] = i
    texts = by_name["texts"]
    known = texts.has("output_ratio")
    ratio = texts.value("output_ratio") if known else np.full(heads, np.nan)
    return Facts(
        rules=(*read, NONE),
        unread=tuple(rule for rule in rules if rule not in read),
        rule=rule_of,
        value=np.stack(values, axis=1) if values else np.zeros((heads, 0)),
        quiet=np.round(ratio, 2) < QUIET,
        ratio_known=known,
    )


def _columns(rule: Rule, part: Part | None) -> list[Array]:
    """The values a rule reads, one array of heads for each statistic that was measured."""
    names = [name for name in rule.statistics if part is not None and part.has(name)]
    if part is None or not rule.entries:
        return [] if part is None else [part.value(name) for name in names]
    found: list[Array] = []
    for name in names:
        labels = part.statistics.quantity(name).labels
        places = [labels.index(entry) for entry in rule.entries if entry in labels]
        if places:
            found.append(part.value(name)[:, places].sum(axis=1))
    return found
