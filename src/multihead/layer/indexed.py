"""Sparse attention with a learned indexer, as in DeepSeek-V3.2: latent attention to the keys that it chose."""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace
from types import NoneType
from typing import ClassVar, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from multihead.attend import Problem, make_problem
from multihead.attend.selector.indexer import Indexer, check_budget
from multihead.error import MultiheadError, check_kinds
from multihead.layer.angles import rotation_from
from multihead.layer.cache import Full, Kind, Static
from multihead.layer.call import Call, Where
from multihead.layer.check import check_counts, check_eps
from multihead.layer.group import Scoring
from multihead.layer.indexed_cache import IndexedCache
from multihead.layer.kept import kept
from multihead.layer.latent import Latent, LatentAttention
from multihead.layer.latent_cache import LatentCache, joined
from multihead.layer.part import turned
from multihead.layer.support import Support
from multihead.pattern import Pattern, everything
from multihead.position import PositionBias, Rotary


@dataclass(frozen=True, slots=True)
class Index:
    """The sizes of an indexer.

    Args:
        budget: Keys a query attends to.
        heads: Index heads.
        head_dim: Their width, at least the `rope_dim` of the attention: that many of the first numbers are turned.
        eps: Of the norm of index keys.

    Raises:
        MultiheadError: A size that is no whole number of at least 1, or an eps that is not above 0.

    Example:
        >>> Index(2048, heads=64, head_dim=128).budget
        2048
    """

    budget: int
    _: KW_ONLY
    heads: int
    head_dim: int
    eps: float = 1e-6

    def __post_init__(self) -> None:
        check_budget("Index", self.budget)
        check_counts({"heads": self.heads, "head_dim": self.head_dim})
        check_eps("Index", self.eps)


