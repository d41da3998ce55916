"""One block of a Transformer: attention of any kind and a feed-forward network, each with a norm and a residual."""

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from inspect import signature
from types import NoneType
from typing import Any, Literal, cast, get_args

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import dropout as drop

from multihead.error import MultiheadError, check_kinds
from multihead.layer.block_cache import BlockCache
from multihead.layer.call import check_alike_weights
from multihead.layer.check import check_count, check_counts, check_dropout, check_eps
from multihead.layer.family import able, build_attention, find_family
from multihead.layer.feed_forward import FeedForward, FeedForwardLayer
from multihead.layer.support import Support
from multihead.pattern import Pattern

Place = Literal["pre", "post"]
Kind = Literal["layer", "rms"]


@dataclass(frozen=True, slots=True)
class BlockNorm:
    """Where a block's norms stand, and what they are.

    `"pre"`: `x + part(norm(x))` (GPT-2, Llama; Xiong et al. 2020, arXiv:2002.04745); a model has one more norm behind
    its last block. `"post"`: `norm(x + part(x))` (Vaswani et al. 2017, BERT).

    Args:
        place: Which of the two.
        kind: `"layer"`: `weight * (x - mean(x)) / sqrt(var(x) + eps) + bias` (Ba et al. 2016). `"rms"`: `weight * x /
            sqrt(mean(x^2) + eps)` (Zhang and Sennrich 2019).
        eps: Keeps the division finite.
        bias: Whether a layer norm has one; an RMS norm has none.

    Raises:
        MultiheadError: A place or kind that there is not, or an eps that is not above 0.

    Example:
        >>> BlockNorm(kind="rms", eps=1e-6).place
        'pre'
    """

    place: Place = "pre"
    _: KW_ONLY
    kind: Kind = "layer"
    eps: float = 1e-5
    bias: bool = True

    def __post_init__(self) -> None:
        for name, given, choices in (("place", self.place, Place), ("kind", self.kind, Kind)):
            if given not in get_args(choices):
                raise MultiheadError(
                    asked=f"BlockNorm({name}=...): one of {', '.join(map(repr, get_args(choices)))}",
                    arrived=repr(given)[:100],
                    remedy="pass one of these",
                )
        check_eps("BlockNorm", self.eps)
        check_kinds({"bias": self.bias}, (bool,), "True or False")

    def build(self, embed_dim: int) -> nn.Module:
        """One norm.

        Args:
            embed_dim: Width of what it normalises.
        """
        if self.kind == "rms":
            return nn.RMSNorm(embed_dim, eps=self.eps)
        return nn.LayerNorm(embed_dim, eps=self.eps, bias=self.bias)


_PLAIN, _NORM = FeedForward(), BlockNorm()


