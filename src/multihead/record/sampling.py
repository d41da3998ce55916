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
        seen: How much was counted of what the counts stand for: rows that were measured.
    """

    sums: Array
    counts: Array
    both: Array
    seen: Array

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
    def exact(cls, counts: Array, *, largest: Array | None = None) -> "Sampling":
        """That of documents whose every row was measured.

        Args:
            counts: What was counted.
            largest: The largest values, where they are the statistic.
        """
        none = np.zeros(counts.shape)
        return cls(sums=none if largest is None else largest, counts=none, both=none, seen=counts)
