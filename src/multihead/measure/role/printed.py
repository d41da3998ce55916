"""Numbers as people read them: a threshold is judged on the value that is printed."""

import math


def settle(value: float) -> float:
    """The value with the five digits that are kept: what is printed, judged and drawn must be one number."""
    return float(f"{value:.5g}")


def round_share(value: float) -> float:
    """A share as it is printed, in tenths of a per cent, halves away from zero.

    Example:
        >>> round_share(0.39951), round_share(0.39949)
        (0.4, 0.399)
    """
    return math.floor(settle(value) * 1000 + 0.5) / 1000


def round_ratio(value: float) -> float:
    """A ratio as it is printed, in hundredths."""
    return math.floor(settle(value) * 100 + 0.5) / 100
