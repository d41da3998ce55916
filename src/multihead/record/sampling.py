"""How uncertain values are because only some rows of a document were measured."""

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

GROUPS = 16
"""Groups of rows that are drawn apart, each a picture of the whole document: their differences tell the uncertainty."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sampling:
    """How uncertain the sums of one statistic are because only some rows were measured; all (documents, heads, *shape).

    Args:
        sums: Variance of the sums; of a largest value what it cannot exceed.
        counts: Variance of the counts.
        both: Covariance of sums and counts.
        third: Third central moment of sum - value x count: whether few rows make up much of it.
        coins: Variance the sums would have, over p (1 - p), if every drawn row that counts said yes with chance p: what
            the estimated counts, squared, are divided by to tell how many such rows they are worth.
        known_sums: The part of the sums that comes from rows that were measured anyhow; 0 for a largest value.
        known_counts: The same part of the counts.
    """

    sums: Array
    counts: Array
    both: Array
    third: Array
    coins: Array
    known_sums: Array
    known_counts: Array

    def __eq__(self, other: object) -> bool:
        """Equal bit for bit."""
        if not isinstance(other, Sampling):
            return NotImplemented
        return all(np.array_equal(getattr(self, f.name), getattr(other, f.name), equal_nan=True) for f in fields(self))

    __hash__ = None  # pyright: ignore[reportAssignmentType]  # holds arrays

    def append(self, later: "Sampling") -> "Sampling":
        """That of both document lists."""
        return Sampling(
            **{f.name: np.concatenate([getattr(self, f.name), getattr(later, f.name)]) for f in fields(self)}
        )

    @classmethod
    def exact(cls, sums: Array, counts: Array, *, fold: str = "mean") -> "Sampling":
        """That of documents whose every row was measured.

        Args:
            sums: What was added up.
            counts: What was counted.
            fold: How the statistic is added up; a largest value that is known is its own bound.
        """
        none = np.zeros(counts.shape)
        bound, known = (sums, none) if fold == "max" else (none, sums)
        return cls(sums=bound, counts=none, both=none, third=none, coins=none, known_sums=known, known_counts=counts)
