"""Modules of linear attention: with features, with RetNet's decays, with gates that decay each channel."""

import math
from types import NoneType
from typing import ClassVar, cast

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from multihead.error import MultiheadError, check_kinds
from multihead.layer.call import check_arguments, check_inputs
from multihead.layer.check import check_counts, check_eps, divided, is_number
from multihead.layer.group import HeadGroup
from multihead.layer.linear_options import LinearScoring, retention_decay
from multihead.layer.linear_part import LinearPart
from multihead.layer.part import Norm, zero_bias
from multihead.layer.scan_cache import StateCache, check_cache
from multihead.layer.scan_mask import Order, check_causal
from multihead.layer.support import Support
from multihead.layer.swish_gate import Finish, SwishGate
from multihead.pattern import Pattern, causal
from multihead.position import Rotary
from multihead.scan import Identity, LinearState, linear_attention

_CAUSAL = causal()


class LinearAttention(nn.Module):
    """Multi-head attention in linear time: `softmax(q . k)` is replaced by `phi(q) . phi(k)`.

    Katharopoulos et al. 2020, "Transformers are RNNs", arXiv:2006.16236; with `LinearScoring(features=Favor())`
    Choromanski et al. 2020, "Rethinking Attention with Performers", arXiv:2009.14794. Each token sees all
    (`mask=None`), or itself and those before (`mask=causal()`); queries may look at another sequence. Step by step it
    keeps a state of fixed size. What it is bad at is finding single tokens in a long text.

    Outputs of padding, in self-attention, are the bias of the output projection.

    Args:
        embed_dim: Width of the tokens.
        heads: Query heads.
        kv_heads: Key/value heads, a divisor of `heads`; None for as many.
        head_dim: Width of queries and keys; None for `embed_dim / heads`.
        v_head_dim: Width of values; None for `head_dim`.
        scoring: Features, decay, normaliser.
        position: `Rotary`, which turns features (not with a normaliser), or None.
        gate: Norm and gate of the outputs, or None; with one the projections have no biases.

    Attributes:
        q_proj: (heads * head_dim, embed_dim).
        k_proj: (kv_heads * head_dim, embed_dim).
        v_proj: (kv_heads * v_head_dim, embed_dim).
        out_proj: (embed_dim, heads * v_head_dim).
        part: Features and decays; `part.redraw()` draws those of `Favor` anew.

    Raises:
        MultiheadError: Sizes that do not divide, decays for another number of heads, or a position with a normaliser.

    Example:
        >>> layer = LinearAttention(64, heads=4)
        >>> layer(torch.randn(2, 10, 64), mask=causal()).shape
        torch.Size([2, 10, 64])
    """

    SUPPORT: ClassVar[Support] = Support(patterns=False)

    def __init__(
        self,
        embed_dim: int,
        heads: int = 8,
        *,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        v_head_dim: int | None = None,
        scoring: LinearScoring | None = None,
        position: Rotary | None = None,
        gate: SwishGate | None = None,
    ) -> None:
        super().__init__()
        check_counts({"embed_dim": embed_dim, "heads": heads})
        check_kinds({"scoring": scoring}, (LinearScoring, NoneType), "LinearScoring(...) or None")
        check_kinds({"gate": gate}, (SwishGate, NoneType), "SwishGate(...) or None")
        group = HeadGroup(
            heads,
            head_dim,
            kv_heads=kv_heads,
            v_head_dim=v_head_dim,
            position=position,
            scoring=LinearScoring() if scoring is None else scoring,
        ).settled(embed_dim, alone=True)
        self.embed_dim, self.groups = embed_dim, (group,)
        self.heads, self.kv_heads, self.head_dim, self.v_head_dim = group.sizes
        bias = gate is None
        self.q_proj = nn.Linear(embed_dim, self.heads * self.head_dim, bias=bias)
        self.k_proj = nn.Linear(embed_dim, self.kv_heads * self.head_dim, bias=bias)
        self.v_proj = nn.Linear(embed_dim, self.kv_heads * self.v_head_dim, bias=bias)
        self.out_proj = nn.Linear(self.heads * self.v_head_dim, embed_dim, bias=bias)
        self.part = LinearPart(cast(LinearScoring, group.scoring), group)
        finish = None if gate is None else Finish(gate, embed_dim=embed_dim, heads=heads, v_head_dim=self.v_head_dim)
        self.finish = finish
        self.reset_parameters()

    @classmethod
    def retnet(cls, embed_dim: int, heads: int = 8, *, v_head_dim: int | None = None) -> "LinearAttention":
        """Multi-scale retention (Sun et al. 2023, "Retentive Network", arXiv:2307.08621).

        Queries and keys are turned by their positions, head h keeps `1 - 2^(-5-h)` of its state at each token, and
        outputs are not divided by the sum of weights but normalised head by head and gated. The paper's factor
        head_dim ** -0.5 of the keys is there. Call it with `mask=causal()`.

        Args:
            embed_dim: Width of the tokens.
            heads: Heads.
            v_head_dim: Width of values; None for `2 * embed_dim / heads`, as in the paper's models.

        Example:
            >>> LinearAttention.retnet(64, 4)(torch.randn(2, 10, 64), mask=causal()).shape
            torch.Size([2, 10, 64])
        """
        check_counts({"embed_dim": embed_dim, "heads": heads})
        return cls(
            embed_dim,
            heads,
            v_head_dim=2 * divided(embed_dim, heads) if v_head_dim is None else v_head_dim,
            scoring=LinearScoring(features=Identity(), decay=retention_decay(heads), normalise=False),
            position=Rotary(),
            gate=SwishGate(),
        )

    def reset_parameters(self) -> None:
        """Start anew: Xavier-uniform weights, biases 0, norms 1; the features stay."""
        restart(self)

    def widths(self) -> dict[str, int]:
        """Input widths of query, key and value."""
        return dict.fromkeys(("query", "key", "value"), self.embed_dim)

    def cache(self, *, batch: int) -> StateCache:
        """An empty state for decoding: `layer(x, mask=causal(), cache=cache)`, step by step or chunk by chunk.

        Args:
            batch: Number of sequences.

        Example:
            >>> LinearAttention(64, heads=4).cache(batch=1).length
            0
        """
        return StateCache(batch=batch, sizes=self._sizes)

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        mask: Pattern | Tensor | None = None,
        cache: StateCache | None = None,
    ) -> Float[Tensor, "batch q_len embed_dim"]:
        """Attend: self-attention with one input, cross-attention with two or three.

        Args:
            query: (batch, q_len, embed_dim).
            key: (batch, kv_len, embed_dim); the query where it is not given.
            value: (batch, kv_len, embed_dim); the key where it is not given.
            mask: None, `causal()`, `padding(keep)`, `causal() & padding(keep)`, `causal() & document(ids)`.
            cache: Earlier tokens, to which these are added; with `causal()`.

        Raises:
            MultiheadError: Shapes that do not belong together, or a mask that a state cannot keep to.
        """
        check_arguments({"query": query}, {"key": key, "value": value}, mask)
        check_cache(cache)
        key = query if key is None else key
        value = key if value is None else value
        check_inputs(self, {"query": query, "key": key, "value": value})
        if cache is not None:
            cache.check(self, self._sizes, query.shape[0])
        start = 0 if cache is None else cache.length
        order = Order.of(mask, key, start=start)
        if order.causal or cache is not None:
            check_lengths(query, key)
        q, k, v = (
            joined.unflatten(2, (-1, width)).transpose(1, 2)
            for joined, width in (
                (self.q_proj(query), self.head_dim),
                (self.k_proj(key), self.head_dim),
                (self.v_proj(value), self.v_head_dim),
            )
        )
        heads, state = self.part(
            (q, k, v), order, None if cache is None else (cast("LinearState | None", cache.state), start)
        )
        if key is query and order.valid is not None:
            heads = heads.masked_fill(~order.valid[:, None, :, None], 0.0)
        joined = heads.transpose(1, 2).flatten(2) if self.finish is None else self.finish(heads, query)
        out = self.out_proj(joined)
        if cache is not None:
            cache.put(state, query.shape[1])
        return out

    def extra_repr(self) -> str:
        """Sizes for `print(model)`."""
        return f"{self.embed_dim}, {self.groups[0]}, {self.part.options}"

    @property
    def _sizes(self) -> tuple[int, ...]:
        return (self.kv_heads, self.part.width, self.v_head_dim)