class IndexedAttention(LatentAttention):
    """Latent attention in which each query sees only the keys that a learned indexer chose for it.

    With x the input and r what queries are made of (`RMSNorm(x W_q)`, or x where there is no `q_rank`): index queries
    `turn(r A)` of some small heads, one index key `turn(LayerNorm(x B))` a token, head weights `x C heads ** -0.5`.
    `I[t, s] = sum_j w[t, j] relu(head_dim ** -0.5 q_j[t] . k[s])`, and t attends to the `budget` keys that score
    highest, among those the mask allows. DeepSeek-AI, "DeepSeek-V3.2" (2025), arXiv:2512.02556. The first `rope_dim`
    numbers of index queries and keys are turned in halves, also where the attention turns pairs next to each other, as
    published. The published kernel turns both by a Hadamard matrix, which changes no product, and stores them in 8
    bits, which is left out here, as in transformers.

    With a budget of all keys it is `LatentAttention`. No gradient flows through the choice: the indexer learns from
    `index_loss`, first beside dense attention (`over="all"`), then from what it chose itself (`over="chosen"`).

    Scoring looks at every pair with few narrow heads; a choice takes a bit a pair. It saves time where attention itself
    is what costs: at long texts. How many keys a query sees is bounded: what lies beyond its budget is lost to it.

    Args:
        embed_dim: Width of the input and of the output.
        heads: Number of heads.
        latent: Sizes of the attention.
        index: Sizes of the indexer.
        position: Turns what is turned: `Rotary`, whose angles do not depend on the length of the text; or None.
        scoring: As in `LatentAttention`.
        bias: Likewise.
        dropout: Likewise.

    Attributes:
        index_q: (index heads * head_dim, q_rank or embed_dim).
        index_k, index_norm: (head_dim, embed_dim), and weight and bias (head_dim,).
        index_weights: (index heads, embed_dim).
        q_proj, q_down, q_norm, q_up, kv_down, kv_norm, kv_up, out_proj: As in `LatentAttention`.

    Raises:
        MultiheadError: As `LatentAttention`; an index narrower than what is turned; a position that depends on length.

    Example:
        >>> latent = Latent(16, nope_dim=8, rope_dim=4, v_dim=8)
        >>> layer = IndexedAttention(64, 4, latent, Index(32, heads=2, head_dim=8), position=Rotary())
        >>> layer(torch.randn(2, 100, 64), mask=causal()).shape
        torch.Size([2, 100, 64])
    """

    SUPPORT: ClassVar[Support] = Support(cross=False)

    def __init__(
        self,
        embed_dim: int,
        heads: int,
        latent: Latent,
        index: Index,
        *,
        position: Rotary | None = None,
        scoring: Scoring | None = None,
        bias: bool = False,
        dropout: float = 0.0,
    ) -> None:
        check_kinds({"index": index}, (Index,), "Index(budget, heads=..., head_dim=...)")
        super().__init__(embed_dim, heads, latent, position=position, scoring=scoring, bias=bias, dropout=dropout)
        if index.head_dim < latent.rope_dim or (position is not None and position.depends_on_length):
            raise MultiheadError(
                asked=f"index heads at least rope_dim={latent.rope_dim} wide, and angles that stay as they are",
                arrived=f"head_dim={index.head_dim}, position={position}"[:200],
                remedy="for example Index(2048, heads=64, head_dim=128), with a rotary of fixed angles",
            )
        self.index = index
        width = embed_dim if latent.q_rank is None else latent.q_rank
        self.index_q = nn.Linear(width, index.heads * index.head_dim, bias=False)
        self.index_k = nn.Linear(embed_dim, index.head_dim, bias=False)
        self.index_norm = nn.LayerNorm(index.head_dim, eps=index.eps)
        self.index_weights = nn.Linear(embed_dim, index.heads, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start anew: as `LatentAttention`."""
        super().reset_parameters()
        if "index_norm" in self._modules:
            self.index_norm.reset_parameters()

    def cache(self, *, batch: int, kind: Kind | None = None) -> IndexedCache:
        """An empty cache for decoding step by step: `layer(x, mask=causal(), cache=cache)`.

        Args:
            batch: Number of sequences.
            kind: `Full()`, or `Static(length)`; None is `Full()`.

        Raises:
            MultiheadError: A batch that is no count, another kind.
        """
        check_kinds(
            {"kind": kind}, (Full, Static, NoneType), "Full() or Static(length): the indexer chooses among all tokens"
        )
        widths = (self.latent.kv_rank, self.latent.rope_dim)
        return IndexedCache(widths, batch=batch, kind=Full() if kind is None else cast(Full | Static, kind))

    def forward(
        self,
        query: Tensor,
        *,
        mask: Pattern | Tensor | None = None,
        bias: Tensor | PositionBias | None = None,
        cache: LatentCache | None = None,
        positions: Tensor | None = None,
    ) -> Float[Tensor, "batch q_len embed_dim"]:
        """Self-attention to what the indexer chooses.

        Args:
            query: (batch, q_len, embed_dim).
            mask: Which pairs may be chosen, alike for all heads: a pattern, or a boolean tensor, True = attend.
            bias: Added to the scores of the attention.
            cache: Earlier tokens, to which these are added.
            positions: Where the tokens stand, as in `LatentAttention`.

        Raises:
            MultiheadError: Shapes that do not belong together, a mask that differs by head, a cache of another module.
        """
        check_kinds(
            {"cache": cache}, (IndexedCache, NoneType), "a cache of this module, attn.cache(batch=...), or None"
        )
        self._check_cache(cache)
        call = Call.checked(self, query, None, None, mask=mask, bias=bias, q_offset=None, cache=cache)
        choose = self._chosen
        if torch.compiler.is_compiling():
            # What is chosen depends on numbers: it runs beside the graph.
            choose = cast(Callable[..., Pattern], torch.compiler.disable(choose))
        with kept(cache):
            chosen = choose(call, positions)
            return super().forward(query, mask=_both(mask, chosen, call), bias=bias, cache=cache, positions=positions)

    def index_loss(
        self,
        query: Tensor,
        *,
        mask: Pattern | Tensor | None = None,
        over: str = "all",
        positions: Tensor | None = None,
    ) -> Float[Tensor, ""]:
        """How far the indexer is from what the attention looks at: the mean of `KL(p[t] || softmax(I[t]))`.

        p is the weights of all heads, summed and normalised, and counts as given: the gradient reaches the indexer's
        own weights and nothing else, neither the attention nor the input. Add it to the loss of the model.

        Args:
            query: The input of the call, (batch, length, embed_dim).
            mask: That of the call.
            over: `"all"`: over all keys that the mask allows, to begin with; `"chosen"`: over those that the indexer
                chooses.
            positions: Those of the call.

        Raises:
            MultiheadError: As for a call; anything but `"all"` and `"chosen"`.

        Example:
            >>> latent = Latent(16, nope_dim=8, rope_dim=4, v_dim=8)
            >>> layer = IndexedAttention(64, 4, latent, Index(32, heads=2, head_dim=8))
            >>> layer.index_loss(torch.randn(2, 100, 64), mask=causal()).backward()
        """
        if over not in ("all", "chosen"):
            raise MultiheadError(
                asked="index_loss(over=...): 'all' or 'chosen'",
                arrived=f"over={over!r}"[:200],
                remedy="pass one of these",
            )
        query = query.detach()
        call = Call.checked(self, query, None, None, mask=mask, bias=None, q_offset=None, cache=None)
        indexer, q, k = self._indexed(call, positions)
        if over == "chosen":
            mask = _both(mask, indexer.select(q, k, mask=mask), call)
        return indexer.divergence(q, k, self._attention(call, mask, positions))

    def extra_repr(self) -> str:
        """Sizes for `print(model)`."""
        return f"{super().extra_repr()}, {self.index}"

    def _chosen(self, call: Call, positions: Tensor | None) -> Pattern:
        """What the queries of a call attend to."""
        if call.query.is_meta:  # shapes alone are asked for
            return everything()
        with torch.no_grad():
            indexer, q, k = self._indexed(call, positions)
            if isinstance(call.cache, IndexedCache):
                k = call.cache.extend_index(k)
            return indexer.select(q, k, mask=call.mask, q_offset=call.offset(0))

    def _indexed(self, call: Call, positions: Tensor | None) -> tuple[Indexer, Tensor, Tensor]:
        """The indexer of a call, its queries and the keys of the call's tokens, apart from all other gradients."""
        x, rope = call.query.detach(), self.latent.rope_dim
        with torch.no_grad():
            made_of = x if self.latent.q_rank is None else self.q_norm(self.q_down(x)[:, None])[:, 0]
        q = self.index_q(made_of).unflatten(2, (self.index.heads, -1)).transpose(1, 2)
        k = self.index_norm(self.index_k(x))[:, None]
        if self.position is not None:
            half = replace(self.position, layout="half")
            if positions is None:
                rotation = rotation_from(half, call.first, q[..., :rope])
            else:
                dtype = torch.promote_types(q.dtype, torch.float32)
                rotation = half.rotation(call.q_positions(positions), rope, dtype=dtype)
            q, k = (joined(turned(one[..., :rope], rotation), one[..., rope:]) for one in (q, k))
        weights = self.index_weights(x).transpose(1, 2) * self.index.heads**-0.5
        return Indexer(self.index.budget, weights=weights), q, k

    @torch.no_grad()
    def _attention(self, call: Call, mask: Pattern | Tensor | None, positions: Tensor | None) -> Problem:
        """The attention of a call, with the keys of every head."""
        q = self._queries(call.query).unflatten(2, (self.heads, -1)).transpose(1, 2)
        c, rope = self.kv_down(call.query)[:, None].split([self.latent.kv_rank, self.latent.rope_dim], -1)
        q, every, first = self._placed(call, q, (self.kv_norm(c), rope), positions)
        where = Where(place=0, groups=self.groups, kv_len=every.shape[2], first=first)
        c, rope = every.split([self.latent.kv_rank, self.latent.rope_dim], -1)
        up = self.kv_up(c[:, 0]).unflatten(2, (self.heads, -1)).transpose(1, 2)
        nope, v = up.split([self.latent.nope_dim, self.latent.v_dim], -1)
        k = joined(nope, rope.expand(-1, self.heads, -1, -1))
        return make_problem(
            q,
            k,
            v,
            mask=replace(call, mask=mask).mask_of(where),
            scale=self.scale,
            softcap=self.groups[0].scoring.softcap,
            normaliser=self.part.normaliser,
        )


def _both(mask: Pattern | Tensor | None, chosen: Pattern, call: Call) -> Pattern | Tensor:
    """What the mask allows and the indexer chose."""
    if not isinstance(mask, Tensor):
        return (everything() if mask is None else mask) & chosen
    q_len, start = call.query.shape[1], call.offset(0) or 0
    kept_so_far = start + q_len if call.grows else q_len
    return mask & chosen.mask(q_len, kept_so_far, q_offset=start, device=mask.device)
