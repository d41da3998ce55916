"""Intervals: where a value would lie on other documents, and where it lies if only some rows were measured."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from multihead.record.address import HeadAddress
from multihead.record.fold import in_order, largest, value_of
from multihead.record.quantity import Document, Quantity
from multihead.record.sampling import GROUPS, Sampling

Array = NDArray[np.float64]
Ends = tuple[Array, Array]

RESAMPLES = 1000
_AT_ONCE = 1 << 22
"""Resampled values held at a time."""

_FREEDOM = GROUPS - 1
"""Degrees of freedom of a variance from `GROUPS` totals."""

_FEW_ROWS = 4
"""With fewer drawn rows than this behind a value nothing is said of it but its bounds."""

_SKEW = 5.0
"""The skewness of so few totals falls short of that of what they are drawn from, the more the larger that is.

By this factor intervals of 95 % held weight on the previous and the same token in 0.95 to 0.96 of draws for MiniLM and
SmolLM2, and in 0.90 to 0.93 for random heads whose weights are spread like exp(2 x), of which a few rows in hundreds
make up most. With 2 these were 0.93 to 0.94 and 0.84 to 0.89.
"""

_ROUNDING = 1e-5
"""Shares that lie so little outside of their bounds do so from rounding."""


def resample(
    quantity: Quantity,
    heads: Sequence[HeadAddress],
    sums: Array,
    counts: Array,
    *,
    documents: Sequence[Document],
    level: float,
) -> Ends:
    """Percentile bootstrap over units (Efron 1979): draw as many units as there are, again and again.

    Args:
        quantity: What the sums are of.
        heads: Every head, whole layers.
        sums: (units, heads, *shape).
        counts: The same.
        documents: What was measured; the draws follow from their digests.
        level: Share of the resampled values between the ends.

    Returns:
        Lower and upper end, each (heads, *shape); NaN where fewer than 2 units stand behind a value.
    """
    units = len(sums)
    low, high = np.full(sums.shape[1:], np.nan), np.full(sums.shape[1:], np.nan)
    if units < 2:
        return low, high
    drawn = np.random.default_rng(_seed(documents)).multinomial(units, np.full(units, 1 / units), size=RESAMPLES)
    for span in _spans(quantity, heads, sums.shape):
        some = sums[:, span], counts[:, span]
        values = _resampled(quantity, heads[span], *some, drawn=drawn)
        enough = (some[1] > 0).sum(0) >= 2
        low[span], high[span] = (np.where(enough, end, np.nan) for end in _percentiles(values, level))
    return low, high


def _seed(documents: Sequence[Document]) -> int:
    told = "\n".join(document.digest for document in documents)
    return int.from_bytes(hashlib.sha256(told.encode()).digest()[:8], "big")


def _spans(quantity: Quantity, heads: Sequence[HeadAddress], shape: Sequence[int]) -> Iterator[slice]:
    """Heads that are worked on together: whole layers for what is told of pairs, else as many as memory likes."""
    if quantity.fold != "cosine":
        step = max(1, _AT_ONCE // (RESAMPLES * max(1, int(np.prod(shape[2:])))))
        yield from (slice(start, min(start + step, len(heads))) for start in range(0, len(heads), step))
        return
    start = 0
    for stop in range(1, len(heads) + 1):
        if stop == len(heads) or (heads[stop].stack, heads[stop].layer) != (heads[start].stack, heads[start].layer):
            yield slice(start, stop)
            start = stop


def _resampled(
    quantity: Quantity, heads: Sequence[HeadAddress], sums: Array, counts: Array, *, drawn: NDArray[np.int64]
) -> Array:
    """Values of every resample, (resamples, heads, *shape)."""
    shape = (RESAMPLES, *sums.shape[1:])
    if quantity.fold == "max":
        held = np.where(counts > 0, sums, -np.inf).reshape(len(sums), -1)
        top = np.full((RESAMPLES, held.shape[1]), -np.inf)
        for unit, times in zip(held, drawn.T, strict=True):
            np.maximum(top, np.where(times[:, None] > 0, unit, -np.inf), out=top)
        return np.where(np.isneginf(top), np.nan, top).reshape(shape)
    weights = drawn.astype(float)
    totals = [(weights @ arrays.reshape(len(arrays), -1)).reshape(shape) for arrays in (sums, counts)]
    return value_of(quantity, heads, *totals)


def _percentiles(values: Array, level: float) -> Iterator[Array]:
    """Ends between which `level` of the values lie, along the first axis; NaN is passed over."""
    ordered = np.sort(values, axis=0)  # NaN goes to the end
    some = np.isfinite(ordered).sum(0)
    for share in ((1 - level) / 2, (1 + level) / 2):
        place = share * np.maximum(some - 1, 0)
        below = np.floor(place).astype(int)
        above = np.minimum(below + 1, np.maximum(some - 1, 0))
        first, second = (np.take_along_axis(ordered, at[None], 0)[0] for at in (below, above))
        yield np.where(first == second, first, first + (place - below) * (second - first))


def from_sample(quantity: Quantity, sums: Array, counts: Array, sampling: Sampling, *, level: float) -> Ends:
    """Where a value over all rows lies, from the differences between groups of rows that were drawn apart.

    The variance of a ratio R = S / C by its linear part, var(S) - 2 R cov(S, C) + R^2 var(C) over C^2, with the
    quantiles of Student's t. A share is held against p (1 - p) / n instead, with n = R (1 - R) / var the number of
    yes-or-no rows that would be as uncertain (Wilson 1927, with an effective sample size as in Korn and Graubard 1998),
    so that its ends stay within the bounds. Where the groups are more skewed than such rows would be,
    the end on that side moves on by the second term of Johnson (1978). Rates of rows that do or do not (`NAME_argmax`)
    and shares that were the same in all groups, 0 or 1, take the number of rows that were drawn for n.

    Args:
        quantity: What the sums are of.
        sums: (documents, heads, *shape).
        counts: The same.
        sampling: How uncertain they are.
        level: How often the interval holds the value.

    Returns:
        Lower and upper end, each (heads, *shape).
    """
    if quantity.fold == "max":
        return largest(sums, counts), np.where((counts > 0).any(0), sampling.sums.max(axis=0, initial=-np.inf), np.nan)
    total, coins = in_order(counts), in_order(sampling.coins)
    value = _over(in_order(sums), total, np.nan)
    each = np.maximum(sampling.sums - 2 * value * sampling.both + value**2 * sampling.counts, 0.0)
    variance, drawn = in_order(each), total - in_order(sampling.known_counts)
    rows = _over(drawn**2, coins, 0.0)
    freedom = np.minimum(_FREEDOM * _over(variance**2, in_order(each**2), 1.0), np.maximum(rows - 1, 1.0))
    sample = _Sample(
        share=_over(in_order(sums) - in_order(sampling.known_sums), drawn, 0.0),
        error=_over(np.sqrt(variance), drawn, 0.0),
        skew=_over(in_order(sampling.third), variance**1.5, 0.0),
        rows=rows,
        reach=_student(freedom, level),
        sure=NormalDist().inv_cdf((1 + level) / 2),
    )
    if quantity.unit != "share":
        ends = sample.plain()
    else:
        ends = sample.rate() if _says_yes_or_no(quantity.name) else sample.bounded()
    known = in_order(sampling.known_sums)
    # Where every row that counts was measured there is no doubt.
    doubted = (coins > 0) & (drawn > 0)
    drawn = np.where(doubted, drawn, 1.0)  # ends may be infinite
    low, high = (np.where(doubted, _over(known + drawn * end, total, np.nan), value) for end in ends)
    return low, high


def _says_yes_or_no(name: str) -> bool:
    """Whether a statistic is a share of rows, of which each does or does not."""
    return name.endswith("_argmax") or name.startswith("rows_")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sample:
    """What drawn rows tell of all that they were drawn from.

    Args:
        share: Their value.
        error: Its standard error.
        skew: Its skewness.
        rows: How many rows they are worth: more than there are where few are left out.
        reach: Quantile of Student's t.
        sure: The same of a normal variable.
    """

    share: Array
    error: Array
    skew: Array
    rows: Array
    reach: Array
    sure: float

    def plain(self) -> Ends:
        """For any number."""
        reach = np.where(self.rows < _FEW_ROWS, np.inf, self.error * self.reach)
        return self.share - reach, self.share + reach

    def rate(self) -> Ends:
        """For the share of rows that do something."""
        low, high = _wilson(np.clip(self.share, 0.0, 1.0), self.rows, self.sure)
        return self._guarded(low, high)

    def bounded(self) -> Ends:
        """For the mean of numbers from 0 to 1."""
        share = np.clip(self.share, 0.0, 1.0)
        coin = share * (1 - share)
        # Without any difference there is only the number of rows to go by; if all have the same, that is what it is.
        rows = np.where(coin > 0, _over(coin, self.error**2, np.inf), self.rows)
        low, high = _wilson(share, rows, np.where(coin > 0, self.reach, self.sure))
        own = _over((1 - 2 * share) * self.error, coin, 0.0)
        step = self.error * (1 + 2 * self.reach**2) / 6
        high = high + step * np.maximum(_SKEW * self.skew - np.maximum(own, 0.0), 0.0)
        low = low - step * np.maximum(np.minimum(own, 0.0) - _SKEW * self.skew, 0.0)
        return self._guarded(np.maximum(low, 0.0), np.minimum(high, 1.0))

    def _guarded(self, low: Array, high: Array) -> Ends:
        """What so few rows say is nothing, and what is no share after all has no bounds."""
        few = self.rows < _FEW_ROWS
        low, high = np.where(few, 0.0, low), np.where(few, 1.0, high)
        fits = (self.share > -_ROUNDING) & (self.share < 1 + _ROUNDING)
        below, above = self.plain()
        return np.where(fits, low, below), np.where(fits, high, above)


def _wilson(share: Array, rows: Array, reach: Array | float) -> Ends:
    """All p with (share - p)^2 <= reach^2 p (1 - p) / rows."""
    more = reach**2 / np.maximum(rows, 1e-9)
    middle, half = share + more / 2, np.sqrt(more * share * (1 - share) + more**2 / 4)
    return (middle - half) / (1 + more), (middle + half) / (1 + more)


def _over(sums: Array, counts: Array, nothing: float) -> Array:
    """Quotients, and `nothing` where there is nothing to divide by."""
    return np.divide(sums, counts, out=np.full(counts.shape, nothing), where=counts > 0)


def _student(freedom: Array, level: float) -> Array:
    """Quantile of Student's t, by the series of Cornish and Fisher: within 1e-3 from 10 degrees of freedom on."""
    z = NormalDist().inv_cdf((1 + level) / 2)
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3
