"""Relative positions of Transformer-XL, XLNet and conformers: queries meet projected sinusoids of the distance."""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from multihead.error import MultiheadError
from multihead.position.check import check_heads, check_place, check_tensor
from multihead.position.sinusoid import check_layout, sinusoid

TransformerXLLayout = Literal["interleaved", "split"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TransformerXLRelative:
    """Scores `scale * ((q_i + u) . k_j + (q_i + v) . W R[i - j])`, R the sinusoid of the distance query - key.

    Dai et al. 2019, "Transformer-XL", arXiv:1901.02860, section 3.3; Gulati et al. 2020, "Conformer", arXiv:2005.08100.
    The first product is that of the attention itself, with other queries; the second is a bias:

        out = multihead.attention(relative.queries(q), k, v, bias=relative.bias(q))

    **For converted models only.** The bias is made for every pair: memory grows as q_len x kv_len, where ALiBi,
    `RelativeTable` and `Rotary` need none.

    Args:
        content: u, (heads, head_dim): `pos_bias_u` of conformers, `r_w_bias` of XLNet.
        position: v, (heads, head_dim): `pos_bias_v`, `r_r_bias`.
        projection: W, (heads * head_dim, width), rows by head: the weight of `linear_pos`, which has no bias. XLNet's
            `r` (width, heads, head_dim) is `r.flatten(1).T`.
        layout: Of the sinusoid: "interleaved" in conformers, "split" in Transformer-XL and XLNet.

    Raises:
        MultiheadError: Tensors whose sizes do not go together.

    Example:
        >>> u, v, w = torch.randn(4, 16), torch.randn(4, 16), torch.randn(64, 32)
        >>> relative = TransformerXLRelative(content=u, position=v, projection=w)
        >>> relative.bias(torch.randn(2, 4, 10, 16)).shape
        torch.Size([2, 4, 10, 10])
    """

    content: Float[Tensor, "heads head_dim"]
    position: Float[Tensor, "heads head_dim"]
    projection: Float[Tensor, "joined width"]
    layout: TransformerXLLayout = "interleaved"

    def __post_init__(self) -> None:
        u, v, w = self.content, self.position, self.projection
        for name, tensor in {"content": u, "position": v, "projection": w}.items():
            check_tensor(name, tensor, "content and position (heads, head_dim), projection (heads * head_dim, width)")
        check_layout(self.layout, get_args(TransformerXLLayout))
        fits = u.ndim == v.ndim == w.ndim == 2 and u.shape == v.shape and w.shape[0] == u.shape[0] * u.shape[1]
        alike = all(t.is_floating_point() and t.device == u.device for t in (u, v, w))
        if not alike:
            raise MultiheadError(
                asked="content, position and projection of floating numbers on one device",
                arrived=", ".join(f"{t.dtype} on {t.device}" for t in (u, v, w)),
                remedy="pass the model's parameters as they are",
            )
        if not fits:
            raise MultiheadError(
                asked="content and position (heads, head_dim), projection (heads * head_dim, width)",
                arrived=f"content {tuple(u.shape)}, position {tuple(v.shape)}, projection {tuple(w.shape)}",
                remedy="pass a linear's weight as it is; another layout of weights as `r.flatten(1).T`",
            )

    def queries(self, q: Float[Tensor, "batch heads q_len head_dim"]) -> Float[Tensor, "batch heads q_len head_dim"]:
        """The queries that meet the keys: q + u."""
        self._check(q)
        return q + self.content[:, None].to(q.dtype)

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
            q: Queries without u.
            kv_len: Number of keys; None for as many as queries.
            q_offset: Position of the first query, where the first key has position 0 (Transformer-XL: the length of the
                memory).
            scale: Factor of the products, which a bias is not multiplied by: that of the attention. None is
                head_dim ** -0.5.

        Raises:
            MultiheadError: Queries of other heads than the tensors are for.
        """
        self._check(q)
        check_place(kv_len=kv_len, q_offset=q_offset, scale=scale)
        q_len, heads = q.shape[2], q.shape[1]
        kv_len = q_len if kv_len is None else kv_len
        # Greatest distance first, and one more than there are, so that the skew finds rows of equal length.
        distances = q_offset + q_len - 1 - torch.arange(q_len + kv_len, device=q.device)
        waves = sinusoid(distances, self.projection.shape[1], layout=self.layout, dtype=q.dtype)
        keys = (waves @ self.projection.to(q.dtype).T).unflatten(1, (heads, -1)).transpose(0, 1)
        dots = (q + self.position[:, None].to(q.dtype)) @ keys.mT
        return skew(dots) * (q.shape[3] ** -0.5 if scale is None else scale)

    def _check(self, q: Tensor) -> None:
        heads, head_dim = self.content.shape
        asked = f"queries (batch, {heads}, q_len, {head_dim}), like content and position"
        check_heads("q", q, asked, like=self.content)
        if (q.shape[1], q.shape[3]) != (heads, head_dim):
            raise MultiheadError(
                asked=asked,
                arrived=f"q {tuple(q.shape)}",
                remedy="pass queries after the projection, split into heads",
            )

    def __str__(self) -> str:
        heads, head_dim = self.content.shape
        return f"TransformerXLRelative({heads} heads of {head_dim}, {self.layout} sinusoids)"


def skew(dots: Float[Tensor, "*batch q_len both"]) -> Float[Tensor, "*batch q_len kv_len"]:
    """`out[i, j] = dots[i, q_len - 1 - i + j]`: rows by falling distance become rows by key.

    Read row by row, the numbers of row i + 1 begin one place earlier if rows are one shorter, so a view does it
    (Transformer-XL, appendix B). No number is moved before the result is used.

    Args:
        dots: (..., q_len, q_len + kv_len): column c is for the distance (greatest distance) - c. The last column is
            never read.

    Example:
        >>> skew(torch.arange(6.0).view(2, 3))
        tensor([[1.],
                [3.]])
    """
    q_len, both = dots.shape[-2:]
    kv_len = both - q_len
    flat = dots.flatten(-2)[..., q_len - 1 : q_len - 1 + q_len * (both - 1)] if q_len else dots.flatten(-2)
    return flat.unflatten(-1, (q_len, both - 1))[..., :kv_len] if q_len else dots[..., :kv_len]
