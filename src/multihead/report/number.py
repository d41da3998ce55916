"""Numbers as the page prints them: one way for the table, the card and the thresholds."""

import math

from multihead.measure.role.printed import settle

MISSING = "–"
SHARES = frozenset({"share"})
BARE = frozenset({"share", "ratio", "norm", "logit", "weight", "dimensions", "directions", "keys", "1", ""})
"""Units that are not written behind a number: it carries its own, or the title says what it is."""


def show(value: float, unit: str) -> str:
    """Print one value: shares as per cent with one decimal, the rest with three digits, no value as a dash.

    The script of the page prints in the same way, halves away from zero.

    Args:
        value: The value; NaN where there is none.
        unit: Unit of the statistic; `"share"` is printed in per cent.

    Example:
        >>> show(0.6949, "share"), show(1.0512, "nats"), show(float("nan"), "nats")
        ('69.5%', '1.05', '–')
    """
    if math.isnan(value):
        return MISSING
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    size = abs(settle(value))
    text = f"{math.floor(size * 1000 + 0.5) / 10:.1f}%" if unit in SHARES else _three_digits(size)
    return f"−{text}" if value < 0 and text.strip("0.%") else text


def cut(text: str, most: int) -> str:
    """A text that may be of any length, cut to so many characters."""
    return text if len(text) <= most else text[: most - 1] + "…"


def _three_digits(size: float) -> str:
    if size >= 1e7 or 0 < size < 0.00995:
        power = math.floor(math.log10(size))
        return f"{_half_up(size / 10.0**power, 1)}e{power}"
    if size >= 999.5:
        return f"{math.floor(size + 0.5):,}"
    if 0 < size < 0.0995:
        return _half_up(size, 3)
    return _half_up(size, 2 if size < 9.995 else 1 if size < 99.95 else 0)


def _half_up(size: float, digits: int) -> str:
    return f"{math.floor(size * 10**digits + 0.5) / 10**digits:.{digits}f}"
