"""Which heads of a layer are alike: for each head the few most like it, and the families that look at the same places.

Every pair of heads would take room that grows with the square of a layer; this grows with the heads.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from multihead.record.heads import Array
from multihead.report.pack import floats, integers
from multihead.report.part import Part

SHOWN = 3
"""Heads most like a head that the card names."""
KINDS = {"pattern": "similarity", "aside": "similarity_content", "output": "cka"}
"""What likeness is measured by, as the page calls it."""
_SORTED_BY = ("pattern", "aside")


def pack_alike(texts: Part) -> dict[str, object] | None:
    """For each head those of its layer that look most like it, by the pattern and with the sink set aside.

    Returns:
        `size`: how many are kept for each head; `near`: their places among the page's heads, (heads, size), -1 for
        none; and for each kind of likeness that was measured its values, (heads, size). None where none was measured.
    """
    kinds = {kind: texts.value(name) for kind, name in KINDS.items() if texts.has(name, axes=1)}
    orders = [kinds[kind] for kind in _SORTED_BY if kind in kinds]
    if not orders:
        return None
    heads = texts.statistics.heads
    columns = np.array([address.head for address in heads], dtype=np.int64)
    members: dict[tuple[str, int], list[int]] = {}
    for head, address in enumerate(heads):
        members.setdefault((address.stack, address.layer), []).append(head)
    near = np.full((len(heads), SHOWN * len(orders)), -1, dtype=np.int64)
    for layer in members.values():
        for head in layer:
            found = dict.fromkeys(other for values in orders for other in _most(values[head], head, layer, columns))
            near[head, : len(found)] = list(found)
    near = near[:, : max(1, int((near >= 0).sum(axis=1).max()))]
    told: dict[str, object] = {kind: floats(_picked(values, near, columns)) for kind, values in kinds.items()}
    return {"size": near.shape[1], "near": integers(near), **told}


def join_families(twins: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Heads joined directly or through others, in order; each family once.

    Example:
        >>> join_families([(0, 2), (2, 3), (5, 6)])
        [[0, 2, 3], [5, 6]]
    """
    parent: dict[int, int] = {}

    def root(head: int) -> int:
        parent.setdefault(head, head)
        while parent[head] != head:
            # Halving the way keeps later searches short.
            parent[head] = parent[parent[head]]
            head = parent[head]
        return head

    for a, b in twins:
        first, second = sorted((root(a), root(b)))
        parent[second] = first
    families: dict[int, list[int]] = {}
    for head in sorted(parent):
        families.setdefault(root(head), []).append(head)
    return list(families.values())


def _most(row: Array, head: int, layer: Sequence[int], columns: NDArray[np.int64]) -> list[int]:
    """The heads of a layer that are most like one of it; of equal ones the first."""
    told = _at(row, columns[list(layer)])
    told = np.where((np.array(layer) == head) | np.isnan(told), -np.inf, told)
    return [layer[i] for i in np.argsort(-told, kind="stable")[:SHOWN] if told[i] > -np.inf]


def _picked(values: Array, near: NDArray[np.int64], columns: NDArray[np.int64]) -> Array:
    picked = np.stack([_at(row, columns[places]) for row, places in zip(values, near, strict=True)])
    return np.where(near >= 0, picked, np.nan)


def _at(row: Array, columns: NDArray[np.int64]) -> Array:
    """Entries of a row of pairs; NaN beyond its end."""
    inside = columns < len(row)
    return np.where(inside, row[np.where(inside, columns, 0)], np.nan)
