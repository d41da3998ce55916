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

    A row counts in the statistics of weights if it is a real token, all its scores are finite and it sees 2 keys or
    more.

    Args:
        scene: Facts of the call.
        rows: Which queries.
        cols: Which keys; no row sees any other.
        weights: Weights as the model used them, not normalised again; 0 where a key cannot be seen or is padding.
        prefix: Running sum of the weights along the keys.
        visible: Which keys each row can see, real tokens only.
        counted: Rows that count.
        top_key: Place of the largest weight among all keys of the call.
        sink: Weight of the learned sink in each row.
    """

    scene: Scene
    rows: slice
    cols: slice
    weights: Float[Tensor, "batch heads rows cols"]
    prefix: Float[Tensor, "batch heads rows cols"]
    visible: Bool[Tensor, "_ _ rows cols"]
    counted: Bool[Tensor, "batch heads rows"]
    top_key: Int[Tensor, "batch heads rows"]
    sink: Float[Tensor, "batch heads rows"]

    def centers(self) -> Int[Tensor, "_ rows"]:
        """For each row the key at the same position, as a place among the keys."""
        return self.scene.center[:, self.rows]

    def places(self) -> Int[Tensor, " cols"]:
        """Places of the tile's keys among the keys."""
        return torch.arange(self.cols.start, self.cols.stop, device=self.weights.device)

    def distances(self) -> Float[Tensor, "_ 1 rows cols"]:
        """Query - key of every pair."""
        return (self.centers()[:, None, :, None] - self.places()).to(self.weights)

    def at(self, places: Int[Tensor, "_ _ picked"]) -> Float[Tensor, "batch heads rows picked"]:
        """Weight on single keys, 0 where there is no such key.

        Args:
            places: Places among the keys (batch | 1, rows | 1, picked); they may lie outside.
        """
        place = (places - self.cols.start)[:, None].expand(*self.weights.shape[:3], places.shape[-1])
        there = (place >= 0) & (place < self.weights.shape[-1])
        return torch.where(there, self.weights.gather(-1, torch.where(there, place, 0)), 0.0)

    def mass(self, features: Float[Tensor, "_ kv_len features"]) -> Float[Tensor, "batch heads rows features"]:
        """Sum over keys of weight times feature.

        Args:
            features: Of every key of the call (batch | 1, kv_len, features).
        """
        part = features[:, self.cols]
        flat = self.weights.flatten(0, 2) if part.shape[0] == 1 else self.weights.flatten(1, 2)
        return (flat @ (part[0] if part.shape[0] == 1 else part)).view(*self.weights.shape[:3], -1)

    def upto(self, edges: Int[Tensor, "_ _ edges"]) -> Float[Tensor, "batch heads rows edges"]:
        """Weight on all keys before each edge.

        Args:
            edges: Places among the keys (batch | 1, rows | 1, edges); they may lie outside.
        """
        place = (edges - self.cols.start).clamp(0, self.weights.shape[-1])[:, None]
        place = place.expand(*self.weights.shape[:3], place.shape[-1])
        return torch.where(place > 0, self.prefix.gather(-1, (place - 1).clamp(min=0)), 0.0)

    def total(self, values: Float[Tensor, "batch heads rows *shape"]) -> Float64[Tensor, "batch heads *shape"]:
        """Sum over the rows that count."""
        return total(values, self.counted)


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
    mask = counted[(...,) + (None,) * (values.ndim - 3)]
    return torch.where(mask, values, 0.0).sum(2, dtype=torch.float64)
