"""Feature maps: what stands for a query and a key, so that their product stands for a weight."""

import math
from dataclasses import dataclass
from types import NoneType
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from multihead.error import MultiheadError, check_kinds, kind_and_text
from multihead.scan.followed import unfollowed

# The largest exponent of a key's feature: its square, summed over a million keys, is far from the end of float32.
_LARGEST = 30.0
# Numbers that are made together where nothing follows them: as many as a processor's cache holds.
_STRETCH = 1 << 16


@runtime_checkable
class FeatureMap(Protocol):
    """What linear attention asks of a feature map."""

    def queries(self, x: Float[Tensor, "*batch head_dim"]) -> Float[Tensor, "*batch features"]:
        """Features of queries."""
        ...

    def keys(self, x: Float[Tensor, "*batch head_dim"]) -> Float[Tensor, "*batch features"]:
        """Features of keys."""
        ...


@dataclass(frozen=True, slots=True)
class EluPlusOne:
    """`elu(x) + 1`: `x + 1` above 0, `exp(x)` below (Katharopoulos et al. 2020, arXiv:2006.16236).

    Always above 0, also far below, where `elu(x) + 1` computed as it is written would round to 0.

    Example:
        >>> EluPlusOne().keys(torch.tensor([-50.0, 0.0, 2.0])).gt(0).all().item()
        True
    """

    def queries(self, x: Float[Tensor, "*batch head_dim"]) -> Float[Tensor, "*batch head_dim"]:
        """Features of queries."""
        return self.keys(x)

    def keys(self, x: Float[Tensor, "*batch head_dim"]) -> Float[Tensor, "*batch head_dim"]:
        """Features of keys."""
        if x.ndim > 1 and unfollowed(x):
            return _in_stretches(x)
        return x.clamp(max=0.0).exp() + x.relu()


@dataclass(frozen=True, slots=True)
class Identity:
    """Queries and keys as they are, for outputs that are not normalised (RetNet, Mamba-2, gated linear attention)."""

    def queries(self, x: Float[Tensor, "*batch head_dim"]) -> Float[Tensor, "*batch head_dim"]:
        """Features of queries."""
        return x

    def keys(self, x: Float[Tensor, "*batch head_dim"]) -> Float[Tensor, "*batch head_dim"]:
        """Features of keys."""
        return x


