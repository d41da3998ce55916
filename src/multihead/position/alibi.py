"""ALiBi: a penalty that grows with the distance between query and key, another slope for each head."""

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from multihead.error import MultiheadError
from multihead.position.check import check_tensor, is_whole_number

_MOST_HEADS = 2**16


@dataclass(frozen=True, slots=True, eq=False)
class ALiBi:
    """The bias `-slopes[h] * |q_pos - k_pos|` (Press, Smith, Lewis 2022, "Train short, test long").

    The paper is about causal attention, where every key lies before its query; both sides are penalised alike here, so
    the same object serves encoders.

    Args:
        slopes: (heads,), see `alibi_slopes`. They receive a gradient if they require one.

    Raises:
        MultiheadError: If `slopes` is not a floating tensor of one dimension.

    Example:
        >>> bias = ALiBi(alibi_slopes(8))
        >>> bias.scores(torch.arange(4), torch.arange(4)).shape
        torch.Size([1, 8, 4, 4])
    """

    slopes: Float[Tensor, " heads"]

    def __post_init__(self) -> None:
        check_tensor("slopes", self.slopes, "ALiBi slopes: one floating number for each head, shape (heads,)")
        if self.slopes.ndim != 1 or not self.slopes.is_floating_point():
            raise MultiheadError(
                asked="ALiBi slopes: one floating number for each head, shape (heads,)",
                arrived=f"shape {tuple(self.slopes.shape)}, {self.slopes.dtype}",
                remedy="pass alibi_slopes(heads) or a floating tensor of shape (heads,)",
            )

    @property
    def heads(self) -> int:
        """Number of query heads the slopes are for."""
        return self.slopes.shape[0]

    @property
    def weight(self) -> Float[Tensor, " heads"]:
        """What can be trained: the slopes."""
        return self.slopes

    def with_weight(self, weight: Float[Tensor, " heads"]) -> "ALiBi":
        """The same bias with other slopes."""
        return replace(self, slopes=weight)

    def pick(self, heads: Int[Tensor, " chosen"]) -> "ALiBi":
        """The bias of some heads."""
        return replace(self, slopes=self.slopes[heads])

    def scores(
        self, q_pos: Int[Tensor, " rows"], k_pos: Int[Tensor, " columns"]
    ) -> Float[Tensor, "1 heads rows columns"]:
        """The bias of each (query position, key position), in the dtype of the slopes.

        Args:
            q_pos: Absolute positions of the queries.
            k_pos: Absolute positions of the keys.

        Returns:
            (1, heads, rows, columns).
        """
        return -self.slopes[None, :, None, None] * _distance(q_pos, k_pos).to(self.slopes)

    def pull(
        self,
        grad: Float[Tensor, "heads rows columns"],
        q_pos: Int[Tensor, " rows"],
        k_pos: Int[Tensor, " columns"],
    ) -> Float[Tensor, " heads"]:
        """Gradient of the slopes from the gradient of the scores, summed over the batch."""
        return -(grad * _distance(q_pos, k_pos).to(grad)).sum((-2, -1))

    def __str__(self) -> str:
        return f"ALiBi({self.heads} heads)"


def _distance(q_pos: Tensor, k_pos: Tensor) -> Tensor:
    return (q_pos[:, None] - k_pos).abs()


def alibi_slopes(heads: int) -> Float[Tensor, " heads"]:
    """The slopes of the ALiBi paper.

    For a power of two they are the geometric series `2 ** (-8 * (h + 1) / heads)`, h = 0, 1, ... For other counts the
    series of the next lower power of two is followed by every second slope of the next higher one, as the authors do.

    Args:
        heads: Number of heads, at least 1.

    Returns:
        (heads,), float32.

    Raises:
        MultiheadError: If `heads` is less than 1.

    Example:
        >>> alibi_slopes(4)
        tensor([0.2500, 0.0625, 0.0156, 0.0039])
    """
    if not is_whole_number(heads) or not 1 <= heads <= _MOST_HEADS:
        raise MultiheadError(
            asked=f"ALiBi slopes for at least one head, and for {_MOST_HEADS} at most",
            arrived=f"heads={heads}"[:200],
            remedy="pass heads >= 1, a whole number",
        )
    lower = 2 ** math.floor(math.log2(heads))
    own = [2.0 ** (-8.0 * (h + 1) / lower) for h in range(lower)]
    between = [2.0 ** (-4.0 * (h + 1) / lower) for h in range(0, 2 * (heads - lower), 2)]
    return torch.tensor(own + between)
