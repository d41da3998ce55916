"""Patterns of the distance query - key alone (causal, windows, bands, one distance), and the causal prefix."""

from dataclasses import dataclass

from jaxtyping import Bool, Int, Int8
from torch import Tensor

from multihead.pattern.algebra import EVERYTHING, NOTHING, Pattern
from multihead.pattern.check import whole
from multihead.pattern.formed import Formed
from multihead.pattern.law import Facts, grade


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Relative(Formed):
    """low <= query - key <= high, None = no bound."""

    low: int
    high: int | None

    def _facts(self) -> Facts:
        return Facts(reach=(self.high, -self.low), window=(self.high, -self.low), period=1)

    def _contains(self, q: Int[Tensor, "_ 1 rows 1"], k: Int[Tensor, "_ 1 1 cols"]) -> Bool[Tensor, "_ _ _ _"]:
        distance = q - k
        inside = distance >= self.low
        return inside if self.high is None else inside & (distance <= self.high)

    def _classify(self, rows: Int[Tensor, " rows"], cols: Int[Tensor, " cols"]) -> Int8[Tensor, "_ _ _ _"]:
        least = rows[:-1, None] - (cols[None, 1:] - 1)
        most = rows[1:, None] - 1 - cols[None, :-1]
        none, every = most < self.low, least >= self.low
        if self.high is not None:
            none, every = none | (least > self.high), every & (most <= self.high)
        return grade(none, every)[None, None]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Prefix(Pattern):
    """key < length or key <= query."""

    length: int

    def _facts(self) -> Facts:
        return Facts()

    def _contains(self, q: Int[Tensor, "_ 1 rows 1"], k: Int[Tensor, "_ 1 1 cols"]) -> Bool[Tensor, "_ _ _ _"]:
        return (k < self.length) | (k <= q)

    def _classify(self, rows: Int[Tensor, " rows"], cols: Int[Tensor, " cols"]) -> Int8[Tensor, "_ _ _ _"]:
        first, last = cols[None, :-1], cols[None, 1:] - 1
        none = (first >= self.length) & (first > rows[1:, None] - 1)
        return grade(none, (last < self.length) | (last <= rows[:-1, None]))[None, None]

    def _text(self) -> str:
        return f"prefix({self.length})"


def causal() -> Pattern:
    """Keys up to the query: key <= query (Vaswani et al. 2017, arXiv 1706.03762, section 3.2.3).

    Example:
        >>> print(causal().draw(3, 3))
        causal: queries 0..2 down, keys 0..2 across
        █ inside  · outside
        0 █··
        1 ██·
        2 ███
    """
    return Relative("causal", 0, None)


def sliding_window(w: int) -> Pattern:
    """The query and the w - 1 keys before it: 0 <= query - key < w.

    w keys including self, looking back, causal by itself (the window of Mistral and of transformers' `sliding_window`;
    Beltagy et al. 2020, arXiv 2004.05150). For both sides use `band`.

    Args:
        w: Number of keys in a full row, at least 1.

    Raises:
        MultiheadError: `w` is no whole number of at least 1.

    Example:
        >>> sliding_window(2).mask(3, 3).int().tolist()
        [[[[1, 0, 0], [1, 1, 0], [0, 1, 1]]]]
    """
    width = whole(w, asked="sliding_window(w): w keys including the query itself, at least 1", least=1)
    return Relative(f"sliding_window({width})", 0, width - 1)


def band(before: int, after: int) -> Pattern:
    """Keys around the query, itself always in: -after <= query - key <= before.

    The window of Longformer's local attention is `band(w // 2, w // 2)` (Beltagy et al. 2020, arXiv 2004.05150).

    Args:
        before: Number of keys before the query.
        after: Number of keys after the query.

    Raises:
        MultiheadError: A number is negative or not whole.

    Example:
        >>> band(1, 0) .mask(3, 3).int().tolist() == sliding_window(2).mask(3, 3).int().tolist()
        True
    """
    back = whole(before, asked="band(before, after): keys before the query, at least 0", least=0)
    ahead = whole(after, asked="band(before, after): keys after the query, at least 0", least=0)
    return Relative(f"band({back}, {ahead})", -ahead, back)


def distance(d: int) -> Pattern:
    """One key per query: query - key == d. The previous token is `distance(1)`, the next one `distance(-1)`.

    Args:
        d: The distance; 0 is the query itself.

    Raises:
        MultiheadError: `d` is no whole number.

    Example:
        >>> distance(1).mask(3, 3).int().tolist()
        [[[[0, 0, 0], [1, 0, 0], [0, 1, 0]]]]
    """
    step = whole(d, asked="distance(d): the value of query - key")
    return Relative(f"distance({step})", step, step)


def prefix(n: int) -> Pattern:
    """The mask of a prefix language model: key < n or key <= query (Raffel et al. 2020, arXiv 1910.10683, figure 3).

    The first n keys are visible to every query, also to earlier ones; all others are causal. For a prefix that differs
    by batch row write `causal() | padding(in_prefix)` with a boolean (batch, length) tensor. `prefix(0)` is causal.

    Args:
        n: Length of the prefix.

    Raises:
        MultiheadError: `n` is negative or not whole.

    Example:
        >>> prefix(2).mask(3, 3).int().tolist()
        [[[[1, 1, 0], [1, 1, 0], [1, 1, 1]]]]
    """
    return Prefix(whole(n, asked="prefix(n): the number of keys that everyone sees, at least 0", least=0))


def everything() -> Pattern:
    """Every pair.

    Example:
        >>> everything() & causal() == causal()
        True
    """
    return EVERYTHING


def nothing() -> Pattern:
    """No pair.

    Example:
        >>> ~nothing() == everything()
        True
    """
    return NOTHING