@dataclass(frozen=True, slots=True, kw_only=True)
class Favor:
    """FAVOR+, positive random features for the softmax (Choromanski et al. 2020, "Performers", arXiv:2009.14794).

    Options; `draw(head_dim)` draws the features. Their product is `exp(q . k / sqrt(head_dim))` on average.

    Args:
        features: How many, m; None for `head_dim * ln(head_dim)`, as the paper has it. The squared relative error of
            one product is `(exp(|q + k|^2) - 1) / m` with independent ones, where q and k are divided by
            head_dim^(1/4): good for short vectors, hopeless for long ones.
        orthogonal: Whether directions are drawn at right angles, which lowers the error. The orthogonal matrix of a QR
            decomposition is uniformly distributed only after its columns' signs are drawn from R's diagonal; without
            that the features are biased.

    Raises:
        MultiheadError: A number of features that is none.

    Example:
        >>> phi = Favor(features=256).draw(64, generator=torch.Generator().manual_seed(1))
        >>> phi.keys(torch.randn(2, 8, 100, 64)).shape
        torch.Size([2, 8, 100, 256])
    """

    features: int | None = None
    orthogonal: bool = True

    def __post_init__(self) -> None:
        check_kinds({"orthogonal": self.orthogonal}, (bool,), "True or False")
        whole = isinstance(self.features, int) and not isinstance(self.features, bool) and self.features > 0
        if self.features is not None and not whole:
            raise MultiheadError(
                asked="Favor(features=...): a whole number of at least 1, or None",
                arrived=kind_and_text(self.features),
                remedy="for example Favor(features=256)",
            )

    def count(self, head_dim: int) -> int:
        """How many features heads of this width get.

        Args:
            head_dim: Width of queries and keys.

        Raises:
            MultiheadError: A width that is none.
        """
        if not isinstance(head_dim, int) or isinstance(head_dim, bool) or head_dim < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise MultiheadError(
                asked="Favor: features for heads of a width: a whole number of at least 1",
                arrived=kind_and_text(head_dim),
                remedy="for example Favor().draw(64)",
            )
        return self.features or max(1, round(head_dim * math.log(head_dim)))

    def draw(self, head_dim: int, *, generator: torch.Generator | None = None) -> "Drawn":
        """Features for heads of this width; the same again from a generator with the same seed.

        Args:
            head_dim: Width of queries and keys.
            generator: Of random numbers on the CPU; None for torch's own.

        Raises:
            MultiheadError: A width that is none, or what is no generator.
        """
        check_kinds({"generator": generator}, (torch.Generator, NoneType), "torch.Generator().manual_seed(1), or None")
        count = self.count(head_dim)
        normal = torch.randn(count, head_dim, generator=generator, dtype=torch.float64)
        if self.orthogonal:
            blocks = -(-count // head_dim)
            square = torch.randn(blocks, head_dim, head_dim, generator=generator, dtype=torch.float64)
            turned = haar(square).flatten(0, 1)[:count]
            normal = turned * normal.norm(dim=-1, keepdim=True)
        return Drawn(projection=normal.float())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Drawn:
    """Features that are drawn: `phi(x) = exp(W x' - |x'|^2 / 2) / sqrt(m)`, `x' = x / head_dim^(1/4)`.

    What keeps them finite looks at no other token, so nothing of the future, and of other sequences, is told. An
    exponent is at most `|w|^2 / 2`, whatever x is; where that could be too much for float32, all keys get the same
    constant factor, which depends on W alone. A query's features are divided by the largest of them. Normalised
    outputs know neither factor; unnormalised products are right with `keys(q)` and `keys(k)`, up to exp(-2 shift).

    Args:
        projection: W, (features, head_dim).
    """

    projection: Float[Tensor, "features head_dim"]

    @property
    def shift(self) -> Tensor:
        """What is taken off the exponents of keys: 0 unless a direction is longer than 7.7."""
        return (self.projection.square().sum(-1).amax() / 2 - _LARGEST).clamp(min=0.0)

    def queries(self, x: Float[Tensor, "*batch head_dim"]) -> Float[Tensor, "*batch features"]:
        """Features of queries."""
        exponents = self._exponents(x)
        # The largest is a factor of a whole row, which the normaliser takes out again: no gradient goes through it.
        return self._features(exponents - exponents.detach().amax(-1, keepdim=True), x)

    def keys(self, x: Float[Tensor, "*batch head_dim"]) -> Float[Tensor, "*batch features"]:
        """Features of keys."""
        return self._features(self._exponents(x) - self.shift, x)

    def _exponents(self, x: Tensor) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32)) * x.shape[-1] ** -0.25
        return wide @ self.projection.to(wide.dtype).T - wide.square().sum(-1, keepdim=True) / 2

    def _features(self, exponents: Tensor, x: Tensor) -> Tensor:
        return (exponents.exp() * exponents.shape[-1] ** -0.5).to(x.dtype)


def _in_stretches(x: Tensor) -> Tensor:
    """`elu(x) + 1`, some tokens after the others: what lies between stays in the processor's cache."""
    made = torch.empty_like(x)
    tokens = max(1, _STRETCH * x.shape[-2] // max(1, x.numel()))
    for given, put in zip(x.split(tokens, -2), made.split(tokens, -2), strict=True):
        torch.clamp(given, max=0.0, out=put)
        put.exp_().add_(given.relu())
    return made


def haar(square: Float[Tensor, "*batch d d"]) -> Float[Tensor, "*batch d d"]:
    """Uniformly distributed orthogonal matrices of matrices of independent normal numbers.

    Q of a QR decomposition alone is not: its signs are the algorithm's choice (Mezzadri 2006, math-ph/0609050).
    """
    q, r = torch.linalg.qr(square)
    return q * r.diagonal(dim1=-2, dim2=-1).sign()[..., None, :]
