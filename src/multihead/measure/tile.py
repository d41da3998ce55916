"""What a statistic is given: some query rows with their weights, and the whole call once all rows were seen."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Float64, Int, Shaped
from torch import Tensor

from multihead.measure.scene import Scene
from multihead.measure.weigh import Rows, Sunk

LEAST = 2
"""A row that sees fewer keys has nothing to choose from: it counts in no statistic of weights."""

_BLOCK, _LONG = 16, 1024
"""Weights that are added up together on the way to sums of many, where a row holds so many at least."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tile:
    """Some query rows of one call.

    A row counts in the statistics of weights if it is a real token, all its scores are finite and it sees `LEAST` keys.
    Weights on the keys of the sink lie apart, so that what is left needs no subtraction; a learned sink is no key and
    is in neither.

    Args:
        scene: Facts of the call.
        rows: Which queries.
        cols: Which keys; no row sees any other.
        content: Weights as the model used them, not normalised again; 0 on the keys of the sink, and where a key cannot
            be seen or is padding.
        sunk: The keys of the sink and the weights on them.
        bins: Bin of each of the queries that the tile reaches, of the first `BINS` bins: those from the first to the
            last.
        sums: For each of these bins the sums over its rows that count of the weights on each key, the sink too; and
            after them one more such sum, of weight times how far the place of the query lies after `nearest[0]`.
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
    content: Float[Tensor, "batch heads rows cols"]
    sunk: Sunk
    bins: range
    sums: Float[Tensor, "batch heads _ cols"]
    visible: Bool[Tensor, "_ _ rows cols"]
    counted: Bool[Tensor, "batch heads rows"]
    all_count: bool
    known: Rows
    places: Int[Tensor, " cols"]
    nearest: tuple[int, int]
    scratch: Float[Tensor, "batch heads rows cols"]

    @property
    def weights(self) -> Float[Tensor, "batch heads rows cols"]:
        """All weights in one tensor, a copy."""
        whole = self.content.clone()
        whole[self.sunk.batch, :, :, self.sunk.key] = self.sunk.weights
        return whole

    def centers(self) -> Int[Tensor, "_ rows"]:
        """For each row the key at the same position, as a place among the keys."""
        return self.scene.center[:, self.rows]

    def at(self, places: Int[Tensor, "_ _ picked"]) -> Float[Tensor, "batch heads rows picked"]:
        """Weight on single keys, 0 where there is no such key and on those of the sink.

        Args:
            places: Places among the keys (batch | 1, rows | 1, picked); they may lie outside.
        """
        asked = (places - self.cols.start)[:, None]
        place = asked.clamp(0, self.content.shape[-1] - 1)
        found = self.content.gather(-1, place.expand(*self.content.shape[:3], -1))
        return found * (asked == place)

    def upto(self, edges: Int[Tensor, "_ _ edges"]) -> Float64[Tensor, "batch heads rows edges"]:
        """Weight on all keys before each edge but those of the sink, and something that is the same for all edges.

        Differences of it are weights between edges. Blocks of weights are added up before sums run over them: a sum
        that runs over single weights costs several times as much.

        Args:
            edges: Places among the keys (batch | 1, rows | 1, edges); they may lie outside.
        """
        batch, heads, rows, cols = self.content.shape
        flat = self.content.view(batch, heads, rows * cols)
        # Longer blocks make the running sum cheaper, and what is added up of the block an edge falls into dearer.
        size = _BLOCK if cols >= _LONG else _BLOCK // 4
        size = size if rows * cols % size == 0 else 1
        sums = flat.unflatten(-1, (-1, size)) @ flat.new_ones(size)
        running = sums.new_zeros((batch, heads, sums.shape[-1] + 1), dtype=torch.float64)
        torch.cumsum(sums, -1, dtype=torch.float64, out=running[..., 1:])
        starts = torch.arange(rows, device=flat.device)[:, None] * cols
        ends = (edges - self.cols.start).clamp(0, cols).expand(-1, rows, -1) + starts
        block = ends.div(size, rounding_mode="floor")
        inside = (block * size)[..., None] + torch.arange(size, device=flat.device)
        rest = _pick(flat, inside.clamp(max=rows * cols - 1)) * (inside < ends[..., None])[:, None]
        return _pick(running, block) + rest.sum(-1)

    def total(self, values: Float[Tensor, "batch heads rows *shape"]) -> Float64[Tensor, "batch heads *shape"]:
        """Sum over the rows that count."""
        return values.sum(2, dtype=torch.float64) if self.all_count else total(values, self.counted)

    def on_sunk(self, values: Shaped[Tensor, "sunk _ _"]) -> Float[Tensor, "batch heads rows"]:
        """Sum over the keys of the sink of weight times value.

        Args:
            values: Of each key of the sink (sunk, heads | 1, rows | 1).
        """
        return self.sunk.total(self.sunk.weights * values, self.content.shape[0])

    def even(self, pairs: Int[Tensor, "_ _ rows"]) -> Float[Tensor, "batch heads rows"]:
        """What an even spread over all visible keys, and a learned sink as one more, puts on some of them.

        Args:
            pairs: How many keys each row sees that are asked for.
        """
        return pairs / (self.known.sees + self.scene.learned_sink).clamp(min=1)


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


def bin_sums(
    scene: Scene,
    rows: slice,
    content: Float[Tensor, "batch heads rows cols"],
    sunk: Sunk,
    counted: Bool[Tensor, "batch heads rows"],
    origin: int,
) -> tuple[range, Float[Tensor, "batch heads _ cols"]]:
    """Sums over rows of the weights on each key, for every bin of queries that the tile reaches; see `Tile.sums`.

    All that is linear in the weights and asked only over all rows follows from them: one pass over the weights.

    Args:
        scene: The call.
        rows: Which queries.
        content: Weights on all keys but those of the sink.
        sunk: Those on the sink.
        counted: Rows that count.
        origin: Place from which the places of queries are counted.
    """
    batch = content.shape[0]
    own = scene.q_bins()[:, rows].expand(batch, -1)
    bins = range(int(own.min()), int(own.max()) + 1)
    each = own[:, None] == torch.arange(bins.start, bins.stop, device=own.device)[:, None]
    places = scene.center[:, None, rows].expand(batch, -1, -1) - origin
    parts = torch.cat([each.to(content), places.to(content)], 1)
    parts = parts[:, None] * counted[:, :, None]
    sums = parts @ content
    sums[sunk.batch, :, :, sunk.key] = (parts[sunk.batch] @ sunk.weights[..., None])[..., 0]
    return bins, sums


def _pick(values: Float[Tensor, "batch heads length"], places: Int[Tensor, "_ *shape"]) -> Tensor:
    """Values at places that are the same for all heads, (batch, heads, *shape)."""
    asked = places.flatten(1)[:, None].expand(*values.shape[:2], -1)
    return values.gather(-1, asked).view(*values.shape[:2], *places.shape[1:])
