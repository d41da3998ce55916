"""Mixture of attention heads: each token's queries and outputs go through a few of many experts; keys are shared."""

from typing import ClassVar, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from multihead.error import check_kinds
from multihead.layer.base import Options
from multihead.layer.cache import AttentionCache
from multihead.layer.call import Call, Where, check_mask_kind, check_visible
from multihead.layer.check import check_counts
from multihead.layer.group import HeadGroup
from multihead.layer.kept import kept
from multihead.layer.mixed import check_uniform, one_group
from multihead.layer.one_width import OneWidth
from multihead.layer.part import GroupPart
from multihead.layer.placing import placed
from multihead.layer.routing import Choice, Dealt, Router, deal, from_experts, to_experts
from multihead.layer.support import Support
from multihead.pattern import Pattern


class MoAAttention(OneWidth):
    """Attention by experts: `y = sum_e g_e(x) Attention(x W_q^e, K, V) W_o^e + b` over the experts a token takes.

    Zhang et al., "Mixture of Attention Heads" (2022), arXiv:2210.05144, as JetMoe has it (Shen et al. 2024,
    arXiv:2404.07413). An expert is a query and an output projection, of one or more heads; keys and values are computed
    once, for all experts. A token takes the experts with the largest `x W_r`, and `g` is the softmax of those few. Its
    choice depends on nothing but itself, and no token is dropped (`Router`). With `chosen=1` the gate is 1, so nothing
    but the load loss teaches W_r.

    What is saved: with `experts` of `heads` each, of which a token takes `chosen`, queries, attention and outputs cost
    what `chosen * heads` heads cost, of `experts * heads` that there are to choose from; the cache holds `kv_heads`.
    Tokens are sorted by expert, and each expert multiplies its own by one product.

    The heads of a call are slots: heads of a token's best expert, of its second best, ..., dealt to the key/value heads
    in turn, so that slot s of head h of an expert, both counted within one key/value head, is the head `s * heads /
    kv_heads + h` of that. That is what a watcher sees and a gate acts on: queries, weights and outputs as they are, but
    of an expert that differs by token. Their output projection is not seen, as there is one for each expert.

    Args:
        embed_dim: Width of the inputs and of the output.
        heads: Heads of one expert: a number, or a `HeadGroup` that says more of them. Its norms go over each head's
            width; what is learned for each head by itself (sinks, gates, position biases) it cannot have.
        experts: How many experts there are.
        chosen: How many of them a token takes.
        bias: Whether `b` is there; the other projections have none.
        dropout: Share of the attention weights dropped in training.
        backend: `"auto"`, or the name of the backend that must run.

    Attributes:
        router: The `Router`; `load()` and `load_loss()` after a call.
        q_experts: (experts, heads * head_dim, embed_dim): W_q, transposed.
        k_proj: (kv_heads * head_dim, embed_dim).
        v_proj: (kv_heads * v_head_dim, embed_dim).
        out_experts: (experts, embed_dim, heads * v_head_dim): W_o, transposed.
        bias: (embed_dim,): b, or None.
        parts: One `GroupPart`: norms.

    Raises:
        MultiheadError: Sizes that do not divide or are not positive, more chosen than there are, something learned for
            each head, a dropout outside of 0 <= p < 1.

    Example:
        >>> layer = MoAAttention(64, HeadGroup(4, 16, kv_heads=2), experts=8, chosen=2)
        >>> layer(torch.randn(2, 10, 64), mask=causal()).shape
        torch.Size([2, 10, 64])
        >>> layer.router.load().shape
        torch.Size([1, 8])
    """

    SUPPORT: ClassVar[Support] = Support()

    def __init__(
        self,
        embed_dim: int,
        heads: int | HeadGroup = 8,
        *,
        experts: int = 8,
        chosen: int = 2,
        bias: bool = True,
        dropout: float = 0.0,
        backend: str = "auto",
    ) -> None:
        super().__init__(dropout=dropout, backend=backend)
        check_counts({"embed_dim": embed_dim})
        check_kinds({"bias": bias}, (bool,), "True or False")
        self.expert = check_uniform(one_group(heads, embed_dim), "MoAAttention: an expert differs by token")
        self.router = Router(embed_dim, experts, chosen=chosen)
        count, kv_heads, head_dim, v_head_dim = self.expert.sizes
        self.embed_dim, self.experts, self.chosen = embed_dim, experts, chosen
        self.heads, self.kv_heads, self.head_dim = count * chosen, kv_heads, head_dim
        slots = HeadGroup(
            self.heads,
            head_dim,
            kv_heads=kv_heads,
            v_head_dim=v_head_dim,
            mask=self.expert.mask,
            position=self.expert.position,
            scoring=self.expert.scoring,
        )
        self.groups = (slots,)
        self.parts = nn.ModuleList([GroupPart(slots, embed_dim)])
        self.q_experts = nn.Parameter(torch.empty(experts, count * head_dim, embed_dim))
        self.k_proj = nn.Linear(embed_dim, kv_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(embed_dim, kv_heads * v_head_dim, bias=False)
        self.out_experts = nn.Parameter(torch.empty(experts, embed_dim, count * v_head_dim))
        self.bias = nn.Parameter(torch.empty(embed_dim)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start anew: Xavier-uniform weights, each expert by itself, b 0."""
        for weight in (*self.q_experts, *self.out_experts, self.k_proj.weight, self.v_proj.weight):
            nn.init.xavier_uniform_(weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)
        self.router.reset_parameters()
        self._part.reset_parameters()

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        mask: Pattern | Tensor | None = None,
        q_offset: int | None = None,
        cache: AttentionCache | None = None,
        positions: Tensor | None = None,
    ) -> Float[Tensor, "batch q_len embed_dim"]:
        """Attend: self-attention with one input, cross-attention with two or three.

        Args:
            query: (batch, q_len, embed_dim): what chooses the experts.
            key: (batch, kv_len, embed_dim); the query where it is not given.
            value: (batch, kv_len, embed_dim); the key where it is not given.
            mask: Which pairs are allowed, to all heads alike: a pattern, or a boolean tensor (q_len, kv_len) or
                (batch | 1, 1, q_len | 1, kv_len | 1), True = attend.
            q_offset: Position of the first query, where the first key has position 0. A cache knows it.
            cache: Earlier tokens, to which these are added.
            positions: Where the tokens stand for a position that turns them, (batch, q_len) or (q_len,), where that is
                not where they lie.

        Raises:
            MultiheadError: Shapes that do not belong together, a mask that differs by head, or anything that
                `multihead.attention` refuses.
        """
        check_mask_kind(mask)
        check_visible(mask)
        check_uniform(mask, "MoAAttention: an expert differs by token")
        call = Call.checked(self, query, key, value, mask=mask, bias=None, q_offset=q_offset, cache=cache)
        choice = self.router(query)
        dealt = deal(choice.experts.flatten(0, 2), self.experts)
        with kept(cache):
            heads = self._heads(call, dealt, positions)
        return self._joined(heads, choice, dealt)

    def extra_repr(self) -> str:
        """Sizes for `print(model)`."""
        shown = f"{self.embed_dim}, {self.expert}, experts={self.experts}, chosen={self.chosen}"
        shown += f", dropout={self.dropout:g}" if self.dropout else ""
        return shown + (f", backend={self.backend!r}" if self.backend != "auto" else "")

    @property
    def _part(self) -> GroupPart:
        return cast(GroupPart, self.parts[0])

    def _heads(self, call: Call, dealt: Dealt, positions: Tensor | None) -> Tensor:
        """What each slot's heads give, (batch, heads, q_len, v_head_dim)."""
        assert call.key is not None
        assert call.value is not None
        batch, q_len = call.query.shape[:2]
        q = to_experts(call.query.flatten(0, 1), dealt, self.q_experts)
        q = q.view(batch, q_len, self.chosen, self.kv_heads, self.expert.heads // self.kv_heads, self.head_dim)
        q = q.permute(0, 3, 2, 4, 1, 5).flatten(1, 3)
        k = self.k_proj(call.key).unflatten(2, (self.kv_heads, -1)).transpose(1, 2)
        v = self.v_proj(call.value).unflatten(2, (self.kv_heads, -1)).transpose(1, 2)
        q, k, v, first = placed(call, (0, self._part), (q, k, v), positions)
        where = Where(place=0, groups=self.groups, kv_len=k.shape[2], first=first)
        scoring = self.expert.scoring
        options: Options = {
            "mask": call.mask_of(where),
            "scale": scoring.scale,
            "softcap": scoring.softcap,
            "normaliser": scoring.normaliser,
            "q_offset": call.offset(first),
        }
        return self.attended((q, k, v), options)

    def _joined(self, heads: Tensor, choice: Choice, dealt: Dealt) -> Tensor:
        """The slots (batch, heads, q_len, v_head_dim), weighted, through their experts: (batch, q_len, embed_dim)."""
        batch, count, q_len, width = heads.shape
        slots = heads.unflatten(1, (self.kv_heads, self.chosen, -1)).permute(0, 4, 2, 1, 3, 5)
        gates = choice.taken.softmax(-1).to(heads.dtype).flatten(0, 2)
        rows = slots.reshape(batch * q_len, self.chosen, count // self.chosen * width) * gates[..., None]
        out = from_experts(rows, dealt, self.out_experts).view(batch, q_len, self.embed_dim)
        return out if self.bias is None else out + self.bias.to(out.dtype)
