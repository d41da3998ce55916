"""Patterns that come back at equal steps: distances that are multiples, dilated windows, columns that repeat."""

from dataclasses import dataclass

from jaxtyping import Bool, Int, Int8
from torch import Tensor

from multihead.error import MultiheadError
from multihead.pattern.algebra import Pattern
from multihead.pattern.check import whole
from multihead.pattern.formed import Formed
from multihead.pattern.law import Facts, grade
from multihead.pattern.show import Spot


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Spaced(Formed):
    """(query - key) mod step == 0 and low <= query - key <= high, None = no bound on that side."""

    step: int
    low: int | None
    high: int | None

    def _facts(self) -> Facts:
        bounds = (self.high, None if self.low is None else -self.low)
        lone = self.low is not None and self.low == self.high
        return Facts(reach=bounds, window=bounds if self.step == 1 or lone else None, period=1)

    def _contains(self, q: Int[Tensor, "_ 1 rows 1"], k: Int[Tensor, "_ 1 1 cols"]) -> Bool[Tensor, "_ _ _ _"]:
        distance = q - k
        inside = distance % self.step == 0
        if self.low is not None:
            inside = inside & (distance >= self.low)
        return inside if self.high is None else inside & (distance <= self.high)

    def _classify(self, rows: Int[Tensor, " rows"], cols: Int[Tensor, " cols"]) -> Int8[Tensor, "_ _ _ _"]:
        least = rows[:-1, None] - (cols[None, 1:] - 1)
        most = rows[1:, None] - 1 - cols[None, :-1]
        low = least if self.low is None else least.clamp(min=self.low)
        high = most if self.high is None else most.clamp(max=self.high)
        # A tile holds all distances from its least to its most: with a step, all are inside only where it holds one.
        whole_tile = (low == least) & (high == most) & ((most == least) | (self.step == 1))
        none = high.div(self.step, rounding_mode="floor") * self.step < low
        return grade(none, whole_tile & ~none)[None, None]

    def _detail(self, spot: Spot) -> str:
        return f" (distance {spot.query - spot.key})"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Columns(Formed):
    """(key - first) mod step < count."""

    step: int
    first: int
    count: int

    def _facts(self) -> Facts:
        return Facts(positional=False, period=self.step)

    def _contains(self, q: Int[Tensor, "_ 1 rows 1"], k: Int[Tensor, "_ 1 1 cols"]) -> Bool[Tensor, "_ _ _ _"]:
        return (k - self.first) % self.step < self.count

    def _classify(self, rows: Int[Tensor, " rows"], cols: Int[Tensor, " cols"]) -> Int8[Tensor, "_ _ _ _"]:
        past = cols - self.first
        before = past.div(self.step, rounding_mode="floor") * self.count + (past % self.step).clamp(max=self.count)
        inside = before.diff()
        return grade(inside == 0, inside == cols.diff())[None, None, None]

    def _detail(self, spot: Spot) -> str:
        return f" (key {spot.key} is {(spot.key - self.first) % self.step} after the last run began)"


def every(stride: int) -> Pattern:
    """Keys a whole number of strides away, on both sides: (query - key) mod stride == 0.

    The second half of the strided Sparse Transformer (Child et al. 2019, arXiv 1904.10509, section 4.2), there under
    `causal() &`. A row of length n sees n / stride keys, but nearly every tile holds some: no tile is skipped unless
    the stride is longer than a tile. So attention by tiles costs what dense attention costs; the `rearranged` backend
    puts tokens with the same remainder together first, and pays for what is seen.

    Args:
        stride: The step, at least 1; `every(1)` is everything.

    Raises:
        MultiheadError: `stride` is no whole number of at least 1.

    Example:
        >>> print(every(3).draw(5, 5))
        every(3): queries 0..4 down, keys 0..4 across
        █ inside  · outside
        0 █··█·
        1 ·█··█
        2 ··█··
        3 █··█·
        4 ·█··█
    """
    step = whole(stride, asked="every(stride): the step between keys, at least 1", least=1)
    return Spaced(f"every({step})", step, None, None)


def dilated(window: int, dilation: int) -> Pattern:
    """A window with gaps, looking back: query - key in {0, r, 2 r, ..., (w - 1) r}, w keys including the query itself.

    The dilated windows of Longformer (Beltagy et al. 2020, arXiv 2004.05150) and LongNet (Ding et al. 2023, arXiv
    2307.02486), and the taps of a dilated convolution. `dilated(w, 1)` is `sliding_window(w)`; it is causal by itself.
    A row sees w keys; tiles further back than (w - 1) r are skipped.

    Args:
        window: Number of keys in a full row, at least 1.
        dilation: Distance between two of them, at least 1.

    Raises:
        MultiheadError: A number is not whole or less than 1, or the window reaches beyond 2**40.

    Example:
        >>> print(dilated(3, 2).draw(6, 6))
        dilated(3, 2): queries 0..5 down, keys 0..5 across
        █ inside  · outside
        0 █·····
        1 ·█····
        2 █·█···
        3 ·█·█··
        4 █·█·█·
        5 ·█·█·█
    """
    width = whole(window, asked="dilated(window, dilation): keys including the query itself, at least 1", least=1)
    step = whole(dilation, asked="dilated(window, dilation): the step between keys, at least 1", least=1)
    farthest = whole((width - 1) * step, asked="dilated(window, dilation): (window - 1) * dilation", least=0)
    return Spaced(f"dilated({width}, {step})", step, 0, farthest)


def keys_every(period: int, first: int, count: int = 1) -> Pattern:
    """Columns that repeat: (key - first) mod period < count, for every query.

    The summary columns of the fixed Sparse Transformer (Child et al. 2019, arXiv 1904.10509, section 4.2). It asks
    nothing of the query: a kernel gets a list of keys. A row of length n sees n count / period keys.

    Args:
        period: Distance from one run of columns to the next, at least 1.
        first: A key where a run begins; any whole number.
        count: Columns in a run, 1 to `period`.

    Raises:
        MultiheadError: A number is not whole or out of bounds.

    Example:
        >>> print(keys_every(4, 2, 2).draw(2, 10))
        keys_every(4, 2, 2): queries 0..1 down, keys 0..9 across
        █ inside  · outside
        0 ··██··██··
        1 ··██··██··
    """
    step = whole(period, asked="keys_every(period, first, count): the period, at least 1", least=1)
    start = whole(first, asked="keys_every(period, first, count): a key where columns begin")
    wide = whole(count, asked="keys_every(period, first, count): columns in a run, at least 1", least=1)
    if wide > step:
        raise MultiheadError(
            asked=f"keys_every(period, first, count): at most period={step} columns in a run",
            arrived=f"count={wide}",
            remedy=f"pass a count from 1 to {step}, or everything()",
        )
    return Columns(f"keys_every({step}, {start}, {wide})", step, start, wide)
