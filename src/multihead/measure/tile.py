"""Some query rows with all their weights, and what statistics ask of them, in torch."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from multihead.measure.part import FARTHEST, NEAR, OCTAVES, Found, PairSets, Part
from multihead.measure.scene import BINS, Scene
from multihead.measure.weigh import Sunk

_BLOCK, _LONG = 16, 1024
"""Weights that are added up together on the way to sums of many, where a row holds so many at least."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tile(Part):
    """Some query rows of one call with all their weights.

    Args:
        content: Weights as the model used them, not normalised again; 0 on the keys of the sink, and where a key cannot
            be seen or is padding.
        bins: Bin of each of the queries that the tile reaches, of the first `BINS` bins: those from the first to the
            last.
        sums: For each of these bins the sums over its rows that count of the weights on each key, the sink too; and
            after them one more such sum, of weight times how far the place of the query lies after `nearest[0]`.
        visible: Which keys each row can see, real tokens only.
        places: Places of the tile's keys among the keys of the call.
        nearest: The lowest and the highest of `centers()`.
        scratch: Memory to work in, of the size of the weights; what it holds means nothing.
    """

    content: Float[Tensor, "batch heads rows cols"]
    bins: range
    sums: Float[Tensor, "batch heads _ cols"]
    visible: Bool[Tensor, "_ _ rows cols"]
    places: Int[Tensor, " cols"]
    nearest: tuple[int, int]
    scratch: Float[Tensor, "batch heads rows cols"]

    @property
    def weights(self) -> Float[Tensor, "batch heads rows cols"]:
        """All weights in one tensor, a copy."""
        whole = self.content.clone()
        whole[self.sunk.batch, :, :, self.sunk.key] = self.sunk.weights
        return whole

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

    def length(self) -> Float[Tensor, "batch heads rows"]:
        """See `Part`."""
        return torch.linalg.vector_norm(self.content, dim=-1)

    def near(self) -> Float[Tensor, "batch heads rows offsets"]:
        """See `Part`."""
        offsets = torch.arange(-FARTHEST, FARTHEST + 1, device=self.content.device)
        return self.at(self.centers()[..., None] - offsets)

    def far(self) -> tuple[Float[Tensor, "batch heads rows octaves"], Float[Tensor, "batch heads rows octaves"]]:
        """See `Part`."""
        low, high = self.nearest
        reach = (self.cols.stop - 1 - low, high - self.cols.start)
        # No key lies in most of the bins of a short call: only those that some row can reach are asked for.
        ahead, back = (sum(2**k <= most for k in range(NEAR, OCTAVES)) for most in reach)
        far = torch.tensor([2**k for k in range(NEAR, OCTAVES)], device=self.content.device)
        every = far.new_tensor([2**60])
        edges = torch.cat([-every, 1 - far[:back].flip(0), far[:ahead], every])
        masses = self.upto(self.centers()[..., None] + edges).diff(dim=-1).clamp(min=0.0).to(self.content)
        # Keys rise from far back to far ahead. The farthest bin that is asked for holds all beyond it: nothing.
        of_back, of_ahead = masses[..., :back].flip(-1), masses[..., back + 1 :]
        pad = torch.nn.functional.pad
        return pad(of_ahead, (0, len(far) - ahead)).flip(-1), pad(of_back, (0, len(far) - back))

    def gaps(self) -> tuple[Float64[Tensor, "batch heads"], Float64[Tensor, "batch heads"]]:
        """See `Part`."""
        low, high = self.nearest
        # For each key the sum over rows of weight * (query - key). Places are counted from the queries: so it is exact
        # for the keys near them, and relative to the distance for the others.
        signed = self.sums[:, :, -1] - (self.places - low).to(self.sums) * self.sums[:, :, :-1].sum(2)
        signed[self.sunk.batch, :, self.sunk.key] = 0.0
        # Keys before or after all queries of the tile have one sign; those between are asked pair by pair.
        sign = (self.places < low).to(signed) - (self.places > high).to(signed)
        start = max(low - self.cols.start, 0)
        between = self.places[start : max(high + 1 - self.cols.start, start)]
        gaps = (self.centers()[:, None, :, None] - between).abs_()
        near = self.total((self.content[..., start : start + len(between)] * gaps).sum(-1))
        whole = signed.sum(-1, dtype=torch.float64)
        return whole, signed.mul_(sign).sum(-1, dtype=torch.float64) + near

    def pooled(
        self, member: Float[Tensor, "_ kv_len bins"]
    ) -> tuple[Float64[Tensor, "batch heads bins bins"], Float64[Tensor, "batch heads bins bins"]]:
        """See `Part`."""
        sunk, member = self.sunk, member[:, None, self.cols]
        sums = self.sums[:, :, :-1].clone()
        of_sunk = sums[sunk.batch, :, :, sunk.key]
        sums[sunk.batch, :, :, sunk.key] = 0.0
        content = (sums.flatten(1, 2) @ member[:, 0]).view(*sums.shape[:3], BINS).double()
        own_bin = member.expand(len(sums), -1, -1, -1)[sunk.batch, :, sunk.key]
        whole = content + sunk.total((of_sunk[..., None] * own_bin[:, :, None]).double(), len(sums))
        return self._placed(whole), self._placed(content)

    def _placed(self, sums: Tensor) -> Tensor:
        """The rows of the map that the tile reaches, in a whole one."""
        whole = sums.new_zeros((*sums.shape[:2], BINS, BINS))
        whole[:, :, self.bins.start : self.bins.stop] = sums
        return whole

    def alike(self) -> Float64[Tensor, "batch heads heads"]:
        """See `Part`."""
        roots = torch.sqrt(self.content, out=self.scratch)
        if not self.all_count:
            roots = roots.mul_(self.counted.to(roots)[..., None])
        flat = roots.flatten(2)
        return (flat @ flat.transpose(-1, -2)).double()

    def found(self, pairs: PairSets) -> tuple[Found, ...]:
        """See `Part`."""
        return pairs.find(self)


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
