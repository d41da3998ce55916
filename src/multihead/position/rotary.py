"""Rotary positions: pairs of dimensions of queries and keys turned by an angle that grows with their position."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from multihead.error import MultiheadError, kind_and_text
from multihead.position.check import (
    check_pairs,
    check_positions,
    check_tensor,
    check_turned,
    is_number,
    is_whole_number,
)
from multihead.position.config import Layout, read_config
from multihead.position.scaling import Length, Scaling, plain_frequencies
from multihead.position.turn import turn


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rotation:
    """The angles of some positions, ready to turn any heads at these positions. `Rotary.rotation` makes one.

    Made once it serves queries and keys, and every layer of the same `Rotary`.

    Args:
        cos: Cosine of the angle of each rotated dimension, times the amplitude of the scaling.
        sin: Its sine, times the amplitude; negative for the first dimension of a pair.
        layout: Which dimensions make a pair.
    """

    cos: Float[Tensor, "_ 1 length rotated"]
    sin: Float[Tensor, "_ 1 length rotated"]
    layout: Layout

    @classmethod
    def of(
        cls, cos: Float[Tensor, "... length pairs"], sin: Float[Tensor, "... length pairs"], *, layout: Layout
    ) -> "Rotation":
        """The rotation by angles whose cosines and sines are given: those of a model's or a graph's own table.

        Args:
            cos: Of each pair, (length, pairs) or (batch, length, pairs).
            sin: Of each pair, the same shape.
            layout: Which dimensions make a pair.

        Raises:
            MultiheadError: cos and sin of other shapes, or an unknown layout.

        Example:
            `Rotation.of(cos_cache[positions], sin_cache[positions], layout="half").apply(q)`
        """
        check_layouts(layout)
        if cos.shape != sin.shape or cos.ndim not in (2, 3):
            raise MultiheadError(
                asked="cos and sin of each pair, (length, pairs) or (batch, length, pairs)",
                arrived=f"cos {tuple(cos.shape)}, sin {tuple(sin.shape)}",
                remedy="pass one number for each pair, not one for each dimension",
            )
        cos, sin = (table[None, None] if table.ndim == 2 else table[:, None] for table in (cos, sin))
        if layout == "half":
            return cls(cos=torch.cat([cos, cos], -1), sin=torch.cat([-sin, sin], -1), layout=layout)
        cos, sin = (torch.stack(pair, -1).flatten(-2) for pair in ((cos, cos), (-sin, sin)))
        return cls(cos=cos, sin=sin, layout=layout)

    def apply(self, x: Float[Tensor, "batch heads length head_dim"]) -> Float[Tensor, "batch heads length head_dim"]:
        """Queries or keys, turned. Products and sums are in the dtype of the angles, the result is in that of `x`.

        Args:
            x: (batch, heads, length, head_dim); dimensions behind the rotated ones are passed on.

        Raises:
            MultiheadError: `x` has another shape, batch, length or device than the positions.
        """
        check_turned(x, self.cos.shape[0], self.cos.shape[2], self.cos.device)
        dim = self.cos.shape[3]
        if x.shape[3] < dim:
            check_pairs("angles for more dimensions than x has", dim, x.shape[3])
        turned = x if x.shape[3] == dim else x[..., :dim]
        out = turn(turned, self.cos, self.sin, halves=self.layout == "half")
        return out if x.shape[3] == dim else torch.cat([out, x[..., dim:]], -1)


@dataclass(frozen=True, slots=True)
class Rotary:
    """Turns pair k of a head at position p by the angle `p * base ** (-2 k / dim)`, so scores know only distances.

    Su et al. 2021, "RoFormer", arXiv:2104.09864. With (a, b) a pair and t its angle, the pair becomes
    (a cos t - b sin t, b cos t + a sin t). Queries and keys are both turned, values are not; keys go into a cache
    turned (but see `depends_on_length`). Angles are float32, for float64 inputs float64.

    Which dimensions make a pair is the `layout`: "half" is (k, k + dim / 2) as in Llama's files for transformers,
    GPT-NeoX, Qwen, Gemma; "interleaved" is (2 k, 2 k + 1) as in the paper, GPT-J, DeepSeek, Llama's original files. The
    two give the same scores for weights whose rows are reordered: `permute_rows`.

    A Rotary holds numbers only: equal ones are equal and can be keys of a dict. It remembers nothing between calls.

    Args:
        base: Greater than 1. Pairs turn between 1 and almost 1 / base radians a position.
        dim: Rotated dimensions, the first of the head; the rest stays. None for all of them.
        layout: "half" or "interleaved".
        scaling: How the frequencies are changed for longer texts, or None: `Linear`, `NTK`, `DynamicNTK`, `YaRN`,
            `Llama3`, `LongRoPE`, `Proportional`.

    Raises:
        MultiheadError: A base not above 1, an unknown layout, or an odd number of rotated dimensions.

    Example:
        >>> rotary = Rotary(scaling=Linear(2.0))
        >>> rotary.rotate(torch.randn(2, 8, 5, 64), torch.arange(5)).shape
        torch.Size([2, 8, 5, 64])
    """

    base: float = 10000.0
    _: KW_ONLY
    dim: int | None = None
    layout: Layout = "half"
    scaling: Scaling | None = None

    def __post_init__(self) -> None:
        if not (is_number(self.base) and 1 < self.base < float("inf")):
            raise MultiheadError(
                asked="a rotary base above 1",
                arrived=f"base={self.base}"[:200],
                remedy="pass rope_theta, for example 10000.0",
            )
        check_layouts(self.layout)
        if self.dim is not None:
            check_pairs("Rotary(dim=...)", self.dim, max(self.dim, 2) if is_whole_number(self.dim) else 2)
        if not isinstance(self.scaling, Scaling | None):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise MultiheadError(
                asked="Rotary(scaling=...): NTK, DynamicNTK, Llama3, LongRoPE or YaRN, or None",
                arrived=f"scaling={kind_and_text(self.scaling)}",
                remedy="pass one of them, built: scaling=YaRN(4.0, 4096); Rotary.from_config reads a configuration",
            )

    @classmethod
    def from_config(
        cls, config: Mapping[str, object], *, head_dim: int | None = None, layer_type: str | None = None
    ) -> "Rotary":
        """What a model's configuration says, as `config.to_dict()` of transformers or its `config.json` has it.

        Read are `rope_parameters` or `rope_scaling` with all the kinds transformers 5.24 knows (default, linear,
        dynamic, yarn, longrope, llama3, proportional), `rope_theta`, `partial_rotary_factor`, `rotary_dim`,
        `rope_interleave`, and lengths; the layout follows `rope_interleave` or else `model_type`. transformers itself
        is not needed.

        Args:
            config: The configuration. For a model of several parts that of the part.
            head_dim: Size of a head, where the configuration does not tell.
            layer_type: Which of several, where layers differ (Gemma 3: "sliding_attention", "full_attention").

        Raises:
            MultiheadError: An unknown kind, a missing number, positions of several axes, or several kinds of layers and
                none of them named.

        Example:
            >>> Rotary.from_config({"rope_theta": 500000.0, "rope_scaling": {"type": "linear", "factor": 2.0}})
            Rotary(base=500000.0, dim=None, layout='half', scaling=Linear(factor=2.0))
        """
        base, dim, layout, scaling = read_config(config, head_dim=head_dim, layer_type=layer_type)
        return cls(base, dim=dim, layout=layout, scaling=scaling)

    @property
    def factor(self) -> float:
        """What cos and sin are multiplied by (YaRN, LongRoPE), so scores by its square; else 1."""
        return 1.0 if self.scaling is None else self.scaling.amplitude

    @property
    def score_factor(self) -> float:
        """What models with latent attention multiply the softmax's scale by (`YaRN`). Nothing here applies it."""
        return 1.0 if self.scaling is None else self.scaling.score_factor

    @property
    def depends_on_length(self) -> bool:
        """Whether a position turns another way in a longer text (`DynamicNTK`, `LongRoPE`).

        Then a cache must keep keys as they were before rotation, to rotate all of them anew with the positions seen as
        `length`, or it turns them on with `retune`.
        """
        return self.scaling is not None and self.scaling.depends_on_length

    def rotated(self, head_dim: int) -> int:
        """Rotated dimensions of a head of this size.

        Raises:
            MultiheadError: Their number is odd or greater than `head_dim`.
        """
        asked = "rotary positions of whole heads" if self.dim is None else "Rotary(dim=...)"
        return check_pairs(asked, head_dim if self.dim is None else self.dim, head_dim)

    def inverse_frequencies(
        self,
        head_dim: int,
        *,
        length: Length = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
    ) -> Float[Tensor, "... pairs"]:
        """Radians that each pair turns from one position to the next (what others call inv_freq).

        Args:
            head_dim: Size of a head.
            length: Positions seen, where they matter: see `depends_on_length`.
            dtype: What is computed in.
            device: Where the numbers lie.

        Returns:
            (rotated / 2,); (batch, rotated / 2) for a `length` of each sequence that matters.
        """
        dim = self.rotated(head_dim)
        if self.scaling is None:
            return plain_frequencies(self.base, dim, dtype=dtype, device=device)
        return self.scaling.frequencies(self.base, dim, length=length, dtype=dtype, device=device)

    def rotation(
        self,
        positions: Int[Tensor, "... length"],
        head_dim: int,
        *,
        length: Length = None,
        dtype: torch.dtype = torch.float32,
    ) -> Rotation:
        """The angles of some positions, to turn several tensors with: queries and keys, or those of all layers.

        Args:
            positions: Absolute, (length,) for all sequences or (batch, length).
            head_dim: Size of a head.
            length: Positions seen so far, one number or one for each sequence, where `depends_on_length`. None for the
                greatest position + 1, of each sequence by itself.
            dtype: Of the angles: float32, or float64 for float64 heads.

        Raises:
            MultiheadError: Positions that are no whole numbers or of another shape; rotated dimensions that do not fit.
        """
        check_positions(positions)
        if length is None and self.depends_on_length and positions.shape[-1] > 0:
            length = positions.amax(-1) + 1
        frequencies = self.inverse_frequencies(head_dim, length=length, dtype=dtype, device=positions.device)
        angles = positions[..., None].to(dtype) * frequencies[..., None, :]
        cos, sin = angles.cos(), angles.sin()
        if self.factor != 1.0:
            cos, sin = cos * self.factor, sin * self.factor
        return Rotation.of(cos, sin, layout=self.layout)

    def rotate(
        self,
        x: Float[Tensor, "batch heads length head_dim"],
        positions: Int[Tensor, "... length"],
        *,
        length: Length = None,
    ) -> Float[Tensor, "batch heads length head_dim"]:
        """Queries or keys turned by their positions. Gradients flow to `x`.

        Args:
            x: (batch, heads, length, head_dim).
            positions: Absolute, (length,) for all sequences or (batch, length).
            length: As in `rotation`. Queries and keys of one call must be rotated with the same.

        Returns:
            The same shape and dtype.

        Raises:
            MultiheadError: Shapes, dtypes or devices that do not go together; rotated dimensions that do not fit.
        """
        return self.rotation(positions, x.shape[-1], length=length, dtype=_wide(x)).apply(x)

    def retune(
        self,
        keys: Float[Tensor, "batch heads length head_dim"],
        positions: Int[Tensor, "... length"],
        *,
        seen: Length,
        length: Length,
    ) -> Float[Tensor, "batch heads length head_dim"]:
        """Keys rotated when `seen` positions were known, as they would be rotated now that there are `length`.

        Each pair is turned on by position times the difference of the two frequencies. Equal to rotating anew but for
        rounding, which adds up if it is done at every step.

        Args:
            keys: Rotated by this object with `length=seen`.
            positions: Of the keys.
            seen: Positions known then, one number or one for each sequence.
            length: Positions known now.
        """
        check_positions(positions)
        dtype, dim = _wide(keys), keys.shape[-1]
        then, now = (
            self.inverse_frequencies(dim, length=known, dtype=dtype, device=positions.device)
            for known in (seen, length)
        )
        angles = positions[..., None].to(dtype) * (now - then)[..., None, :]
        return Rotation.of(angles.cos(), angles.sin(), layout=self.layout).apply(keys)


