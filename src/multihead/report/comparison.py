"""Two records of models with the same heads in, one page out: what changed between them."""

from collections.abc import Container, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup, escape

from multihead.measure.role import NONE, Comparison, Drift, HeadLabel, compare, rules_for
from multihead.record import CheckupRecord, HeadAddress
from multihead.report.axis import Axis, choose_axis
from multihead.report.layout import Stack, arrange, is_deep, style_pictures, style_sizes
from multihead.report.number import BARE, MISSING, cut, show
from multihead.report.pack import Maps
from multihead.report.part import parts_of
from multihead.report.payload import maps_of, to_json
from multihead.report.shell import Cell, join_scripts, page_file, policy, template
from multihead.report.speech import Speech, load_speech
from multihead.report.words import describe_measured, describe_shape

CHANGES = 60
"""Rows of the table of largest changes."""
_WIDE, _TALL = 180, 20


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftRow:
    """How far one number moved over all heads."""

    title: str
    part: str
    rms: str
    most: str
    where: str
    apart: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRow:
    """How far one number of one head moved."""

    head: str
    title: str
    part: str
    before: str
    after: str
    change: str
    chart: Markup


def render_comparison(a: CheckupRecord, b: CheckupRecord, *, lang: str = "en") -> str:
    """The page of two checkups of models with the same heads: labels that flipped, numbers that moved.

    Args:
        a: The first record, shown at the left.
        b: The second.
        lang: Language of the interface: `"en"` or `"zh"`.

    Returns:
        The text of one HTML file that asks the network for nothing.

    Raises:
        MultiheadError: The models do not have the same heads, or there is no such language.

    Example:
        `Path("compare.html").write_text(render_comparison(old, new), encoding="utf-8")`
    """
    speech = load_speech(lang, a.reads)
    found = compare(a, b)
    sides = [_Side(record, labels) for record, labels in ((a, found.before), (b, found.after))]
    flipped = {flip.before.head for flip in found.flips}
    first = sides[0]
    shape = next(((m.plain.shape[1], m.plain.shape[2]) for side in sides if (m := side.maps) is not None), None)
    style = "\n".join(
        (
            page_file("page.css"),
            page_file("compare.css"),
            style_sizes(first.stacks, shape, beside=2),
            *(
                style_pictures(side.stacks, None if side.maps is None else side.maps.plain, scope=f"#{p}heads ")
                for side, p in zip(sides, ("a-", "b-"), strict=True)
            ),
        )
    )
    script = join_scripts("compare.js")
    return template("compare.html.jinja").render(
        w=speech,
        names=[cut(r.model.name, 120) for r in (a, b)],
        shape=describe_shape(first.stacks, a.model, speech),
        measured=[describe_measured(r.texts, r.reads, speech) for r in (a, b)],
        roles=_roles(found, a.reads),
        flips=found.flips,
        sureness=_sureness(found, speech),
        count=len(found.heads),
        same_documents=found.same_documents,
        grids=[
            (prefix, side.stacks, side.maps is not None, side.cells(flipped, speech))
            for prefix, side in zip(("a-", "b-"), sides, strict=True)
        ],
        deep=is_deep(first.stacks),
        drifts=_drifts(found, speech),
        changes=_changes(found, speech),
        any_apart=any(bool(d.apart.any()) for d in found.drifts),
        value=lambda label: show(label.value, "share"),
        missing=MISSING,
        created=[r.created for r in (a, b)],
        style=Markup(style),
        script=script,
        data=Markup(to_json(_payload(found, speech))),
        policy=policy(style, script),
    )


class _Side:
    """One of the two records, ready to be drawn."""

    def __init__(self, record: CheckupRecord, labels: Sequence[HeadLabel]) -> None:
        texts = parts_of(record)[0]
        self.by_head = {label.head: label for label in labels}
        self.heads = record.texts.heads
        self.maps: Maps | None = maps_of(texts)
        plain = None if self.maps is None else self.maps.plain
        self.stacks: tuple[Stack, ...] = arrange(record.texts.heads, record.texts.kv_heads, plain)

    def cells(self, flipped: Container[HeadAddress], speech: Speech) -> list[Cell]:
        return [self._cell(head, speech, marked=head in flipped) for head in self.heads]

    def _cell(self, head: HeadAddress, speech: Speech, *, marked: bool) -> Cell:
        label = self.by_head[head]
        role = speech(f"role.{label.key}")
        return Cell(
            address=str(head),
            key=label.key,
            word=speech("c.flipped", role=role) if marked else role,
            marks=(" quiet" if label.quiet else "") + (" flip" if marked else ""),
        )


def _roles(found: Comparison, reads: str) -> list[str]:
    """Keys of what any head of either record looks like, in the order of the rules."""
    seen = {label.key for label in (*found.before, *found.after)}
    return [rule.key for rule in (*rules_for(reads), NONE) if rule.key in seen]


