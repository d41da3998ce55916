"""Talking heads: scores and weights are mixed across heads, before and behind the softmax."""

from typing import ClassVar, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import dropout
from torch.utils.checkpoint import checkpoint

from multihead.attend import Problem, make_problem
from multihead.attend.problem import cap, hide, products
from multihead.error import MultiheadError
from multihead.layer.base import Options
from multihead.layer.cache import AttentionCache
from multihead.layer.call import Call, Where, check_visible
from multihead.layer.check import check_counts
from multihead.layer.group import HeadGroup, read_groups
from multihead.layer.kept import kept
from multihead.layer.linear_options import LinearScoring
from multihead.layer.one_width import OneWidth
from multihead.layer.part import GroupPart, zero_bias
from multihead.layer.placing import placed
from multihead.layer.support import Support
from multihead.pattern import Pattern
from multihead.position import PositionBias

_TARGET = 2**20  # scores of a block, over all batch rows and heads
_LEAST = 16  # queries in a block


class TalkingHeadsAttention(OneWidth):
    """Multi-head attention whose heads exchange scores and weights: `softmax(P S) R V`, S the scores of all heads.

    `S'_h = sum_g P[h, g] S_g`, `W_h = softmax(S'_h + bias, where allowed)`, `W'_h = sum_g R[h, g] W_g`, head h gives
    `W'_h V_h`. Shazeer et al., "Talking-Heads Attention" (2020), arXiv:2003.02436, with as many heads at each of the
    three places. S is scaled and capped. Bias and mask come behind P: a pair that no head is allowed weighs nothing;
    where masks differ by head, R lets a head have what others see. Dropout is of W. With P and R the identity, as at
    the start, it is `MultiHeadAttention`, whose weights load into it (`strict=False`).

    A row of weights needs the scores of every head, which no attention kernel has at once. So this is computed by its
    definition in plain torch, some queries at a time: memory is O(heads * queries in a block * kv_len), in training as
    well, where blocks are computed a second time. There is no backend to choose. What watches a model neither sees nor
    gates these heads: their weights do not follow from the queries and keys of one head. A query that may attend to no
    key gets 0.

    Args:
        embed_dim: Width of the inputs and of the output.
        heads: Number of heads, or one `HeadGroup` that says more of them.
        bias: Whether the four projections have one.
        dropout: Share of the weights dropped in training, before R.

    Attributes:
        q_proj, k_proj, v_proj, out_proj: As in `MultiHeadAttention`.
        parts: One `GroupPart`: what the group learns besides.
        logit_mix: P, (heads, heads).
        weight_mix: R, (heads, heads).

    Raises:
        MultiheadError: Sizes that do not divide or are not positive, several groups, a dropout outside of 0 <= p < 1.

    Example:
        >>> layer = TalkingHeadsAttention(64, HeadGroup(8, kv_heads=2))
        >>> layer(torch.randn(2, 10, 64), mask=causal()).shape
        torch.Size([2, 10, 64])
    """

    SUPPORT: ClassVar[Support] = Support()

    def __init__(self, embed_dim: int, heads: int | HeadGroup = 8, *, bias: bool = True, dropout: float = 0.0) -> None:
        super().__init__(dropout=dropout, backend="auto")
        check_counts({"embed_dim": embed_dim})
        group, *others = read_groups(heads, None, None)
        if others:
            raise MultiheadError(
                asked="heads that talk to one another: one HeadGroup",
                arrived=f"{1 + len(others)} groups",
                remedy="give a module to each group and add their outputs",
            )
        if group.pattern is not group.mask:
            raise MultiheadError(
                asked="heads that talk to one another within a pattern: each needs the scores of all",
                arrived=f"mask={group.mask}, which chooses keys for each head by itself",
                remedy="use MultiHeadAttention for it, or give a pattern such as sliding_window(256)",
            )
        if isinstance(group.scoring, LinearScoring):
            raise MultiheadError(
                asked="heads that exchange scores and weights",
                arrived="HeadGroup(scoring=LinearScoring(...)), whose heads have neither",
                remedy="use MultiHeadAttention or LinearAttention for linear heads",
            )
        group = group.settled(embed_dim, alone=True)
        self.embed_dim, self.groups = embed_dim, (group,)
        self.heads, self.kv_heads, self.head_dim, v_head_dim = group.sizes
        self.q_proj = nn.Linear(embed_dim, self.heads * self.head_dim, bias=bias)
        self.k_proj = nn.Linear(embed_dim, self.kv_heads * self.head_dim, bias=bias)
        self.v_proj = nn.Linear(embed_dim, self.kv_heads * v_head_dim, bias=bias)
        self.out_proj = nn.Linear(self.heads * v_head_dim, embed_dim, bias=bias)
        self.parts = nn.ModuleList([GroupPart(group, embed_dim)])
        self.logit_mix = nn.Parameter(torch.empty(self.heads, self.heads))
        self.weight_mix = nn.Parameter(torch.empty(self.heads, self.heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start anew: as `MultiHeadAttention`, and heads that do not talk."""
        for linear in (self.q_proj, self.k_proj, self.v_proj, self.out_proj):
            nn.init.xavier_uniform_(linear.weight)
            zero_bias(linear)
        self._part.reset_parameters()
        nn.init.eye_(self.logit_mix)
        nn.init.eye_(self.weight_mix)

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
            mask: Which pairs are allowed, of the mixed scores: a pattern, or a boolean tensor (q_len, kv_len) or
                (batch | 1, heads | 1, q_len | 1, kv_len | 1), True = attend.
            bias: Added to the mixed scores: a tensor of such a shape, or a bias of positions.
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
        return self.out_proj(self._part.gated(query, heads.transpose(1, 2)).flatten(2))

    def attended(self, qkv: tuple[Tensor, Tensor, Tensor], options: Options) -> Tensor:
        """The heads of a call, (batch, heads, q_len, v_head_dim), also in a graph: there is no kernel to choose."""
        return self.attend(make_problem(*qkv, **options, dropout=self.dropout if self.training else 0.0))

    def attend(self, problem: Problem) -> Float[Tensor, "batch heads q_len v_head_dim"]:
        """The heads of a call: by the definition, in blocks of queries. Weights of the problem are not those mixed."""
        wide = problem.widen()
        every = torch.arange(problem.q_len, device=problem.q.device)
        # A graph has one block, whatever the length.
        blocks = (every,) if torch.compiler.is_compiling() else every.split(max(_height(problem), 1))
        # What a block remembers for its gradient would be as large as all weights together: it is computed again.
        again = torch.is_grad_enabled() and len(blocks) > 1
        made = [
            checkpoint(self._block, wide, rows, use_reentrant=False) if again else self._block(wide, rows)
            for rows in blocks
        ]
        return torch.cat(cast(list[Tensor], made), 2).to(problem.q.dtype)

    def extra_repr(self) -> str:
        """Sizes for `print(model)`."""
        return f"{self.embed_dim}, {self.groups[0]}" + (f", dropout={self.dropout:g}" if self.dropout else "")

    @property
    def _part(self) -> GroupPart:
        return cast(GroupPart, self.parts[0])

    def _heads(self, call: Call, positions: Tensor | None) -> Tensor:
        """(batch, heads, q_len, v_head_dim)."""
        assert call.key is not None
        assert call.value is not None
        part = self._part
        each = zip((self.q_proj, self.k_proj, self.v_proj), (call.query, call.key, call.value), strict=True)
        counts = (self.heads, self.kv_heads, self.kv_heads)
        q, k, v = (
            project(x).unflatten(2, (count, -1)).transpose(1, 2)
            for (project, x), count in zip(each, counts, strict=True)
        )
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

    def _block(self, wide: Problem, rows: Tensor) -> Tensor:
        """What some queries get, (batch, heads, rows, v_head_dim)."""
        scores = cap(products(wide.q[:, :, rows], wide.k, wide.scale), wide.softcap)
        scores = _mixed(self.logit_mix, scores)
        bias = wide.bias_rows(rows)
        scores = hide(scores if bias is None else scores + bias, wide.allowed(rows))
        weights = wide.normaliser.weigh(scores, wide.normaliser.settle(scores))
        weights = _mixed(self.weight_mix, dropout(weights, wide.dropout) if wide.dropout else weights)
        grouped = weights.unflatten(1, (wide.kv_heads, -1)).flatten(2, 3)
        return (grouped @ wide.v).view(*weights.shape[:3], wide.v_head_dim)


def _mixed(mix: Tensor, heads: Tensor) -> Tensor:
    """Sums over heads (batch, heads, rows, keys), for each head another one."""
    return (mix.to(heads.dtype) @ heads.flatten(2)).view_as(heads)


def _height(problem: Problem) -> int:
    """Queries in a block."""
    return max(_TARGET // max(problem.batch * problem.heads * problem.kv_len, 1), _LEAST)
