"""What a statistic is given: some query rows and what is known of their weights, and a block once all were seen."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Float64, Int, Shaped
from torch import Tensor

from multihead.measure.scene import Scene
from multihead.measure.weigh import Rows, Sunk
from multihead.native.statistics import Pairs

LEAST = 2
"""A row that sees fewer keys has nothing to choose from: it counts in no statistic of weights."""

FARTHEST = 16
"""Distances that are told one by one, ahead and back."""

OCTAVES = 15
"""Bins of distances on each side: 1, 2-3, 4-7, ..., 2^k to 2^(k+1) - 1, ..., and all from 2^14 on."""

NEAR = FARTHEST.bit_length() - 1
"""Octaves that lie within the distances told one by one."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Found:
    """Some rows against a set of pairs.

    Args:
        content: Weight of each row on its pairs outside of the sink.
        sunk: Weight on its pairs with keys of the sink.
        seen: How many pairs it can see.
        seen_sunk: How many of these are with keys of the sink.
        top: Whether its largest weight is on one.
    """

    content: Float[Tensor, "batch heads rows"]
    sunk: Float[Tensor, "batch heads rows"]
    seen: Int[Tensor, "_ _ rows"]
    seen_sunk: Int[Tensor, "batch _ rows"]
    top: Bool[Tensor, "batch heads rows"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Part(ABC):
    """Some query rows of one call.

    A row counts in the statistics of weights if it is a real token, all its scores are finite and it sees `LEAST` keys.
    The keys of the sink stand apart ("content" is all others), so that what is left needs no subtraction; a learned
    sink is no key and is in neither.

    Args:
        scene: Facts of the call.
        rows: Which queries.
        cols: Which keys; no row sees any other.
        sunk: The keys of the sink and the weights on them.
        counted: Rows that count.
        all_count: Whether all of them do.
        known: What else is known of the rows.
    """

    scene: Scene
    rows: slice
    cols: slice
    sunk: Sunk
    counted: Bool[Tensor, "batch heads rows"]
    all_count: bool
    known: Rows

    @property
    def batch(self) -> int:
        """Number of sequences."""
        return self.counted.shape[0]

    def centers(self) -> Int[Tensor, "_ rows"]:
        """For each row the key at the same position, as a place among the keys."""
        return self.scene.center[:, self.rows]

    def sunk_distances(self) -> Int[Tensor, "sunk rows"]:
        """Distance of every row from each key of the sink."""
        return self.centers().expand(self.batch, -1)[self.sunk.batch] - self.sunk.key[:, None] - self.cols.start

    def total(self, values: Float[Tensor, "batch heads rows *shape"]) -> Float64[Tensor, "batch heads *shape"]:
        """Sum over the rows that count."""
        return values.sum(2, dtype=torch.float64) if self.all_count else total(values, self.counted)

    def on_sunk(self, values: Shaped[Tensor, "sunk _ _"]) -> Float[Tensor, "batch heads rows"]:
        """Sum over the keys of the sink of weight times value.

        Args:
            values: Of each key of the sink (sunk, heads | 1, rows | 1).
        """
        return self.sunk.total(self.sunk.weights * values, self.batch)

    def even(self, pairs: Int[Tensor, "_ _ rows"]) -> Float[Tensor, "batch heads rows"]:
        """What an even spread over all visible keys, and a learned sink as one more, puts on some of them.

        Args:
            pairs: How many keys each row sees that are asked for.
        """
        return pairs / (self.known.sees + self.scene.learned_sink).clamp(min=1)

    @abstractmethod
    def length(self) -> Float[Tensor, "batch heads rows"]:
        """Root of the sum of squares of the weights on content."""

    @abstractmethod
    def near(self) -> Float[Tensor, "batch heads rows offsets"]:
        """Weight on content at each distance up to `FARTHEST`, farthest ahead first."""

    @abstractmethod
    def far(self) -> tuple[Float[Tensor, "batch heads rows octaves"], Float[Tensor, "batch heads rows octaves"]]:
        """Weight on content by octave beyond these distances: ahead, farthest first; and back, nearest first."""

    @abstractmethod
    def gaps(self) -> tuple[Float64[Tensor, "batch heads"], Float64[Tensor, "batch heads"]]:
        """Sum over content and the rows that count of weight times (query - key), and times |query - key|."""

    @abstractmethod
    def pooled(
        self, member: Float[Tensor, "_ kv_len bins"]
    ) -> tuple[Float64[Tensor, "batch heads bins bins"], Float64[Tensor, "batch heads bins bins"]]:
        """Sum over the rows that count of each bin of queries of the weights on each bin of keys: all, and content.

        Args:
            member: 1 where a key is in a bin.
        """

    @abstractmethod
    def alike(self) -> Float64[Tensor, "batch heads heads"]:
        """Sum over content and the rows that count of the root of the product of two heads' weights."""

    @abstractmethod
    def found(self, pairs: "PairSets") -> tuple[Found, ...]:
        """The rows against some sets of pairs."""


@runtime_checkable
class PairSets(Protocol):
    """Sets of pairs that a statistic asks for."""

    def find(self, part: "Part", /) -> tuple[Found, ...]:
        """The rows of a tile of weights against them."""
        ...

    def parts(self, scene: Scene, rows: slice, /) -> tuple[Pairs, ...]:
        """The same sets for the compiled kernel, for some rows of the call."""
        ...


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

    def by_bin(
        self, values: Float[Tensor, "batch heads q_len"], bins: Int[Tensor, "_ _ q_len"], count: int
    ) -> tuple[Float64[Tensor, "batch heads bins"], Float64[Tensor, "batch heads bins"]]:
        """Sums over the rows that count, apart for each bin of rows, and how many they are.

        Args:
            values: Of every row.
            bins: Bin of every row.
            count: Number of bins.
        """
        counted, place = self.counted(), bins.expand_as(values)
        empty = torch.zeros((*values.shape[:2], count), dtype=torch.float64, device=values.device)
        sums = empty.scatter_add(-1, place, values.masked_fill(~counted, 0.0).double())
        return sums, empty.scatter_add(-1, place, counted.double())

    def content_columns(self) -> Float64[Tensor, "batch heads kv_len"]:
        """Weight each key receives, 0 for those of the sink."""
        return self.columns.masked_fill(self.scene.sunk[:, None], 0.0)


def total(
    values: Float[Tensor, "batch heads rows *shape"], counted: Bool[Tensor, "batch heads rows"]
) -> Float64[Tensor, "batch heads *shape"]:
    """Sum over some rows in float64; what the others hold, NaN too, does not matter."""
    left_out = ~counted[(..., *(None,) * (values.ndim - 3))]
    return values.masked_fill(left_out, 0.0).sum(2, dtype=torch.float64)
