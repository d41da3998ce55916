"""Latent attention: keys and values of all heads made from one short vector a token, which is all that is cached."""

from dataclasses import KW_ONLY, dataclass
from types import NoneType
from typing import ClassVar, Literal, cast, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from multihead.error import MultiheadError, check_kinds
from multihead.layer.angles import rotation_from
from multihead.layer.base import Attends, Options
from multihead.layer.cache import AttentionCache, Full, Kind
from multihead.layer.call import Call, Where, check_visible
from multihead.layer.check import check_counts, check_eps
from multihead.layer.group import HeadGroup, QKNorm, Scoring
from multihead.layer.kept import kept
from multihead.layer.latent_cache import LatentCache, joined
from multihead.layer.part import GroupPart, Norm, turned, zero_bias
from multihead.layer.support import Support
from multihead.pattern import Pattern
from multihead.position import PositionBias, Rotary, Rotation

Form = Literal["auto", "expanded", "absorbed"]


@dataclass(frozen=True, slots=True)
class Latent:
    """The sizes of latent attention, and which of its two computations runs.

    Args:
        kv_rank: Width r of the vector that keys and values of all heads are made from.
        nope_dim: Width of the part of a head's query and key that no position turns.
        rope_dim: Width of the part that positions turn; its key is one for all heads.
        v_dim: Width of a head's value and output.
        q_rank: Width of the vector that queries are made from; None makes them from the input at once.
        eps: Of the RMS norms of these vectors.
        form: `"expanded"` makes every head's keys and values, `"absorbed"` lets queries look at the latent vectors
            themselves; `"auto"` takes what costs less at the lengths of a call (`LatentAttention.explain_form`). The
            answer is the same.

    Raises:
        MultiheadError: A size that is no whole number of at least 1, an eps that is not above 0, or an unknown form.

    Example:
        >>> deepseek_v3 = Latent(512, nope_dim=128, rope_dim=64, v_dim=128, q_rank=1536)
        >>> deepseek_v3.cached
        576
    """

    kv_rank: int
    _: KW_ONLY
    nope_dim: int
    rope_dim: int
    v_dim: int
    q_rank: int | None = None
    eps: float = 1e-6
    form: Form = "auto"

    def __post_init__(self) -> None:
        sizes = {"kv_rank": self.kv_rank, "nope_dim": self.nope_dim, "rope_dim": self.rope_dim, "v_dim": self.v_dim}
        check_counts(sizes if self.q_rank is None else sizes | {"q_rank": self.q_rank})
        check_eps("Latent", self.eps)
        if self.form not in get_args(Form):
            raise MultiheadError(
                asked=f"Latent(form=...): one of {', '.join(map(repr, get_args(Form)))}",
                arrived=repr(self.form),
                remedy='leave it at "auto"',
            )

    @property
    def head_dim(self) -> int:
        """Width of a head's query and key."""
        return self.nope_dim + self.rope_dim

    @property
    def cached(self) -> int:
        """Numbers kept for a token: the latent vector and the key that is turned."""
        return self.kv_rank + self.rope_dim


