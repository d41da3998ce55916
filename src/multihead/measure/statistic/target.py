"""Weight on the pairs of a named pattern, and how often the largest weight lies on one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import cast

import torch
from jaxtyping import Bool
from torch import Tensor

from multihead.measure.part import Found, Part
from multihead.measure.scene import Scene, Target
from multihead.measure.statistic.contract import Contribution, OfTile
from multihead.measure.statistic.pairs import contributions, hold, pair_quantities
from multihead.measure.tile import Tile
from multihead.native.statistics import NONE, OPEN, Pairs
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OnPatterns:
    """The pairs of one pattern, or of one for each batch row.

    Args:
        patterns: The patterns.
    """

    patterns: tuple[Pattern, ...]

    def find(self, part: Part) -> tuple[Found]:
        """The rows of a tile against them."""
        tile = cast(Tile, part)
        distance = _single_distance(self.patterns)
        return (_on_pairs(tile, self.patterns) if distance is None else _at_distance(tile, distance),)

    def parts(self, scene: Scene, rows: slice) -> tuple[Pairs]:
        """The same for the compiled kernel: bounds of the distance where that is all, or else pair by pair."""
        window = self.patterns[0].window if len(self.patterns) == 1 else None
        if window is not None:
            left, right = window
            return (Pairs(low=NONE if right is None else -right, high=OPEN if left is None else left),)
        cols = _reached(self.patterns, slice(0, scene.problem.kv_len), scene.nearest(rows))
        return (Pairs(dense=_inside(scene, self.patterns, rows, cols), dense_first=cols.start),)


def target(name: str) -> OfTile[OnPatterns]:
    """The statistic of one pattern.

    Args:
        name: Its name among the targets of the scene.
    """

    def prepare(scene: Scene) -> OnPatterns:
        given = scene.targets[name]
        if isinstance(given, Pattern):
            return OnPatterns(patterns=(given,))
        return OnPatterns(patterns=tuple(given[document] for document in scene.documents))

    return OfTile(
        quantities=pair_quantities(name, _TITLES.get(name, name), f"(i, j) in {name}"),
        prepare=prepare,
        take=take,
        of_weights=False,
    )


def take(part: Part, facts: OnPatterns) -> tuple[Contribution, ...]:
    """What every row that sees a pair gives to its pairs."""
    (found,) = part.found(facts)
    return contributions(part, found)


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
    at_sunk = at_sunk & tile.sunk.seen
    return Found(
        content=tile.at(place[..., None])[..., 0],
        sunk=tile.on_sunk(at_sunk),
        seen=seen.long(),
        seen_sunk=tile.sunk.total(at_sunk.long(), len(tile.content)),
        top=tile.known.top_key == asked,
    )


def _on_pairs(tile: Tile, patterns: Sequence[Pattern]) -> Found:
    cols = _reached(patterns, tile.cols, tile.nearest)
    return hold(tile, _inside(tile.scene, patterns, tile.rows, cols), cols)


def _reached(patterns: Sequence[Pattern], cols: slice, nearest: tuple[int, int]) -> slice:
    """Those of some keys among which all pairs lie, at least one."""
    lefts, rights = zip(*(pattern.reach for pattern in patterns), strict=True)
    low, high = cols.start, cols.stop
    if None not in lefts:
        low = max(low, nearest[0] - max(lefts))
    if None not in rights:
        high = min(high, nearest[1] + max(rights) + 1)
    low = min(low, cols.stop - 1)
    return slice(low, max(high, low + 1))


def _inside(scene: Scene, patterns: Sequence[Pattern], rows: slice, cols: slice) -> Bool[Tensor, "_ _ rows cols"]:
    """The pairs of the patterns, positions counted from the first real token."""
    q, k = scene.q_real[:, rows], scene.k_real[:, cols]
    if len(patterns) == 1:
        return patterns[0].allows(_one(q), _one(k))
    q, k = q.expand(len(patterns), -1), k.expand(len(patterns), -1)
    found = [pattern.allows(q[row], k[row]) for row, pattern in enumerate(patterns)]
    heads = max(part.shape[1] for part in found)
    return torch.cat([part.expand(-1, heads, -1, -1) for part in found])


def _one(positions: Tensor) -> Tensor:
    """Positions without their batch axis where all rows are alike."""
    return positions[0] if positions.shape[0] == 1 else positions
