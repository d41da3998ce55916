"""Differential attention: what one map of weights sees, less a share of what another sees."""

import math
from dataclasses import dataclass
from types import NoneType
from typing import ClassVar, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from multihead.error import MultiheadError, check_kinds
from multihead.layer.base import Options
from multihead.layer.cache import AttentionCache
from multihead.layer.call import Call, Where, check_visible
from multihead.layer.check import check_counts, check_eps, check_whole, is_number, listed_divisors
from multihead.layer.group import HeadGroup, QKNorm
from multihead.layer.kept import kept
from multihead.layer.one_width import OneWidth
from multihead.layer.part import GroupPart, Norm, zero_bias
from multihead.layer.placing import placed
from multihead.layer.support import Support
from multihead.pattern import Pattern
from multihead.position import PositionBias, Rotary

_SPREAD = 0.1  # of the four vectors at the start, as in the paper's code


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerLambda:
    """One lambda for all heads of a layer, learned as four vectors; the paper's.

    `lambda = exp(a1 . b1) - exp(a2 . b2) + start`, with a1, b1, a2, b2 as wide as a query, and each head's output is
    `(1 - start) * RMSNorm(first - lambda * second)`.

    Args:
        depth: Number of the layer, from 0: `start = 0.8 - 0.6 exp(-0.3 depth)`.
        start: In place of it.
        eps: Of the norm.

    Raises:
        MultiheadError: A depth that is no whole number of at least 0, a start outside of 0 <= start < 1, an eps that is
            not above 0.

    Example:
        >>> round(LayerLambda(depth=11).initial, 3)
        0.778
    """

    depth: int = 0
    start: float | None = None
    eps: float = 1e-5

    def __post_init__(self) -> None:
        check_whole({"depth": self.depth})
        check_eps("LayerLambda", self.eps)
        if not is_number(self.initial) or not 0 <= self.initial < 1:
            raise MultiheadError(
                asked="LayerLambda with 0 <= start < 1 and eps above 0",
                arrived=f"start={self.start}, eps={self.eps}",
                remedy="give the depth of the layer and leave the rest out",
            )

    @property
    def initial(self) -> float:
        """What lambda starts near."""
        return 0.8 - 0.6 * math.exp(-0.3 * self.depth) if self.start is None else self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLambda:
    """A lambda for each token and head, `sigmoid(x W)`; no norm (Differential Transformer V2, 2026).

    Both maps of a head then look at the same keys and values, those of the head's group, and a head is as wide as its
    values are.

    Args:
        bias: Whether W has one.
    """

    bias: bool = False