class LatentAttention(Attends):
    """Multi-head latent attention: keys and values of every head come from one short vector a token.

    With x the input, `c = RMSNorm(x W_c)` of width r and `p = turn(x W_p)`, one turned key for all heads, head h has
    the key `[c U_h ; p]` and the value `c V_h`. Its query `[q_h ; turn(q'_h)]` comes from x, or from `RMSNorm(x W_q)`
    of width `q_rank`. Scores are scaled by `(nope_dim + rope_dim) ** -0.5`, times `Rotary.score_factor` where the
    position has one (YaRN's mscale, squared). DeepSeek-AI, "DeepSeek-V2" (2024), arXiv:2405.04434, section 2.1. Its
    models and those built like them turn pairs that lie next to each other: `Rotary(layout="interleaved")`.

    There are two computations with the same answer. *Expanded* makes all keys and values, then attends as usual.
    *Absorbed* moves U_h into the query and V_h behind the sum: scores are `(q_h U_h^T) . c`, outputs `(sum_j w_j c_j)
    V_h`. That is one key/value head, as wide as the latent vector: more work a pair and none a key, so it is for few
    queries and many keys. A module that is watched computes expanded where it may choose: the outputs of its heads are
    then those of the definition.

    A cache (`attn.cache(batch=...)`) holds `r + rope_dim` numbers a token, in place of `heads * (nope_dim + rope_dim +
    v_dim)`. A query that may attend to no key gets 0 from every head.

    Args:
        embed_dim: Width of the input and of the output.
        heads: Number of heads.
        latent: The other sizes.
        position: Turns the `rope_dim` wide parts: `Rotary`; None turns nothing.
        scoring: Scale, softcap, normaliser, sinks; its scale, where it is given, is taken as it is.
        bias: Whether the projections from the input down to vectors of some rank, and that of the output, have one;
            those up from there have none.
        dropout: Share of the attention weights dropped in training.
        backend: `"auto"`, or the name of the backend that must run.

    Attributes:
        q_proj: (heads * (nope_dim + rope_dim), embed_dim), where there is no `q_rank`; else
        q_down, q_norm, q_up: (q_rank, embed_dim), (q_rank,), (heads * (nope_dim + rope_dim), q_rank).
        kv_down: (kv_rank + rope_dim, embed_dim): the latent vector, then the key that is turned.
        kv_norm: (kv_rank,).
        kv_up: (heads * (nope_dim + v_dim), kv_rank): for each head its key rows, then its value rows.
        out_proj: (embed_dim, heads * v_dim).

    Raises:
        MultiheadError: Sizes that are no whole numbers of at least 1, a dropout outside of 0 <= p < 1, a norm of
            queries and keys.

    Example:
        >>> layer = LatentAttention(64, 4, Latent(16, nope_dim=8, rope_dim=4, v_dim=8), position=Rotary())
        >>> cache = layer.cache(batch=2)
        >>> layer(torch.randn(2, 10, 64), mask=causal(), cache=cache).shape, cache.length
        (torch.Size([2, 10, 64]), 10)
    """

    SUPPORT: ClassVar[Support] = Support(cross=False)

    def __init__(
        self,
        embed_dim: int,
        heads: int,
        latent: Latent,
        *,
        position: Rotary | None = None,
        scoring: Scoring | None = None,
        bias: bool = False,
        dropout: float = 0.0,
        backend: str = "auto",
    ) -> None:
        super().__init__(dropout=dropout, backend=backend)
        check_counts({"embed_dim": embed_dim, "heads": heads})
        check_kinds({"bias": bias}, (bool,), "True or False")
        check_kinds({"latent": latent}, (Latent,), "Latent(kv_rank, nope_dim=..., rope_dim=..., v_dim=...)")
        check_kinds({"position": position}, (Rotary, NoneType), "Rotary(...) or None")
        check_kinds({"scoring": scoring}, (Scoring, NoneType), "Scoring(...) or None")
        scoring = Scoring() if scoring is None else scoring
        if scoring.norm is not None:
            raise MultiheadError(
                asked="latent attention, whose norms are those of the latent vectors",
                arrived=f"Scoring(norm={scoring.norm})",
                remedy="leave the norm out: keys of the heads do not exist where the latent vectors are attended to",
            )
        self.embed_dim, self.heads, self.latent, self.position = embed_dim, heads, latent, position
        group = HeadGroup(heads, latent.head_dim, kv_heads=heads, v_head_dim=latent.v_dim, scoring=scoring)
        self.groups = (group,)
        width = heads * latent.head_dim
        if latent.q_rank is None:
            self.q_proj = nn.Linear(embed_dim, width, bias=False)
        else:
            self.q_down = nn.Linear(embed_dim, latent.q_rank, bias=bias)
            self.q_norm = Norm(QKNorm(eps=latent.eps), 1, latent.q_rank)
            self.q_up = nn.Linear(latent.q_rank, width, bias=False)
        self.kv_down = nn.Linear(embed_dim, latent.cached, bias=bias)
        self.kv_norm = Norm(QKNorm(eps=latent.eps), 1, latent.kv_rank)
        self.kv_up = nn.Linear(latent.kv_rank, heads * (latent.nope_dim + latent.v_dim), bias=False)
        self.out_proj = nn.Linear(heads * latent.v_dim, embed_dim, bias=bias)
        self.part = GroupPart(group, embed_dim)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start anew: Xavier-uniform weights (Glorot and Bengio 2010), biases 0, norms 1, sinks 0."""
        for module in self.children():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                zero_bias(module)
            elif isinstance(module, Norm):
                nn.init.ones_(cast(Tensor, module.weight))
        self.part.reset_parameters()

    @property
    def scale(self) -> float:
        """Factor of the products."""
        if (given := self.groups[0].scoring.scale) is not None:
            return given
        factor = 1.0 if self.position is None else self.position.score_factor
        return self.latent.head_dim**-0.5 * factor

    def cache(self, *, batch: int, kind: Kind | None = None) -> LatentCache:
        """An empty cache for decoding step by step: `layer(x, mask=causal(), cache=cache)`.

        Args:
            batch: Number of sequences.
            kind: `Full()`, `Static(length)`, `Sliding(window)`, or `Int8(...)` around one of them; None is `Full()`.

        Raises:
            MultiheadError: A batch that is no count.

        Example:
            >>> layer = LatentAttention(64, 4, Latent(16, nope_dim=8, rope_dim=4, v_dim=8))
            >>> layer.cache(batch=1, kind=Static(100)).length
            0
        """
        return LatentCache(
            (self.latent.kv_rank, self.latent.rope_dim), batch=batch, kind=Full() if kind is None else kind
        )

    def explain_form(self, q_len: int, kv_len: int) -> str:
        """Which computation runs for so many queries and keys, and why.

        Args:
            q_len: Queries of a call.
            kv_len: Keys they look at, those of the cache included.

        Example:
            >>> LatentAttention(64, 4, Latent(16, nope_dim=8, rope_dim=4, v_dim=8)).explain_form(1, 100)
            'absorbed: 0.017 million multiply-adds a sequence, expanded 0.11 million'
        """
        chosen = "absorbed" if self._absorbs(q_len, kv_len) else "expanded"
        costs = {"expanded": self._expanded_cost(q_len, kv_len), "absorbed": self._absorbed_cost(q_len, kv_len)}
        other = next(name for name in costs if name != chosen)
        told = f"{costs[chosen] / 1e6:.3g} million multiply-adds a sequence, {other} {costs[other] / 1e6:.3g} million"
        why = "asked for" if self.latent.form != "auto" else "watched" if self._watched else ""
        return f"{chosen}{f' ({why})' if why else ''}: {told}"

    def forward(
        self,
        query: Tensor,
        *,
        mask: Pattern | Tensor | None = None,
        bias: Tensor | PositionBias | None = None,
        cache: LatentCache | None = None,
        positions: Tensor | None = None,
    ) -> Float[Tensor, "batch q_len embed_dim"]:
        """Self-attention.

        Args:
            query: (batch, q_len, embed_dim).
            mask: Which pairs are allowed: a pattern, or a boolean tensor (q_len, kv_len) or (batch | 1, heads | 1,
                q_len | 1, kv_len | 1), True = attend. With a cache kv_len is that of all tokens so far.
            bias: Added to the scores: a tensor of such a shape, or a bias of positions.
            cache: Earlier tokens, to which these are added.
            positions: Where the tokens stand for `position`, (batch, q_len) or (q_len,), where that is not where they
                lie: real tokens of sequences that are padded on the left are counted from 0.

        Raises:
            MultiheadError: Shapes that do not belong together, a cache of another module, or anything that
                `multihead.attention` refuses.
        """
        self._check_cache(cache)
        call = Call.checked(self, query, None, None, mask=mask, bias=bias, q_offset=None, cache=cache)
        check_visible(mask)
        with kept(cache):
            heads = self._heads(call, positions)
        return self.out_proj(heads.transpose(1, 2).flatten(2))

    def widths(self) -> dict[str, int]:
        """Input widths of query, key and value, which are one tensor here."""
        return dict.fromkeys(("query", "key", "value"), self.embed_dim)

    def extra_repr(self) -> str:
        """Sizes for `print(model)`."""
        shown = f"{self.embed_dim}, heads={self.heads}, {self.latent}"
        shown += f", position={type(self.position).__name__}" if self.position is not None else ""
        shown += f", dropout={self.dropout:g}" if self.dropout else ""
        return shown + (f", backend={self.backend!r}" if self.backend != "auto" else "")

    @property
    def _watched(self) -> bool:
        return "attend" in vars(self)

    def _heads(self, call: Call, positions: Tensor | None) -> Tensor:
        """(batch, heads, q_len, v_dim)."""
        q = self._queries(call.query).unflatten(2, (self.heads, -1)).transpose(1, 2)
        down = self.kv_down(call.query)[:, None]
        c, rope = down.split([self.latent.kv_rank, self.latent.rope_dim], -1)
        q, kept_so_far, first = self._placed(call, q, (self.kv_norm(c), rope), positions)
        where = Where(place=0, groups=self.groups, kv_len=kept_so_far.shape[2], first=first)
        options: Options = {
            "mask": call.mask_of(where),
            "bias": call.bias_of(where, None),
            "scale": self.scale,
            "softcap": self.groups[0].scoring.softcap,
            "normaliser": self.part.normaliser,
            "q_offset": call.offset(first),
        }
        # Without a cache there are as many keys as queries and the widths decide: a graph keeps its lengths open.
        lengths = (1, 1) if call.cache is None else (q.shape[2], kept_so_far.shape[2])
        compute = self._absorbed if self._absorbs(*lengths) else self._expanded
        return compute(q, kept_so_far, options)

    def _queries(self, x: Tensor) -> Tensor:
        """(batch, q_len, heads * (nope_dim + rope_dim))."""
        if self.latent.q_rank is None:
            return self.q_proj(x)
        return self.q_up(self.q_norm(self.q_down(x)[:, None])[:, 0])

    def _placed(
        self, call: Call, q: Tensor, new: tuple[Tensor, Tensor], positions: Tensor | None
    ) -> tuple[Tensor, Tensor, int]:
        """Queries, and all that they look at: latent vectors, each with its key behind; the position of the first."""
        rank, nope = self.latent.kv_rank, self.latent.nope_dim
        (c, rope), q_pos = new, call.q_positions(positions)
        late = self.position is not None and self.position.depends_on_length
        if self.position is not None and positions is None and not late:
            rotation = rotation_from(self.position, call.first, q[..., nope:])
        else:
            rotation = None if late else self._rotation(q_pos, q)
        rope = turned(rope, rotation)
        kept_so_far, first = call.cache.extend(c, rope) if isinstance(call.cache, LatentCache) else (joined(c, rope), 0)
        if late:
            # By how much keys are turned depends on how long the text has become: they are kept as they were.
            count = kept_so_far.shape[2]
            length = call.seen(count + first, positions)
            rotation = self._rotation(q_pos, q, length)
            again = self._rotation(call.late_positions(first, count, q_pos), q, length)
            kept_so_far = joined(kept_so_far[..., :rank], turned(kept_so_far[..., rank:], again))
        return joined(q[..., :nope], turned(q[..., nope:], rotation)), kept_so_far, first

    def _rotation(self, places: Tensor, like: Tensor, length: int | Tensor | None = None) -> Rotation | None:
        if self.position is None:
            return None
        dtype = torch.promote_types(like.dtype, torch.float32)
        return self.position.rotation(places, self.latent.rope_dim, length=length, dtype=dtype)

    def _expanded(self, q: Tensor, kept_so_far: Tensor, options: Options) -> Tensor:
        """Keys and values of every head, then attention as usual."""
        c, rope = kept_so_far.split([self.latent.kv_rank, self.latent.rope_dim], -1)
        up = self.kv_up(c[:, 0]).unflatten(2, (self.heads, -1)).transpose(1, 2)
        nope, v = up.split([self.latent.nope_dim, self.latent.v_dim], -1)
        k = joined(nope, rope.expand(-1, self.heads, -1, -1))
        return self.attended((q, k, v), options)

    def _absorbed(self, q: Tensor, kept_so_far: Tensor, options: Options) -> Tensor:
        """Queries that look at the latent vectors themselves, which are keys and values of one head.

        The values are the keys, turned part and all, of whose sums that part is left out: kernels that want keys and
        values of one width then copy nothing.
        """
        rank, nope = self.latent.kv_rank, self.latent.nope_dim
        k_up, v_up = self.kv_up.weight.unflatten(0, (self.heads, -1)).split([nope, self.latent.v_dim], 1)
        q = joined(q[..., :nope] @ k_up, q[..., nope:])
        return self.attended((q, kept_so_far, kept_so_far), options)[..., :rank] @ v_up.mT

    def _absorbs(self, q_len: int, kv_len: int) -> bool:
        if self.latent.form != "auto" or self._watched:
            return self.latent.form == "absorbed"
        return self._absorbed_cost(q_len, kv_len) < self._expanded_cost(q_len, kv_len)

    def _expanded_cost(self, q_len: int, kv_len: int) -> int:
        """Multiply-adds between the latent vectors and the heads' outputs, as if every pair were allowed."""
        up = kv_len * self.latent.kv_rank * (self.latent.nope_dim + self.latent.v_dim)
        return self.heads * (up + q_len * kv_len * (self.latent.head_dim + self.latent.v_dim))

    def _absorbed_cost(self, q_len: int, kv_len: int) -> int:
        """Likewise."""
        around = q_len * self.latent.kv_rank * (self.latent.nope_dim + self.latent.v_dim)
        return self.heads * (around + q_len * kv_len * 2 * self.latent.cached)

    def _check_cache(self, cache: AttentionCache | None) -> None:
        """Refuses a cache of something else."""
        if cache is None:
            return
        mine = (self.latent.kv_rank, self.latent.rope_dim)
        given = cache.widths if isinstance(cache, LatentCache) else None
        if given != mine:
            raise MultiheadError(
                asked=f"a cache of this module: latent vectors of width {mine[0]} and keys of width {mine[1]}",
                arrived=type(cache).__name__ + (f" of widths {given[0]} and {given[1]}" if given else ""),
                remedy="build it with this module: cache = attn.cache(batch=...); each layer needs its own",
            )
