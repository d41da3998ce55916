"""How well a query and an entry of the memory go together."""

import math
from collections.abc import Callable
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

# Numbers of tanh(...) that are held at once: 16 MiB of float32. Rows of queries beyond that go one block after another.
HELD = 1 << 22


class Additive(nn.Module):
    """`e = v . tanh(W s + U h + b + w_c cov) + r`, or with `g v / |v|` for v.

    Args:
        query_dim: Width of s.
        memory_dim: Width of h.
        hidden: Width of v.
        bias: Whether there is b.
        normalised: Whether v is a direction and its length g a parameter of its own.
        coverage: Range of w_c at the start in units of `hidden ** -0.5`; None is without.
        offset: r at the start; None is without.

    Attributes:
        query_proj: W (hidden, query_dim), with b.
        memory_proj: U (hidden, memory_dim).
        vector: v (hidden,).
        gain: g (), where normalised.
        coverage: w_c (hidden,), where there is coverage.
        offset: r (), where there is one.
    """

    def __init__(
        self,
        query_dim: int,
        memory_dim: int,
        hidden: int,
        *,
        bias: bool = True,
        normalised: bool = False,
        coverage: float | None = None,
        offset: float | None = None,
    ) -> None:
        super().__init__()
        self.query_proj = nn.Linear(query_dim, hidden, bias=bias)
        self.memory_proj = nn.Linear(memory_dim, hidden, bias=False)
        self.vector = nn.Parameter(torch.empty(hidden))
        self.gain = nn.Parameter(torch.empty(())) if normalised else None
        self.coverage = None if coverage is None else nn.Parameter(torch.empty(hidden))
        self.offset = None if offset is None else nn.Parameter(torch.empty(()))
        self._starts = (coverage or 0.0, offset or 0.0)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start anew: Xavier-uniform W and U, b = 0, v uniform within `hidden ** -0.5`, g = `hidden ** -0.5`."""
        bound = self.vector.shape[0] ** -0.5
        for linear in (self.query_proj, self.memory_proj):
            nn.init.xavier_uniform_(linear.weight)
        if self.query_proj.bias is not None:  # pyright: ignore[reportUnnecessaryComparison] - None where bias=False
            nn.init.zeros_(self.query_proj.bias)
        nn.init.uniform_(self.vector, -bound, bound)
        coverage, offset = self._starts
        if self.gain is not None:
            nn.init.constant_(self.gain, bound)
        if self.coverage is not None:
            nn.init.uniform_(self.coverage, -bound * coverage, bound * coverage)
        if self.offset is not None:
            nn.init.constant_(self.offset, offset)

    @property
    def weight(self) -> Tensor:
        """Whose dtype and device inputs have."""
        return self.query_proj.weight

    @property
    def width(self) -> int:
        """Width of the keys."""
        return self.vector.shape[0]

    def keys(self, values: Tensor) -> Tensor:
        """U h, (batch, memory_len, hidden)."""
        return self.memory_proj(values)

    def forward(
        self, queries: Tensor, keys: Tensor, covered: Tensor | None = None
    ) -> Float[Tensor, "batch q_len memory_len"]:
        """Scores of all pairs; `covered` (batch, memory_len) is what one query's predecessors looked at.

        Memory is that of the scores and of at most `HELD` numbers of tanh, with gradients as well: blocks of queries
        are computed again for these.
        """
        left, vector = self.query_proj(queries), self.vector
        if self.coverage is not None and covered is not None:
            keys = keys + covered[..., None].to(keys.dtype) * self.coverage
        if self.gain is not None:
            vector = self.gain * vector / torch.linalg.vector_norm(vector)
        rows = max(1, HELD // max(1, keys.numel()))
        if left.shape[1] <= rows:
            scores = _pairs(left, keys, vector)
        else:
            pairs = _again if torch.is_grad_enabled() else _pairs
            scores = torch.cat([pairs(block, keys, vector) for block in left.split(rows, 1)], 1)
        return scores if self.offset is None else scores + self.offset


class General(nn.Module):
    """`e = s . W h`.

    Args:
        query_dim: Width of s.
        memory_dim: Width of h.

    Attributes:
        memory_proj: W (query_dim, memory_dim).
    """

    def __init__(self, query_dim: int, memory_dim: int) -> None:
        super().__init__()
        self.memory_proj = nn.Linear(memory_dim, query_dim, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start anew: Xavier-uniform."""
        nn.init.xavier_uniform_(self.memory_proj.weight)

    @property
    def weight(self) -> Tensor:
        """Whose dtype and device inputs have."""
        return self.memory_proj.weight

    @property
    def width(self) -> int:
        """Width of the keys."""
        return self.weight.shape[0]

    def keys(self, values: Tensor) -> Tensor:
        """W h, (batch, memory_len, query_dim)."""
        return self.memory_proj(values)

    def forward(self, queries: Tensor, keys: Tensor) -> Float[Tensor, "batch q_len memory_len"]:
        """Scores of all pairs."""
        return queries @ keys.mT


class Dot(nn.Module):
    """`e = s . h`, unscaled.

    Args:
        width: Of both.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.weight = None

    def keys(self, values: Tensor) -> Tensor:
        """The entries themselves."""
        return values

    def forward(self, queries: Tensor, keys: Tensor) -> Float[Tensor, "batch q_len memory_len"]:
        """Scores of all pairs."""
        return queries @ keys.mT


def weigh(scores: Tensor, seen: Tensor) -> Float[Tensor, "... seen"]:
    """Softmax of what is seen, in float32 (float64 for float64); a row that sees nothing is 0, and so its gradient.

    Such a row gets finite scores before softmax: no NaN arises whose gradient would have to be kept back.
    """
    seen, scores = torch.broadcast_tensors(seen, scores.to(torch.promote_types(scores.dtype, torch.float32)))
    some = seen.any(-1, keepdim=True)
    return scores.masked_fill(~seen, -math.inf).masked_fill(~some, 0.0).softmax(-1).masked_fill(~seen, 0.0)


def _pairs(left: Tensor, keys: Tensor, vector: Tensor) -> Tensor:
    return torch.tanh(left[:, :, None] + keys[:, None]) @ vector


def _again(left: Tensor, keys: Tensor, vector: Tensor) -> Tensor:
    """The same, of which nothing is held for the gradient but the arguments."""
    run = cast(Callable[..., Tensor], checkpoint)
    return run(_pairs, left, keys, vector, use_reentrant=False, preserve_rng_state=False)
