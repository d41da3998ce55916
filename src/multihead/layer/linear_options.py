"""What heads of linear attention are: their features, their decay, whether they are normalised."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import NoneType
from typing import ClassVar

from multihead.error import MultiheadError, check_kinds, kind_and_text
from multihead.layer.check import check_counts, is_number
from multihead.scan import EluPlusOne, Favor, FeatureMap


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearScoring:
    """Heads of `S^T phi(q) / (phi(q) . z)`, where `S = sum_j decay phi(k_j) v_j^T` and `z = sum_j decay phi(k_j)`.

    In place of `Scoring`, which is how a softmax's weights are made: `HeadGroup(4, 64, scoring=LinearScoring())`. Such
    heads are linear in the length, keep a state of fixed size, and do not see single tokens sharply: they lose at
    retrieval. See `multihead.scan.linear_attention`.

    Args:
        features: phi: `EluPlusOne()`, `Favor(...)`, `Identity()`, or another feature map.
        decay: The logarithm of the share of its state that a head keeps at each token, at most 0, one for each kv head
            (`retention_decay(heads)` is RetNet's); None for no decay. It holds for `causal()` only.
        normalise: Whether outputs are divided by the sum of the weights.
        scale: Factor of the products where they are not; None is head_dim ** -0.5. Normalised, any factor cancels.

    Raises:
        MultiheadError: Decays that are no numbers up to 0, or a scale that is no finite number.

    Example:
        >>> HeadGroup(4, 64, scoring=LinearScoring(decay=retention_decay(4), normalise=False)).scoring.decay[0]
        -0.03174869831458027
    """

    # What a softmax has and these heads have not: read wherever groups are read.
    norm: ClassVar[None] = None
    softcap: ClassVar[None] = None
    normaliser: ClassVar[None] = None
    sinks: ClassVar[bool] = False

    features: FeatureMap | Favor = field(default_factory=EluPlusOne)
    decay: Sequence[float] | None = None
    normalise: bool = True
    scale: float | None = None

    def __post_init__(self) -> None:
        check_kinds({"features": self.features}, (FeatureMap, Favor), "EluPlusOne(), Favor(...) or Identity()")
        check_kinds({"normalise": self.normalise}, (bool,), "True or False")
        check_kinds({"decay": self.decay}, (Sequence, NoneType), "a number up to 0 for each kv head, or None")
        if self.scale is not None and not (is_number(self.scale) and math.isfinite(self.scale)):
            raise MultiheadError(
                asked="LinearScoring(scale=...): a finite number, or None",
                arrived=kind_and_text(self.scale),
                remedy="pass a number, or None for head_dim ** -0.5",
            )
        if self.decay is None:
            return
        if isinstance(self.decay, str) or not all(is_number(each) and each <= 0 for each in self.decay):
            raise MultiheadError(
                asked="LinearScoring(decay=...): logarithms of the share that is kept at each token, at most 0",
                arrived=kind_and_text(self.decay),
                remedy="pass one for each kv head, such as retention_decay(heads), or None for no decay",
            )
        object.__setattr__(self, "decay", tuple(float(each) for each in self.decay))

    def check_heads(self, heads: int, *, turned: bool) -> None:
        """Refuses decays for another number of kv heads, and weights that could be negative with a normaliser."""
        if self.decay is not None and len(self.decay) != heads:
            raise MultiheadError(
                asked=f"a decay for each of {heads} kv heads",
                arrived=f"{len(self.decay)} of them",
                remedy=f"pass {heads} numbers, such as retention_decay({heads})",
            )
        if turned and self.normalise:
            raise MultiheadError(
                asked="linear heads that are turned by their positions",
                arrived="normalise=True: features that are turned are negative in places, and the sum of weights may "
                "be 0",
                remedy="pass features=Identity() and normalise=False, as RetNet does, or leave the position out",
            )


def retention_decay(heads: int) -> tuple[float, ...]:
    """RetNet's decays: `log(1 - 2^(-5-h))` for head h (Sun et al. 2023, arXiv:2307.08621, section 3.1).

    Args:
        heads: How many.

    Raises:
        MultiheadError: A number of heads that is none.

    Example:
        >>> [round(math.exp(each), 5) for each in retention_decay(3)]
        [0.96875, 0.98438, 0.99219]
    """
    check_counts({"heads": heads})
    return tuple(math.log1p(-(2.0 ** (-5 - head))) for head in range(heads))
