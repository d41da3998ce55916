"""Weight on the pairs of a named pattern, and how often the largest weight lies on one."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import torch
from jaxtyping import Bool
from torch import Tensor

from multihead.measure.scene import Scene, Target
from multihead.measure.statistic.contract import Contribution, OfTile
from multihead.measure.statistic.pairs import Found, contributions, hold, pair_quantities
from multihead.measure.tile import Tile
from multihead.pattern import Pattern
from multihead.pattern import distance as at

DEFAULT_TARGETS: Mapping[str, Target] = MappingProxyType(
    {"previous": at(1), "next": at(-1), "self": at(0), "previous2": at(2)}
)
_TITLES = {
    "previous": "the token before",
    "next": "the token after",
    "self": "its own token",
    "previous2": "the token two before",
}


def target(name: str) -> OfTile[tuple[Pattern, ...]]:
    """The statistic of one pattern.

    Args:
        name: Its name among the targets of the scene.
    """

    def prepare(scene: Scene) -> tuple[Pattern, ...]:
        given = scene.targets[name]
        return (given,) if isinstance(given, Pattern) else tuple(given[document] for document in scene.documents)

    return OfTile(
        quantities=pair_quantities(name, _TITLES.get(name, name), f"(i, j) in {name}"), prepare=prepare, take=take
    )


def take(tile: Tile, facts: Sequence[Pattern]) -> tuple[Contribution, ...]:
    """What every row that sees a pair gives to its pairs."""
    distance = _single_distance(facts)
    return contributions(tile, _on_pairs(tile, facts) if distance is None else _at_distance(tile, distance))


def _single_distance(patterns: Sequence[Pattern]) -> int | None:
    """The one distance of all pairs, or None."""
    left, right = (patterns[0].window if len(patterns) == 1 else None) or (None, None)
    return left if left is not None and right is not None and left == -right else None


def _at_distance(tile: Tile, distance: int) -> Found:
    """One key a row, which is found without looking at the others."""
    place = tile.centers() - distance
    asked = (place - tile.cols.start)[:, None]
    inside = asked.clamp(0, tile.content.shape[-1] - 1)
    heads, rows = tile.visible.shape[1:3]
    seen = tile.visible.expand(max(tile.visible.shape[0], place.shape[0]), -1, -1, -1)
    seen = seen.gather(-1, inside.expand(len(seen), heads, rows)[..., None])[..., 0] & (asked == inside)
    at_sunk = (
        asked[tile.sunk.batch if len(asked) > 1 else torch.zeros_like(tile.sunk.batch)] == tile.sunk.key[:, None, None]
    )
    at_sunk = at_sunk & tile.sunk.see(tile.visible)
    return Found(
        content=tile.at(place[..., None])[..., 0],
        sunk=tile.on_sunk(at_sunk),
        seen=seen.long(),
        seen_sunk=tile.sunk.total(at_sunk.long(), len(tile.content)),
        top=tile.known.top_key == asked,
    )


def _on_pairs(tile: Tile, patterns: Sequence[Pattern]) -> Found:
    cols = _reached(tile, patterns)
    return hold(tile, _inside(tile, patterns, cols), cols)


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
