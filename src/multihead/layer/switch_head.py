"""SwitchHead: a few heads, whose values and outputs are mixtures of experts."""

from typing import ClassVar, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from multihead.layer.base import Options
from multihead.layer.cache import AttentionCache
from multihead.layer.call import Call, Where, check_visible
from multihead.layer.check import check_counts
from multihead.layer.group import HeadGroup
from multihead.layer.kept import kept
from multihead.layer.mixed import one_group
from multihead.layer.one_width import OneWidth
from multihead.layer.part import GroupPart
from multihead.layer.placing import placed
from multihead.layer.routing import Router, deal, from_experts, to_experts
from multihead.layer.support import Support
from multihead.pattern import Pattern
from multihead.position import PositionBias


class SwitchHeadAttention(OneWidth):
    """Few heads, each with experts for its values and its output: fewer matrices of weights for as many parameters.

    Csordas et al., "SwitchHead" (2023), arXiv:2312.07987. Queries and keys are plain. For head h:

        v_j = sum_e s_e(x_j) x_j W_v^{h,e}        over the `chosen` experts with the largest `s(x) = sigmoid(x W_s^h)`
        y_i = sum_h sum_e r_e(x_i) head_h,i W_o^{h,e}     likewise with `r(x) = sigmoid(x W_r^h)`

    The source chooses the experts of a value (by what is the key), the destination those of an output. Gates are
    sigmoids, not normalised over the experts. A token's choice depends on nothing but itself, and no token is dropped
    (`Router`). With one expert a head there is nothing to choose: values are plain, as published, and the layer is
    `MultiHeadAttention` with a sigmoid gate for each head.

    What is saved, against a layer of `heads * experts` heads: the attention of all but `heads`, and of the projections
    of values and outputs all but `chosen` of `experts`. Tokens are sorted by expert, and each expert multiplies its own
    by one product. Values lie in the cache as they came out of the experts.

    A watcher sees the heads as they are. Their output projection is not seen, as it differs by token.

    Args:
        embed_dim: Width of the inputs and of the output.
        heads: Heads: a number, or a `HeadGroup` that says more of them. Each of its `kv_heads` has experts for values.
        experts: How many experts each head has for its values, and for its output.
        chosen: How many of them a token takes.
        dropout: Share of the attention weights dropped in training.
        backend: `"auto"`, or the name of the backend that must run.

    Attributes:
        q_proj: (heads * head_dim, embed_dim).
        k_proj: (kv_heads * head_dim, embed_dim).
        v_experts: (kv_heads * experts, v_head_dim, embed_dim): W_v, transposed; the experts of head 0, of head 1, ...
        out_experts: (heads * experts, embed_dim, v_head_dim): W_o, transposed; likewise.
        v_router: The `Router` of values, W_s; None where there is one expert.
        out_router: That of outputs, W_r. `load()` and `load_loss()` of both after a call.
        parts: One `GroupPart`: what the group learns besides.

    Raises:
        MultiheadError: Sizes that do not divide or are not positive, more chosen than there are, a dropout outside of
            0 <= p < 1.

    Example:
        >>> layer = SwitchHeadAttention(64, heads=2, experts=4, chosen=2)
        >>> layer(torch.randn(2, 10, 64), mask=causal()).shape
        torch.Size([2, 10, 64])
        >>> layer.out_router.load().shape
        torch.Size([2, 4])
    """

    SUPPORT: ClassVar[Support] = Support()

    def __init__(
        self,
        embed_dim: int,
        heads: int | HeadGroup = 2,
        *,
        experts: int = 4,
        chosen: int = 2,
        dropout: float = 0.0,
        backend: str = "auto",
    ) -> None:
        super().__init__(dropout=dropout, backend=backend)
        check_counts({"embed_dim": embed_dim})
        group = one_group(heads, embed_dim)
        self.heads, self.kv_heads, self.head_dim, v_head_dim = group.sizes
        self.groups = (group,)
        self.embed_dim, self.experts, self.chosen = embed_dim, experts, chosen
        self.out_router = Router(embed_dim, experts, chosen=chosen, groups=self.heads)
        self.v_router = Router(embed_dim, experts, chosen=chosen, groups=self.kv_heads) if experts > 1 else None
        self.q_proj = nn.Linear(embed_dim, self.heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(embed_dim, self.kv_heads * self.head_dim, bias=False)
        self.v_experts = nn.Parameter(torch.empty(self.kv_heads * experts, v_head_dim, embed_dim))
        self.out_experts = nn.Parameter(torch.empty(self.heads * experts, embed_dim, v_head_dim))
        self.parts = nn.ModuleList([GroupPart(group, embed_dim)])
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start anew: Xavier-uniform weights, each expert by itself."""
        for weight in (self.q_proj.weight, self.k_proj.weight, *self.v_experts, *self.out_experts):
            nn.init.xavier_uniform_(weight)
        for part in (self.out_router, self.v_router, self._part):
            if part is not None:
                part.reset_parameters()

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
            query: (batch, q_len, embed_dim): what chooses the experts of outputs.
            key: (batch, kv_len, embed_dim): what chooses those of values; the query where it is not given.
            value: (batch, kv_len, embed_dim); the key where it is not given.
            mask: Which pairs are allowed: a pattern, or a boolean tensor (q_len, kv_len) or (batch | 1, heads | 1,
                q_len | 1, kv_len | 1), True = attend.
            bias: Added to the scores: a tensor of such a shape, or a bias of positions.
            q_offset: Position of the first query, where the first key has position 0. A cache knows it.
            cache: Earlier tokens, to which these are added.
            positions: Where the tokens stand for a position that turns them, (batch, q_len) or (q_len,), where that is
                not where they lie.

        Raises:
            MultiheadError: Shapes that do not belong together, or anything that `multihead.attention` refuses.
        """
        call = Call.checked(self, query, key, value, mask=mask, bias=bias, q_offset=q_offset, cache=cache)
        check_visible(mask)
        with kept(cache):
            heads = self._heads(call, positions)
        return self._joined(query, self._part.gated(query, heads.transpose(1, 2)))

    def extra_repr(self) -> str:
        """Sizes for `print(model)`."""
        shown = f"{self.embed_dim}, {self.groups[0]}, experts={self.experts}, chosen={self.chosen}"
        shown += f", dropout={self.dropout:g}" if self.dropout else ""
        return shown + (f", backend={self.backend!r}" if self.backend != "auto" else "")

    @property
    def _part(self) -> GroupPart:
        return cast(GroupPart, self.parts[0])

    def _heads(self, call: Call, positions: Tensor | None) -> Tensor:
        """(batch, heads, q_len, v_head_dim)."""
        assert call.key is not None
        assert call.value is not None
        part = self._part
        q = self.q_proj(call.query).unflatten(2, (self.heads, -1)).transpose(1, 2)
        k = self.k_proj(call.key).unflatten(2, (self.kv_heads, -1)).transpose(1, 2)
        v = self._values(call.key, call.value)
        q, k, v, first = placed(call, (0, part), (q, k, v), positions)
        where = Where(place=0, groups=self.groups, kv_len=k.shape[2], first=first)
        scoring = part.group.scoring
        options: Options = {
            "mask": call.mask_of(where),
            "bias": call.bias_of(where, part.position_bias),
            "scale": scoring.scale,
            "softcap": scoring.softcap,
            "normaliser": part.normaliser,
            "q_offset": call.offset(first),
        }
        return self.attended((q, k, v), options)

    def _values(self, key: Tensor, value: Tensor) -> Tensor:
        """Values (batch, kv_heads, kv_len, v_head_dim), of the experts that the keys' tokens take."""
        if self.v_router is None:
            joined = nn.functional.linear(value, self.v_experts.flatten(0, 1))
            return joined.unflatten(2, (self.kv_heads, -1)).transpose(1, 2)
        choice = self.v_router(key)
        made = to_experts(
            value.flatten(0, 1), deal(self._numbered(choice.experts), len(self.v_experts)), self.v_experts
        )
        made = made.view(*value.shape[:2], self.kv_heads, self.chosen, made.shape[-1])
        gates = torch.sigmoid(choice.taken).to(made.dtype)
        return (made * gates[..., None]).sum(3).transpose(1, 2)

    def _joined(self, query: Tensor, heads: Tensor) -> Tensor:
        """Heads (batch, q_len, heads, v_head_dim) through the experts the queries' tokens take, and summed."""
        choice = self.out_router(query)
        gates = torch.sigmoid(choice.taken).to(heads.dtype)
        # Weighted before they are multiplied: narrower there than behind.
        rows = (heads[:, :, :, None] * gates[..., None]).flatten(2, 3).flatten(0, 1)
        dealt = deal(self._numbered(choice.experts), len(self.out_experts))
        return from_experts(rows, dealt, self.out_experts).view(*query.shape[:2], self.embed_dim)

    def _numbered(self, index: Tensor) -> Tensor:
        """Experts of each head (batch, length, heads, chosen) as numbers among all, (tokens, heads * chosen)."""
        first = torch.arange(index.shape[2], device=index.device) * self.experts
        return (index + first[:, None]).flatten(2).flatten(0, 1)
