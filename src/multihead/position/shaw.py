"""Relative positions as vectors that queries are compared with (Shaw et al. 2018). For weights of trained models."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from multihead.error import MultiheadError
from multihead.position.check import check_heads, check_place, check_tensor, check_whole


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShawRelative:
    """The score term `scale * q_i . keys[i - j]` and, with values, the output term `sum_j weight_ij values[i - j]`.

    Shaw, Uszkoreit, Vaswani 2018, "Self-Attention with Relative Position Representations", arXiv:1803.02155. Row r
    stands for the distance `first + r`; distances beyond either end take the row at that end (the paper's clip). All
    heads share the rows.

    **For converted models only.** Both terms are made for every pair: memory grows as q_len x kv_len, where ALiBi,
    `RelativeTable` and `Rotary` need none. What is built anew should use one of those.

    Distances here are query - key. Files that count key - query hold the rows the other way round: pass
    `table.flip(0)` and `first=-right`, where `right` is their greatest distance (wav2vec2-BERT: right_max_position).
    SpeechT5 is `ShawRelative(keys=pe_k.weight, first=-max_length)`; its queries are scaled before, so its scale is that
    of the scores, as here.

    Args:
        keys: (distances, head_dim), compared with queries.
        values: (distances, v_head_dim), added to the output, or None.
        first: Distance of the first row; None for `-(distances // 2)`, the paper's table of 2 clip + 1 rows.

    Raises:
        MultiheadError: Tables of another shape or dtype, or of different lengths.

    Example:
        >>> relative = ShawRelative(keys=torch.randn(9, 64))  # distances from -4 to 4
        >>> q = torch.randn(2, 8, 10, 64)
        >>> relative.bias(q).shape  # pass it as `bias=` to multihead.attention(q, k, v)
        torch.Size([2, 8, 10, 10])
    """

    keys: Float[Tensor, "distances head_dim"]
    values: Float[Tensor, "distances v_head_dim"] | None = None
    first: int | None = None

    def __post_init__(self) -> None:
        tables = [self.keys] if self.values is None else [self.keys, self.values]
        for name, table in zip(("keys", "values"), tables, strict=False):
            check_tensor(name, table, "a table of floating numbers, (distances, head_dim)")
        told = ", ".join(
            f"{name} {tuple(t.shape)} {t.dtype}" for name, t in zip(("keys", "values"), tables, strict=False)
        )
        if any(t.ndim != 2 or not t.is_floating_point() or t.shape[0] == 0 for t in tables):
            raise MultiheadError(
                asked="a table of floating numbers, (distances, head_dim), with at least one distance",
                arrived=told,
                remedy="pass the weight of the model's embedding of distances",
            )
        if self.values is not None and self.values.shape[0] != self.keys.shape[0]:
            raise MultiheadError(
                asked="as many distances for values as for keys", arrived=told, remedy="pass two tables of one length"
            )
        if self.values is not None and self.values.device != self.keys.device:
            raise MultiheadError(
                asked="tables of keys and values on one device",
                arrived=f"keys on {self.keys.device}, values on {self.values.device}",
                remedy="move one of them",
            )
        if self.first is not None:
            check_whole("first", self.first, "distance of the first row")
        else:
            object.__setattr__(self, "first", -(self.keys.shape[0] // 2))

    def with_weight(
        self, keys: Float[Tensor, "distances head_dim"], values: Float[Tensor, "distances v_head_dim"] | None = None
    ) -> "ShawRelative":
        """The same distances with other tables."""
        return replace(self, keys=keys, values=values)

    def rows(self, q_len: int, kv_len: int, *, q_offset: int = 0) -> Int[Tensor, "q_len kv_len"]:
        """The row of each pair.

        Args:
            q_len: Number of queries.
            kv_len: Number of keys.
            q_offset: Position of the first query, where the first key has position 0.
        """
        device = self.keys.device
        distance = torch.arange(q_offset, q_offset + q_len, device=device)[:, None] - torch.arange(
            kv_len, device=device
        )
        return (distance - self._first).clamp(0, self.keys.shape[0] - 1)

    @property
    def _first(self) -> int:
        assert self.first is not None
        return self.first

    def bias(
        self,
        q: Float[Tensor, "batch heads q_len head_dim"],
        *,
        kv_len: int | None = None,
        q_offset: int = 0,
        scale: float | None = None,
    ) -> Float[Tensor, "batch heads q_len kv_len"]:
        """What is added to the scores. It materialises q_len x kv_len numbers for each head. Gradients flow.

        Args:
            q: Queries as they are given to `multihead.attention`.
            kv_len: Number of keys; None for as many as queries.
            q_offset: Position of the first query, where the first key has position 0.
            scale: Factor of the products, which a bias is not multiplied by: that of the attention. None is
                head_dim ** -0.5.

        Raises:
            MultiheadError: Heads of another size than the table.
        """
        check_heads("q", q, "queries (batch, heads, q_len, head_dim)", like=self.keys)
        check_place(kv_len=kv_len, q_offset=q_offset, scale=scale)
        if q.shape[3] != self.keys.shape[1]:
            raise MultiheadError(
                asked=f"queries (batch, heads, q_len, {self.keys.shape[1]}), like the keys of ShawRelative",
                arrived=f"q {tuple(q.shape)}, keys {tuple(self.keys.shape)}",
                remedy="pass queries after the projection, split into heads of this size",
            )
        rows = self.rows(q.shape[2], q.shape[2] if kv_len is None else kv_len, q_offset=q_offset)
        # Queries meet each row once; pairs then look their number up. To gather vectors would cost head_dim times more.
        dots = q @ self.keys.to(q.dtype).T * (q.shape[3] ** -0.5 if scale is None else scale)
        return dots.gather(-1, rows.expand(*q.shape[:2], -1, -1))

    def output(
        self, weights: Float[Tensor, "batch heads q_len kv_len"], *, q_offset: int = 0
    ) -> Float[Tensor, "batch heads q_len v_head_dim"]:
        """The output term of the values: add it to the output of `multihead.attention`. Gradients flow.

        It needs the weights, as `multihead.attention_lse(...).weights()` gives them. Those are from before dropout, so
        this term is not dropped.

        Args:
            weights: (batch, heads, q_len, kv_len).
            q_offset: Position of the first query, where the first key has position 0.

        Raises:
            MultiheadError: There are no values.
        """
        if self.values is None:
            raise MultiheadError(
                asked="the output term of ShawRelative",
                arrived="values=None",
                remedy="pass values=, (distances, v_head_dim), or leave the term out",
            )
        check_heads("weights", weights, "weights (batch, heads, q_len, kv_len)", like=self.values)
        check_place(q_offset=q_offset)
        rows = self.rows(*weights.shape[2:], q_offset=q_offset)
        each = weights.new_zeros(*weights.shape[:3], self.values.shape[0])
        each = each.scatter_add(-1, rows.expand(*weights.shape[:2], -1, -1), weights)
        return each @ self.values.to(weights.dtype)

    def __str__(self) -> str:
        last = self._first + self.keys.shape[0] - 1
        return f"ShawRelative(distances {self._first}..{last}, {'keys' if self.values is None else 'keys and values'})"
