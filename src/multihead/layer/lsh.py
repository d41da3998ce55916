"""Attention of tokens to those that hash alike: the Reformer's, in O(n log n)."""

from collections.abc import Callable
from types import NoneType
from typing import ClassVar, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import dropout

from multihead.attend.selector.asked import check_no_graph
from multihead.attend.selector.bucket_tiles import Rules, Tiles, multiplicity, tile_attention
from multihead.attend.selector.buckets import Buckets
from multihead.error import MultiheadError, check_kinds
from multihead.layer.base import Attends
from multihead.layer.cache import Full, Static
from multihead.layer.call import Call
from multihead.layer.check import check_counts, divided
from multihead.layer.group import HeadGroup
from multihead.layer.kept import kept
from multihead.layer.lsh_cache import LSHCache, behind, bucket_of, codes_of, next_codes
from multihead.layer.part import zero_bias
from multihead.layer.plain_mask import PlainMask
from multihead.layer.support import Support
from multihead.pattern import Pattern

_EPS = 1e-6
_COUNTLESS = 2**30  # the bucket of padding, behind every other


class LSHAttention(Attends):
    """Each token attends to those whose vectors point the same way, found by hashing: O(n log n) for n tokens.

    Queries and keys are one: `q_i = W x_i`, `k_j = q_j / sqrt(|q_j|^2 + eps head_dim)`, scores `q_i . k_j` without
    another scale. Each of r rounds hashes every q (`Buckets`), sorts tokens by (bucket, position), cuts them into tiles
    and lets each token see its tile and the one before; the rounds are joined by their log-sum-exps. Given the buckets
    it is exactly softmax attention over the pairs that met, once each, or with `log(how often they met)` added to their
    scores where `Buckets(dedupe=False)`. Kitaev et al., "Reformer" (2020), arXiv:2001.04451.

    A token attends to itself only where it meets no other (its product with itself would outweigh all else). The
    published code does that by a score of -1e5; here it is exact. In float32 the two differ for tokens that see nothing
    but themselves: near -1e5 numbers lie 0.008 apart, so over several rounds theirs gives such a row as its value times
    1 +- 0.004.

    With `Buckets(cut="bucket")`, the default, a causal call depends on nothing that comes later, not even through what
    is chosen (but for the length alone, where `Buckets(count=None)` follows it). With `cut="sorted"`, which trained
    Reformers need, the past that a token sees depends on what comes later: where tiles are cut depends on all tokens.
    Where n <= chunk that form is dense, as published.

    Time is O(r n (chunk head_dim + log n)), memory O(n chunk) of one round at a time, in training as well, where
    rounds are computed a second time. It pays only for long texts. Nothing guarantees that the key a query needs falls
    into its bucket: `1 - (1 - p) ** r`. A module that is watched computes the same answer from all pairs, which is
    slow, so that the heads can be seen and gated.

    Args:
        embed_dim: Width of the input and of the output.
        heads: Number of heads.
        buckets: How tokens are hashed.
        head_dim: Width of a head; None for `embed_dim / heads`.
        bias: Whether the projections have one.
        dropout: Share of the attention weights dropped in training.

    Attributes:
        qk_proj, v_proj: (heads * head_dim, embed_dim).
        out_proj: (embed_dim, heads * head_dim).

    Raises:
        MultiheadError: Sizes that do not divide or are not positive, a dropout outside of 0 <= p < 1.

    Example:
        >>> layer = LSHAttention(64, 4, Buckets(16, rounds=2, chunk=32, seed=0))
        >>> layer(torch.randn(2, 100, 64), mask=causal()).shape
        torch.Size([2, 100, 64])
    """

    SUPPORT: ClassVar[Support] = Support(cross=False, patterns=False)

    def __init__(
        self,
        embed_dim: int,
        heads: int = 8,
        buckets: Buckets | None = None,
        *,
        head_dim: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(dropout=dropout, backend="auto")
        check_counts({"embed_dim": embed_dim, "heads": heads})
        check_kinds({"bias": bias}, (bool,), "True or False")
        check_kinds({"buckets": buckets}, (Buckets, NoneType), "Buckets(count, rounds=...), or None")
        head_dim = divided(embed_dim, heads) if head_dim is None else head_dim
        self.groups = (HeadGroup(heads, head_dim).settled(embed_dim, alone=True),)
        self.embed_dim, self.heads, self.head_dim = embed_dim, heads, head_dim
        self.buckets = Buckets() if buckets is None else buckets
        self.qk_proj = nn.Linear(embed_dim, heads * head_dim, bias=bias)
        self.v_proj = nn.Linear(embed_dim, heads * head_dim, bias=bias)
        self.out_proj = nn.Linear(heads * head_dim, embed_dim, bias=bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start anew: Xavier-uniform weights, biases 0."""
        for linear in (self.qk_proj, self.v_proj, self.out_proj):
            nn.init.xavier_uniform_(linear.weight)
            zero_bias(linear)

    def cache(self, *, batch: int, kind: Full | Static | None = None) -> LSHCache:
        """An empty cache for decoding: `layer(x, mask=causal(), cache=cache)`.

        It keeps what tokens were hashed to, so that a new one is hashed alone, then looks at all that are kept: O(n) a
        token, as elsewhere; what it attends to is what the whole text at once would give it.

        Args:
            batch: Number of sequences.
            kind: `Full()`, or `Static(length)`; None is `Full()`.

        Raises:
            MultiheadError: Buckets that change from call to call, or that later tokens change; another kind.
        """
        check_kinds({"kind": kind}, (Full, Static, NoneType), "Full() or Static(length): a token may meet any other")
        reasons = ["seed=None draws other buckets at each call"] * (self.buckets.seed is None)
        reasons += ["count=None takes other buckets for another length"] * (self.buckets.count is None)
        reasons += ["cut='sorted' gives earlier tokens another answer once there are more"] * (
            self.buckets.cut == "sorted"
        )
        if reasons:
            raise MultiheadError(
                asked="a cache: buckets in which tokens stay where they are",
                arrived=", ".join(reasons),
                remedy="build the module with Buckets(64, seed=0), or call it without a cache",
            )
        return LSHCache(self.groups[0], batch=batch, kind=Full() if kind is None else kind)

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        *,
        mask: Pattern | Tensor | None = None,
        cache: LSHCache | None = None,
        rotations: Float[Tensor, "heads head_dim rounds half"] | None = None,
    ) -> Float[Tensor, "batch length embed_dim"]:
        """Self-attention.

        Args:
            query: (batch, length, embed_dim).
            key: Not taken: queries and keys are one.
            mask: `causal()`, `padding(keep)`, `document(ids)`, these joined with `&`; None for all to all. Padding gets
                0 from every head. With a cache they are those of all tokens so far.
            cache: Earlier tokens, to which these are added. The mask has to be causal.
            rotations: The random matrices to hash with, as `layer.buckets.rotations(...)` draws them, in place of new
                ones.

        Raises:
            MultiheadError: Another sequence, any other mask, shapes that do not belong together, a cache of another
                module.
        """
        _check_alone(query, key)
        check_kinds({"cache": cache}, (LSHCache, NoneType), "a cache of this module, attn.cache(batch=...), or None")
        Call.checked(self, query, None, None, mask=None, bias=None, q_offset=None, cache=cache)
        start = 0 if cache is None else cache.length
        told = PlainMask.read(
            mask, query, length=start + query.shape[1], asked="attention of tokens that hash alike, by sorting them"
        )
        if cache is not None:
            _check_causal(told)
        qk, v = (made(query).unflatten(2, (self.heads, -1)).transpose(1, 2) for made in (self.qk_proj, self.v_proj))
        run: Callable[..., Tensor] = self._found
        if torch.compiler.is_compiling():
            # Who meets whom depends on numbers: a compiled graph is cut around it, once.
            run = cast(Callable[..., Tensor], torch.compiler.disable(run))
        heads = run(qk, v, told, rotations, cache)
        return self.out_proj(heads.transpose(1, 2).flatten(2))

    def widths(self) -> dict[str, int]:
        """Input widths of query, key and value, which are one tensor here."""
        return dict.fromkeys(("query", "key", "value"), self.embed_dim)

    def extra_repr(self) -> str:
        """Sizes for `print(model)`."""
        shown = f"{self.embed_dim}, heads={self.heads}, head_dim={self.head_dim}, {self.buckets}"
        return shown + (f", dropout={self.dropout:g}" if self.dropout else "")

    def _found(
        self, qk: Tensor, v: Tensor, told: PlainMask, rotations: Tensor | None, cache: LSHCache | None
    ) -> Tensor:
        """The heads, (batch, heads, length, head_dim); tokens go into the cache."""
        if not qk.numel():
            return v
        if qk.is_meta and cache is None:  # shapes alone are asked for
            return torch.empty_like(v)
        check_no_graph("LSHAttention")
        with kept(cache):
            if cache is not None:
                return self._further(qk, v, told, cache)
            return self._at_once(qk, v, told, self._hash(qk, told, rotations))

    def _at_once(self, qk: Tensor, v: Tensor, told: PlainMask, buckets: Tensor) -> Tensor:
        """The heads of a whole text, (batch, heads, length, head_dim)."""
        tiles = self._tiles(self._groups(buckets, told))
        own = (tiles.own, tiles.back)
        if "attend" in vars(self):
            met = multiplicity(tiles.own, own, wraps=tiles.wraps)
            return self._from_pairs(qk, (qk, v), met, told)
        if told.keep is not None:
            tiles = tiles.without(told.keep)
        ids = told.ids if tiles.wraps else None
        rate = self.dropout if self.training else 0.0
        rules = Rules(causal=told.causal, dedupe=self.buckets.dedupe, ids=ids, dropout=rate)
        wide = torch.promote_types(qk.dtype, torch.float32)
        found = tile_attention(qk.to(wide), unit(qk), v.to(wide), tiles, rules)
        alone = dropout(v, rate) if rate else v
        heads = torch.where(found.lse.detach().isneginf()[..., None], alone.to(wide), found.out)
        if told.keep is not None:
            heads = heads.where(told.keep[:, None, :, None], 0.0)
        return heads.to(qk.dtype)

    def _further(self, qk: Tensor, v: Tensor, told: PlainMask, cache: LSHCache) -> Tensor:
        """The heads of tokens that follow others."""
        count, start = qk.shape[2], cache.length
        buckets = self._hash(qk, told, None, start)
        if start == 0:
            cache.extend(qk, v, codes_of(buckets, self._groups(buckets, told), self.buckets.chunk).transpose(2, 3))
            return self._at_once(qk, v, told, buckets)
        earlier = bucket_of(cache.kept[2].transpose(2, 3))
        every = torch.cat([earlier, buckets], 3)
        if count <= self.buckets.chunk:
            same = buckets[..., None] == every[..., None, :]
            same = same & self._before(told, start, count)[:, :, None]
            codes = next_codes(buckets, same, self.buckets.chunk)
        else:
            codes = codes_of(every, self._groups(every, told), self.buckets.chunk)[..., start:]
        cache.extend(qk, v, codes.transpose(2, 3))
        qk_kept, v_kept, codes_kept = cache.kept
        met = multiplicity(codes_kept.transpose(2, 3), (codes, behind(codes)))
        return self._from_pairs(qk, (qk_kept, v_kept), met, told)

    def _from_pairs(self, q: Tensor, kept_so_far: tuple[Tensor, Tensor], met: Tensor, told: PlainMask) -> Tensor:
        """The heads by how often queries, the last tokens, met each token: (batch, heads, q_len, kv_len)."""
        qk, v = kept_so_far
        count, length = q.shape[2], qk.shape[2]
        start = length - count
        allowed = (met > 0) & self._before(told, start, count)
        itself = torch.eye(count, length, dtype=torch.bool, device=q.device).roll(start, 1)
        alone = itself & ~allowed.any(-1, keepdim=True)
        if told.keep is not None:
            alone = alone & told.keep[:, None, start:length, None]
        wide = torch.promote_types(q.dtype, torch.float32)
        bias = None if self.buckets.dedupe else met.clamp(min=1).to(wide).log()
        return self.attended((q, unit(qk).to(q.dtype), v), {"mask": allowed | alone, "bias": bias, "scale": 1.0})

    def _before(self, told: PlainMask, start: int, count: int) -> Tensor:
        """Which tokens, of all, the last ones may meet: (batch | 1, 1, count, start + count), never themselves."""
        i = torch.arange(start, start + count, device=self.out_proj.weight.device)[:, None]
        j = torch.arange(start + count, device=i.device)
        allowed = (j < i if told.causal else j != i)[None]
        if told.ids is not None:
            allowed = allowed & (told.ids[:, start:, None] == told.ids[:, None])
        if told.keep is not None:
            allowed = allowed & told.keep[:, None] & told.keep[:, start:, None]
        return allowed[:, None]

    def _hash(self, qk: Tensor, told: PlainMask, rotations: Tensor | None, start: int = 0) -> Tensor:
        """Buckets (batch, heads, rounds, length)."""
        wide = torch.promote_types(qk.dtype, torch.float32)
        found = self.buckets.hash(qk.detach().to(wide), rotations)
        return found if told.keep is None else found.where(told.keep[:, None, None, start:], _COUNTLESS)

    def _groups(self, buckets: Tensor, told: PlainMask) -> Tensor:
        """What tokens are sorted by: documents, then buckets."""
        if told.ids is None:
            return buckets
        return buckets + told.ids[:, None, None] * (_COUNTLESS + 1)

    def _tiles(self, groups: Tensor) -> Tiles:
        """Who meets whom."""
        length = groups.shape[3]
        if self.buckets.cut == "sorted" and length <= self.buckets.chunk:
            return Tiles.lay(groups[:, :, :1], length, wraps=True)
        return self.buckets.tiles(groups)


def unit(x: Float[Tensor, "batch heads length head_dim"]) -> Float[Tensor, "batch heads length head_dim"]:
    """Vectors of length 1, `x / sqrt(|x|^2 + eps * head_dim)`, in float32 or wider.

    Args:
        x: Shared queries and keys.
    """
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + _EPS) * x.shape[-1] ** -0.5


def _check_alone(query: Tensor, key: Tensor | None) -> None:
    if key is not None and key is not query:
        raise MultiheadError(
            asked="self-attention: tokens that are hashed, as queries and keys at once",
            arrived="another sequence, as key",
            remedy="use MultiHeadAttention for cross-attention: layer(query, key)",
        )


def _check_causal(told: PlainMask) -> None:
    if not told.causal:
        raise MultiheadError(
            asked="a causal mask with a cache: earlier tokens got their answer without these",
            arrived="a mask without causal()",
            remedy="pass mask=causal(), or causal() & padding(keep), or leave the cache out",
        )
