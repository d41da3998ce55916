"""What each kind of attention costs, as formulas: multiply-adds, memory, growth, steps one behind another.

Counts are of the mathematics: multiply-adds of matrix products over the pairs that a kind of attention looks at. A
kernel may do more (whole tiles) and no kernel does every multiply-add equally fast, so a count tells how cost grows and
about where two kinds meet; what a machine takes, `measure_cost` tells.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from multihead.advice.law import Law
from multihead.advice.laws import LAWS
from multihead.advice.sizes import Sizes
from multihead.error import MultiheadError, check_kinds


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What one call of one layer costs.

    Args:
        family: The kind of attention.
        sizes: Of the call.
        forward: Multiply-adds between the projections.
        backward: Those of the gradients; a kernel that keeps no weights computes them again, which is counted.
        projections: Multiply-adds of a forward pass in the maps from and to the layer's width.
        activations: Bytes that are kept between the projections until the gradients are computed.
        cache: Bytes held after `kv_len` tokens, of all sequences.
        cache_per_token: Bytes that one token more of one sequence adds; 0 where the cache does not grow any more.
        steps: How many products must wait for one another: 1 where all tokens are computed at once.
        growth: Of `forward` with the length, in words.
        exponent: The power of the length that it tends to.
    """

    family: str
    sizes: Sizes
    forward: int
    backward: int
    projections: int
    activations: int
    cache: int
    cache_per_token: int
    steps: int
    growth: str
    exponent: float

    @property
    def layer(self) -> int:
        """Multiply-adds of a forward pass of the whole layer."""
        return self.forward + self.projections

    @property
    def training(self) -> int:
        """Multiply-adds of a forward and a backward pass of the whole layer."""
        return self.forward + self.backward + 3 * self.projections


def estimate_cost(family: str, sizes: Sizes) -> Cost:
    """What a call of a kind of attention costs, at the defaults it is built with by name.

    Args:
        family: Its name: one of `LAWS`, which are those of `multihead.layer.FAMILIES`.
        sizes: Of the call.

    Raises:
        MultiheadError: An unknown name.

    Example:
        >>> estimate_cost("multi_head", Sizes(8192)).forward / estimate_cost("window", Sizes(8192)).forward > 15
        True
    """
    law = law_of(family)
    check_kinds({"sizes": sizes}, (Sizes,), "Sizes(4096), with the sizes of the call")
    held = law.cached(sizes)
    return Cost(
        family=family,
        sizes=sizes,
        forward=sizes.batch * law.forward(sizes),
        backward=sizes.batch * law.gradients(sizes),
        projections=sizes.batch * sizes.q_len * law.projections(sizes),
        activations=sizes.batch * law.kept(sizes),
        cache=sizes.batch * (held * min(sizes.keys, law.window or sizes.keys) + law.state(sizes)),
        cache_per_token=0 if law.window is not None and sizes.keys >= law.window else held,
        steps=law.steps(sizes),
        growth=law.growth,
        exponent=law.exponent,
    )


def law_of(family: str) -> Law:
    """The formulas of a kind of attention.

    Args:
        family: Its name.

    Raises:
        MultiheadError: An unknown name.
    """
    if not isinstance(family, str) or family not in LAWS:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise MultiheadError(
            asked=f"a kind of attention: one of {', '.join(LAWS)}",
            arrived=repr(family)[:100],
            remedy="pass one of these names",
        )
    return LAWS[family]


def break_even(family: str, sizes: Sizes, *, against: str = "multi_head", longest: int = 2**20) -> int | None:
    """From which length on a layer of a kind of attention has less to compute than one of another kind.

    Args:
        family: Its name.
        sizes: All but the length.
        against: The other kind.
        longest: How far is looked.

    Returns:
        The length, 1 where it is so at every length; None where it is not so at `longest`.

    Raises:
        MultiheadError: An unknown name.

    Example:
        >>> break_even("window", Sizes(1))
        257
        >>> break_even("talking_heads", Sizes(1)) is None
        True
    """
    check_kinds({"sizes": sizes}, (Sizes,), "Sizes(1), with all sizes but the length")
    if not isinstance(longest, int) or isinstance(longest, bool) or longest < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise MultiheadError(
            asked="longest: a whole number of at least 1",
            arrived=f"longest={longest!r}"[:200],
            remedy="pass longest=2**20",
        )

    def gains(length: int) -> bool:
        at = replace(sizes, q_len=length, kv_len=None)
        return estimate_cost(family, at).layer < estimate_cost(against, at).layer

    if not gains(longest):
        return None
    high = longest  # from above: some kinds have less at a few tokens, more at some, and less again at many
    while high > 1 and gains(high // 2):
        high //= 2
    if high == 1:
        return 1
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if gains(middle) else (middle, high)
    return high


def meeting_point(ratios: Mapping[int, float]) -> float | None:
    """At which length two things that were measured take equally long, by a line between logarithms.

    Args:
        ratios: For each length the time of the one over that of the other.

    Returns:
        The length from which on the ratio is below 1; the shortest where it always is; None where it is not so at the
        longest.

    Example:
        >>> round(meeting_point({1024: 2.0, 2048: 1.0 / 2}))
        1448
    """
    lengths = sorted(ratios)
    if not lengths or ratios[lengths[-1]] >= 1:
        return None
    above = [length for length in lengths if ratios[length] >= 1]
    if not above:
        return float(lengths[0])
    first = above[-1]
    then = lengths[lengths.index(first) + 1]
    share = math.log(ratios[first]) / (math.log(ratios[first]) - math.log(ratios[then]))
    return math.exp(math.log(first) + share * (math.log(then) - math.log(first)))


def fitted_exponent(values: Mapping[int, float]) -> float:
    """The power p of `value = c * length ** p` by least squares of logarithms.

    Args:
        values: For each of at least two lengths a time, a count or a memory, above 0.

    Raises:
        MultiheadError: Fewer than two lengths, or values that are not above 0.

    Example:
        >>> round(fitted_exponent({10: 1.0, 100: 100.0}), 6)
        2.0
    """
    if len(values) < 2 or min(values) <= 0 or min(values.values()) <= 0:
        raise MultiheadError(
            asked="values above 0 at two lengths or more, to fit a power",
            arrived=f"{dict(values)}"[:200],
            remedy="measure at more lengths",
        )
    x, y = [math.log(length) for length in values], [math.log(value) for value in values.values()]
    middle, level = sum(x) / len(x), sum(y) / len(y)
    return sum((a - middle) * (b - level) for a, b in zip(x, y, strict=True)) / sum((a - middle) ** 2 for a in x)