def _wide(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def check_layouts(*layouts: str) -> None:
    """Refuses a layout that is none."""
    for layout in layouts:
        if layout not in ("half", "interleaved"):
            raise MultiheadError(
                asked='a rotary layout, "half" (k goes with k + dim / 2) or "interleaved" (2 k goes with 2 k + 1)',
                arrived=f"layout={layout!r}",
                remedy='pass "half" for weights of transformers\' Llama, "interleaved" for those of GPT-J',
            )


def permute_rows(
    weight: Float[Tensor, "rows *columns"],
    *,
    head_dim: int,
    source: Literal["half", "interleaved"],
    target: Literal["half", "interleaved"],
    dim: int | None = None,
) -> Float[Tensor, "rows *columns"]:
    """The rows of a query or key projection reordered: the target layout then gives the scores of the source layout.

    The two rows of a pair move to where the target layout looks for them; rows behind the rotated ones stay. Apply
    it to the weights and biases of both q and k, and to the scale of a norm over a head; values and output are not
    concerned.

    Args:
        weight: Rows are heads in order, head_dim each: a weight (heads * head_dim, width), a bias (heads * head_dim,),
            a norm's scale (head_dim,).
        head_dim: Size of a head.
        source: Layout the weights were made for.
        target: Layout they are wanted in.
        dim: Rotated dimensions of a head; None for all.

    Returns:
        A copy with the rows in the other order, or `weight` itself where the layouts are equal.

    Raises:
        MultiheadError: Rows that are no multiple of `head_dim`, or rotated dimensions that do not fit.

    Example:
        >>> permute_rows(torch.arange(6.0), head_dim=6, source="interleaved", target="half")
        tensor([0., 2., 4., 1., 3., 5.])
    """
    check_layouts(source, target)
    check_tensor("weight", weight, "a weight whose rows are reordered, (heads * head_dim, ...)")
    if not is_whole_number(head_dim) or not 1 <= head_dim <= 2**40:
        raise MultiheadError(
            asked="head_dim: the size of a head, a whole number of at least 1",
            arrived=f"head_dim={head_dim!r}"[:200],
            remedy="pass that of the model, for example 64",
        )
    dim = check_pairs("permute_rows", head_dim if dim is None else dim, head_dim)
    if weight.ndim == 0 or weight.shape[0] % head_dim:
        raise MultiheadError(
            asked=f"rows of whole heads, a multiple of head_dim={head_dim}",
            arrived=f"weight of shape {tuple(weight.shape)}",
            remedy="pass the weight as (heads * head_dim, width), the head_dim of one head; a fused weight in parts",
        )
    if source == target:
        return weight
    order = torch.arange(dim, device=weight.device)
    # Row 2 k + s of the interleaved layout is row s * dim / 2 + k of the half layout.
    order = order.view(-1, 2).T.flatten() if source == "interleaved" else order.view(2, -1).T.flatten()
    heads = weight.unflatten(0, (-1, head_dim))
    return torch.cat([heads[:, order], heads[:, dim:]], 1).flatten(0, 1)
