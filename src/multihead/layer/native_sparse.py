"""Native sparse attention: compressed blocks, the best of them in full, and a window, mixed by gates."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from multihead.attend import Problem, make_problem
from multihead.attend.problem import products
from multihead.attend.selector import Chosen
from multihead.attend.selector.asked import best, check_no_graph, height
from multihead.attend.selector.blocks import seen_blocks, without_hidden
from multihead.error import MultiheadError, check_kinds
from multihead.layer.base import Attends, Options
from multihead.layer.cache import AttentionCache, Full, GroupCache, Static
from multihead.layer.call import Call
from multihead.layer.check import check_counts
from multihead.layer.compress import LearnedCompression, MeanCompression
from multihead.layer.group import HeadGroup, Scoring, read_groups
from multihead.layer.part import GroupPart, zero_bias
from multihead.layer.placing import placed
from multihead.layer.scan_cache import StateGroup
from multihead.layer.support import Support
from multihead.pattern import Pattern, Tile, causal, everything, sliding_window
from multihead.position import PositionBias

_CAUSAL = causal()
_FORCED = 3  # the first block, the one before, and the own one


@dataclass(frozen=True, slots=True, kw_only=True)
class Branches:
    """The three branches of native sparse attention.

    Args:
        block: Keys in a block; multiples of 64 are the fastest.
        budget: Blocks that a query attends to in full, the first, the one before its own and its own among them.
        window: Keys of the window, the query's own included.
        compression: How a block becomes one key and one value: `"mean"`, or `"learned"` by a small network for each.

    Raises:
        MultiheadError: A number that is no whole one of at least 1, or a budget below 3.
    """

    block: int = 64
    budget: int = 16
    window: int = 512
    compression: Literal["mean", "learned"] = "mean"

    def __post_init__(self) -> None:
        check_counts({"block": self.block, "budget": self.budget, "window": self.window})
        if self.budget < _FORCED:
            raise MultiheadError(
                asked="Branches(budget=...): at least 3 blocks: the first, the one before and the own are always in",
                arrived=f"budget={self.budget}",
                remedy="pass 3 or more; for the window alone use sliding_window",
            )
        if self.compression not in ("mean", "learned"):
            raise MultiheadError(
                asked="Branches(compression=...): one of 'mean', 'learned'",
                arrived=repr(self.compression),
                remedy="pass one of these",
            )


class NativeSparseAttention(Attends):
    """Native sparse attention (Yuan et al. 2025, arXiv 2502.11089): `sum over three branches of gate * attention`.

    *Compressed*: each block of keys and of values is made one, and a query attends to those of which it sees every key;
    early queries, which see none whole, get 0 from it. *Selected*: the weights of the compressed branch, averaged over
    the query heads that share a key/value head, rank the blocks; a query attends in full to the best of them, among
    which the first, the one before its own and its own always are. *Window*: the last keys. The gates are
    `sigmoid(x W_g + b_g)`, one for each branch and head. All branches share keys and values.

    A query reads `n / block + budget * block + window` keys instead of n. The choice has no gradient; the compressed
    branch by which it is made is trained as all else is. It is causal: another mask has to be within `causal()`. A
    block of which a mask hides a key from a query takes no part in its compressed branch. Blocks are counted from the
    first token given: padding on the left moves them unless it is a multiple of `block`. Whoever watches the heads sees
    the three branches as three calls; torch.compile cuts its graph around them.

    Args:
        embed_dim: Width of the input and of the output.
        heads: Number of heads, or one `HeadGroup` with sizes, a rotary and a norm of queries and keys.
        branches: Sizes of the branches.
        bias: Whether the four projections have one; the gates always do.
        dropout: Share of the attention weights dropped in training.
        backend: `"auto"`, or the name of the backend that must run.

    Attributes:
        q_proj: (heads * head_dim, embed_dim).
        k_proj: (kv_heads * head_dim, embed_dim).
        v_proj: (kv_heads * v_head_dim, embed_dim).
        out_proj: (embed_dim, heads * v_head_dim).
        gate_proj: (3 * heads, embed_dim): the compressed, the selected, the window gates of all heads.
        k_compression: Makes blocks of keys one each.
        v_compression: Makes blocks of values one each.

    Raises:
        MultiheadError: Sizes that do not divide, or a group with something that no branch has.

    Example:
        >>> small = Branches(block=16, budget=4, window=32)
        >>> layer = NativeSparseAttention(64, HeadGroup(8, kv_heads=2), branches=small)
        >>> layer(torch.randn(2, 200, 64)).shape
        torch.Size([2, 200, 64])
    """

    SUPPORT: ClassVar[Support] = Support(bidirectional=False, cross=False)

    def __init__(
        self,
        embed_dim: int,
        heads: int | HeadGroup = 8,
        *,
        branches: Branches | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        backend: str = "auto",
    ) -> None:
        super().__init__(dropout=dropout, backend=backend)
        check_counts({"embed_dim": embed_dim})
        check_kinds({"bias": bias}, (bool,), "True or False")
        self.branches = Branches() if branches is None else branches
        check_kinds({"branches": self.branches}, (Branches,), "Branches(...)")
        group, *others = read_groups(heads, None, None)
        _check_group(group, len(others))
        group = group.settled(embed_dim, alone=True)
        self.embed_dim, self.groups = embed_dim, (group,)
        self.heads, self.kv_heads, self.head_dim, v_head_dim = group.sizes
        self.q_proj = nn.Linear(embed_dim, self.heads * self.head_dim, bias=bias)
        self.k_proj = nn.Linear(embed_dim, self.kv_heads * self.head_dim, bias=bias)
        self.v_proj = nn.Linear(embed_dim, self.kv_heads * v_head_dim, bias=bias)
        self.out_proj = nn.Linear(self.heads * v_head_dim, embed_dim, bias=bias)
        self.gate_proj = nn.Linear(embed_dim, 3 * self.heads)
        learned, block = self.branches.compression == "learned", self.branches.block
        self.k_compression = LearnedCompression(block, self.head_dim) if learned else MeanCompression()
        self.v_compression = LearnedCompression(block, v_head_dim) if learned else MeanCompression()
        self.parts = nn.ModuleList([GroupPart(group, embed_dim)])
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start anew: Xavier-uniform weights, biases 0, so that each gate starts around a half."""
        for linear in (self.q_proj, self.k_proj, self.v_proj, self.out_proj, self.gate_proj):
            nn.init.xavier_uniform_(linear.weight)
            zero_bias(linear)
        for part in (self._part, self.k_compression, self.v_compression):
            part.reset_parameters()

    def cache(self, *, batch: int, kind: Full | Static | None = None) -> AttentionCache:
        """An empty cache for decoding step by step: `layer(x, cache=cache)`.

        Without gradients the compressed keys and values are kept with it.

        Args:
            batch: Number of sequences.
            kind: `Full()` or `Static(length)`; None is `Full()`.

        Raises:
            MultiheadError: A batch that is no count, or a cache that lets go of tokens.
        """
        kept = Full() if kind is None else kind
        check_kinds({"kind": kept}, (Full, Static), "Full() or Static(length): any earlier block may be chosen")
        return AttentionCache(self.groups, batch=batch, kinds=[kept])

    def forward(
        self,
        query: Tensor,
        *,
        mask: Pattern | None = _CAUSAL,
        cache: AttentionCache | None = None,
        positions: Tensor | None = None,
    ) -> Float[Tensor, "batch length embed_dim"]:
        """Self-attention.

        Args:
            query: (batch, length, embed_dim).
            mask: A pattern within `causal()`: `causal() & padding(keep)`, `causal() & document(ids)`.
            cache: Earlier tokens (`cache(batch=...)`), to which these are added.
            positions: Where the tokens stand for a rotary; see `MultiHeadAttention`.

        Returns:
            (batch, length, embed_dim).

        Raises:
            MultiheadError: Shapes that do not belong together, or a mask that is no pattern within `causal()`.
        """
        _check_mask(mask)
        call = Call.checked(self, query, None, None, mask=mask, bias=None, q_offset=None, cache=cache)
        before = 0 if cache is None else cache.length
        run: Callable[..., Tensor] = self._heads
        if torch.compiler.is_compiling():
            run = cast(Callable[..., Tensor], torch.compiler.disable(self._heads))
        try:
            joined = run(call, positions)
        except BaseException:
            if cache is not None:
                cache.cut(before)
            raise
        return self.out_proj(joined)

    def widths(self) -> dict[str, int]:
        """Input widths of query, key and value, which are one tensor here."""
        return dict.fromkeys(("query", "key", "value"), self.embed_dim)

    def extra_repr(self) -> str:
        """Sizes for `print(model)`."""
        return f"{self.embed_dim}, heads={self.heads}, kv_heads={self.kv_heads}, {self.branches}"

    @property
    def _part(self) -> GroupPart:
        return cast(GroupPart, self.parts[0])

    def _heads(self, call: Call, positions: Tensor | None) -> Tensor:
        """The gated heads, joined: (batch, length, heads * v_head_dim)."""
        x, part = call.query, self._part
        counts = (self.heads, self.kv_heads, self.kv_heads)
        q, k, v = (
            linear(x).unflatten(2, (count, -1)).transpose(1, 2)
            for linear, count in zip((self.q_proj, self.k_proj, self.v_proj), counts, strict=True)
        )
        q, k, v, _ = placed(call, (0, part), (q, k, v), positions)
        assert isinstance(call.mask, Pattern)
        offset = call.offset(0) or 0
        held = None if call.cache is None else call.cache.groups[0]
        assert not isinstance(held, StateGroup)
        short = self._compressed(k, v, held)
        scale = part.group.scoring.scale
        scale = self.head_dim**-0.5 if scale is None else scale
        whole, chosen = self._chosen(make_problem(q, k, v, mask=call.mask, scale=scale, q_offset=offset), short[0])
        plain: Options = {"scale": scale, "q_offset": offset}
        outs = [
            self.attended((q, *short), {**plain, "mask": whole}),
            self.attended((q, k, v), {**plain, "mask": call.mask & chosen}),
            self.attended((q, k, v), {**plain, "mask": call.mask & sliding_window(self.branches.window)}),
        ]
        gates = torch.sigmoid(self.gate_proj(x)).unflatten(2, (3, self.heads)).permute(2, 0, 3, 1)
        mixed = sum(gate[..., None] * out for gate, out in zip(gates, outs, strict=True))
        return cast(Tensor, mixed).transpose(1, 2).flatten(2)

    def _compressed(self, k: Tensor, v: Tensor, held: GroupCache | None) -> tuple[Tensor, Tensor]:
        """Keys and values of all full blocks, one each."""
        block = self.branches.block
        full = k.shape[2] // block
        kept = held.kept if held is not None and not torch.is_grad_enabled() else None
        earlier = cast(tuple[Tensor, Tensor], kept) if isinstance(kept, tuple) else (k[:, :, :0], v[:, :, :0])
        done = earlier[0].shape[2]
        made = [
            torch.cat([old, compress(new[:, :, done * block : full * block].unflatten(2, (full - done, block)))], 2)
            for old, new, compress in zip(earlier, (k, v), (self.k_compression, self.v_compression), strict=True)
        ]
        if held is not None:
            held.kept = tuple(part.detach() for part in made) if not torch.is_grad_enabled() else None
        return made[0], made[1]

    @torch.no_grad()
    def _chosen(self, problem: Problem, short: Tensor) -> tuple[Bool[Tensor, "_ _ q_len full"], Pattern]:
        """Which compressed blocks each query sees, and which blocks it attends to in full."""
        block, full = self.branches.block, short.shape[2]
        if short.is_meta:  # shapes alone are asked for
            return torch.ones(1, 1, problem.q_len, full, dtype=torch.bool, device="meta"), everything()
        check_no_graph("NativeSparseAttention")
        columns = -(-problem.kv_len // block)
        together = height(problem, columns)
        wide = short.to(problem.wide)
        seen, picked = list[Tensor](), list[Tensor]()
        for start in range(0, problem.q_len, together):
            band = slice(start, min(start + together, problem.q_len))
            classes = seen_blocks(problem, band, block, columns)
            whole = (classes == Tile.FULL)[..., :full]
            scores = products(problem.q[:, :, band].to(problem.wide), wide, problem.scale)
            weights = scores.masked_fill(~whole, -torch.inf).softmax(-1).nan_to_num(0.0)
            rank = torch.full((*weights.shape[:3], columns), -torch.inf, dtype=weights.dtype, device=weights.device)
            rank[..., :full] = weights.masked_fill(~whole, -torch.inf)
            rank = rank.unflatten(1, (problem.kv_heads, problem.group)).mean(2)
            own = problem.q_positions()[band, None].div(block, rounding_mode="floor")
            place = torch.arange(columns, device=own.device)
            forced = (place == 0) | (place == own) | (place == own - 1)
            forced = forced & (without_hidden(problem, band, block, classes, forced) != Tile.SKIP)
            if classes.shape[1] > 1:  # of any head of those that choose together
                forced = forced.unflatten(1, (problem.kv_heads, problem.group)).any(2)
            inside = best(rank.masked_fill(forced, torch.inf), self.branches.budget)
            seen.append(whole.expand(*whole.shape[:2], band.stop - band.start, full))
            picked.append(inside.repeat_interleave(problem.group, 1))
        if not seen:
            seen = [torch.ones(1, 1, 0, full, dtype=torch.bool, device=short.device)]
            picked = [torch.ones(1, 1, 0, columns, dtype=torch.bool, device=short.device)]
        chosen = Chosen.from_blocks(
            torch.cat(picked, 2), block=block, kv_len=problem.kv_len, q_offset=problem.q_offset or 0
        )
        return torch.cat(seen, 2), chosen


def _check_group(group: HeadGroup, others: int) -> None:
    """Refuses what no branch has."""
    plain = Scoring(norm=group.scoring.norm, scale=group.scoring.scale)
    strange = [f"{1 + others} groups"] * bool(others) + [f"mask={group.mask}"] * (group.mask is not None)
    strange += [f"scoring={group.scoring}"] * (group.scoring != plain) + ["gate"] * (group.gate is not None)
    bias = isinstance(group.position, PositionBias)
    if strange or bias:
        raise MultiheadError(
            asked="heads of native sparse attention: one HeadGroup with sizes, a Rotary, a norm and a scale",
            arrived=", ".join(strange + [type(group.position).__name__] * bias)[:200],
            remedy="leave it out, or use MultiHeadAttention with HeadGroup(mask=TopBlocks(...)), which takes it",
        )


def _check_mask(mask: object) -> None:
    """Refuses what is no pattern within `causal()`."""
    if not isinstance(mask, Pattern) or mask.reach[1] is None or mask.reach[1] > 0:
        told = f"a tensor {tuple(mask.shape)}" if isinstance(mask, Tensor) else f"mask={mask}"
        raise MultiheadError(
            asked="native sparse attention within causal(): a block is compressed once it is wholly past",
            arrived=told,
            remedy="pass causal(), or a pattern with it such as causal() & padding(keep); for tokens that see all use "
            "MultiHeadAttention",
        )
