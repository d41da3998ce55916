"""What a statistic is given: some query rows with their weights, and the whole call once all rows were seen."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from multihead.measure.scene import Scene
from multihead.measure.weigh import Rows

LEAST = 2
"""A row that sees fewer keys has nothing to choose from: it counts in no statistic of weights."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tile:
    """Some query rows of one call.

    A row counts in the statistics of weights if it is a real token, all its scores are finite and it sees `LEAST` keys.

    Args:
        scene: Facts of the call.
        rows: Which queries.
        cols: Which keys; no row sees any other.
        weights: Weights as the model used them, not normalised again; 0 where a key cannot be seen or is padding.
        prefix: Sum of the weights on the first 0, 1, ... keys of the tile.
        visible: Which keys each row can see, real tokens only.
        counted: Rows that count.
        all_count: Whether all of them do.
        known: What else is known of the rows.
        places: Places of the tile's keys among the keys of the call.
        nearest: The lowest and the highest of `centers()`.
        scratch: Memory to work in, of the size of the weights; what it holds means nothing.
    """

    scene: Scene
    rows: slice
    cols: slice
    weights: Float[Tensor, "batch heads rows cols"]
    prefix: Float[Tensor, "batch heads rows edges"]
    visible: Bool[Tensor, "_ _ rows cols"]
    counted: Bool[Tensor, "batch heads rows"]
    all_count: bool
    known: Rows
    places: Int[Tensor, " cols"]
    nearest: tuple[int, int]
    scratch: Float[Tensor, "batch heads rows cols"]

    def centers(self) -> Int[Tensor, "_ rows"]:
        """For each row the key at the same position, as a place among the keys."""
        return self.scene.center[:, self.rows]

    def at(self, places: Int[Tensor, "_ _ picked"]) -> Float[Tensor, "batch heads rows picked"]:
        """Weight on single keys, 0 where there is no such key.

        Args:
            places: Places among the keys (batch | 1, rows | 1, picked); they may lie outside.
        """
        asked = (places - self.cols.start)[:, None]
        place = asked.clamp(0, self.weights.shape[-1] - 1)
        found = self.weights.gather(-1, place.expand(*self.weights.shape[:3], -1))
        return found * (asked == place)

    def upto(self, edges: Int[Tensor, "_ _ edges"]) -> Float[Tensor, "batch heads rows edges"]:
        """Weight on all keys before each edge.

        Args:
            edges: Places among the keys (batch | 1, rows | 1, edges); they may lie outside.
        """
        place = (edges - self.cols.start).clamp(0, self.weights.shape[-1])[:, None]
        return self.prefix.gather(-1, place.expand(*self.weights.shape[:3], -1))

    def weighted(
        self, values: Float[Tensor, "_ _ rows picked"], cols: slice | None = None
    ) -> Float[Tensor, "_ _ rows"]:
        """Sum over keys of weight times value, for values that differ by row: (batch, heads, rows).

        Args:
            values: Of pairs (batch | 1, heads | 1, rows, picked).
            cols: The keys they are given for, within those of the tile; None for all.
        """
        if cols is None or cols == self.cols:
            # Fresh memory for each product costs more than the product.
            return torch.mul(self.weights, values, out=self.scratch).sum(-1)
        return (self.weights[..., cols.start - self.cols.start : cols.stop - self.cols.start] * values).sum(-1)

    def mass(self, features: Float[Tensor, "_ cols features"]) -> Float[Tensor, "batch heads rows features"]:
        """Sum over keys of weight times feature.

        Args:
            features: Of every key of the tile (batch | 1, cols, features).
        """
        if features.shape[0] == 1:
            found = self.weights.flatten(0, 2) @ features[0]
        else:
            found = self.weights.flatten(1, 2) @ features
        return found.view(*self.weights.shape[:3], -1)

    def total(self, values: Float[Tensor, "batch heads rows *shape"]) -> Float64[Tensor, "batch heads *shape"]:
        """Sum over the rows that count."""
        return values.sum(2, dtype=torch.float64) if self.all_count else total(values, self.counted)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Whole:
    """One call after all its rows were seen.

    Args:
        scene: Facts of the call.
        rows: What is known of each row.
        columns: Weight each key receives from all rows that count.
        leaks: Whether padded keys get weight.
    """

    scene: Scene
    rows: Rows
    columns: Float64[Tensor, "batch heads kv_len"]
    leaks: bool

    def real(self) -> Bool[Tensor, "batch heads q_len"]:
        """Rows that are real tokens."""
        return self.scene.queries.kept[:, None].expand_as(self.rows.finite)

    def seeing(self, *, least: int) -> Bool[Tensor, "batch heads q_len"]:
        """Real rows with finite scores that see `least` keys or more."""
        return self.real() & self.rows.finite & (self.rows.sees >= least)

    def counted(self) -> Bool[Tensor, "batch heads q_len"]:
        """Rows that count in the statistics of weights."""
        return self.seeing(least=LEAST)

    def total(self, values: Float[Tensor, "batch heads q_len *shape"]) -> Float64[Tensor, "batch heads *shape"]:
        """Sum over the rows that count."""
        return total(values, self.counted())


def total(
    values: Float[Tensor, "batch heads rows *shape"], counted: Bool[Tensor, "batch heads rows"]
) -> Float64[Tensor, "batch heads *shape"]:
    """Sum over some rows in float64; what the others hold, NaN too, does not matter."""
    left_out = ~counted[(..., *(None,) * (values.ndim - 3))]
    return values.masked_fill(left_out, 0.0).sum(2, dtype=torch.float64)
