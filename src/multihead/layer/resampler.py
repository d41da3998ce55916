"""Reducers of a sequence: the Perceiver resampler, and the gated cross-attention that reads what it gives."""

from typing import ClassVar, Literal, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import gelu, relu

from multihead.error import MultiheadError, check_kinds
from multihead.layer.attention import MultiHeadAttention
from multihead.layer.call import check_alike_weights, check_inputs, check_mask_kind
from multihead.layer.check import check_counts
from multihead.layer.group import HeadGroup
from multihead.layer.support import Support
from multihead.pattern import Pattern

Activation = Literal["gelu", "relu", "squared_relu"]
_ACTIVATIONS = {"gelu": gelu, "relu": relu, "squared_relu": lambda x: relu(x).square()}


class FeedForward(nn.Module):
    """`W_2 f(W_1 LN(x))`, without biases.

    Args:
        embed_dim: Width.
        activation: `"gelu"`, `"relu"` or `"squared_relu"`.
        factor: Width in between, as a multiple.
    """

    def __init__(self, embed_dim: int, activation: Activation, factor: int) -> None:
        super().__init__()
        if not isinstance(activation, str) or activation not in _ACTIVATIONS:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise MultiheadError(
                asked=f"activation: one of {', '.join(map(repr, _ACTIVATIONS))}",
                arrived=repr(activation)[:100],
                remedy="pass one of these",
            )
        self.activation = activation
        self.norm = nn.LayerNorm(embed_dim)
        self.up = nn.Linear(embed_dim, factor * embed_dim, bias=False)
        self.down = nn.Linear(factor * embed_dim, embed_dim, bias=False)

    def forward(self, x: Float[Tensor, "batch length embed_dim"]) -> Float[Tensor, "batch length embed_dim"]:
        """What is added to the input."""
        return self.down(_ACTIVATIONS[self.activation](self.up(self.norm(x))))


class ResamplerLayer(nn.Module):
    """One layer of a `PerceiverResampler`.

    Args:
        embed_dim: Width of context and latents.
        heads: Number of heads, or a `HeadGroup`.
        activation: Of the feed-forward part.
        factor: Width of the feed-forward part, as a multiple of `embed_dim`.
    """

    def __init__(self, embed_dim: int, heads: int | HeadGroup, activation: Activation, factor: int) -> None:
        super().__init__()
        self.context_norm, self.latent_norm = nn.LayerNorm(embed_dim), nn.LayerNorm(embed_dim)
        self.attention = MultiHeadAttention(embed_dim, heads, bias=False)
        self.ffn = FeedForward(embed_dim, activation, factor)

    def forward(self, latents: Tensor, context: Tensor, mask: Tensor | None) -> Tensor:
        """The latents (batch, latents, embed_dim) after one look at the context (batch, length, embed_dim)."""
        asking = self.latent_norm(latents)
        seen = torch.cat([self.context_norm(context), asking], 1)
        latents = latents + self.attention(asking, seen, mask=mask)
        return latents + self.ffn(latents)


