"""The words above the grid: what was measured, the facts as one sentence, and what the reader must know."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from multihead.record import CheckupRecord, HeadStatistics, ModelFacts
from multihead.report.layout import Stack
from multihead.report.number import listing, plural
from multihead.report.part import Part
from multihead.report.rule import NONE, QUIET, Facts

SHOWN = 6
"""Addresses named in one note before the rest is only counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phrase:
    """A count and its predicate in the sentence: `before`, the count on its ground, `text`.

    Args:
        before: What joins it to the phrase before.
        key: Names the colour.
        count: How many heads.
        text: The predicate.
    """

    before: str
    key: str
    count: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """Notes with the same reason, told once.

    Args:
        about: What it is about: heads or layers, or `""` for the whole run.
        quantity: Title of the statistic, or `""`.
        text: The reason.
    """

    about: str
    quantity: str
    text: str


def describe_shape(stacks: Sequence[Stack], model: ModelFacts) -> str:
    """`6 layers × 12 heads, looks both ways`; several stacks are named one by one."""
    if len(stacks) > 1:
        return "; ".join(f"{stack.name or 'self'} {_layers_by_heads(stack)}" for stack in stacks)
    stack = stacks[0]
    facts = [_layers_by_heads(stack)]
    if stack.shared:
        facts.append(f"sharing {plural(stack.key_values(), 'key and value head')} a layer")
    if model.causal is not None:
        facts.append("looks back only" if model.causal else "looks both ways")
    return ", ".join(facts)


def describe_texts(statistics: HeadStatistics) -> str:
    """`6 documents, 2,119 tokens`."""
    tokens = sum(document.tokens for document in statistics.documents)
    return f"{plural(len(statistics.documents), 'document')}, {plural(tokens, 'token')}"


def describe_parameters(count: int) -> str:
    """`22.7 M parameters`."""
    for size, letter in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if count >= size:
            return f"{count / size:.3g} {letter} parameters"
    return plural(count, "parameter")


def write_sentence(facts: Facts) -> list[Phrase]:
    """The phrases of the first sentence, rules without a head left out; the whole ends with a full stop."""
    told = [(rule, n) for rule, n in zip(facts.rules, facts.counts(), strict=True) if n]
    phrases: list[Phrase] = []
    for i, (rule, n) in enumerate(told):
        before = "" if i == 0 else " and " if i == len(told) - 1 else ", "
        phrases.append(Phrase(before=before, key=rule.key, count=n, text=rule.one if n == 1 else rule.many))
    if len(phrases) == 1 and phrases[0].key == NONE.key:
        phrases = [
            replace(phrases[0], text=f"{'meets' if phrases[0].count == 1 else 'meet'} none of the thresholds below")
        ]
    return phrases


def write_quiet(facts: Facts) -> Phrase | None:
    """How many heads write little, where the output was measured."""
    if not facts.ratio_known:
        return None
    n = int(facts.quiet.sum())
    text = (
        f"write less than {QUIET} of their layer's mean" if n > 1 else f"writes less than {QUIET} of its layer's mean"
    )
    return Phrase(before="", key="quiet", count=n, text=text)


def gather_notes(parts: Sequence[Part]) -> list[Notice]:
    """All notes of the record; those that differ only in the head are told once, with the heads named or counted."""
    grouped: dict[tuple[str, str, str], list[str]] = {}
    for part in parts:
        titles = {q.name: q.title for q in part.statistics.quantities}
        for note in part.statistics.notes:
            key = (part.name, titles.get(note.quantity, note.quantity), note.text)
            grouped.setdefault(key, []).append(note.about)
    told: dict[tuple[str, str, str], list[str]] = {}
    for (part_name, title, text), abouts in grouped.items():
        about = _name_some([a for a in dict.fromkeys(abouts) if a])
        told.setdefault((about, title, text), []).append(part_name)
    everywhere = len(parts)
    return [
        Notice(about=about, quantity=title, text=text if len(names) == everywhere else f"{text} (on the {names[0]})")
        for (about, title, text), names in told.items()
    ]


def warn_interrupted(record: CheckupRecord) -> str:
    """The line that says that the run did not finish, or `""`."""
    if record.complete:
        return ""
    measured = describe_texts(record.texts)
    return f"This run was interrupted: the page shows what was measured until then, {measured}."


def _layers_by_heads(stack: Stack) -> str:
    layers, widest = len(stack.layers), stack.widest()
    if layers * widest == stack.heads():
        return f"{plural(layers, 'layer')} × {plural(widest, 'head')}"
    return f"{plural(layers, 'layer')}, {plural(stack.heads(), 'head')} in all"


def _name_some(abouts: list[str]) -> str:
    if not abouts:
        return ""
    if len(abouts) <= SHOWN:
        return listing(abouts)
    return ", ".join(abouts[:SHOWN]) + f" and {len(abouts) - SHOWN:,} more"
