"""A stretch of what was measured, with the strongest links of every head on it: what a reader is shown."""

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Example:
    """One stretch of one document, as the heads of one stack see it.

    Its units are what people read: words, patches of a picture, moments of a recording. The weight from unit to unit is
    the sum over the pieces of the key unit and the mean over the pieces of the query unit. For each query unit the
    `links` strongest key units inside the stretch are kept; what falls outside is told as one number.

    Args:
        document: Place of its document.
        start: Place of its first token in the document, counted over all chunks.
        stack: Stack of the heads that look at it, as in `HeadAddress.stack`.
        heads: Places of these heads among `HeadStatistics.heads`, in rising order.
        queries: Text of each query unit, in reading order.
        keys: Text of each key unit; the same as `queries` in self-attention.
        places: Key unit of each link, strongest first; -1 where there is no further one.
        weights: Weight of each link.
        sink: Weight of each query unit on the sink: first token, special tokens, a learned sink. Links leave these out.
        elsewhere: Weight of each query unit on ordinary keys outside of the stretch.
        grid: Rows and columns where the units lie on a picture in reading order, or None.
        picture: PNG of the picture or the spectrogram behind it, or None.
    """

    document: int
    start: int
    stack: str
    heads: tuple[int, ...]
    queries: tuple[str, ...]
    keys: tuple[str, ...]
    places: NDArray[np.int16]  # (heads, queries, links)
    weights: NDArray[np.float32]  # (heads, queries, links)
    sink: NDArray[np.float32]  # (heads, queries)
    elsewhere: NDArray[np.float32]  # (heads, queries)
    grid: tuple[int, int] | None = None
    picture: bytes | None = None

    def __eq__(self, other: object) -> bool:
        """Equal in every field, arrays bit for bit."""
        if not isinstance(other, Example):
            return NotImplemented
        pairs = ((getattr(self, f.name), getattr(other, f.name)) for f in fields(self))
        return all(
            np.array_equal(a, b, equal_nan=True)
            if isinstance(a, np.ndarray) and a.dtype.kind == "f"
            else np.array_equal(a, b)
            if isinstance(a, np.ndarray)
            else a == b
            for a, b in pairs
        )

    __hash__ = None  # pyright: ignore[reportAssignmentType]  # holds arrays
