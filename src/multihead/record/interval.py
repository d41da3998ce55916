"""Intervals: where a value would lie on other documents, and where it lies if only some rows were measured."""

import hashlib
from collections.abc import Iterator, Sequence
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

_FREEDOM = (GROUPS - 1) / 2
"""Degrees of freedom of a variance from `GROUPS` totals: half of what normal totals have, as theirs have tails."""

_FEW_ROWS = 8
"""With fewer drawn rows than this behind a value nothing is said of it but its bounds."""


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
    quantiles of Student's t. What no drawn row showed may still be there: for values with known bounds the ends move
    on by what rows could do whose share is so small that none of them need be among the drawn (3.7 / rows at 95 %).

    Args:
        quantity: What the sums are of.
        sums: (documents, heads, *shape).
        counts: The same.
        sampling: How uncertain they are.
        level: How often the interval holds the value, at least.

    Returns:
        Lower and upper end, each (heads, *shape).
    """
    if quantity.fold == "max":
        return largest(sums, counts), np.where((counts > 0).any(0), sampling.sums.max(axis=0, initial=-np.inf), np.nan)
    total = in_order(counts)
    value = np.divide(in_order(sums), total, out=np.full(total.shape, np.nan), where=total > 0)
    each = np.maximum(sampling.sums - 2 * value * sampling.both + value**2 * sampling.counts, 0.0)
    variance = in_order(each)
    squares = in_order(each**2)
    freedom = _FREEDOM * np.divide(variance**2, squares, out=np.ones_like(variance), where=squares > 0)
    error = np.sqrt(variance) / np.where(total > 0, total, np.nan) * _student(freedom, level)
    # The share of rows none of which need be among the drawn ones.
    seen = in_order(sampling.seen)
    hidden = -np.expm1(np.log((1 - level) / 2) / np.maximum(seen, 1e-9)) * (seen < total * (1 - 1e-9))
    least, most = _bounds(quantity)
    low = value - error - hidden * (value - least if np.isfinite(least) else 0.0)
    high = value + error + hidden * (most - value if np.isfinite(most) else 0.0)
    few = (seen < _FEW_ROWS) & (hidden > 0)
    low, high = np.where(few, least, low), np.where(few, most, high)
    known = total > 0
    return np.where(known, np.maximum(low, least), np.nan), np.where(known, np.minimum(high, most), np.nan)


def _bounds(quantity: Quantity) -> tuple[float, float]:
    """What no value can go beyond."""
    return (0.0, 1.0) if quantity.unit == "share" else (-np.inf, np.inf)


def _student(freedom: Array, level: float) -> Array:
    """Quantile of Student's t, by the series of Cornish and Fisher: within 1e-3 from 10 degrees of freedom on."""
    z = NormalDist().inv_cdf((1 + level) / 2)
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3