class DifferentialAttention(OneWidth):
    """Heads of two maps each, of which one is taken off the other: `(softmax(Q1 K1^T) - lambda softmax(Q2 K2^T)) V`.

    Ye et al., "Differential Transformer" (2024), arXiv:2410.05258. A head has two queries and two keys of width
    `head_dim` and one value of width `2 head_dim`; what both maps see in common, such as noise spread over irrelevant
    keys, cancels. `LayerLambda` is the paper's lambda, with a norm behind it; `TokenLambda` is that of its second
    version. There is no dropout of weights: the paper defines none for a difference.

    The two maps are 2 `heads` heads of one attention call, all first ones and then all second ones (with `TokenLambda`:
    first and second of a head side by side), so that is what a watcher sees. A query that may attend to no key gets 0
    from every head.

    Args:
        embed_dim: Width of the inputs and of the output.
        heads: Heads, of two maps each.
        kv_heads: Key/value heads, a divisor of `heads`; None for as many. Each has two keys with `LayerLambda`.
        head_dim: Width of a query; None for `embed_dim / (2 heads)`, with `TokenLambda` for `embed_dim / heads`.
        position: Turns queries and keys: `Rotary`, or None.
        lambdas: How much of the second map is taken off.
        bias: Whether the four projections have one.
        backend: `"auto"`, or the name of the backend that must run.

    Attributes:
        q_proj: (heads * 2 * head_dim, embed_dim): first and second query of head 0, of head 1, ...
        k_proj: (kv_heads * 2 * head_dim, embed_dim): likewise; (kv_heads * head_dim, embed_dim) with `TokenLambda`.
        v_proj: (kv_heads * width of values, embed_dim).
        out_proj: (embed_dim, heads * width of values).
        vectors: (2, 2, head_dim): a1, b1, then a2, b2 of `LayerLambda`.
        norm: (2 * head_dim,), the factor of its norm, one for all heads.
        lambda_proj: (heads, embed_dim), the W of `TokenLambda`.

    Raises:
        MultiheadError: Sizes that do not divide or are not positive.

    Example:
        >>> layer = DifferentialAttention(64, heads=4, kv_heads=2, lambdas=LayerLambda(depth=3))
        >>> layer(torch.randn(2, 10, 64), mask=causal()).shape
        torch.Size([2, 10, 64])
    """

    SUPPORT: ClassVar[Support] = Support()

    def __init__(
        self,
        embed_dim: int,
        heads: int = 8,
        *,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        position: Rotary | None = None,
        lambdas: LayerLambda | TokenLambda | None = None,
        bias: bool = False,
        backend: str = "auto",
    ) -> None:
        super().__init__(dropout=0.0, backend=backend)
        check_kinds({"position": position}, (Rotary, NoneType), "Rotary(...) or None")
        check_kinds({"lambdas": lambdas}, (LayerLambda, TokenLambda, NoneType), "LayerLambda(...) or TokenLambda(...)")
        self.lambdas = LayerLambda() if lambdas is None else lambdas
        paired = 2 if isinstance(self.lambdas, LayerLambda) else 1
        check_counts({"embed_dim": embed_dim, "heads": heads})
        head_dim = _head_dim(embed_dim, heads, paired) if head_dim is None else head_dim
        kv_heads = heads if kv_heads is None else kv_heads
        HeadGroup(heads, head_dim, kv_heads=kv_heads)  # for its checks, in the numbers that were given
        self.embed_dim, self.heads, self.kv_heads, self.head_dim = embed_dim, heads, kv_heads, head_dim
        width = paired * head_dim
        maps = HeadGroup(2 * heads, head_dim, kv_heads=paired * kv_heads, v_head_dim=width, position=position)
        self.groups = (maps,)
        self.part = GroupPart(maps, embed_dim)
        self.q_proj = nn.Linear(embed_dim, heads * 2 * head_dim, bias=bias)
        self.k_proj = nn.Linear(embed_dim, kv_heads * width, bias=bias)
        self.v_proj = nn.Linear(embed_dim, kv_heads * width, bias=bias)
        self.out_proj = nn.Linear(heads * width, embed_dim, bias=bias)
        if isinstance(self.lambdas, LayerLambda):
            self.vectors = nn.Parameter(torch.empty(2, 2, head_dim))
            self.norm = Norm(QKNorm(eps=self.lambdas.eps), heads, width)
        else:
            self.lambda_proj = nn.Linear(embed_dim, heads, bias=self.lambdas.bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start anew: Xavier-uniform weights, biases 0, the norm 1, the four vectors normal with deviation 0.1."""
        for module in self.children():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                zero_bias(module)
        if isinstance(self.lambdas, LayerLambda):
            nn.init.normal_(self.vectors, std=_SPREAD)
            nn.init.ones_(cast(Tensor, self.norm.weight))

    def lambda_of(self, query: Tensor) -> Float[Tensor, "_ _ _ 1"]:
        """The lambda of each head and token, (batch, heads, q_len, 1); (1, 1, 1, 1) where it is one for all.

        Args:
            query: (batch, q_len, embed_dim), as `forward` gets it.
        """
        if isinstance(self.lambdas, TokenLambda):
            return torch.sigmoid(self.lambda_proj(query)).transpose(1, 2)[..., None]
        wide = self.vectors.to(torch.promote_types(self.vectors.dtype, torch.float32))
        first, second = wide.prod(1).sum(-1).exp()
        return (first - second + self.lambdas.initial).to(query.dtype).view(1, 1, 1, 1)

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        mask: Pattern | Tensor | None = None,
        bias: Tensor | PositionBias | None = None,
        q_offset: int | None = None,
        cache: AttentionCache | None = None,
        positions: Tensor | None = None,
    ) -> Float[Tensor, "batch q_len embed_dim"]:
        """Attend: self-attention with one input, cross-attention with two or three.

        Args:
            query: (batch, q_len, embed_dim).
            key: (batch, kv_len, embed_dim); the query where it is not given.
            value: (batch, kv_len, embed_dim); the key where it is not given.
            mask: Which pairs are allowed, to both maps alike: a pattern, or a boolean tensor (q_len, kv_len) or
                (batch | 1, heads | 1, q_len | 1, kv_len | 1), True = attend.
            bias: Added to the scores of both maps: a tensor of such a shape, or a bias of positions for `heads` heads.
            q_offset: Position of the first query, where the first key has position 0. A cache knows it.
            cache: Earlier tokens, to which these are added.
            positions: Where the tokens stand for `position`, (batch, q_len) or (q_len,), where that is not where they
                lie.

        Raises:
            MultiheadError: Shapes that do not belong together, a pattern that differs by head, or anything that
                `multihead.attention` refuses.
        """
        check_visible(mask)
        mask, bias = self._for_both(mask, bias)
        call = Call.checked(self, query, key, value, mask=mask, bias=bias, q_offset=q_offset, cache=cache)
        with kept(cache):
            first, second = self._maps(call, positions)
        heads = first - self.lambda_of(query) * second
        if isinstance(self.lambdas, LayerLambda):
            heads = self.norm(heads) * (1 - self.lambdas.initial)
        return self.out_proj(heads.transpose(1, 2).flatten(2))

    def extra_repr(self) -> str:
        """Sizes for `print(model)`."""
        shown = f"{self.embed_dim}, heads={self.heads}, head_dim={self.head_dim}"
        shown += f", kv_heads={self.kv_heads}" if self.kv_heads != self.heads else ""
        shown += ", position=Rotary" if self.groups[0].position is not None else ""
        return f"{shown}, {self.lambdas}" + (f", backend={self.backend!r}" if self.backend != "auto" else "")

    def _maps(self, call: Call, positions: Tensor | None) -> tuple[Tensor, Tensor]:
        """What the first and the second maps give, (batch, heads, q_len, width of values) each."""
        assert call.key is not None
        assert call.value is not None
        one_lambda = isinstance(self.lambdas, LayerLambda)
        q, k = self._split(self.q_proj(call.query), self.head_dim), self._split(self.k_proj(call.key), self.head_dim)
        v = self._split(self.v_proj(call.value), self.groups[0].sizes[3])
        if one_lambda:
            q, k = (torch.cat([x[:, ::2], x[:, 1::2]], 1) for x in (q, k))
        q, k, v, first = placed(call, (0, self.part), (q, k, v), positions)
        where = Where(place=0, groups=self.groups, kv_len=k.shape[2], first=first)
        options: Options = {
            "mask": call.mask_of(where),
            "bias": call.bias_of(where, None),
            "q_offset": call.offset(first),
        }
        # One call for both maps: with first ones first, the keys of a group lie where its queries look for them.
        out = self.attended((q, k, torch.cat([v, v], 1) if one_lambda else v), options)
        if not one_lambda:
            return out[:, ::2], out[:, 1::2]
        first_maps, second_maps = out.chunk(2, 1)
        return first_maps, second_maps

    def _split(self, joined: Tensor, width: int) -> Tensor:
        return joined.unflatten(2, (-1, width)).transpose(1, 2)

    def _for_both(
        self, mask: Pattern | Tensor | None, bias: Tensor | PositionBias | None
    ) -> tuple[Pattern | Tensor | None, Tensor | PositionBias | None]:
        """Mask and bias of the heads as those of the maps."""
        if isinstance(mask, Pattern) and mask.heads not in (None, 1):
            raise MultiheadError(
                asked="a pattern for all heads alike: both maps of a head have its mask",
                arrived=f"{mask} for heads={mask.heads}",
                remedy=f"pass a tensor (batch, {self.heads}, q_len, kv_len): "
                f"pattern.mask(q_len, kv_len), True = attend",
            )
        each = torch.arange(self.heads)
        places = each.repeat(2) if isinstance(self.lambdas, LayerLambda) else each.repeat_interleave(2)
        mask = _doubled(mask, places) if isinstance(mask, Tensor) else mask
        bias = _doubled(bias, places) if isinstance(bias, Tensor) else bias
        if isinstance(bias, PositionBias) and bias.heads == self.heads:
            bias = bias.pick(places.to(bias.weight.device))
        return mask, bias


def _doubled(given: Tensor, places: Tensor) -> Tensor:
    """A tensor of scores or pairs for each head, for the maps."""
    if given.ndim != 4 or given.shape[1] == 1:
        return given
    if 2 * given.shape[1] != len(places):
        raise MultiheadError(
            asked=f"a mask or bias for all heads alike, or for each of {len(places) // 2} heads (both maps of a head)",
            arrived=f"shape {tuple(given.shape)}",
            remedy="pass (batch, heads, q_len, kv_len), any size 1",
        )
    return given[:, places.to(given.device)]


def _head_dim(embed_dim: int, heads: int, paired: int) -> int:
    """Width of a query where none is said."""
    if embed_dim % (paired * heads):
        raise MultiheadError(
            asked=f"heads of two maps that divide embed_dim evenly: {paired} * heads * head_dim",
            arrived=f"embed_dim={embed_dim}, heads={heads}",
            remedy=f"heads={listed_divisors(embed_dim // paired, heads)}, or heads of another size with head_dim="
            if embed_dim % paired == 0
            else "say head_dim=",
        )
    return embed_dim // (paired * heads)