class GatedLinearAttention(nn.Module):
    """Gated linear attention: each channel of the state decays at each token by as much as the token says.

    Yang et al. 2023, arXiv:2312.06635: `S_t = diag(a_t) S_{t-1} + k_t v_t^T`, `log a_t = logsigmoid(x_t W_1 W_2 + b) /
    16`, `o_t = S_t^T q_t / sqrt(head_dim)`; heads are normalised (RMS) and gated by `silu(x W_g)`. Causal only.

    Args:
        embed_dim: Width of the tokens.
        heads: Heads.
        head_dim: Width of queries and keys; None for `embed_dim / (2 heads)`.
        v_head_dim: Width of values; None for `embed_dim / heads`.
        rank: Columns of W_1.
        divisor: Of the log decay: the larger, the longer a head remembers at the start.
        eps: Of the norm.

    Attributes:
        q_proj: (heads * head_dim, embed_dim).
        k_proj: (heads * head_dim, embed_dim).
        v_proj: (heads * v_head_dim, embed_dim).
        decay_down: W_1, (rank, embed_dim).
        decay_up: W_2 and b, (heads * head_dim, rank).
        out_proj: (embed_dim, heads * v_head_dim).

    Raises:
        MultiheadError: Sizes that do not divide.

    Example:
        >>> GatedLinearAttention(64, heads=4)(torch.randn(2, 10, 64)).shape
        torch.Size([2, 10, 64])
    """

    SUPPORT: ClassVar[Support] = Support(bidirectional=False, cross=False, patterns=False)

    def __init__(
        self,
        embed_dim: int,
        heads: int = 4,
        *,
        head_dim: int | None = None,
        v_head_dim: int | None = None,
        rank: int = 16,
        divisor: float = 16.0,
        eps: float = 1e-5,
    ) -> None:
        super().__init__()
        check_counts({"embed_dim": embed_dim, "heads": heads, "rank": rank})
        check_eps("GatedLinearAttention", eps)
        if not is_number(divisor) or not 0.0 < divisor < math.inf:
            raise MultiheadError(
                asked="GatedLinearAttention(divisor=...): a number above 0",
                arrived=f"divisor={divisor!r}"[:200],
                remedy="pass divisor=16.0",
            )
        head_dim = divided(embed_dim, 2 * heads) if head_dim is None else head_dim
        v_head_dim = divided(embed_dim, heads) if v_head_dim is None else v_head_dim
        group = HeadGroup(
            heads, head_dim, v_head_dim=v_head_dim, scoring=LinearScoring(features=Identity(), normalise=False)
        )
        self.embed_dim, self.divisor, self.groups = embed_dim, divisor, (group.settled(embed_dim, alone=True),)
        self.heads, _, self.head_dim, self.v_head_dim = self.groups[0].sizes
        self.q_proj = nn.Linear(embed_dim, heads * head_dim, bias=False)
        self.k_proj = nn.Linear(embed_dim, heads * head_dim, bias=False)
        self.v_proj = nn.Linear(embed_dim, heads * v_head_dim, bias=False)
        self.decay_down = nn.Linear(embed_dim, rank, bias=False)
        self.decay_up = nn.Linear(rank, heads * head_dim)
        self.finish = Finish(SwishGate(norm="rms", eps=eps), embed_dim=embed_dim, heads=heads, v_head_dim=v_head_dim)
        self.out_proj = nn.Linear(heads * v_head_dim, embed_dim, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start anew: Xavier-uniform weights, biases 0, the norm 1."""
        restart(self)

    def widths(self) -> dict[str, int]:
        """Input width."""
        return {"query": self.embed_dim}

    def cache(self, *, batch: int) -> StateCache:
        """An empty state for decoding: `layer(x, cache=cache)`, step by step or chunk by chunk.

        Args:
            batch: Number of sequences.
        """
        return StateCache(batch=batch, sizes=self._sizes)

    def log_decay(self, x: Float[Tensor, "batch length embed_dim"]) -> Float[Tensor, "batch heads length head_dim"]:
        """`log a`: the logarithm of the share each channel keeps at each token.

        Args:
            x: As `forward` gets it.
        """
        return self._split(logsigmoid(self.decay_up(self.decay_down(x))) / self.divisor, self.head_dim)

    def forward(
        self, x: Tensor, *, mask: Pattern | Tensor | None = _CAUSAL, cache: StateCache | None = None
    ) -> Float[Tensor, "batch length embed_dim"]:
        """Attend.

        Args:
            x: (batch, length, embed_dim).
            mask: `causal()`, `causal() & padding(keep)`, `causal() & document(ids)`. Padding is 0, and decays go on.
            cache: Earlier tokens, to which these are added.

        Raises:
            MultiheadError: A mask that a state cannot keep to, or that is not causal.
        """
        check_arguments({"query": x}, {}, mask)
        check_cache(cache)
        check_inputs(self, {"query": x})
        if cache is not None:
            cache.check(self, self._sizes, x.shape[0])
        order = Order.of(mask, x, start=0 if cache is None else cache.length)
        check_causal(order, "gated linear attention")
        # What a decay is made of counts as well: padding would be seen in how much is left of what was before it.
        x = x if order.valid is None else x.masked_fill(~order.valid[..., None], 0.0)
        q = self._split(self.q_proj(x), self.head_dim) * self.head_dim**-0.5
        k, v = self._split(self.k_proj(x), self.head_dim), self._split(self.v_proj(x), self.v_head_dim)
        made = linear_attention(
            q,
            k,
            v,
            log_decay=self.log_decay(x),
            normalise=False,
            state=None if cache is None else cast("LinearState | None", cache.state),
            reset=order.reset,
            valid=order.valid,
        )
        out = self.out_proj(self.finish(made.out, x))
        if cache is not None:
            cache.put(made.state, x.shape[1])
        return out

    def extra_repr(self) -> str:
        """Sizes for `print(model)`."""
        return f"{self.embed_dim}, heads={self.heads}, head_dim={self.head_dim}, v_head_dim={self.v_head_dim}"

    def _split(self, joined: Tensor, width: int) -> Tensor:
        return joined.unflatten(2, (-1, width)).transpose(1, 2)

    @property
    def _sizes(self) -> tuple[int, ...]:
        return (self.heads, self.head_dim, self.v_head_dim)


def restart(module: nn.Module) -> None:
    """Xavier-uniform weights and biases 0 of every linear map in a module, weights 1 of every norm."""
    for inner in module.modules():
        if isinstance(inner, nn.Linear):
            nn.init.xavier_uniform_(inner.weight)
            zero_bias(inner)
        elif isinstance(inner, Norm) and inner.weight is not None:
            nn.init.ones_(inner.weight)


def check_lengths(query: Tensor, key: Tensor) -> None:
    """Refuses a causal order between two sequences of different lengths."""
    if query.shape[1] != key.shape[1]:
        raise MultiheadError(
            asked="linear attention to another sequence: every query sees all of it",
            arrived=f"a causal mask with query {tuple(query.shape)} and key {tuple(key.shape)}",
            remedy="leave causal() out, or use MultiHeadAttention(...)(query, key, mask=..., q_offset=...)",
        )
