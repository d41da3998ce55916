"""The stretches a reader is shown: which ones fit the page, and in which one each head is most itself."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from multihead.measure.role import Judgement
from multihead.record import Example
from multihead.record.heads import Array
from multihead.report.number import cut
from multihead.report.part import Part

A_HEAD = 1300
"""Bytes of links a head may bring to the page."""
PICTURES = 60_000
"""Bytes of pictures, as text, a page may hold."""
WORDS = 12_000
"""Characters of words of all examples together."""
LONGEST = 40
"""Characters of one word that are shown."""
_LINKS = 5
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


def choose_examples(parts: Sequence[Part], judgement: Judgement) -> tuple[list[Shown], list[int]]:
    """The examples that fit, and for each head the one that shows it best (-1 without any).

    Args:
        parts: The parts of the record.
        judgement: What the heads look like.
    """
    offered = [_pack(part, example) for part in parts for example in part.statistics.examples]
    fits = _fitting([one for one in offered if one.example.queries])
    heads = len(parts[0].rows)
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


def _fitting(offered: Sequence[Shown]) -> list[Shown]:
    """In order, but one of the repeats first, as long as links, words and pictures have room."""
    order = sorted(range(len(offered)), key=lambda i: (i != _first_repeat(offered), i))
    used: dict[str, float] = {}
    pictures = words = 0
    chosen: list[int] = []
    for i in order:
        one = offered[i].example
        links = 4 / 3 * len(offered[i].data) / max(1, len(one.heads))
        size = 4 * len(one.picture or b"") // 3
        text = sum(min(len(w), LONGEST) + 3 for w in (*one.queries, *(() if one.keys == one.queries else one.keys)))
        if used.get(one.stack, 0) + links > A_HEAD or pictures + size > PICTURES or words + text > WORDS:
            continue
        used[one.stack] = used.get(one.stack, 0) + links
        pictures, words = pictures + size, words + text
        chosen.append(i)
    return [offered[i] for i in sorted(chosen)]


def _first_repeat(offered: Sequence[Shown]) -> int:
    return next((i for i, one in enumerate(offered) if one.part.name == "repeats"), -1)


def _pack(part: Part, example: Example) -> Shown:
    at = {int(row): head for head, row in enumerate(part.rows)}
    wide = len(example.keys) > 256
    data = bytearray()
    for row in range(len(example.heads)):
        for i in range(len(example.queries)):
            data += _pack_row(example, row, i, wide=wide)
    return Shown(part=part, example=example, heads=tuple(at.get(h, -1) for h in example.heads), data=bytes(data))


def _pack_row(example: Example, row: int, query: int, *, wide: bool) -> bytes:
    left = 1.0 - float(example.sink[row, query])
    kept: list[tuple[int, float]] = []
    for place, weight in zip(example.places[row, query].tolist(), example.weights[row, query].tolist(), strict=True):
        telling = weight >= _LEAST or (left >= _LEFT and weight / left >= _LEAST_ASIDE)
        if 0 <= place < len(example.keys) and telling:
            kept.append((place, weight))
    out = bytearray([min(len(kept), _LINKS)])
    for place, weight in kept[:_LINKS]:
        out += place.to_bytes(2 if wide else 1, "little") + _step(weight)
    return bytes(out + _step(float(example.sink[row, query])) + _step(float(example.elsewhere[row, query])))


def _step(weight: float) -> bytes:
    return bytes([round(255 * min(1.0, max(0.0, weight if weight == weight else 0.0)) ** 0.5)])


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