class Block(nn.Module):
    """`x + attention(norm(x))`, then `x + feed_forward(norm(x))`; between the two, where asked for, cross-attention.

    The block of Vaswani et al., "Attention Is All You Need" (2017), with attention of any kind: one by its name
    (`FAMILIES`, also listed by `multihead variants`), or a module that was built. Which masks may be given, whether
    there is a cache and whether it can look at another sequence, that kind says (`block.support`). Inputs are (batch,
    length, embed_dim).

    Args:
        embed_dim: Width of the input and of the output.
        attention: Name of a kind of attention, or a module called as `module(x, mask=...)`.
        heads: Heads of what is built by name.
        cross: Attention to another sequence, behind the first: name of a kind that can, or a module called as
            `module(x, memory, mask=...)`; None for none.
        feed_forward: What it is; or a module of one input; None for a block without.
        norm: Where the norms stand and what they are.
        dropout: Share of what each part gives that is dropped in training, before it is added. Dropout of weights is
            the attention module's, that of hidden numbers the `FeedForward`'s.

    Attributes:
        attention, cross, feed_forward: The modules; None where there is none.
        attention_norm, cross_norm, feed_forward_norm: Their norms; None likewise.
        support: What the block can be asked for: a `Support`.

    Raises:
        MultiheadError: An unknown name, sizes that do not divide or are not positive, a module of another width, a kind
            without cross-attention as `cross`, a dropout outside of 0 <= p < 1.

    Example:
        >>> block = Block(64, "multi_head", heads=8)
        >>> block(torch.randn(2, 10, 64), mask=causal()).shape
        torch.Size([2, 10, 64])
        >>> llama = Block(
        ...     64,
        ...     MultiHeadAttention(64, HeadGroup(8, kv_heads=2, position=Rotary()), bias=False),
        ...     feed_forward=FeedForward(172, "swiglu", bias=False),
        ...     norm=BlockNorm(kind="rms", eps=1e-6),
        ... )
        >>> llama(torch.randn(2, 10, 64), mask=causal()).shape
        torch.Size([2, 10, 64])
    """

    def __init__(
        self,
        embed_dim: int,
        attention: str | nn.Module = "multi_head",
        *,
        heads: int = 8,
        cross: str | nn.Module | None = None,
        feed_forward: FeedForward | nn.Module | None = _PLAIN,
        norm: BlockNorm = _NORM,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_counts({"embed_dim": embed_dim})
        check_dropout(dropout)
        check_kinds({"attention": attention}, (str, nn.Module), "the name of a kind of attention, or a module")
        check_kinds({"cross": cross}, (str, nn.Module, NoneType), "the name of a kind of attention, a module, or None")
        check_kinds({"feed_forward": feed_forward}, (FeedForward, nn.Module, NoneType), "FeedForward(...), or None")
        check_kinds({"norm": norm}, (BlockNorm,), "BlockNorm(...)")
        self.embed_dim, self.norm, self.dropout = embed_dim, norm, dropout
        own = _support_of(attention)
        self.support = Support(
            causal=own.causal,
            bidirectional=own.bidirectional,
            cross=cross is not None,
            patterns=own.patterns,
            cached=own.cached,
        )
        if cross is not None and not _support_of(cross).cross:
            raise MultiheadError(
                asked="cross: attention to another sequence",
                arrived=f"{_name_of(cross)}, which looks at its own input alone",
                remedy=f"take one of {able('cross')}",
            )
        self._kind = _name_of(attention)
        self.attention = _built(attention, embed_dim, heads)
        self.attention_norm = norm.build(embed_dim)
        self.cross = None if cross is None else _built(cross, embed_dim, heads)
        self.cross_norm = None if cross is None else norm.build(embed_dim)
        built = isinstance(feed_forward, FeedForward)
        self.feed_forward = FeedForwardLayer(embed_dim, feed_forward) if built else feed_forward
        self.feed_forward_norm = None if feed_forward is None else norm.build(embed_dim)
        self._takes = frozenset(signature(self.attention.forward).parameters)

    def cache(self, *, batch: int, memory: Tensor | None = None) -> BlockCache:
        """An empty cache for decoding step by step: `block(x, mask=causal(), cache=cache)`.

        Args:
            batch: Number of sequences.
            memory: (batch, kv_len, width), the other sequence, where the block looks at one: its keys and values are
                made once, and calls are given no `memory`.

        Raises:
            MultiheadError: A kind of attention without a cache, a batch that is no count, a memory for a block that
                looks at none or of another batch.

        Example:
            >>> block = Block(64, "latent")
            >>> cache = block.cache(batch=2)
            >>> x = torch.randn(2, 10, 64)
            >>> parts = [block(part, mask=causal(), cache=cache) for part in x.split(4, 1)]
            >>> torch.allclose(torch.cat(parts, 1), block(x, mask=causal()), atol=1e-5)
            True
        """
        make = getattr(self.attention, "cache", None)
        if not self.support.cached or make is None:
            raise MultiheadError(
                asked="a cache of earlier tokens",
                arrived=f"a block of {self._kind}, which has none",
                remedy=f"compute whole sequences, or take one of {able('cached')}",
            )
        check_count("batch", batch, example=1)
        check_kinds({"memory": memory}, (Tensor, NoneType), "a tensor (batch, length, width), or None")
        if memory is not None:
            self._check_memory(memory, batch)
        return BlockCache(make(batch=batch), batch=batch, memory=self._remembered(memory))

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        mask: Pattern | Tensor | None = None,
        memory_mask: Pattern | Tensor | None = None,
        cache: BlockCache | None = None,
        positions: Tensor | None = None,
    ) -> Float[Tensor, "batch length embed_dim"]:
        """The block.

        Args:
            x: (batch, length, embed_dim).
            memory: (batch, kv_len, width): what the cross-attention looks at; none where the cache remembers it.
            mask: Which pairs of `x` with itself are allowed, True = attend: a pattern such as `causal()`, or a boolean
                tensor. None: each token sees all.
            memory_mask: Which pairs of `x` with `memory` are allowed, such as `padding(keep)`.
            cache: Earlier tokens (`cache(batch=...)`), to which these are added.
            positions: Where the tokens stand for a position that turns them, (batch, length) or (length,), where that
                is not where they lie.

        Raises:
            MultiheadError: A memory without cross-attention or the other way round, a cache of something else, and all
                that the modules refuse.
        """
        self._check(x, memory, memory_mask, cache)
        told: dict[str, Any] = {"mask": mask}
        if cache is not None:
            told["cache"] = cache.own
        if positions is not None:
            told["positions"] = self._positions(positions)
        if cache is None:
            return self._through(x, told, memory, memory_mask, None)
        with cache.kept():
            return self._through(x, told, memory, memory_mask, cache)

    def extra_repr(self) -> str:
        """Sizes for `print(model)`."""
        return f"{self.embed_dim}, {self._kind}, {self.norm}" + (f", dropout={self.dropout:g}" if self.dropout else "")

    def _through(
        self,
        x: Tensor,
        told: Mapping[str, Any],
        memory: Tensor | None,
        memory_mask: Pattern | Tensor | None,
        cache: BlockCache | None,
    ) -> Tensor:
        x = self._added(x, self.attention_norm, lambda normed: self.attention(normed, **told))
        if self.cross is not None:
            look = self.cross
            where: dict[str, Any] = {"mask": memory_mask}
            held = memory if cache is None or cache.memory is None else cache.memory
            seen = (held,) if isinstance(held, Tensor) else ()
            if not seen:
                where["cache"] = held
            x = self._added(x, cast(nn.Module, self.cross_norm), lambda normed: look(normed, *seen, **where))
        if self.feed_forward is not None:
            x = self._added(x, cast(nn.Module, self.feed_forward_norm), self.feed_forward)
        return x

    def _added(self, x: Tensor, norm: nn.Module, part: Callable[[Tensor], Tensor]) -> Tensor:
        """What a part gives, added to its input, with its norm before or behind."""
        if self.norm.place == "pre":
            return x + drop(part(norm(x)), self.dropout, self.training)
        return norm(x + drop(part(x), self.dropout, self.training))

    def _remembered(self, memory: Tensor | None) -> object:
        """Another sequence as the cross-attention looks at it fastest."""
        remember = getattr(self.cross, "remember", None)
        return memory if memory is None or remember is None else remember(memory)

    def _positions(self, positions: Tensor) -> Tensor:
        if "positions" not in self._takes:
            raise MultiheadError(
                asked="positions of the tokens",
                arrived=f"a block of {self._kind}, which knows none",
                remedy="leave positions out, or take a kind of attention with a position that turns queries and keys",
            )
        return positions

    def _check(
        self, x: Tensor, memory: Tensor | None, memory_mask: Pattern | Tensor | None, cache: BlockCache | None
    ) -> None:
        check_kinds({"x": x}, (Tensor,), "a tensor (batch, length, width)")
        check_kinds({"cache": cache}, (BlockCache, NoneType), "block.cache(batch=...), or None")
        check_kinds({"memory": memory}, (Tensor, NoneType), "a tensor (batch, length, width), or None")
        if x.ndim != 3 or x.shape[2] != self.embed_dim:
            raise MultiheadError(
                asked=f"x (batch, length, {self.embed_dim})",
                arrived=f"x {tuple(x.shape)}",
                remedy="pass inputs of this shape, batch first: `x[None]` for one sequence",
            )
        check_alike_weights(self.attention, {"x": x})
        if memory is not None:
            self._check_memory(memory, x.shape[0])
        held = cache is not None and cache.memory is not None
        if self.cross is None and (memory_mask is not None or held):
            self._refuse_memory("a memory_mask" if not held else "a cache that remembers another sequence")
        if self.cross is not None and held == (memory is not None):
            raise MultiheadError(
                asked="another sequence for the cross-attention, once",
                arrived="a cache that remembers one, and memory besides" if held else "none",
                remedy="leave memory out" if held else "pass block(x, memory), or block.cache(batch=..., memory=...)",
            )
        if cache is not None and cache.batch != x.shape[0]:
            raise MultiheadError(
                asked=f"inputs for the cache's batch of {cache.batch}",
                arrived=f"x {tuple(x.shape)}",
                remedy=f"build a new one with block.cache(batch={x.shape[0]}), or take rows of this one: "
                "cache.select(index)",
            )

    def _check_memory(self, memory: Tensor, batch: int) -> None:
        if self.cross is None:
            self._refuse_memory(f"memory {tuple(memory.shape)}")
        if memory.ndim != 3 or memory.shape[0] != batch:
            raise MultiheadError(
                asked=f"memory (batch={batch}, length, width)",
                arrived=f"memory {tuple(memory.shape)}",
                remedy="pass one sequence for each of the batch, batch first",
            )

    def _refuse_memory(self, arrived: str) -> None:
        raise MultiheadError(
            asked="attention to another sequence",
            arrived=f"{arrived}, for a block without cross-attention",
            remedy="build it with one: Block(..., cross='multi_head')",
        )


def _support_of(attention: str | nn.Module) -> Support:
    """What a kind of attention can be asked for; a module that does not say it is taken to be able to do all."""
    if isinstance(attention, str):
        return find_family(attention).support
    told = getattr(attention, "support", getattr(attention, "SUPPORT", None))
    return told if isinstance(told, Support) else Support()


def _name_of(attention: str | nn.Module) -> str:
    return attention if isinstance(attention, str) else type(attention).__name__


def _built(attention: str | nn.Module, embed_dim: int, heads: int) -> nn.Module:
    if isinstance(attention, str):
        return build_attention(attention, embed_dim, heads)
    width = getattr(attention, "embed_dim", embed_dim)
    if width != embed_dim:
        raise MultiheadError(
            asked=f"attention of the block's width, embed_dim={embed_dim}",
            arrived=f"{type(attention).__name__} with embed_dim={width}",
            remedy=f"build it with embed_dim={embed_dim}",
        )
    return attention
