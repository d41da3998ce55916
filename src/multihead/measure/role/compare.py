"""Two records of models with the same heads: which labels flipped, and how far every number moved."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from multihead.error import MultiheadError
from multihead.measure.role.label import HeadLabel, label_heads
from multihead.measure.role.read import holds, in_order_of, part_of
from multihead.record import CheckupRecord, HeadAddress, HeadStatistics, Quantity
from multihead.record.heads import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Flip:
    """A head that looks like one thing in the first record and like another in the second.

    Args:
        before: Its label in the first.
        after: Its label in the second.
        sure: Whether neither label is near a threshold.
    """

    before: HeadLabel
    after: HeadLabel
    sure: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Drift:
    """How far one statistic moved, head by head, in the order of `Comparison.heads`.

    Args:
        quantity: The statistic, one number a head.
        part: `"texts"` or `"repeats"`.
        before: Values in the first record.
        after: Values in the second.
        before_interval: Lower and upper ends in the first.
        after_interval: Lower and upper ends in the second.
        apart: Which heads' intervals do not overlap; False where a value is missing or there is no interval.
    """

    quantity: Quantity
    part: str
    before: Array
    after: Array
    before_interval: tuple[Array, Array]
    after_interval: tuple[Array, Array]
    apart: NDArray[np.bool_]

    @property
    def change(self) -> Array:
        """Second minus first."""
        return self.after - self.before

    def size(self) -> float:
        """Root mean square of the change over the heads that have both values; 0 without any."""
        known = self.change[np.isfinite(self.change)]
        return float(np.sqrt((known**2).mean())) if known.size else 0.0

    def scale(self) -> float:
        """How far apart the heads are in this number; where they are almost alike a small step is no large one."""
        values = np.concatenate([self.before, self.after])
        finite = values[np.isfinite(values)]
        return max(float(np.ptp(finite)), 0.1 * float(np.abs(finite).max()), 1e-12) if finite.size else 1.0

    def of_heads(self) -> bool:
        """Whether it says something of the heads and not of the texts, as baselines and counts of rows do."""
        return not self.quantity.name.endswith("_even") and not self.quantity.name.startswith("rows_")

    def order(self) -> tuple[int, float]:
        """Sorts what moved most to the front: most heads apart, then farthest on its scale."""
        return -int(self.apart.sum()), -self.size() / self.scale()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Comparison:
    """What changed between two records.

    Args:
        heads: The heads of both.
        before: Labels in the first record.
        after: Labels in the second.
        flips: Heads whose label changed, in order.
        drifts: Every number that both records hold.
        same_documents: Whether both measured the same documents, by their digests.
    """

    heads: tuple[HeadAddress, ...]
    before: tuple[HeadLabel, ...]
    after: tuple[HeadLabel, ...]
    flips: tuple[Flip, ...]
    drifts: tuple[Drift, ...]
    same_documents: bool


def compare(a: CheckupRecord, b: CheckupRecord) -> Comparison:
    """Compare two checkups head by head: two checkpoints, before and after a change, two seeds.

    Args:
        a: The first record.
        b: The second; its model must have the same heads, in any order.

    Returns:
        Labels that flipped, and the drift of every statistic both hold; `Drift.apart` says where the intervals of a
        head do not overlap.

    Raises:
        MultiheadError: The models do not have the same heads, or read different things.

    Example:
        >>> [str(flip.before.head) for flip in compare(old, new).flips]  # doctest: +SKIP
        ['L3.H1']
    """
    _check_layouts(a, b)
    before = label_heads(a)
    by_address = {label.head: label for label in label_heads(b)}
    after = tuple(by_address[label.head] for label in before)
    return Comparison(
        heads=a.texts.heads,
        before=before,
        after=after,
        flips=tuple(
            Flip(before=x, after=y, sure=not (x.unsure or y.unsure))
            for x, y in zip(before, after, strict=True)
            if x.key != y.key
        ),
        drifts=tuple(
            _drift(a, (first, second), q, part)
            for part in ("texts", "repeats")
            if (first := part_of(a, part)) is not None and (second := part_of(b, part)) is not None
            for q in first.scalars()
            if holds(second, q.name) and second.quantity(q.name).shape == ()
        ),
        same_documents=[d.digest for d in a.texts.documents] == [d.digest for d in b.texts.documents],
    )


def _check_layouts(a: CheckupRecord, b: CheckupRecord) -> None:
    if a.reads != b.reads:
        raise MultiheadError(
            asked="two checkups of models that read the same kind of thing",
            arrived=f"{a.model.name} reads {a.reads}, {b.model.name} reads {b.reads}",
            remedy="compare checkups of the same kind of model",
        )
    ours, theirs = set(a.texts.heads), set(b.texts.heads)
    if not ours or ours != theirs:
        raise MultiheadError(
            asked="two checkups of models with the same heads",
            arrived=f"{a.model.name}: {_layout(a.texts)}; {b.model.name}: {_layout(b.texts)}",
            remedy="compare two checkpoints of one architecture",
        )


def _layout(statistics: HeadStatistics) -> str:
    """`6 layers × 12 heads`, stack by stack."""
    stacks: dict[str, dict[int, int]] = {}
    for address in statistics.heads:
        layers = stacks.setdefault(address.stack, {})
        layers[address.layer] = layers.get(address.layer, 0) + 1
    told: list[str] = []
    for stack, layers in stacks.items():
        sizes = sorted(set(layers.values()))
        heads = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
        told.append(f"{stack + ' ' if stack else ''}{len(layers)} layers × {heads} heads")
    return ", ".join(told) or "no heads"


def _drift(a: CheckupRecord, parts: tuple[HeadStatistics, HeadStatistics], quantity: Quantity, part: str) -> Drift:
    first, second = parts
    before, after = (in_order_of(a, s, s.value(quantity.name)) for s in parts)
    ends = [tuple(in_order_of(a, s, end) for end in s.interval(quantity.name)) for s in (first, second)]
    (low, high), (other_low, other_high) = ends
    # Ends that lie on the value say that nothing is known of its spread.
    known = (high > low) & (other_high > other_low)
    return Drift(
        quantity=quantity,
        part=part,
        before=before,
        after=after,
        before_interval=(low, high),
        after_interval=(other_low, other_high),
        apart=known & ((high < other_low) | (other_high < low)),
    )
