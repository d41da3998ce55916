"""The words above the grid: what was measured, what heads look like as one sentence, what the reader must know."""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from multihead.measure.role import LEFT, NONE, QUIET, TWINS, Judgement, Rule
from multihead.record import CheckupRecord, HeadStatistics, ModelFacts
from multihead.report.layout import Stack
from multihead.report.number import cut
from multihead.report.part import Part
from multihead.report.speech import Speech

SHOWN = 6
"""Addresses named in one note before the rest is only counted."""
STARTS = 7
"""Heads named to start with."""
OTHERS = frozenset({"rest", "near", "wide", "none"})
"""What is no job: told in the second half of the sentence."""
_LAYER = re.compile(r"((?:.*\.)?)L(\d+)", re.DOTALL)
"""A layer a note is about: the name of its stack with a point behind, and its number."""
_PAIRS = (("[CLS]", "[SEP]"), ("<s>", "</s>"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Phrase:
    """A count and its predicate in the sentence: `before`, the count on its ground, `text`.

    Args:
        before: What joins it to the phrase before.
        key: Names the colour and the filter.
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
        about: What it is about: heads, layers or ranges of layers, or `""` for the whole run.
        quantity: Titles of the statistics, or `""`.
        text: The reason.
    """

    about: str
    quantity: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleRow:
    """One line of "how the words are decided"."""

    key: str
    word: str
    count: int | None
    text: str


def name_sink(record: CheckupRecord, speech: Speech) -> tuple[str, str]:
    """What the sink of this model is, in a sentence and in a list."""
    if record.reads in ("images", "audio"):
        return speech(f"sink.{record.reads}"), speech(f"sink.short.{record.reads}")
    special = record.model.special_tokens
    for a, b in _PAIRS:
        if a in special and b in special and not record.model.causal:
            return speech("sink.pair", a=a, b=b), speech("sink.short.pair", a=a, b=b)
    kind = "first" if record.model.causal else "special"
    return speech(f"sink.{kind}"), speech(f"sink.short.{kind}")


def describe_shape(stacks: Sequence[Stack], model: ModelFacts, speech: Speech) -> str:
    """`6 layers × 12 heads, looks both ways`; several stacks are named one by one."""
    if len(stacks) > 1:
        return "; ".join(f"{speech.stack(cut(s.name, 80))} {_layers_by_heads(s, speech)}" for s in stacks)
    stack = stacks[0]
    facts = [_layers_by_heads(stack, speech)]
    if stack.shared:
        facts.append(speech.count("count.kv", stack.key_values()))
    if model.causal is not None:
        facts.append(speech("causal" if model.causal else "both"))
    return speech("comma").join(facts)


def describe_measured(statistics: HeadStatistics, reads: str, speech: Speech) -> str:
    """`6 documents, 2,119 tokens`."""
    noun = {"images": "image", "audio": "recording"}.get(reads, "document")
    tokens = sum(document.tokens for document in statistics.documents)
    told = speech.count(f"count.{noun}", len(statistics.documents))
    return told + speech("comma") + speech.count("count.token", tokens)


def describe_parameters(count: int, speech: Speech) -> str:
    """`22.7 M parameters`."""
    for size, letter in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if count >= size:
            return speech("count.parameter.other", n=f"{count / size:.3g} {letter}")
    return speech.count("count.parameter", count)


def write_sentence(found: Judgement, sink: str, speech: Speech) -> list[Phrase]:
    """The phrases of the first sentence, jobs first and the others after; rules without a head are left out."""
    told = [(rule, n) for rule, n in zip(found.rules, found.counts(), strict=True) if n]
    jobs = [pair for pair in told if pair[0].key not in OTHERS]
    others = [pair for pair in told if pair[0].key in OTHERS]
    phrases: list[Phrase] = []
    for group in (jobs, others):
        for i, (rule, n) in enumerate(group):
            last = i == len(group) - 1
            before = "" if not phrases else speech("others") if i == 0 else speech("and" if last else "comma")
            text = speech(f"role.{rule.key}.{'one' if n == 1 else 'other'}", sink=sink)
            phrases.append(Phrase(before=before, key=rule.key, count=n, text=text))
    return phrases


def write_second(found: Judgement, speech: Speech) -> list[Phrase]:
    """The second sentence: how many write little, look like a neighbour, are near a threshold."""
    counts: list[tuple[str, int]] = []
    if found.ratio_known:
        counts.append(("quiet", int(found.quiet.sum())))
    if found.twins_known:
        counts.append(("twin", len({head for pair in found.twins for head in pair})))
    unsure = int((found.rival >= 0).sum())
    if unsure:
        counts.append(("unsure", unsure))
    # What no head does is told first, without a number: "None writes little; 11 look like a neighbour."
    phrases: list[Phrase] = []
    for key, n in counts:
        form = "one" if n == 1 else "other" if n else "none"
        text = speech(f"{key}.{form}")
        phrases.append(Phrase(before=speech("tail") if phrases else "", key=key, count=n, text=text))
    return phrases


def pick_starts(found: Judgement, parts: Sequence[Part], speech: Speech) -> list[tuple[int, str]]:
    """Heads to start with, picked by the numbers, each with why."""
    picked = [(head, rule.key) for rule, head in found.strongest() if rule.key not in ("near", "wide")]
    idle = _looks_idle(found)
    if idle is not None:
        picked.append((idle, "idle"))
    texts = parts[0]
    if found.ratio_known:
        ratio = texts.value("output_ratio")
        if np.isfinite(ratio).any():
            picked.append((int(np.nanargmin(ratio)), "quiet"))
    picked += [(head, rule.key) for rule, head in found.strongest() if rule.key in ("near", "wide")]
    seen: set[int] = set()
    out: list[tuple[int, str]] = []
    for head, why in picked:
        if head not in seen and len(out) < STARTS:
            seen.add(head)
            out.append((head, speech(f"start.{why}")))
    return out


def write_rules(found: Judgement, sink: str, over: str, speech: Speech) -> list[RuleRow]:
    """How each word is decided, with its count; None where the record lacks its statistic."""
    counts = dict(zip((rule.key for rule in found.rules), found.counts(), strict=True))
    aside_of = {rule.key: r.aside for rule, r in zip(found.rules, found.readings, strict=False)}
    rows = [
        RuleRow(
            key=rule.key,
            word=speech(f"role.{rule.key}"),
            count=counts.get(rule.key),
            text=_explain(rule, sink, speech, aside=aside_of.get(rule.key, False)),
        )
        for rule in (*found.rules[:-1], *found.unread, NONE)
    ]
    aside = speech("rule.aside", sink=sink)
    more = [
        ("quiet", found.ratio_known, int(found.quiet.sum()), QUIET),
        ("twin", found.twins_known, len({h for pair in found.twins for h in pair}), TWINS),
        ("unsure", True, int((found.rival >= 0).sum()), None),
    ]
    for key, known, count, threshold in more:
        text = speech(f"rule.{key}.said", t=threshold, aside=aside, over=over)
        rows.append(RuleRow(key=key, word=speech(f"rule.{key}"), count=count if known else None, text=text))
    return rows


def describe_over(statistics: HeadStatistics, speech: Speech) -> str:
    """What is drawn anew for intervals: documents, or pieces of them where documents are few."""
    if not statistics.units:
        return speech("over.documents")
    return speech("over.chunks" if statistics.sampling else "over.blocks")


def describe_left() -> str:
    """The share under which nothing is read from what is off the sink."""
    return f"{LEFT * 100:.0f}%"


def gather_notes(parts: Sequence[Part], speech: Speech) -> list[Notice]:
    """All notes of the record; those that differ only in the statistic, the layer or the head are told once."""
    told: dict[tuple[str, str, str], list[str]] = {}
    for part in parts:
        titles = {q.name: speech.title(q) for q in part.statistics.quantities}
        abouts: dict[tuple[str, str], list[str]] = {}
        for note in part.statistics.notes:
            abouts.setdefault((note.text, titles.get(note.quantity, note.quantity)), []).append(note.about)
        names: dict[tuple[str, str], list[str]] = {}
        for (text, title), each in abouts.items():
            places = _name_some(_join_layers([a for a in dict.fromkeys(each) if a]), speech)
            names.setdefault((places, text), []).append(title)
        for (places, text), each in names.items():
            listed = _name_some([title for title in each if title], speech)
            told.setdefault((places, listed, text), []).append(part.name)
    everywhere = len(parts)
    return [
        Notice(
            about=about,
            quantity=title,
            text=text if len(names) == everywhere else speech("note.on", text=text, part=speech(f"part.{names[0]}")),
        )
        for (about, title, text), names in told.items()
    ]


def warn_interrupted(record: CheckupRecord, speech: Speech) -> str:
    """The line that says that the run did not finish, or `""`."""
    if record.complete:
        return ""
    return speech("interrupted", measured=describe_measured(record.texts, record.reads, speech))


def warn_lone(record: CheckupRecord, speech: Speech) -> str:
    """The line that says that so little was read that no number has an interval, or `""`."""
    if record.texts.drawn < 2:
        return speech("lone")
    return speech("lone.repeats") if record.repeats is not None and record.repeats.drawn < 2 else ""


def _explain(rule: Rule, sink: str, speech: Speech, *, aside: bool) -> str:
    added = speech("rule.aside", sink=sink) if aside else ""
    return speech(f"rule.{rule.key}", t=f"{rule.threshold * 100:.0f}%", sink=sink, aside=added)


def _looks_idle(found: Judgement) -> int | None:
    """The head that rests most on the texts and yet continues repeats."""
    keys = [rule.key for rule in found.rules]
    if "induction" not in keys or "rest" not in keys:
        return None
    rest = found.readings[keys.index("rest")].value
    mine = np.where((found.rule == keys.index("induction")) & (rest >= 0.5), rest, -np.inf)
    return int(mine.argmax()) if np.isfinite(mine.max(initial=-np.inf)) else None


def _layers_by_heads(stack: Stack, speech: Speech) -> str:
    layers, widest = len(stack.layers), stack.widest()
    told = speech.count("count.layer", layers)
    if layers * widest == stack.heads():
        return f"{told} × {speech.count('count.head', widest)}"
    return told + speech("comma") + speech("all", n=speech.count("count.head", stack.heads()))


def _join_layers(abouts: Sequence[str]) -> list[str]:
    """Layers in order, those that follow one another as a range, `L3–L7`; then whatever else a note is about."""
    found = [_LAYER.fullmatch(about) for about in abouts]
    numbers: dict[str, list[int]] = {}
    for match in found:
        if match:
            numbers.setdefault(match[1], []).append(int(match[2]))
    out: list[str] = []
    for stack, layers in numbers.items():
        ordered = sorted(layers)
        # Within a run of neighbours the number less its place stays the same.
        for _, run in itertools.groupby(enumerate(ordered), key=lambda pair: pair[1] - pair[0]):
            words = [f"L{layer}" for _, layer in run]
            words = [f"{words[0]}–{words[-1]}"] if len(words) > 2 else words
            out += [stack + word for word in words]
    return out + [about for about, match in zip(abouts, found, strict=True) if not match]


def _name_some(abouts: Sequence[str], speech: Speech) -> str:
    if not abouts:
        return ""
    if len(abouts) <= SHOWN:
        return speech.listing(abouts)
    return speech("comma").join(abouts[:SHOWN]) + " " + speech.count("count.more", len(abouts) - SHOWN)
