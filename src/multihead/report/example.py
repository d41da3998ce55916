"""The stretches a reader is shown: which ones fit the page, and in which one each head is most itself."""

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from multihead.measure.role import Judgement
from multihead.record import Example
from multihead.record.heads import Array
from multihead.report.number import cut
from multihead.report.part import Part

A_HEAD = 2500
"""Bytes of links a head may bring to the page."""
WORDS = 9_000
"""Bytes of the words of all examples together."""
LONGEST = 40
"""Characters of one word that are shown."""
_LINKS = 5
_FRAME = 500
"""Bytes that the other facts of an example take at most."""
_LEAST, _LEAST_ASIDE, _LEFT = 0.03, 0.08, 0.1
"""Links under 3 % of the weight, and under 8 % of what is off the sink, are left out."""
_OF_REPEATS = frozenset({"induction", "same"})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Shown:
    """One example on the page.

    Args:
        part: Part it was measured on.
        example: What was kept of it.
        heads: Heads of the page, in the order of the packed links; -1 for those the page lacks.
        data: For each head and query unit: number of links n, n times place and weight, then weight on the sink and
            elsewhere; weights as 255 times their root, places in two bytes where there are more than 256 keys.
    """

    part: Part
    example: Example
    heads: tuple[int, ...]
    data: bytes


def choose_examples(parts: Sequence[Part], judgement: Judgement, *, room: int) -> tuple[list[Shown], list[int]]:
    """The examples that fit, and for each head the one that shows it best (-1 without any).

    Args:
        parts: The parts of the record.
        judgement: What the heads look like.
        room: Bytes that they may take on the page.
    """
    offered = [_pack(part, example) for part in parts for example in part.statistics.examples]
    heads = len(parts[0].rows)
    fits = _fitting([one for one in offered if one.example.queries], room=room)
    best, most = [-1] * heads, [-np.inf] * heads
    for number, shown in enumerate(fits):
        for row, head in enumerate(shown.heads):
            if head < 0:
                continue
            key = judgement.rules[int(judgement.rule[head])].key
            score = _itself(shown.example, row, key) + 10 * (key in _OF_REPEATS) * (shown.part.name == "repeats")
            score -= 10 * (key not in _OF_REPEATS) * (shown.part.name == "repeats")
            if score > most[head]:
                best[head], most[head] = number, score
    return fits, best


def describe(shown: Shown, stacks: Sequence[str]) -> dict[str, object]:
    """An example for the page's script."""
    example = shown.example
    documents = shown.part.statistics.documents
    name = documents[example.document].name if example.document < len(documents) else ""
    words = [cut(word, LONGEST) for word in example.queries]
    keys = [cut(word, LONGEST) for word in example.keys]
    picture = example.picture
    return {
        "part": shown.part.name,
        "name": cut(name, LONGEST),
        "stack": stacks.index(example.stack) if example.stack in stacks else 0,
        "words": words,
        "keys": None if keys == words else keys,
        "grid": list(example.grid) if example.grid else None,
        "picture": None if picture is None else "data:image/png;base64," + base64.b64encode(picture).decode(),
        "heads": list(shown.heads),
        "data": base64.b64encode(shown.data).decode(),
    }


def _fitting(offered: Sequence[Shown], *, room: int) -> list[Shown]:
    """In order, but one of the repeats first, as long as there is room."""
    order = sorted(range(len(offered)), key=lambda i: (i != _first_repeat(offered), i))
    links_of: dict[str, float] = {}
    words = 0
    chosen: list[int] = []
    for i in order:
        one = offered[i].example
        packed = 4 * len(offered[i].data) // 3
        told = one.queries if one.keys == one.queries else (*one.queries, *one.keys)
        text = sum(len(json.dumps(cut(word, LONGEST))) + 1 for word in told)
        whole = packed + text + 4 * len(one.picture or b"") // 3 + 5 * len(one.heads) + _FRAME
        links = packed / max(1, len(one.heads))
        if links_of.get(one.stack, 0) + links > A_HEAD or words + text > WORDS or whole > room:
            continue
        links_of[one.stack] = links_of.get(one.stack, 0) + links
        words, room = words + text, room - whole
        chosen.append(i)
    return [offered[i] for i in sorted(chosen)]


def _first_repeat(offered: Sequence[Shown]) -> int:
    return next((i for i, one in enumerate(offered) if one.part.name == "repeats"), -1)


def _pack(part: Part, example: Example) -> Shown:
    at = {int(row): head for head, row in enumerate(part.rows)}
    kept = _kept(example)
    # Strongest first, what is left out last.
    order = np.argsort(~kept, axis=-1, kind="stable")[..., :_LINKS]
    counts = np.minimum(kept.sum(axis=-1), _LINKS).tolist()
    places = np.take_along_axis(example.places, order, axis=-1).tolist()
    steps = _steps(np.take_along_axis(example.weights, order, axis=-1)).tolist()
    sink, elsewhere = _steps(example.sink).tolist(), _steps(example.elsewhere).tolist()
    wide = len(example.keys) > 256
    data = bytearray()
    for row, per_query in enumerate(counts):
        for i, n in enumerate(per_query):
            data.append(n)
            for place, step in zip(places[row][i][:n], steps[row][i][:n], strict=True):
                data += bytes((place & 255, place >> 8, step)) if wide else bytes((place, step))
            data += bytes((sink[row][i], elsewhere[row][i]))
    return Shown(part=part, example=example, heads=tuple(at.get(h, -1) for h in example.heads), data=bytes(data))


def _kept(example: Example) -> NDArray[np.bool_]:
    """Which links are shown."""
    weights, left = np.nan_to_num(example.weights), 1.0 - np.nan_to_num(example.sink)[..., None]
    aside = np.divide(weights, left, out=np.zeros_like(weights), where=left >= _LEFT)
    inside = (example.places >= 0) & (example.places < len(example.keys))
    return inside & ((weights >= _LEAST) | (aside >= _LEAST_ASIDE))


def _steps(weights: NDArray[np.float32]) -> NDArray[np.uint8]:
    return np.rint(255 * np.sqrt(np.clip(np.nan_to_num(weights), 0.0, 1.0))).astype(np.uint8)


def _itself(example: Example, row: int, key: str) -> float:
    """How much of the weight of a stretch says what the head looks like; for most, on its strongest links."""
    weights = np.nan_to_num(np.where(example.places[row] >= 0, example.weights[row], 0.0))
    if key == "rest":
        return float(np.nan_to_num(example.sink[row]).mean())
    if key == "wide":
        return -float(weights.max(axis=-1, initial=0.0).mean())
    wanted = _wanted(example, row, key)
    return float((weights if wanted is None else weights * wanted).sum(axis=-1).mean())


def _wanted(example: Example, row: int, key: str) -> Array | None:
    """Which links are of the kind a role names, or None where all count."""
    places = example.places[row].astype(np.int64)
    back = np.arange(len(example.queries))[:, None] - places
    if key in ("previous", "next", "self", "previous2"):
        return (back == {"previous": 1, "next": -1, "self": 0, "previous2": 2}[key]).astype(np.float64)
    if key in ("punctuation", "digit", "newline"):
        kind = np.array([_is_of(word, key) for word in example.keys])
        return kind[np.clip(places, 0, len(kind) - 1)].astype(np.float64)
    return None


def _is_of(word: str, key: str) -> bool:
    bare = word.strip()
    if key == "newline":
        return not bare or bare in "↵⏎¶"
    if key == "digit":
        return bool(bare) and bare.isdigit()
    return bool(bare) and not any(c.isalnum() for c in bare)
