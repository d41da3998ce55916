"""What the page's script works with: every number of the record, arrays in eight bits."""

import json
import re
from collections.abc import Sequence

import numpy as np

from multihead.measure.role import Judgement
from multihead.record import CheckupRecord, Quantity
from multihead.report.alike import join_families, pack_alike
from multihead.report.axis import choose_axis
from multihead.report.column import Column
from multihead.report.example import choose_examples, describe
from multihead.report.layout import Stack, is_deep
from multihead.report.number import BARE, cut
from multihead.report.pack import MANY, Maps, ends, floats, pack, pack_maps
from multihead.report.part import Part
from multihead.report.speech import Speech
from multihead.report.sprite import looks_back_only

MAP = "pooled_map"
CHARTS = {
    "received": "received",
    "distance_histogram": "profile",
    "offsets": "bars",
    "entropy_by_position": "line",
    "entropy_by_length": "length",
    "sink_by_position": "sink",
    "token_class": "list",
}
"""How the arrays that are known by name are drawn; others with one axis become bars."""
BY_DISTANCE = frozenset({"distance_histogram", "offsets"})
"""Arrays along query minus key: drawn with what lies back at the left."""
_ALWAYS = frozenset({"low", "high"})
_OWN = frozenset({"id", "values", "ends", "sampled", "first", "lines"})
LABEL = 40
"""Characters of the name of an entry that are shown."""
TITLE = 120
"""Characters of the title of a statistic that are shown."""


def build_payload(
    record: CheckupRecord,
    parts: Sequence[Part],
    stacks: Sequence[Stack],
    judgement: Judgement,
    columns: Sequence[Column],
    speech: Speech,
    sink: tuple[str, str],
) -> dict[str, object]:
    """The data of the page, ready for JSON.

    `heads` holds `[stack, layer, head, key/value head, rule, rival]`; `stats` every number with its scale and its
    packed values and intervals; `arrays` and `map` what was measured on the texts; `alike` and `families` which heads
    look like which; `examples` the links.
    """
    layer_of = {
        place.index: (stack.number, layer) for stack in stacks for layer in stack.layers for place in layer.places()
    }
    heads = [
        [
            layer_of[i][0],
            address.layer,
            address.head,
            record.texts.kv_heads[i],
            int(judgement.rule[i]),
            int(judgement.rival[i]),
        ]
        for i, address in enumerate(record.texts.heads)
    ]
    first = judgement.strongest()
    return {
        "words": speech.of_script(),
        "sink": list(sink),
        "model": cut(record.model.name, 200),
        "reads": record.reads,
        "stacks": [{"name": cut(speech.stack(s.name), LABEL), "causal": s.causal, "shared": s.shared} for s in stacks],
        "deep": is_deep(stacks),
        "bare": sorted(BARE),
        "heads": heads,
        "names": [str(address) for address in record.texts.heads],
        "first": first[0][1] if first else 0,
        "rules": _rules(judgement),
        "quiet": [int(i) for i in np.flatnonzero(judgement.quiet)],
        "families": join_families(judgement.twins),
        "alike": pack_alike(parts[0]),
        "stats": _stats(columns, speech),
        "map": _map(parts[0], many=len(heads) > MANY),
        # Of pairs of heads the page holds those that are most alike and no others: all would grow with their square.
        "arrays": {
            q.name: _array(q, parts[0], speech)
            for q in parts[0].statistics.quantities
            if len(q.shape) == 1 and not q.pairs
        },
    }


def add_examples(
    payload: dict[str, object], parts: Sequence[Part], stacks: Sequence[Stack], judgement: Judgement, *, room: int
) -> dict[str, object]:
    """The payload with the examples that fit into so many bytes."""
    used = len(to_json({**payload, "examples": [], "best": [-1] * len(judgement.rule)}))
    shown, best = choose_examples(parts, judgement, room=room - used)
    names = [stack.name for stack in stacks]
    told = [describe(one, names) for one in shown]
    return {**payload, "examples": [_told_apart(one, told) for one in told], "best": best}


def _told_apart(example: dict[str, object], among: Sequence[dict[str, object]]) -> dict[str, object]:
    """The example, with its number where several are of one document."""
    alike = [one for one in among if one["name"] == example["name"] and one["stack"] == example["stack"]]
    if len(alike) < 2:
        return example
    return example | {"name": f"{example['name']} ({next(i for i, one in enumerate(alike, 1) if one is example)})"}


