"""Weight on the pairs of a named pattern, and how often the largest weight lies on one."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import torch
from jaxtyping import Bool
from torch import Tensor

from multihead.measure.scene import Scene, Target
from multihead.measure.statistic.contract import Contribution, OfTile
from multihead.measure.statistic.pairs import hit
from multihead.measure.tile import Tile, total
from multihead.pattern import Pattern
from multihead.pattern import distance as at
from multihead.record import Quantity

DEFAULT_TARGETS: Mapping[str, Target] = MappingProxyType({"previous": at(1), "next": at(-1), "self": at(0)})
_TITLES = {"previous": "the token before", "next": "the token after", "self": "its own token"}


_Found = tuple[Tensor, Tensor, Tensor]
"""Of each row: weight on its pairs, whether it counts and sees one, whether its largest weight is on one."""


def target(name: str) -> OfTile[tuple[Pattern, ...]]:
    """The statistic of one pattern.

    Args:
        name: Its name among the targets of the scene.
    """

    def prepare(scene: Scene) -> tuple[Pattern, ...]:
        given = scene.targets[name]
        return (given,) if isinstance(given, Pattern) else tuple(given[document] for document in scene.documents)

    words = _TITLES.get(name, name)
    return OfTile(
        quantities=(
            Quantity(
                name=name,
                title=f"weight on {words}",
                unit="share",
                formula=f"mean of sum_j A_ij [(i, j) in {name}] over rows that see such a key",
            ),
            Quantity(
                name=f"{name}_argmax",
                title=f"largest weight on {words}",
                unit="share",
                formula=f"share of rows whose largest weight (first of equals) is in {name}, of those that see a pair",
            ),
        ),
        prepare=prepare,
        take=take,
    )


def take(tile: Tile, facts: Sequence[Pattern]) -> tuple[Contribution, Contribution]:
    """Mass and argmax rate of every row that sees a pair."""
    distance = _single_distance(facts)
    mass, counted, top = _on_pairs(tile, facts) if distance is None else _at_distance(tile, distance)
    count = counted.sum(-1, dtype=torch.float64)
    return Contribution(total(mass, counted), count), Contribution((top & counted).sum(-1, dtype=torch.float64), count)


def _single_distance(patterns: Sequence[Pattern]) -> int | None:
    """The one distance of all pairs, or None."""
    left, right = (patterns[0].window if len(patterns) == 1 else None) or (None, None)
    return left if left is not None and right is not None and left == -right else None


def _at_distance(tile: Tile, distance: int) -> _Found:
    """One key a row, which is found without looking at the others."""
    place = tile.centers() - distance
    asked = (place - tile.cols.start)[:, None]
    inside = asked.clamp(0, tile.weights.shape[-1] - 1)
    heads, rows = tile.visible.shape[1:3]
    seen = tile.visible.expand(max(tile.visible.shape[0], place.shape[0]), -1, -1, -1)
    seen = seen.gather(-1, inside.expand(len(seen), heads, rows)[..., None])[..., 0] & (asked == inside)
    return tile.at(place[..., None])[..., 0], tile.counted & seen, tile.known.top_key == asked


def _on_pairs(tile: Tile, patterns: Sequence[Pattern]) -> _Found:
    cols = _reached(tile, patterns)
    found = hit(tile, _inside(tile, patterns, cols), cols)
    asked = tile.known.top_key + (tile.cols.start - cols.start)
    place = asked.clamp(0, cols.stop - cols.start - 1)
    inside = found.inside.expand(*place.shape, -1).gather(-1, place[..., None])[..., 0]
    return found.mass, found.counted, inside & (asked == place)


def _reached(tile: Tile, patterns: Sequence[Pattern]) -> slice:
    """The keys of the tile among which all pairs lie, at least one."""
    lefts, rights = zip(*(pattern.reach for pattern in patterns), strict=True)
    low, high = tile.cols.start, tile.cols.stop
    if None not in lefts:
        low = max(low, tile.nearest[0] - max(lefts))
    if None not in rights:
        high = min(high, tile.nearest[1] + max(rights) + 1)
    low = min(low, tile.cols.stop - 1)
    return slice(low, max(high, low + 1))


def _inside(tile: Tile, patterns: Sequence[Pattern], cols: slice) -> Bool[Tensor, "_ _ rows cols"]:
    """The pairs of the patterns, positions counted from the first real token."""
    q, k = tile.scene.q_real[:, tile.rows], tile.scene.k_real[:, cols]
    if len(patterns) == 1:
        return patterns[0].allows(_one(q), _one(k))
    q, k = q.expand(len(patterns), -1), k.expand(len(patterns), -1)
    found = [pattern.allows(q[row], k[row]) for row, pattern in enumerate(patterns)]
    heads = max(part.shape[1] for part in found)
    return torch.cat([part.expand(-1, heads, -1, -1) for part in found])


def _one(positions: Tensor) -> Tensor:
    """Positions without their batch axis where all rows are alike."""
    return positions[0] if positions.shape[0] == 1 else positions
