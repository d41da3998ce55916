"""What the page's script works with: every number of the record, arrays in eight bits."""

import base64
import json
import math
import re
from collections.abc import Sequence

import numpy as np

from multihead.record import CheckupRecord, Quantity
from multihead.record.heads import Array
from multihead.report.axis import choose_axis
from multihead.report.layout import Stack, is_deep, seen_cells
from multihead.report.number import BARE, show
from multihead.report.part import Part
from multihead.report.rule import Facts
from multihead.report.sprite import looks_back_only

TOP = 254
"""Largest step of a packed array; 255 stands for no value."""
MAP = "pooled_map"
CHARTS = {
    MAP: "map",
    "received": "under the map",
    "distance_histogram": "bars",
    "offsets": "bars",
    "entropy_by_position": "line",
    "token_class": "list",
}
"""How the arrays that are known by name are drawn; others with one axis become bars."""
BY_DISTANCE = frozenset({"distance_histogram", "offsets"})
"""Arrays along query minus key: drawn with what lies back at the left."""


def build_payload(
    record: CheckupRecord, parts: Sequence[Part], stacks: Sequence[Stack], facts: Facts
) -> dict[str, object]:
    """The data of the page, ready for JSON.

    `heads` holds `[stack, layer, head, key/value head, rule]`; each part holds its statistics with their scale, their
    `values`, the `low`est and `high`est document, and the packed arrays.
    """
    layer_of = {
        place.index: (stack.number, layer) for stack in stacks for layer in stack.layers for place in layer.places()
    }
    heads = [
        [layer_of[i][0], address.layer, address.head, record.texts.kv_heads[i], int(facts.rule[i])]
        for i, address in enumerate(record.texts.heads)
    ]
    first = facts.strongest()
    return {
        "stacks": [{"name": stack.name, "causal": stack.causal, "shared": stack.shared} for stack in stacks],
        "deep": is_deep(stacks),
        "bare": sorted(BARE),
        "heads": heads,
        "names": [str(address) for address in record.texts.heads],
        "first": first[0][1] if first else 0,
        "rules": [
            {
                "key": rule.key,
                "word": rule.word,
                "said": rule.said,
                "threshold": rule.threshold,
                "statistics": list(rule.statistics),
                "part": rule.part,
                "values": _digits(facts.value[:, i]) if i < facts.value.shape[1] else None,
            }
            for i, rule in enumerate(facts.rules)
        ],
        "quiet": [int(i) for i in np.flatnonzero(facts.quiet)],
        "parts": {part.name: _part(part, parts) for part in parts},
    }


def to_json(payload: dict[str, object]) -> str:
    """JSON that can stand inside a `<script>` element: no `<`, nothing outside ASCII."""
    text = json.dumps(payload, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def pack(values: Array, *, keep: Sequence[int] | None = None) -> dict[str, object]:
    """An array a head in eight bits: v = low + (high - low) * (q / 254)^power, 255 for no value.

    Args:
        values: (heads, *shape).
        keep: Places of the flattened shape that are stored; None for all.

    Returns:
        `low`, `high`, `power` (2 where nothing is negative, so that small weights keep their digits), `data` in base64.
    """
    flat = values.reshape(len(values), -1)
    flat = flat if keep is None else flat[:, list(keep)]
    known = np.isfinite(flat)
    power = 1 if (flat[known] < 0).any() else 2
    low = float(flat[known].min()) if power == 1 else 0.0
    high = float(flat[known].max()) if known.any() else 0.0
    span = high - low
    part = np.where(known, (flat - low) / span if span > 0 else 0.0, 0.0)
    steps = np.where(known, np.rint(np.clip(part, 0.0, 1.0) ** (1 / power) * TOP), TOP + 1).astype(np.uint8)
    return {
        "low": low,
        "high": high,
        "power": power,
        "data": base64.b64encode(steps.tobytes()).decode(),
    }


def _part(part: Part, parts: Sequence[Part]) -> dict[str, object]:
    scalars = part.statistics.scalars()
    values: dict[str, object] = {}
    spread: dict[str, object] = {}
    for quantity in scalars:
        values[quantity.name] = _digits(part.value(quantity.name))
        if len(part.statistics.documents) > 1:
            spread[quantity.name] = [_digits(ends, 3) for ends in part.spread(quantity)]
    return {
        "documents": len(part.statistics.documents),
        "quantities": [_quantity(q, parts) for q in scalars],
        "values": values,
        "spread": spread,
        "arrays": {q.name: _array(q, part) for q in part.statistics.quantities if _is_drawn(q)},
    }


def _quantity(quantity: Quantity, parts: Sequence[Part]) -> dict[str, object]:
    both = np.concatenate([part.value(quantity.name) for part in parts if part.has(quantity.name)])
    axis = choose_axis(quantity, both)
    return {
        "name": quantity.name,
        "title": quantity.title,
        "unit": quantity.unit,
        "kind": axis.kind,
        "low": axis.low,
        "high": axis.high,
        "ticks": list(axis.ticks),
    }


def _is_drawn(quantity: Quantity) -> bool:
    return len(quantity.shape) == 1 or (quantity.name == MAP and len(quantity.shape) == 2)


def _array(quantity: Quantity, part: Part) -> dict[str, object]:
    values = part.value(quantity.name)
    keep = None
    if quantity.name == MAP and looks_back_only(values):
        keep = seen_cells((quantity.shape[0], quantity.shape[1]), causal=True)
    return {
        "title": quantity.title,
        "unit": quantity.unit,
        "shape": list(quantity.shape),
        "labels": list(quantity.labels),
        "chart": CHARTS.get(quantity.name, "bars"),
        "distance": quantity.name in BY_DISTANCE,
        "flip": quantity.name in BY_DISTANCE and _runs_from_ahead(quantity.labels),
        "lower": keep is not None,
    } | pack(values, keep=keep)


def _runs_from_ahead(labels: Sequence[str]) -> bool:
    """Whether an array along query minus key runs from keys ahead to keys back, as unlabelled ones do."""
    if not labels or labels[0].startswith("ahead") or labels[-1].startswith("ahead"):
        return not labels or labels[0].startswith("ahead")
    found = [re.search(r"[-−]?\d+", label) for label in labels]
    distances = [int(match[0].replace("−", "-")) for match in found if match]
    return len(distances) < 2 or distances[0] < distances[-1]


def _digits(values: Array, digits: int = 6) -> list[int | float | str | None]:
    """Numbers for JSON; infinity, which JSON lacks, as the text that is printed."""
    found: list[int | float | str | None] = []
    for value in values.tolist():
        if math.isfinite(value):
            rounded = float(f"{value:.{digits}g}")
            found.append(int(rounded) if rounded.is_integer() else rounded)
        else:
            found.append(None if math.isnan(value) else show(value, ""))
    return found
