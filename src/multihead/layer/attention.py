"""The module: projections, heads, concatenation, output projection."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import repeat
from typing import ClassVar, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from multihead.error import MultiheadError, check_kinds
from multihead.layer.base import Attends, Options
from multihead.layer.cache import AttentionCache, Full, Kind, Sliding
from multihead.layer.call import Call, Where, check_inputs, check_visible
from multihead.layer.check import key_widths
from multihead.layer.group import HeadGroup, read_groups
from multihead.layer.linear_heads import linear_heads
from multihead.layer.linear_options import LinearScoring
from multihead.layer.part import GroupPart, turned, zero_bias
from multihead.layer.picking import narrowed
from multihead.layer.placing import Projected, placed
from multihead.layer.projection import FusedProjection, load_split, save_split
from multihead.layer.scan_cache import State, StateGroup
from multihead.layer.support import Support
from multihead.layer.torch_exchange import check_plain, torch_module, torch_weights
from multihead.pattern import Pattern
from multihead.position import PositionBias

Cut = tuple[list[int], list[tuple[int, int]]]
# Places in a group's sizes: (number of heads, their width) of queries, keys and values.
_PROJECTED = ((0, 2), (1, 2), (1, 3))
_Q, _K, _V = range(3)


class MultiHeadAttention(Attends):
    """`MultiHead(Q, K, V) = Concat(head_1, ..., head_h) W_O`, `head_i = Attention(Q W_Q_i, K W_K_i, V W_V_i)`.

    Vaswani et al., "Attention Is All You Need" (2017), arXiv:1706.03762. `Attention` is `multihead.attention`: softmax
    of the scaled products, within the pairs that the mask allows. Inputs are (batch, length, width), batch first.

    Beyond the paper: biases in the projections; heads of any size, also of several sizes in one layer; fewer key/value
    heads than query heads (query head i reads key/value head i // (heads / kv_heads)); for each group of heads a
    pattern, a position, norms, sinks and gates of its own (`HeadGroup`); caches. A query that may attend to no key gets
    0 from every head, so its output is the bias of the output projection. Training and evaluation, with and without
    gradients, give the same values; only dropout, which is off in evaluation, makes a difference.

    Args:
        embed_dim: Width of the queries and of the output.
        heads: Query heads: a number, a `HeadGroup`, or a list of them for heads of several kinds.
        kv_heads: Key/value heads, a divisor of `heads`; None for as many as query heads. A `HeadGroup` says it itself.
        head_dim: Width of a head; None for `embed_dim / heads`. A `HeadGroup` says it itself.
        kv_embed_dim: Width of the keys and values given to `forward`, or (width of keys, width of values); None for
            `embed_dim`.
        bias: Whether the four projections have one.
        dropout: Share of the attention weights dropped in training.
        backend: `"auto"`, or the name of the backend that must run.

    Attributes:
        groups: What the heads are, with all sizes filled in.
        heads: Query heads of all groups.
        kv_heads: Key/value heads of all groups.
        head_dim: Width of a head, of the widest where they differ.
        q_proj: (sum of heads * head_dim, embed_dim): the rows of head 0, of head 1, ..., group after group.
        k_proj: (sum of kv_heads * head_dim, width of keys).
        v_proj: (sum of kv_heads * v_head_dim, width of values).
        out_proj: (embed_dim, sum of heads * v_head_dim).
        parts: What the groups learn besides, one `GroupPart` each.

    Raises:
        MultiheadError: Sizes that do not divide or are not positive, or a dropout outside of 0 <= p < 1.

    Example:
        >>> layer = MultiHeadAttention(64, heads=8, kv_heads=2)
        >>> layer(torch.randn(2, 10, 64), mask=causal()).shape
        torch.Size([2, 10, 64])
        >>> mixed = MultiHeadAttention(64, [HeadGroup(2, 16), HeadGroup(4, 8, mask=sliding_window(4))])
        >>> mixed(torch.randn(2, 10, 64), mask=causal()).shape
        torch.Size([2, 10, 64])
    """

    SUPPORT: ClassVar[Support] = Support()

    def __init__(
        self,
        embed_dim: int,
        heads: int | HeadGroup | Sequence[HeadGroup] = 8,
        *,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        kv_embed_dim: int | tuple[int, int] | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        backend: str = "auto",
    ) -> None:
        super().__init__(dropout=dropout, backend=backend)
        k_width, v_width = key_widths(kv_embed_dim, embed_dim)
        check_kinds({"bias": bias}, (bool,), "True or False")
        given = read_groups(heads, kv_heads, head_dim)
        self.groups = tuple(group.settled(embed_dim, alone=len(given) == 1) for group in given)
        sizes = [group.sizes for group in self.groups]
        self._cuts = _cuts(self.groups)
        self.embed_dim = embed_dim
        self.heads, self.kv_heads = sum(size[0] for size in sizes), sum(size[1] for size in sizes)
        self.head_dim = max(size[2] for size in sizes)
        self.q_proj = nn.Linear(embed_dim, sum(h * d for h, _, d, _ in sizes), bias=bias)
        self.k_proj = nn.Linear(k_width, sum(h * d for _, h, d, _ in sizes), bias=bias)
        self.v_proj = nn.Linear(v_width, sum(h * d for _, h, _, d in sizes), bias=bias)
        self.out_proj = nn.Linear(sum(h * d for h, _, _, d in sizes), embed_dim, bias=bias)
        self.parts = nn.ModuleList(GroupPart(group, embed_dim) for group in self.groups)
        self.register_state_dict_post_hook(save_split)
        self.register_load_state_dict_pre_hook(load_split)
        self.reset_parameters()

    @classmethod
    def from_torch(cls, module: nn.MultiheadAttention, *, backend: str = "auto") -> "MultiHeadAttention":
        """A module with a copy of the weights of an `nn.MultiheadAttention`, its dropout, dtype, device and mode.

        Two things differ in use. Inputs are (batch, length, width), also where the module's were length first. In masks
        True = attend: its `key_padding_mask` (True = padding) becomes `mask=padding(~key_padding_mask)`, its boolean
        `attn_mask` becomes `mask=~attn_mask`, its floating `attn_mask` becomes `bias=attn_mask`.

        Raises:
            MultiheadError: It was built with `add_bias_kv` or `add_zero_attn`: keys that no input has.

        Example:
            `layer = MultiHeadAttention.from_torch(encoder.layers[0].self_attn)`
        """
        weights = torch_weights(module)
        made = cls(
            module.embed_dim,
            module.num_heads,
            kv_embed_dim=(weights["k_proj.weight"].shape[1], weights["v_proj.weight"].shape[1]),
            bias="q_proj.bias" in weights,
            dropout=module.dropout,
            backend=backend,
        )
        made.to(weights["q_proj.weight"]).load_state_dict(weights)
        return made.train(module.training)

    def to_torch(self) -> nn.MultiheadAttention:
        """An `nn.MultiheadAttention` (batch first) with a copy of the weights; `from_torch` has the differences in use.

        Raises:
            MultiheadError: It has something that module cannot have.

        Example:
            >>> MultiHeadAttention(64, heads=8).to_torch().num_heads
            8
        """
        check_plain(self.groups, self.embed_dim)
        return torch_module(self.state_dict(), heads=self.heads, dropout=self.dropout).train(self.training)

    def reset_parameters(self) -> None:
        """Start anew: Xavier-uniform weights (Glorot and Bengio 2010), biases 0, norms 1, sinks 0."""
        for linear in (self.q_proj, self.k_proj, self.v_proj, self.out_proj):
            nn.init.xavier_uniform_(linear.weight)
            zero_bias(linear)
        for part in self._parts:
            part.reset_parameters()

    def fuse(self) -> "MultiHeadAttention":
        """Make one projection of the three, for inputs that are queries, keys and values at once; the module itself.

        One product of three times the rows instead of three. State dicts keep the names of the three, and load into
        either form. Parameters are new tensors: fuse before the optimiser is built.

        Raises:
            MultiheadError: Keys or values have another width than the queries.

        Example:
            >>> layer = MultiHeadAttention(64).fuse()
            >>> sorted(layer.state_dict())[0]
            'k_proj.bias'
        """
        if hasattr(self, "qkv_proj"):
            return self
        widths = [each.in_features for each in (self.q_proj, self.k_proj, self.v_proj)]
        if len(set(widths)) > 1:
            raise MultiheadError(
                asked="one projection of queries, keys and values",
                arrived=f"inputs of width {widths[0]}, {widths[1]} and {widths[2]}",
                remedy="leave it split: they have no input in common",
            )
        self.qkv_proj = FusedProjection({"q_proj": self.q_proj, "k_proj": self.k_proj, "v_proj": self.v_proj})
        del self.q_proj, self.k_proj, self.v_proj
        return self

    def unfuse(self) -> "MultiHeadAttention":
        """Three projections again, with the weights as they are; the module itself."""
        if hasattr(self, "qkv_proj"):
            for name, linear in self.qkv_proj.split().items():
                setattr(self, name, linear)
            del self.qkv_proj
        return self

    def cache(self, *, batch: int, kind: Kind | None = None) -> AttentionCache:
        """An empty cache for self-attention token by token, or chunk by chunk: `layer(x, mask=causal(), cache=cache)`.

        Args:
            batch: Number of sequences.
            kind: `Full()`, `Static(length)`, `Sliding(window)`, or `Int8(...)` around one of them. None keeps what each
                group needs: the last tokens where its mask has a window, all elsewhere. Linear heads keep a state.

        Raises:
            MultiheadError: A batch that is no count.

        Example:
            >>> layer = MultiHeadAttention(64)
            >>> cache = layer.cache(batch=2)
            >>> x = torch.randn(2, 10, 64)
            >>> parts = [layer(part, mask=causal(), cache=cache) for part in x.split(4, 1)]
            >>> torch.allclose(torch.cat(parts, 1), layer(x, mask=causal()), atol=1e-5)
            True
        """
        kinds = [_needed(group, kind) for group in self.groups]
        return AttentionCache(self.groups, batch=batch, kinds=kinds)

    def remember(self, key: Tensor, value: Tensor | None = None) -> AttentionCache:
        """A cache that holds another sequence, for cross-attention step by step: `layer(x, cache=memory)`.

        Args:
            key: (batch, kv_len, width of keys): what is attended to.
            value: (batch, kv_len, width of values); the key where it is not given.

        Example:
            >>> layer = MultiHeadAttention(64)
            >>> memory = layer.remember(torch.randn(2, 30, 64))
            >>> layer(torch.randn(2, 1, 64), cache=memory).shape
            torch.Size([2, 1, 64])
        """
        value = key if value is None else value
        check_inputs(self, {"key": key, "value": value})
        made = AttentionCache(self.groups, batch=key.shape[0], kinds=[Full()] * len(self.groups), fixed=True)
        for group, part, (k, v) in zip(made.groups, self._parts, self._keys_values(key, value), strict=True):
            k = part.normed(k, part.k_norm)
            assert not isinstance(group, StateGroup)
            group.append(k if part.turns_late else turned(k, part.rotation_from(0, k)), v)
        return made

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
            key: (batch, kv_len, width of keys); the query where it is not given.
            value: (batch, kv_len, width of values); the key where it is not given.
            mask: Which pairs are allowed: a pattern, or a boolean tensor (q_len, kv_len) or (batch | 1, heads | 1,
                q_len | 1, kv_len | 1), True = attend. `padding(keep)` keeps out padding. With a cache kv_len is that of
                all tokens so far, these included. A group's own mask holds besides.
            bias: Added to the scores: a tensor of such a shape, or a bias of positions.
            q_offset: Position of the first query, where the first key has position 0. A cache knows it.
            cache: Earlier tokens (`cache(batch=...)`), to which these are added, or another sequence (`remember`).
            positions: Where the tokens stand for a position that turns them, (batch, q_len) or (q_len,), where that is
                not where they lie: real tokens of sequences that are padded on the left are counted from 0.

        Returns:
            (batch, q_len, embed_dim).

        Raises:
            MultiheadError: Shapes that do not belong together, or anything that `multihead.attention` refuses.
        """
        call = Call.checked(self, query, key, value, mask=mask, bias=bias, q_offset=q_offset, cache=cache)
        check_visible(mask)
        before = 0 if cache is None else cache.length
        run: Callable[..., Tensor] = self._heads
        if torch.compiler.is_compiling() and any(group.pattern is not group.mask for group in self.groups):
            # What is chosen depends on numbers: a compiled graph is cut around it.
            run = cast(Callable[..., Tensor], torch.compiler.disable(run))
        try:
            joined = run(call, positions)
        except BaseException:
            if cache is not None:
                cache.cut(before)
            raise
        return self.out_proj(joined)

    @property
    def support(self) -> Support:
        """What this layout can be asked for: `SUPPORT`, but for linear heads not any pattern."""
        linear = any(isinstance(group.scoring, LinearScoring) for group in self.groups)
        return replace(self.SUPPORT, patterns=False) if linear else self.SUPPORT

    def extra_repr(self) -> str:
        """Sizes for `print(model)`."""
        if len(self.groups) > 1:
            shown = f"{self.embed_dim}, [{'; '.join(map(str, self.groups))}]"
        else:
            shown = f"{self.embed_dim}, heads={self.heads}, head_dim={self.head_dim}"
            shown += f", kv_heads={self.kv_heads}" if self.kv_heads != self.heads else ""
        shown += f", dropout={self.dropout:g}" if self.dropout else ""
        return shown + (f", backend={self.backend!r}" if self.backend != "auto" else "")

    @property
    def _parts(self) -> list[GroupPart]:
        return cast(list[GroupPart], list(self.parts))

    @property
    def _fused(self) -> FusedProjection | None:
        """The one projection, where there is one; asked of a module that has none, `getattr` takes long to say so."""
        return cast(FusedProjection | None, self._modules.get("qkv_proj"))

    def _heads(self, call: Call, positions: Tensor | None) -> Tensor:
        """The heads of all groups, joined: (batch, q_len, sum of heads * v_head_dim). New keys go into the cache."""
        joined: list[Tensor] = []
        for place, (part, qkv) in enumerate(zip(self._parts, self._projected(call), strict=True)):
            if part.linear is not None:
                heads = self.without_scores(linear_heads(call, place, part.linear, qkv, positions))
                joined.append(part.gated(call.query, heads.transpose(1, 2)).flatten(2))
                continue
            q, k, v, first = placed(call, (place, part), qkv, positions)
            where = Where(place=place, groups=self.groups, kv_len=k.shape[2], first=first)
            scoring = part.group.scoring
            options: Options = {
                "mask": call.mask_of(where),
                "bias": call.bias_of(where, part.position_bias),
                "scale": scoring.scale,
                "softcap": scoring.softcap,
                "normaliser": part.normaliser,
                "q_offset": call.offset(first),
            }
            if part.group.pattern is not part.group.mask:
                options = narrowed(call, where, (q, k, v), options)
            heads = self.attended((q, k, v), options)
            joined.append(part.gated(call.query, heads.transpose(1, 2)).flatten(2))
        return joined[0] if len(joined) == 1 else torch.cat(joined, -1)

    def _projected(self, call: Call) -> list[Projected]:
        """Queries, keys and values of each group, (batch, heads, length, width); no keys where the cache has them."""
        query, key, value = call.query, call.key, call.value
        fused = self._fused
        if fused is not None and key is query and value is query:
            q, k, v = fused(query)
            pairs = zip(self._split(k, _K), self._split(v, _V), strict=True)
        else:
            q = self.project("q_proj", query)
            pairs = self._keys_values(key, value) if key is not None and value is not None else repeat((None, None))
        return [(q, k, v) for q, (k, v) in zip(self._split(q, _Q), pairs, strict=False)]

    def _keys_values(self, key: Tensor, value: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Keys and values of each group."""
        k, v = self.project("k_proj", key), self.project("v_proj", value)
        return list(zip(self._split(k, _K), self._split(v, _V), strict=True))

    def widths(self) -> dict[str, int]:
        """Input widths of query, key and value."""
        if (fused := self._fused) is not None:
            return dict.fromkeys(("query", "key", "value"), fused.in_features)
        return {
            "query": self.q_proj.in_features,
            "key": self.k_proj.in_features,
            "value": self.v_proj.in_features,
        }

    def project(self, name: str, x: Tensor) -> Tensor:
        """`q_proj`, `k_proj` or `v_proj` of an input (batch, length, width), whether the three are fused or not."""
        fused = self._fused
        return getattr(self, name)(x) if fused is None else fused.part(name, x)

    def _split(self, joined: Tensor, which: int) -> list[Tensor]:
        """(batch, length, all heads' numbers) as (batch, heads, length, width) for each group, views."""
        lead = joined.shape[:2]
        if len(self.groups) == 1:
            sizes, (heads, width) = self.groups[0].sizes, _PROJECTED[which]
            return [joined.view(*lead, sizes[heads], sizes[width]).transpose(1, 2)]
        known = not torch.compiler.is_compiling() and self._cuts[0] is self.groups  # no heads were taken out
        widths, shapes = (self._cuts if known else _cuts(self.groups))[1][which]
        # Not Tensor.split and unflatten: these are Python, and take twice as long as all that is done here.
        return [
            part.view(*lead, *shape).transpose(1, 2)
            for part, shape in zip(joined.split_with_sizes(widths, 2), shapes, strict=True)
        ]


def _cuts(groups: tuple[HeadGroup, ...]) -> tuple[tuple[HeadGroup, ...], list[Cut]]:
    """Where the joined queries, keys and values of these groups are cut: widths, and (heads, width) of each group."""
    shapes = [[(group.sizes[heads], group.sizes[width]) for group in groups] for heads, width in _PROJECTED]
    return groups, [([heads * width for heads, width in kind], kind) for kind in shapes]


def _needed(group: HeadGroup, kind: Kind | None) -> Kind | State:
    """What a cache keeps for a group: what was asked for, or the last tokens where its mask looks back no further."""
    if isinstance(group.scoring, LinearScoring):
        return State()
    if kind is not None:
        return kind
    left = None if group.pattern is None else group.pattern.reach[0]
    return Full() if left is None else Sliding(max(left, 0) + 1)
