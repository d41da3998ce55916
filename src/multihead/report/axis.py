"""The scale on which one statistic is coloured and drawn."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from multihead.record import Quantity
from multihead.record.heads import Array
from multihead.report.number import SHARES

ABOUT_ONE = frozenset({"output_ratio"})
"""Statistics that say how many times the usual a head has: coloured in two hues about 1, on a log scale."""
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """A scale from `low` to `high`.

    Args:
        kind: `"linear"`; `"root"`: by the square root above `low`, for values that crowd at zero; `"log"`: about 1.
        low: Value at the left end.
        high: Value at the right end.
        ticks: Values printed below it.
    """

    kind: Literal["linear", "root", "log"]
    low: float
    high: float
    ticks: tuple[float, ...]


def choose_axis(quantity: Quantity, values: Array) -> Axis:
    """The scale for all values of one statistic, every part together so that parts can be compared."""
    finite = values[np.isfinite(values)]
    if not finite.size:
        return Axis(kind="linear", low=0.0, high=1.0, ticks=(0.0, 1.0))
    if quantity.name in ABOUT_ONE:
        return _about_one(finite)
    low, high = float(finite.min()), float(finite.max())
    if low < 0:
        return _linear(low, high)
    share = quantity.unit in SHARES
    if share:
        high = 1.0 if 0.25 < high <= 1.0 else high
    if float(np.median(finite)) >= 0.2 * high:
        return _linear(0.0 if share or low < 0.5 * high else low, high)
    top = _linear(0.0, high).high
    if share and top == 1.0:
        return Axis(kind="root", low=0.0, high=1.0, ticks=(0.0, 0.05, 0.25, 0.5, 1.0))
    return Axis(kind="root", low=0.0, high=top, ticks=(0.0, top / 16, top / 4, top))


def _about_one(finite: Array) -> Axis:
    positive = finite[finite > 0]
    far = float(np.abs(np.log2(positive)).max()) if positive.size else 1.0
    top = 2.0 ** min(4, max(1, math.ceil(far)))
    ticks = (1 / top, 1.0, top) if top == 2.0 else (1 / top, 0.5, 1.0, 2.0, top)
    return Axis(kind="log", low=1 / top, high=top, ticks=ticks)


def _linear(low: float, high: float) -> Axis:
    size = max(abs(low), abs(high))
    if high - low <= 1e-3 * size:  # (almost) one value: a scale around it, wide enough for the digits of the ticks
        low, high = (low - 0.1 * size, high + 0.1 * size) if size else (0.0, 1.0)
    rough = (high - low) / 4
    scale = 10.0 ** math.floor(math.log10(rough))
    step = next(s * scale for s in _STEPS if s * scale >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = tuple(float(f"{i * step:.6g}") for i in range(first, last + 1))
    return Axis(kind="linear", low=ticks[0], high=ticks[-1], ticks=ticks)