class PerceiverResampler(nn.Module):
    """A sequence of any length as a few vectors: learned latents look at it.

    Alayrac et al., "Flamingo" (2022), arXiv 2204.14198, after Jaegle et al., "Perceiver" (2021), arXiv 2103.03206. In
    each layer, with l the latents and x the context: `l = l + Attention(q = LN(l), k = v = [LN(x); LN(l)])`, then `l =
    l + W_2 f(W_1 LN(l))`; a norm at the end. Projections have no biases. It costs `(length + latents) * latents` scores
    a layer and head: linear in the length of the context.

    Args:
        embed_dim: Width of the context and of the latents.
        heads: Number of heads, or a `HeadGroup`.
        latents: How many vectors come out.
        depth: Layers.
        activation: Of the feed-forward parts: `"gelu"`, `"relu"` (Idefics) or `"squared_relu"` (Flamingo).
        factor: Width of the feed-forward parts, as a multiple of `embed_dim`.

    Attributes:
        latents: (latents, embed_dim).
        layers: One `ResamplerLayer` each.
        norm: The last one.

    Raises:
        MultiheadError: Sizes that are no whole numbers of at least 1, or do not divide.

    Example:
        >>> resampler = PerceiverResampler(64, heads=4, latents=8, depth=2)
        >>> resampler(torch.randn(2, 300, 64)).shape
        torch.Size([2, 8, 64])
    """

    SUPPORT: ClassVar[Support] = Support(causal=False, cross=False, cached=False)

    def __init__(
        self,
        embed_dim: int,
        heads: int | HeadGroup = 8,
        *,
        latents: int = 64,
        depth: int = 6,
        activation: Activation = "gelu",
        factor: int = 4,
    ) -> None:
        super().__init__()
        check_counts({"embed_dim": embed_dim, "latents": latents, "depth": depth, "factor": factor})
        self.embed_dim = embed_dim
        self.latents = nn.Parameter(torch.randn(latents, embed_dim))
        self.layers = nn.ModuleList(ResamplerLayer(embed_dim, heads, activation, factor) for _ in range(depth))
        self.norm = nn.LayerNorm(embed_dim)

    def forward(
        self, context: Float[Tensor, "batch length embed_dim"], *, mask: Pattern | Tensor | None = None
    ) -> Float[Tensor, "batch latents embed_dim"]:
        """The latents after all layers.

        Args:
            context: (batch, length, embed_dim).
            mask: What of the context each latent may see: a pattern such as `padding(keep)`, or a boolean tensor
                (latents | 1, length) or (batch | 1, heads | 1, latents | 1, length). Latents see one another always.

        Raises:
            MultiheadError: A context of another width, or a mask that does not fit.
        """
        check_inputs(self, {"query": context})
        for layer in self.layers:
            check_alike_weights(cast(ResamplerLayer, layer).attention, {"context": context})
        check_mask_kind(mask)
        allowed = self._allowed(context, mask)
        latents = self.latents.expand(context.shape[0], -1, -1)
        for layer in self.layers:
            latents = layer(latents, context, allowed)
        return self.norm(latents)

    def widths(self) -> dict[str, int]:
        """Width of the context."""
        return {"query": self.embed_dim}

    @property
    def groups(self) -> tuple[HeadGroup, ...]:
        """What the heads are."""
        layer = self.layers[0]
        assert isinstance(layer, ResamplerLayer)
        return layer.attention.groups

    def _allowed(self, context: Tensor, mask: Pattern | Tensor | None) -> Tensor | None:
        """The mask with columns for the latents."""
        if mask is None:
            return None
        length, count = context.shape[1], self.latents.shape[0]
        if isinstance(mask, Pattern):
            mask = mask.mask(count, length, device=context.device)
        if mask.dtype is not torch.bool or mask.ndim not in (2, 4) or mask.shape[-1] != length:
            raise MultiheadError(
                asked=f"mask: a pattern, or a boolean tensor over the {length} vectors of the context: "
                f"({count} | 1, {length}) or (batch | 1, heads | 1, {count} | 1, {length})",
                arrived=f"{mask.dtype} of shape {tuple(mask.shape)}",
                remedy="for padded contexts pass padding(keep), keep (batch, length)",
            )
        mask = mask if mask.ndim == 4 else mask[None, None]
        return torch.cat([mask, mask.new_ones(*mask.shape[:3], count)], 3)


class GatedCrossAttention(nn.Module):
    """Cross-attention that a finished model can be given: it starts as nothing (Flamingo: Alayrac et al. 2022).

    `y = x + tanh(a) * Attention(q = LN(x), k = v = media)`, then `y + tanh(b) * W_2 f(W_1 LN(y))`. Both gates start at
    0, so that the output is the input, bit for bit, and what is learned comes in by and by. A query that may see no
    media gets nothing.

    Args:
        embed_dim: Width of the text.
        heads: Number of heads, or a `HeadGroup`.
        media_dim: Width of the media; None for `embed_dim`.
        activation: Of the feed-forward part.
        factor: Width of the feed-forward part, as a multiple of `embed_dim`.

    Attributes:
        attention_gate: a, (1,).
        ffn_gate: b, (1,).

    Raises:
        MultiheadError: Sizes that are no whole numbers of at least 1, or do not divide.

    Example:
        >>> layer, x = GatedCrossAttention(64, heads=4), torch.randn(2, 10, 64)
        >>> torch.equal(layer(x, torch.randn(2, 8, 64)), x)
        True
    """

    SUPPORT: ClassVar[Support] = Support(causal=False, bidirectional=False, cached=False)

    def __init__(
        self,
        embed_dim: int,
        heads: int | HeadGroup = 8,
        *,
        media_dim: int | None = None,
        activation: Activation = "gelu",
        factor: int = 4,
    ) -> None:
        super().__init__()
        widths = {"embed_dim": embed_dim, "media_dim": embed_dim if media_dim is None else media_dim}
        check_counts({**widths, "factor": factor})
        self.norm = nn.LayerNorm(embed_dim)
        self.attention = MultiHeadAttention(embed_dim, heads, kv_embed_dim=media_dim, bias=False)
        self.ffn = FeedForward(embed_dim, activation, factor)
        self.attention_gate = nn.Parameter(torch.zeros(1))
        self.ffn_gate = nn.Parameter(torch.zeros(1))

    def forward(
        self, x: Tensor, media: Tensor, *, mask: Pattern | Tensor | None = None
    ) -> Float[Tensor, "batch length embed_dim"]:
        """The text (batch, length, embed_dim) with what it takes from the media (batch, media_len, media_dim).

        Args:
            x: The text.
            media: What it looks at, such as the output of a `PerceiverResampler`.
            mask: Which pairs are allowed, as in `MultiHeadAttention`.

        Raises:
            MultiheadError: Shapes that do not belong together.
        """
        check_kinds({"x": x, "media": media}, (Tensor,), "a tensor (batch, length, width)")
        check_alike_weights(self.attention, {"x": x, "media": media})
        x = x + torch.tanh(self.attention_gate) * self.attention(self.norm(x), media, mask=mask)
        return x + torch.tanh(self.ffn_gate) * self.ffn(x)
