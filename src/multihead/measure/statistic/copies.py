"""Weight on other copies of the query's token, and on what followed one.

Duplicate-token heads: Wang et al. 2022, arXiv 2211.00593. Induction heads: Olsson et al. 2022, arXiv 2209.11895.
"""

from dataclasses import dataclass
from typing import cast

import torch
from jaxtyping import Int
from torch import Tensor

from multihead.measure.part import Found, Part
from multihead.measure.scene import Scene
from multihead.measure.statistic.contract import Contribution, Missing, OfTile
from multihead.measure.statistic.pairs import contributions, pair_quantities, picked
from multihead.measure.tile import Tile
from multihead.native.statistics import NONE, Pairs

NO_IDS = "the queries or the keys have no token ids"
_PADDED_QUERY, _PADDED_KEY = -2, -1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Copies:
    """Pairs of a query and a copy of its token, and of a query and what followed one.

    Args:
        queries: Token ids of the queries; those of padding equal nothing.
        keys: Those of the keys, too.
        cross: Whether a key at the query's own position is a copy like any other.
    """

    queries: Int[Tensor, "batch q_len"]
    keys: Int[Tensor, "batch kv_len"]
    cross: bool

    def find(self, part: Part) -> tuple[Found, Found]:
        """Both from one comparison: what followed a copy is the key after it."""
        tile = cast(Tile, part)
        first = max(tile.cols.start - 1, 0)
        equal = self.queries[:, tile.rows, None] == self.keys[:, None, first : tile.cols.stop]
        row, query, copy = equal.nonzero(as_tuple=True)
        copy = copy + first
        if not self.cross:
            other = copy != tile.centers().expand(len(self.queries), -1)[row, query]
            row, query, copy = row[other], query[other], copy[other]
        return _found(tile, self, (row, query, copy), after=0), _found(tile, self, (row, query, copy), after=1)

    def parts(self, scene: Scene, rows: slice) -> tuple[Pairs, Pairs]:
        """The same for the compiled kernel: a key follows the copy before it."""
        before = torch.nn.functional.pad(self.keys[:, :-1], (1, 0), value=_PADDED_KEY)
        own, after = (NONE, NONE) if self.cross else (0, -1)
        queries = self.queries[:, rows]
        return Pairs(ids=(queries, self.keys), without=own), Pairs(ids=(queries, before), without=after)


def prepare(scene: Scene) -> Copies | Missing:
    """The tokens of a call."""
    queries, keys = scene.queries, scene.keys
    if queries.ids is None or keys.ids is None:
        return Missing(NO_IDS)
    return Copies(
        queries=queries.ids.masked_fill(~queries.kept, _PADDED_QUERY).int(),
        keys=keys.ids.masked_fill(~keys.kept, _PADDED_KEY).int(),
        cross=scene.call.site.cross,
    )


def take(part: Part, facts: Copies) -> tuple[Contribution, ...]:
    """Weight on copies, and on what followed one."""
    return tuple(told for found in part.found(facts) for told in contributions(part, found))


def _found(tile: Tile, facts: Copies, copies: tuple[Tensor, Tensor, Tensor], *, after: int) -> Found:
    """The weights on the keys so many places after each copy."""
    row, query, copy = copies
    key = copy + after - tile.cols.start
    within = (key >= 0) & (key < tile.cols.stop - tile.cols.start)
    sunk = tile.sunk
    of_sunk = _copies(tile, facts, sunk.key + tile.cols.start - after, sunk.batch)
    top = tile.known.top_key + tile.cols.start - after
    return picked(
        tile,
        (row[within], query[within], key[within]),
        of_sunk[:, None] & sunk.seen,
        _are_copies(tile, facts, top),
    )


def _copies(tile: Tile, facts: Copies, key: Tensor, row: Tensor) -> Tensor:
    """Whether single keys of the call hold the token of each query, (keys, rows)."""
    asked = facts.keys[row, key.clamp(min=0)]
    same = (facts.queries[row][:, tile.rows] == asked[:, None]) & (key >= 0)[:, None]
    if facts.cross:
        return same
    centers = tile.centers()
    return same & (centers[row if len(centers) > 1 else torch.zeros_like(row)] != key[:, None])


def _are_copies(tile: Tile, facts: Copies, key: Tensor) -> Tensor:
    """Whether one key for each row, (batch, heads, rows), holds the token of the row."""
    batch, heads, rows = key.shape
    asked = facts.keys.gather(-1, key.clamp(min=0).view(batch, heads * rows)).view(key.shape)
    same = (asked == facts.queries[:, None, tile.rows]) & (key >= 0)
    return same if facts.cross else same & (key != tile.centers()[:, None])


COPIES = OfTile(
    quantities=(
        *pair_quantities("same_token", "the same token", "token j = token i, j != i"),
        *pair_quantities("induction", "what followed a copy", "token j-1 = token i, j-1 != i"),
    ),
    prepare=prepare,
    take=take,
    of_weights=False,
)
