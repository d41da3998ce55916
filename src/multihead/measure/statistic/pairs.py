"""Weight on a set of pairs: what copies and targets have in common."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from multihead.measure.scene import Scene
from multihead.measure.statistic.contract import Contribution, Missing
from multihead.measure.tile import Tile, total
from multihead.pattern import Pattern

NO_IDS = "the queries or the keys have no token ids"
_PADDING = -1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pairs:
    """A pattern of token ids, with the places of the queries in them."""

    pattern: Pattern
    places: Int[Tensor, " q_len"]


def copies(scene: Scene, factory: Callable[..., Pattern]) -> Pairs | Missing:
    """A pattern of equal tokens over the tokens of a call; padding equals nothing.

    Args:
        scene: The call.
        factory: `same_token` or `after_same_token`.
    """
    queries, keys, problem = scene.queries, scene.keys, scene.problem
    if queries.ids is None or keys.ids is None:
        return Missing(NO_IDS)
    of_keys = keys.ids.masked_fill(~keys.kept, _PADDING)
    if not scene.call.site.cross:
        return Pairs(pattern=factory(of_keys), places=problem.q_positions())
    of_queries = queries.ids.masked_fill(~queries.kept, _PADDING)
    places = torch.arange(problem.q_len, device=problem.q.device)
    return Pairs(pattern=factory(of_queries, keys=of_keys), places=places)


def weight_on(tile: Tile, facts: Pairs) -> tuple[Contribution]:
    """The weight of every row on all its pairs, of rows that see one."""
    found = hit(tile, facts.pattern.allows(facts.places[tile.rows], tile.places), tile.cols)
    return (found.weight(),)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Hit:
    """Some rows of weights against a set of pairs.

    Args:
        cols: The keys among which all pairs lie.
        inside: The pairs each row can see.
        mass: Weight of each row on them.
        counted: Rows that count and see one.
    """

    cols: slice
    inside: Bool[Tensor, "_ _ rows cols"]
    mass: Float[Tensor, "batch heads rows"]
    counted: Bool[Tensor, "batch heads rows"]

    def weight(self) -> Contribution:
        """The weight on the pairs, over rows that see one."""
        return Contribution(total(self.mass, self.counted), self.counted.sum(-1, dtype=torch.float64))


def hit(tile: Tile, inside: Bool[Tensor, "_ _ rows cols"], cols: slice) -> Hit:
    """Holds the weights of a tile against pairs.

    Args:
        tile: The tile.
        inside: The pairs.
        cols: The keys they are given for, within those of the tile.
    """
    cut = slice(cols.start - tile.cols.start, cols.stop - tile.cols.start)
    inside = inside & tile.visible[..., cut]
    mass = tile.weighted(inside.to(tile.weights), cols)
    return Hit(cols=cols, inside=inside, mass=mass, counted=tile.counted & inside.any(-1))
