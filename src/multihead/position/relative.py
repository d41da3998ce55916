"""The relative position table of T5: distances share logarithmic buckets, each head learns a number for each bucket."""

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from multihead.error import MultiheadError, check_kinds
from multihead.position.check import check_tensor, is_whole_number


@dataclass(frozen=True, slots=True, eq=False)
class RelativeTable:
    """The bias `table[bucket(q_pos - k_pos), h]` (Raffel et al. 2020, T5).

    Half of the buckets hold one distance each; the other half grow logarithmically up to `max_distance`, and everything
    beyond shares the last one. With `bidirectional` the buckets are split between keys before and keys after the query;
    without it every key after the query falls into bucket 0, together with the query's own position.

    Args:
        table: (buckets, heads). It receives a gradient if it requires one.
        bidirectional: True in encoders, False in decoders.
        max_distance: Distance from which on all keys share the last bucket.

    Raises:
        MultiheadError: If the table has not two dimensions, too few buckets, or `max_distance` is too small for them.

    Example:
        >>> bias = RelativeTable(torch.randn(32, 8), bidirectional=True)
        >>> bias.scores(torch.arange(4), torch.arange(6)).shape
        torch.Size([1, 8, 4, 6])
    """

    table: Float[Tensor, "buckets heads"]
    bidirectional: bool = True
    max_distance: int = 128

    def __post_init__(self) -> None:
        asked = "a relative table of shape (buckets, heads) with floating numbers"
        check_tensor("table", self.table, asked)
        if self.table.ndim != 2 or not self.table.is_floating_point():
            raise MultiheadError(
                asked=asked,
                arrived=f"shape {tuple(self.table.shape)}, {self.table.dtype}",
                remedy="pass a floating tensor (buckets, heads), e.g. the weight of T5's relative_attention_bias",
            )
        check_kinds({"bidirectional": self.bidirectional}, (bool,), "True or False")
        least = 4 if self.bidirectional else 2
        if self.buckets < least:
            raise MultiheadError(
                asked=f"a relative table with at least {least} buckets (bidirectional={self.bidirectional})",
                arrived=f"{self.buckets} buckets, table shape {tuple(self.table.shape)}",
                remedy="pass a table of shape (buckets, heads), in this order, with more buckets",
            )
        if not is_whole_number(self.max_distance) or self.max_distance <= self._exact:
            raise MultiheadError(
                asked=f"max_distance above the {self._exact} distances that have a bucket of their own",
                arrived=f"max_distance={self.max_distance!r}, {self.buckets} buckets"[:200],
                remedy=f"pass max_distance > {self._exact}, or fewer buckets",
            )

    @property
    def buckets(self) -> int:
        """Number of buckets."""
        return self.table.shape[0]

    @property
    def heads(self) -> int:
        """Number of query heads the table is for."""
        return self.table.shape[1]

    @property
    def weight(self) -> Float[Tensor, "buckets heads"]:
        """What can be trained: the table."""
        return self.table

    def with_weight(self, weight: Float[Tensor, "buckets heads"]) -> "RelativeTable":
        """The same bias with another table."""
        return replace(self, table=weight)

    def pick(self, heads: Int[Tensor, " chosen"]) -> "RelativeTable":
        """The bias of some heads."""
        return replace(self, table=self.table[:, heads])

    @property
    def _side(self) -> int:
        return self.buckets // 2 if self.bidirectional else self.buckets

    @property
    def _exact(self) -> int:
        return self._side // 2

    def bucket(self, distance: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
        """The bucket of each distance `q_pos - k_pos`.

        Args:
            distance: Signed, in tokens; positive where the key lies before the query.

        Returns:
            Bucket numbers, from 0 to buckets - 1, of the same shape.
        """
        if self.bidirectional:
            first, far = torch.where(distance < 0, self._side, 0), distance.abs()
        else:
            first, far = torch.zeros_like(distance), distance.clamp(min=0)
        # In float32 and in this order on purpose: trained tables expect the rounding of the original at bucket edges.
        growth = torch.log(far.clamp(min=1).float() / self._exact) / math.log(self.max_distance / self._exact)
        coarse = self._exact + (growth * (self._side - self._exact)).long()
        return first + torch.where(far < self._exact, far, coarse.clamp(max=self._side - 1))

    def scores(
        self, q_pos: Int[Tensor, " rows"], k_pos: Int[Tensor, " columns"]
    ) -> Float[Tensor, "1 heads rows columns"]:
        """The bias of each (query position, key position), in the dtype of the table.

        Args:
            q_pos: Absolute positions of the queries.
            k_pos: Absolute positions of the keys.

        Returns:
            (1, heads, rows, columns).
        """
        return self.table.T[:, self.bucket(q_pos[:, None] - k_pos)][None]

    def pull(
        self,
        grad: Float[Tensor, "heads rows columns"],
        q_pos: Int[Tensor, " rows"],
        k_pos: Int[Tensor, " columns"],
    ) -> Float[Tensor, "buckets heads"]:
        """Gradient of the table from the gradient of the scores, summed over the batch."""
        buckets = self.bucket(q_pos[:, None] - k_pos).flatten()
        return grad.new_zeros(self.table.shape).index_add(0, buckets, grad.flatten(1).T)

    def __str__(self) -> str:
        side = "both sides" if self.bidirectional else "looking back"
        return f"RelativeTable({self.buckets} buckets, {self.heads} heads, {side}, max_distance={self.max_distance})"
