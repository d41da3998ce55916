"""Queries taken out of their rows, other ones for each head: the pattern they see, at the positions they have."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int, Int8
from torch import Tensor

from multihead.pattern import Pattern
from multihead.pattern.law import Facts, Tile

_STEP = 32  # positions looked at together


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows:
    """Some queries of each head, in order, filled up with others to as many as the head with the most has.

    Args:
        places: (batch, heads, most): numbers of the queries.
        counts: (batch, heads): how many of them are real.
    """

    places: Int[Tensor, "batch heads most"]
    counts: Int[Tensor, "batch heads"]

    @classmethod
    def of(cls, chosen: Bool[Tensor, "batch heads q_len"]) -> "Rows":
        """Those that are chosen."""
        counts = chosen.sum(-1)
        # Stable, so that those chosen come first and in order, and each query stands in one place.
        places = chosen.to(torch.uint8).sort(dim=-1, descending=True, stable=True).indices
        return cls(places=places[..., : int(counts.max()) if counts.numel() else 0], counts=counts)

    @property
    def real(self) -> Bool[Tensor, "batch heads most"]:
        """False for what fills up."""
        return torch.arange(self.places.shape[2], device=self.places.device) < self.counts[..., None]

    def take(self, x: Tensor) -> Tensor:
        """Rows of (batch, heads, q_len, width)."""
        return x.gather(2, self.places[..., None].expand(-1, -1, -1, x.shape[3]))

    def put(self, found: Tensor, q_len: int) -> Tensor:
        """Rows (batch, heads, most, width) where they belong, 0 elsewhere: (batch, heads, q_len, width)."""
        index = self.places[..., None].expand_as(found)
        blank = found.new_zeros(*found.shape[:2], q_len, found.shape[3])
        return blank.scatter(2, index, found.masked_fill(~self.real[..., None], 0.0))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Gathered(Pattern):
    """What a pattern says of some of the queries, which are counted from 0: the r-th one of a head stands at its place.

    Rows that fill up see nothing, so kernels pass over tiles that are made of them. A tile's class is that of the
    queries between its first and its last one.

    Args:
        part: The pattern.
        rows: Which queries.
        first: Position of the query with number 0.
        heads_of: (heads,): which of the pattern's heads each one is, where it differs by head.
        q_len: How many queries there were.
    """

    part: Pattern
    rows: Rows
    first: int
    heads_of: Int[Tensor, " heads"]
    q_len: int

    def _facts(self) -> Facts:
        batch, heads = self.rows.counts.shape
        return Facts(batch=batch, heads=heads)

    def _contains(self, q: Int[Tensor, "_ 1 rows 1"], k: Int[Tensor, "_ 1 1 cols"]) -> Bool[Tensor, "_ _ _ _"]:
        counts, heads = self.rows.counts.to(q.device), self.rows.counts.shape[1]
        # Kernels look at whole tiles, so also at rows behind the last one, which see nothing.
        number = q[:, :, :, 0].expand(len(counts), heads, -1)
        index = number.clamp(0, max(self.rows.places.shape[2] - 1, 0))
        places = self.rows.places.to(q.device).gather(2, index) + self.first
        # The heads one after another, since positions differ by batch row and by nothing else.
        inside = self.part.allows(places.flatten(1), k[:, 0, 0]).unflatten(2, (heads, -1))
        own = 0 * self.heads_of if inside.shape[1] == 1 else self.heads_of
        inside = inside[:, own.to(q.device), torch.arange(heads, device=q.device)]
        return inside & (number < counts[..., None])[..., None]

    def _classify(self, rows: Int[Tensor, " rows"], cols: Int[Tensor, " cols"]) -> Int8[Tensor, "_ _ _ _"]:
        counts, places = self.rows.counts.cpu(), self.rows.places.cpu()
        batch, heads, most = places.shape
        edges = torch.arange(self.first, self.first + self.q_len + _STEP, _STEP).clamp(max=self.first + self.q_len)
        bands = self.part.tiles(edges.unique(), cols)
        bands = bands.expand(batch, *bands.shape[1:])
        bands = bands.expand(-1, heads, -1, -1) if bands.shape[1] == 1 else bands[:, self.heads_of.cpu()]
        start = rows[:-1].expand(batch, heads, -1).clamp(max=most - 1)
        stop = torch.minimum(rows[1:].expand(batch, heads, -1), counts[..., None])
        low = places.gather(2, start) // _STEP
        high = places.gather(2, (stop - 1).clamp(min=0)) // _STEP + 1
        empty, whole = (_between(bands == kind, low, high) for kind in (Tile.SKIP, Tile.FULL))
        empty = empty | (stop <= rows[:-1])[..., None]
        whole = whole & (stop == rows[1:])[..., None] & ~empty
        return (1 + whole.to(torch.int8) - empty.to(torch.int8)).to(torch.int8)

    def _identity(self) -> object:
        return id(self.rows), self.part, self.first

    def _text(self) -> str:
        return f"gathered({self.part})"


def _between(flags: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Whether all flags (batch, heads, bands, cols) are set from band low to before high, (batch, heads, rows) each."""
    before = torch.nn.functional.pad(flags.to(torch.int32).cumsum(2), (0, 0, 1, 0))
    width = flags.shape[3]
    found = before.gather(2, high[..., None].expand(-1, -1, -1, width))
    return found - before.gather(2, low[..., None].expand(-1, -1, -1, width)) == (high - low)[..., None]
