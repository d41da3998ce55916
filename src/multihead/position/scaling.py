"""How rotary frequencies are changed so that a model can read texts longer than those it was trained on."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from multihead.error import MultiheadError
from multihead.position.check import check_factor, check_length

Length = int | Int[Tensor, "..."] | None


def plain_frequencies(
    base: float | Float[Tensor, "... 1"],
    dim: int,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | None = None,
) -> Float[Tensor, "... pairs"]:
    """`base ** (-2 k / dim)` for k = 0, ..., dim / 2 - 1: radians a pair turns from one position to the next.

    Args:
        base: The base, or one for each sequence, (..., 1).
        dim: Rotated dimensions of a head.
        dtype: What is computed in.
        device: Where the numbers lie.

    Example:
        >>> plain_frequencies(100.0, 4)
        tensor([1.0000, 0.1000])
    """
    return 1.0 / base ** exponents(dim, dtype, device)


def exponents(dim: int, dtype: torch.dtype, device: torch.device | None) -> Float[Tensor, " pairs"]:
    """`2 k / dim` for k = 0, ..., dim / 2 - 1."""
    return torch.arange(0, dim, 2, device=device).to(dtype) / dim


@dataclass(frozen=True, slots=True)
class Scaling(ABC):
    """What a scaling of rotary frequencies answers. Scalings are values: equal numbers make equal objects."""

    @property
    def amplitude(self) -> float:
        """What cos and sin are multiplied by, so scores by its square."""
        return 1.0

    @property
    def score_factor(self) -> float:
        """What the scale of the softmax is multiplied by in models with latent attention; 1 where nothing is said."""
        return 1.0

    @property
    def depends_on_length(self) -> bool:
        """Whether the rotation of a position depends on how many there are: rotated keys in a cache then go stale."""
        return False

    @abstractmethod
    def frequencies(
        self,
        base: float,
        dim: int,
        *,
        length: Length = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
    ) -> Float[Tensor, "... pairs"]:
        """The changed frequencies, in radians a position.

        Args:
            base: Base of the plain frequencies.
            dim: Rotated dimensions of a head.
            length: Positions seen so far, a number or one for each sequence; only where `depends_on_length`. None is
                for no more than trained.
            dtype: What is computed in.
            device: Where the numbers lie.

        Returns:
            (pairs,), or (batch, pairs) where `length` is one for each sequence and matters.
        """


@dataclass(frozen=True, slots=True)
class Linear(Scaling):
    """Position interpolation: every frequency divided by `factor` (Chen et al. 2023, arXiv:2306.15595).

    Args:
        factor: How many times longer.

    Raises:
        MultiheadError: A factor below 1.

    Example:
        >>> Linear(4.0).frequencies(100.0, 4)
        tensor([0.2500, 0.0250])
    """

    factor: float

    def __post_init__(self) -> None:
        check_factor("Linear", self.factor)

    def frequencies(
        self,
        base: float,
        dim: int,
        *,
        length: Length = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
    ) -> Float[Tensor, " pairs"]:
        """`base ** (-2 k / dim) / factor`."""
        return plain_frequencies(base, dim, dtype=dtype, device=device) / self.factor


@dataclass(frozen=True, slots=True)
class NTK(Scaling):
    """A larger base, `base * factor ** (dim / (dim - 2))`: fast pairs stay, the slowest is stretched by `factor`.

    The "NTK-aware" scaling (bloc97 2023; Peng et al. 2023, arXiv:2309.00071, section 3.1).

    Args:
        factor: How many times longer.

    Raises:
        MultiheadError: A factor below 1; in use, fewer than 4 rotated dimensions.

    Example:
        >>> NTK(4.0).frequencies(100.0, 4)
        tensor([1.0000, 0.0250])
    """

    factor: float

    def __post_init__(self) -> None:
        check_factor("NTK", self.factor)

    def frequencies(
        self,
        base: float,
        dim: int,
        *,
        length: Length = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
    ) -> Float[Tensor, " pairs"]:
        """The plain frequencies of the larger base."""
        return plain_frequencies(base * self.factor ** _growth_power("NTK", dim), dim, dtype=dtype, device=device)


@dataclass(frozen=True, slots=True)
class DynamicNTK(Scaling):
    """NTK scaling by as much as the text needs so far: nothing up to `trained_length`, then ever more.

    The base is multiplied by `g ** (dim / (dim - 2))`, g = factor * n / trained_length - (factor - 1), where n is the
    number of positions seen, at least `trained_length` (emozilla 2023; arXiv:2309.00071, section 3.3).

    **Cached keys go stale.** With n > trained_length every new position turns all earlier keys another way. A cache
    must keep the keys as they were before rotation and rotate them anew with `length=n`, or turn them on with
    `Rotary.retune`. Then a step equals the last row of one pass over the n tokens; its earlier rows were made with
    fewer positions, so they equal no row of that pass. (transformers keeps stale keys.)

    Args:
        factor: How steeply the base grows; 1 to reach a text as many times longer as it is long.
        trained_length: Positions the model was trained on.

    Raises:
        MultiheadError: A factor or length below 1; in use, fewer than 4 rotated dimensions.

    Example:
        >>> scaling = DynamicNTK(2.0, 2048)
        >>> scaling.frequencies(10000.0, 64, length=2048).equal(plain_frequencies(10000.0, 64))
        True
    """

    factor: float
    trained_length: int

    def __post_init__(self) -> None:
        check_factor("DynamicNTK", self.factor)
        check_length("DynamicNTK", self.trained_length)

    @property
    def depends_on_length(self) -> bool:
        """Always."""
        return True

    def frequencies(
        self,
        base: float,
        dim: int,
        *,
        length: Length = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
    ) -> Float[Tensor, "... pairs"]:
        """The plain frequencies of the base for this length."""
        power = _growth_power("DynamicNTK", dim)
        if isinstance(length, Tensor):
            seen = length.clamp(min=self.trained_length).to(device=device, dtype=dtype)[..., None]
        else:
            seen = self.trained_length if length is None else max(length, self.trained_length)
        growth = self.factor * seen / self.trained_length - (self.factor - 1)
        return plain_frequencies(base * growth**power, dim, dtype=dtype, device=device)


@dataclass(frozen=True, slots=True)
class Proportional(Scaling):
    """Turns only the fastest `share` of the pairs; the others have frequency 0, so they stay as they are.

    Unlike a smaller `Rotary.dim`, the exponents and the pairing are those of the whole rotated part: in the half layout
    dimension k still goes with k + dim / 2. Used by Gemma 4.

    Args:
        share: Part of the pairs that turn, 0 < share <= 1.
        factor: What all frequencies are divided by, as in `Linear`.

    Raises:
        MultiheadError: A share outside of 0..1, or a factor below 1.

    Example:
        >>> Proportional(0.5).frequencies(100.0, 4)
        tensor([1., 0.])
    """

    share: float
    factor: float = 1.0

    def __post_init__(self) -> None:
        check_factor("Proportional", self.factor)
        if not 0 < self.share <= 1:
            raise MultiheadError(
                asked="Proportional with the share of the pairs that turn, 0 < share <= 1",
                arrived=f"share={self.share}",
                remedy="pass the model's partial_rotary_factor, for example 0.25",
            )

    def frequencies(
        self,
        base: float,
        dim: int,
        *,
        length: Length = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
    ) -> Float[Tensor, " pairs"]:
        """The plain frequencies of the first pairs, divided by `factor`, and 0."""
        plain = plain_frequencies(base, dim, dtype=dtype, device=device)
        turning = torch.arange(dim // 2, device=device) < int(self.share * dim // 2)
        return torch.where(turning, plain, 0.0) / self.factor


def _growth_power(kind: str, dim: int) -> float:
    if dim < 4:
        raise MultiheadError(
            asked=f"{kind} scaling of at least 4 rotated dimensions (it raises the base by dim / (dim - 2))",
            arrived=f"dim={dim}",
            remedy="rotate more of the head, or use Linear",
        )
    return dim / (dim - 2)