def to_json(payload: dict[str, object]) -> str:
    """JSON that can stand inside a `<script>` element: no `<`, nothing outside ASCII."""
    text = json.dumps(payload, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def maps_of(texts: Part) -> Maps | None:
    """The average maps of a part, with what is known of the sink in them."""
    if not texts.has(MAP, axes=2):
        return None
    plain = texts.value(MAP)
    content = texts.value(f"{MAP}_content") if texts.has(f"{MAP}_content", axes=2) else None
    sink = texts.value("sink_by_position") if texts.has("sink_by_position", axes=1) else None
    if content is None or content.shape != plain.shape or sink is None or sink.shape != plain.shape[:2]:
        return Maps(plain=plain, content=None, sink=None)
    return Maps(plain=plain, content=content, sink=sink)


def _rules(judgement: Judgement) -> list[dict[str, object]]:
    told: list[dict[str, object]] = []
    for i, rule in enumerate(judgement.rules):
        reading = judgement.readings[i] if i < len(judgement.readings) else None
        facts: dict[str, object] = {"key": rule.key, "threshold": rule.threshold, "part": rule.part}
        if reading is not None:
            facts |= {
                "aside": reading.aside,
                "values": floats(reading.value),
                "even": None if np.isnan(reading.even).all() else floats(reading.even),
                "ends": ends(reading.low, reading.high),
            }
        told.append(facts)
    return told


def _stats(columns: Sequence[Column], speech: Speech) -> list[dict[str, object]]:
    by_name: dict[str, list[Column]] = {}
    for column in columns:
        by_name.setdefault(column.quantity.name, []).append(column)
    told: list[dict[str, object]] = []
    for column in columns:
        q = column.quantity
        # Parts are drawn on one scale, so that they can be compared.
        axis = choose_axis(q, np.concatenate([same.values for same in by_name[q.name]]))
        facts: dict[str, object] = {
            "id": column.id,
            "title": cut(column.title, TITLE),
            "short": cut(column.short, LABEL),
            "unit": cut(q.unit, LABEL),
            "word": cut(speech.unit(q.unit), LABEL),
            "kind": axis.kind,
            "low": axis.low,
            "high": axis.high,
            "ticks": list(axis.ticks),
            "values": floats(column.values),
            "ends": ends(column.low, column.high),
            "sampled": None if column.sampled is None else ends(*column.sampled),
            "of": q.content_of,
            "even": q.even,
            "first": column.first,
            "lines": list(column.thresholds),
        }
        # A number of the repeats takes its names and its scale from the texts.
        kept = _OWN if by_name[q.name][0] is not column else frozenset(facts)
        told.append({key: value for key, value in facts.items() if key in kept and (key in _ALWAYS or value)})
    return told


def _map(texts: Part, *, many: bool) -> dict[str, object] | None:
    maps = maps_of(texts)
    if maps is None:
        return None
    maps = maps.pooled() if many else maps
    return pack_maps(maps, causal=looks_back_only(maps.plain))


def _array(quantity: Quantity, part: Part, speech: Speech) -> dict[str, object]:
    stem = quantity.content_of or quantity.name
    distance = stem in BY_DISTANCE
    return {
        "title": cut(speech.title(quantity), TITLE),
        "unit": cut(quantity.unit, LABEL),
        "word": cut(speech.unit(quantity.unit), LABEL),
        "size": quantity.shape[0],
        "labels": [cut(label if distance else speech.label(label), LABEL) for label in quantity.labels],
        "chart": CHARTS.get(stem, "bars"),
        "of": quantity.content_of,
        "distance": distance,
        "flip": distance and _runs_from_ahead(quantity.labels),
    } | pack(part.value(quantity.name))


def _runs_from_ahead(labels: Sequence[str]) -> bool:
    """Whether an array along query minus key runs from keys ahead to keys back, as unlabelled ones do."""
    if not labels or labels[0].startswith("ahead") or labels[-1].startswith("ahead"):
        return not labels or labels[0].startswith("ahead")
    found = [re.search(r"[-−]?\d+", label) for label in labels]
    distances = [int(match[0].replace("−", "-")) for match in found if match]
    return len(distances) < 2 or distances[0] < distances[-1]
