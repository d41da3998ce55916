"""Random patterns that are laws: what is drawn depends on a seed and on positions, on nothing else.

The numbers come from a counter hashed by the finaliser of splitmix64 (Steele et al. 2014), in whole numbers of 64 bits,
so that every machine, device and length gives the same. With f the finaliser and G = 0x9E3779B97F4A7C15:

    hash(seed, a, b) = f((f((f(seed + G) ^ a) + G) ^ b) + G)
    f(x): x ^= x >> 30; x *= 0xBF58476D1CE4E5B9; x ^= x >> 27; x *= 0x94D049BB133111EB; x ^= x >> 31
"""

import math
from dataclasses import dataclass
from decimal import Decimal
from numbers import Real
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int, Int8
from torch import Tensor

from multihead.error import MultiheadError
from multihead.pattern.algebra import Pattern
from multihead.pattern.blocked import block_of, blocks_between
from multihead.pattern.check import whole
from multihead.pattern.formed import Formed
from multihead.pattern.law import Facts, Tile, grade
from multihead.pattern.show import Spot

_SIGN = 2**64
# As numbers with a sign, which torch multiplies modulo 2**64 as well.
_GAMMA, _FIRST, _SECOND = (number - _SIGN for number in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
_SHARES = 2**53  # as many as a float can tell apart from 0 to 1
_MOST = 1024  # random blocks of a row: picking takes the square of it


def drawn(seed: int, *counters: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
    """The hash of a seed and some counters, 64 bits with a sign; the counters broadcast."""
    state = _finalise(torch.tensor(seed, device=counters[0].device) + _GAMMA)
    for counter in counters:
        state = _finalise((state ^ counter) + _GAMMA)
    return state


def _finalise(x: Tensor) -> Tensor:
    x = (x ^ _right(x, 30)) * _FIRST
    x = (x ^ _right(x, 27)) * _SECOND
    return x ^ _right(x, 31)


def _right(x: Tensor, bits: int) -> Tensor:
    """Shifts zeros in from the left, where torch repeats the sign."""
    return (x >> bits) & (2 ** (64 - bits) - 1)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class RandomPairs(Formed):
    """hash(seed, query, key) >> 11 < least, of 2**53."""

    least: int
    seed: int

    def _facts(self) -> Facts:
        return Facts()

    def _contains(self, q: Int[Tensor, "_ 1 rows 1"], k: Int[Tensor, "_ 1 1 cols"]) -> Bool[Tensor, "_ _ _ _"]:
        return _right(drawn(self.seed, q, k), 11) < self.least

    def _classify(self, rows: Int[Tensor, " rows"], cols: Int[Tensor, " cols"]) -> Int8[Tensor, "_ _ _ _"]:
        kind = {0: Tile.SKIP, _SHARES: Tile.FULL}.get(self.least, Tile.PARTIAL)
        return torch.full((1, 1, 1, 1), int(kind), dtype=torch.int8, device=rows.device)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class RandomBlocks(Formed):
    """For each block of queries some blocks of keys.

    Args:
        size: Positions in a block.
        per_row: Blocks a row of blocks picks.
        seed: Of the picks.
        near: Blocks on either side of the row's own that are no candidates.
        ends: Blocks at the beginning, and at the end where there is one, that are no candidates.
        length: Positions of the whole sequence; None picks among earlier blocks alone.
    """

    size: int
    per_row: int
    seed: int
    near: int
    ends: int
    length: int | None

    def _facts(self) -> Facts:
        if self.length is None:
            return Facts(reach=(None, -(self.near * self.size + 1)))
        return Facts(reach=(self.length - 1, self.length - 1))

    def _picked(self, block: Int[Tensor, "*shape"]) -> list[Int[Tensor, "*shape"]]:
        """The blocks that rows of blocks pick, one tensor a pick, -1 where a row has no more candidates.

        Of n candidates Floyd's method (Bentley & Floyd 1987) takes `per_row` different ones, all sets alike likely: for
        pick p, with last = n - per_row + p, the candidate hash(seed, block, p) >> 1 mod (last + 1) or, where that is
        taken, the candidate `last`.
        """
        candidates = _Candidates.of(self, block)
        chosen: list[Tensor] = []
        for pick in range(self.per_row):
            last = (candidates.total - self.per_row + pick).clamp(min=0)
            told = _right(drawn(self.seed, block, torch.full_like(block, pick)), 1) % (last + 1)
            taken = torch.zeros_like(block, dtype=torch.bool)
            for other in chosen:
                taken = taken | (other == told)
            picked = torch.where(taken, last, told)
            chosen.append(torch.where(candidates.total <= self.per_row, pick, picked))
        return [candidates.block(picked) for picked in chosen]

    def _contains(self, q: Int[Tensor, "_ 1 rows 1"], k: Int[Tensor, "_ 1 1 cols"]) -> Bool[Tensor, "_ _ _ _"]:
        inside = torch.zeros(1, 1, 1, 1, dtype=torch.bool, device=q.device)
        # Different numbers for a query and for a key outside of the sequence, so that they match nothing.
        of_key = torch.where(self._there(k), block_of(k, self.size), -2)
        for picked in self._picked(block_of(q, self.size)):
            inside = inside | (of_key == torch.where(self._there(q), picked, -1))
        return inside

    def _detail(self, spot: Spot) -> str:
        own = block_of(torch.tensor(spot.query), self.size)
        picked = sorted({int(block) for block in self._picked(own)} - {-1})
        return f" (block {int(own)} picked {picked}, key {spot.key} is in block {spot.key // self.size})"

    def _there(self, positions: Int[Tensor, "*shape"]) -> Bool[Tensor, "*shape"]:
        there = positions >= 0
        return there if self.length is None else there & (positions < self.length)

    def _classify(self, rows: Int[Tensor, " rows"], cols: Int[Tensor, " cols"]) -> Int8[Tensor, "_ _ _ _"]:
        # Only what is in the sequence counts: a tile beyond it is empty, one that sticks out is not full.
        real = [edges.clamp(min=0, max=self.length) for edges in (rows, cols)]
        (top, bottom), (first, last) = (blocks_between(edges, self.size) for edges in real)
        first_row, last_row = (int(block_of(edge, self.size)) for edge in (real[0][0], real[0][-1] - 1))
        block = torch.arange(first_row, last_row + 1, device=rows.device)
        s, s_end = torch.searchsorted(bottom, block), torch.searchsorted(top, block, right=True)
        found = torch.zeros(rows.numel(), cols.numel(), dtype=torch.int64, device=rows.device)
        for picked in self._picked(block):
            t, t_end = torch.searchsorted(last, picked), torch.searchsorted(first, picked, right=True)
            seen = (picked >= 0) & (t < t_end)
            # Each pick counts in a rectangle of tiles: its corners are marked here, and summed over both sides below.
            for row, col, sign in ((s, t, 1), (s_end, t_end, 1), (s, t_end, -1), (s_end, t, -1)):
                found.index_put_((row[seen], col[seen]), torch.tensor(sign, device=rows.device), accumulate=True)
        count = found.cumsum(0).cumsum(1)[:-1, :-1]
        area = (bottom - top + 1)[:, None] * (last - first + 1)
        none = (count == 0) | (real[0].diff() == 0)[:, None] | (real[1].diff() == 0)
        inside = (real[0].diff() == rows.diff())[:, None] & (real[1].diff() == cols.diff())
        return grade(none, (count == area) & inside & ~none)[None, None]


class _Candidates(NamedTuple):
    """What rows of blocks may pick: some blocks before their own, then some after it, counted in this order.

    Args:
        low: The first of them.
        earlier: Number of those before the own block.
        resume: The first of those after it.
        total: Number of all of them.
    """

    low: int
    earlier: Int[Tensor, "..."]
    resume: Int[Tensor, "..."]
    total: Int[Tensor, "..."]

    @classmethod
    def of(cls, pattern: RandomBlocks, block: Int[Tensor, "..."]) -> "_Candidates":
        """Those of each row of blocks; none of a row outside of the sequence."""
        low, real = pattern.ends, block >= 0
        if pattern.length is None:
            high = (block - pattern.near).clamp(min=low)
        else:
            blocks = -(-pattern.length // pattern.size)
            high, real = torch.full_like(block, max(blocks - pattern.ends, low)), real & (block < blocks)
        earlier = torch.minimum((block - pattern.near).clamp(min=low), high) - low
        resume = torch.minimum((block + pattern.near + 1).clamp(min=low), high)
        return cls(low, earlier, resume, torch.where(real, earlier + high - resume, 0))

    def block(self, picked: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
        """The block of a candidate; -1 beyond the last of them."""
        found = torch.where(picked < self.earlier, self.low + picked, self.resume + picked - self.earlier)
        return torch.where(picked < self.total, found, -1)


def random_blocks(
    size: int, per_row: int, *, seed: int, length: int | None = None, near: int = 0, ends: int = 0
) -> Pattern:
    """Each block of queries sees `per_row` random blocks of keys, itself left out.

    The random part of BigBird (Zaheer et al. 2020, arXiv 2007.14062); see `bigbird`. With a `length` the blocks are
    picked among all blocks of so many positions, and positions beyond it see nothing. Without one they are picked among
    the blocks before that of the query, so that the pattern says the same whatever the length is. Rows that have fewer
    candidates see all of them. A row sees per_row size keys, and the other tiles are skipped.

    Args:
        size: Positions in a block, at least 1.
        per_row: Blocks that a block of queries sees, 0 to 1024.
        seed: Other seeds pick other blocks; the same one picks the same on every machine (`multihead.pattern.drawn`
            says how). torch's generators have no part in it.
        length: Positions of the whole sequence, or None.
        near: Number of blocks on either side of the own one that are not picked, as they are seen anyway.
        ends: Number of blocks at the beginning, and at the end of a given length, that are not picked.

    Raises:
        MultiheadError: A number is not whole or out of bounds.

    Example:
        >>> print(random_blocks(2, 2, seed=0).draw(10, 10))
        random_blocks(2, 2, 0): queries 0..9 down, keys 0..9 across
        █ inside  · outside
        0 ··········
        1 ··········
        2 ██········
        3 ██········
        4 ████······
        5 ████······
        6 ████······
        7 ████······
        8 ··████····
        9 ··████····
    """
    form = "random_blocks(size, per_row)"
    positions = whole(size, asked=f"{form}: positions in a block, at least 1", least=1)
    picks = whole(per_row, asked=f"{form}: blocks a row of blocks sees, at least 0", least=0)
    key = whole(seed, asked=f"{form}, seed: a whole number from 0", least=0)
    around = whole(near, asked=f"{form}, near: blocks that are not picked, at least 0", least=0)
    apart = whole(ends, asked=f"{form}, ends: blocks that are not picked, at least 0", least=0)
    end = None if length is None else whole(length, asked=f"{form}, length: positions of the sequence", least=1)
    if picks > _MOST:
        raise MultiheadError(
            asked=f"{form}: at most {_MOST} blocks for a row of blocks",
            arrived=f"per_row={picks}",
            remedy="pass fewer of a larger size, or random_pairs(share) for a share of all pairs",
        )
    numbers = [positions, picks, key]
    numbers += [around, apart] if around or apart or end is not None else []
    told = ", ".join(str(number) for number in [*numbers, *([] if end is None else [end])])
    return RandomBlocks(f"random_blocks({told})", positions, picks, key, around, apart, end)


def random_pairs(share: float, *, seed: int) -> Pattern:
    """Each pair is in with this probability, by itself: hash(seed, query, key) < share.

    For tests and ablations, such as a head whose links are thinned out. Nothing about it is closed: a kernel keeps one
    bit for each pair, n * n / 8 bytes, made once.

    Args:
        share: Probability of a pair, 0 to 1.
        seed: Other seeds give other pairs; the same one gives the same on every machine (`multihead.pattern.drawn`
            says how). torch's generators have no part in it.

    Raises:
        MultiheadError: The share is not between 0 and 1, or the seed no whole number from 0.

    Example:
        >>> print(random_pairs(0.5, seed=1).draw(3, 6))
        random_pairs(0.5, 1): queries 0..2 down, keys 0..5 across
        █ inside  · outside
        0 ·██·██
        1 █████·
        2 ·····█
    """
    key = whole(seed, asked="random_pairs(share), seed: a whole number from 0", least=0)
    number = _number(share)
    if not 0 <= number <= 1:
        raise MultiheadError(
            asked="random_pairs(share): the probability of a pair, from 0 to 1",
            arrived=f"{share!r}",
            remedy="pass 0.1 for a tenth of all pairs",
        )
    # All digits and no exponent: what the text form can be read from, and reads back as the same number.
    told = format(Decimal(repr(number)), "f")
    return RandomPairs(f"random_pairs({told}, {key})", round(number * _SHARES), key)


def _number(given: object) -> float:
    """The given number, NaN where it is none."""
    return float(given) if isinstance(given, Real) and given is not True and given is not False else math.nan