def _sureness(found: Comparison, speech: Speech) -> str:
    """How many of the labels that changed are near no threshold."""
    n, of = sum(flip.sure for flip in found.flips), len(found.flips)
    form = "none" if n == 0 else "all" if n == of else "some"
    return speech(f"c.sure.{form}.{'one' if of == 1 else 'other'}", n=f"{n:,}")


def _drifts(found: Comparison, speech: Speech) -> list[DriftRow]:
    """The numbers, those that moved most heads beyond their intervals first."""
    rows: list[DriftRow] = []
    for drift in sorted((d for d in found.drifts if d.of_heads()), key=Drift.order):
        change = np.where(np.isfinite(drift.change), np.abs(drift.change), -1.0)
        if change.max(initial=-1.0) < 0:
            continue
        most, unit = int(change.argmax()), drift.quantity.unit
        rows.append(
            DriftRow(
                title=speech.title(drift.quantity),
                part=speech(f"part.{drift.part}"),
                rms=_with_unit(drift.size(), unit, speech),
                most=_signed(float(drift.change[most]), unit, speech),
                where=str(found.heads[most]),
                apart=int(drift.apart.sum()),
            )
        )
    return rows


def _changes(found: Comparison, speech: Speech) -> list[ChangeRow]:
    """The largest changes, each as a share of the scale of its number."""
    every = [(drift, head) for drift in found.drifts if drift.of_heads() for head in range(len(found.heads))]
    known = [(d, h) for d, h in every if np.isfinite(d.change[h]) and d.change[h] != 0]
    apart = [(d, h) for d, h in known if d.apart[h]]
    scales = {id(drift): drift.scale() for drift in found.drifts}
    ranked = sorted(apart or known, key=lambda pair: -abs(float(pair[0].change[pair[1]])) / scales[id(pair[0])])
    axes: dict[int, Axis] = {}
    rows: list[ChangeRow] = []
    for drift, head in ranked[:CHANGES]:
        if id(drift) not in axes:
            axes[id(drift)] = choose_axis(drift.quantity, np.concatenate([drift.before, drift.after]))
        unit = drift.quantity.unit
        before, after = float(drift.before[head]), float(drift.after[head])
        rows.append(
            ChangeRow(
                head=str(found.heads[head]),
                title=speech.title(drift.quantity),
                part=speech(f"part.{drift.part}"),
                before=_with_unit(before, unit, speech),
                after=_with_unit(after, unit, speech),
                change=_signed(after - before, unit, speech),
                chart=_chart(drift, head, axes[id(drift)], speech),
            )
        )
    return rows


def _with_unit(value: float, unit: str, speech: Speech) -> str:
    text = show(value, unit)
    return text if unit in BARE or text == MISSING else f"{text} {cut(speech.unit(unit), 40)}"


def _signed(value: float, unit: str, speech: Speech) -> str:
    return ("+" if value > 0 else "") + _with_unit(value, unit, speech)


def _chart(drift: Drift, head: int, axis: Axis, speech: Speech) -> Markup:
    """Two marks with their intervals on the scale of the number."""
    marks: list[str] = []
    sides = ((drift.before, drift.before_interval, "was", 6.0), (drift.after, drift.after_interval, "now", 14.0))
    for values, (low, high), kind, y in sides:
        x, left, right = (_place(axis, float(v[head])) for v in (values, low, high))
        if right > left:
            marks.append(
                f'<path class="{kind}" d="M{left:.1f} {y}H{right:.1f}M{left:.1f} {y - 2}v4M{right:.1f} {y - 2}v4"/>'
            )
        marks.append(f'<rect class="{kind}" x="{x - 2:.1f}" y="{y - 4}" width="4" height="8"/>')
    unit = drift.quantity.unit
    label = speech("c.chart", a=show(float(drift.before[head]), unit), b=show(float(drift.after[head]), unit))
    return Markup(
        f'<svg width="{_WIDE}" height="{_TALL}" viewBox="0 0 {_WIDE} {_TALL}" role="img" aria-label="{escape(label)}">'
        f'<path class="axis" d="M0 10H{_WIDE}"/>{"".join(marks)}</svg>'
    )


def _place(axis: Axis, value: float) -> float:
    if not np.isfinite(value):
        return 0.0
    if axis.kind == "log":
        at = np.log(max(value, axis.low) / axis.low) / np.log(axis.high / axis.low)
    else:
        at = (value - axis.low) / (axis.high - axis.low)
    at = float(np.clip(at, 0.0, 1.0))
    return 3 + (at**0.5 if axis.kind == "root" else at) * (_WIDE - 6)


def _payload(found: Comparison, speech: Speech) -> dict[str, object]:
    return {
        "names": [str(head) for head in found.heads],
        "before": [speech(f"role.{label.key}") for label in found.before],
        "after": [speech(f"role.{label.key}") for label in found.after],
        "flips": sorted(str(flip.before.head) for flip in found.flips),
    }
