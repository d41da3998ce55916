"""Mixture of heads: some heads always, of the others each token takes a few."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, ClassVar, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from multihead.attend import Problem, attention, choose, make_problem
from multihead.error import MultiheadError, check_kinds
from multihead.layer.base import Options
from multihead.layer.cache import AttentionCache
from multihead.layer.call import Call, Where, check_visible
from multihead.layer.check import check_counts, check_whole
from multihead.layer.gathered import Gathered, Rows
from multihead.layer.group import HeadGroup
from multihead.layer.kept import kept
from multihead.layer.mixed import by_head, check_unbiased, one_group
from multihead.layer.one_width import OneWidth
from multihead.layer.part import GroupPart, zero_bias
from multihead.layer.placing import placed
from multihead.layer.routing import Choice, Router, check_chosen
from multihead.layer.support import Support
from multihead.pattern import Pattern
from multihead.pattern.chosen import Chosen

_LEAST = 256  # queries: with fewer, taking rows out costs more than it saves
_STORED = 2**22  # pairs that are stored, a byte each; of more the pattern is asked tile by tile, which is then faster


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Heads(Problem):
    """A call in which each token takes some of the heads.

    Args:
        taken: True = the token takes this head. Elsewhere the output is 0.
        shared: How many of the first heads every token takes.
    """

    taken: Bool[Tensor, "batch heads q_len"]
    shared: int


class MoHAttention(OneWidth):
    """Multi-head attention of which each token takes some heads: `y = sum_h g_h(x) head_h W_o^h`.

    Jin et al., "MoH: Multi-Head Attention as Mixture-of-Head Attention" (2024), arXiv:2410.11842. The first `shared`
    heads, n_s, are always on; of the others a token takes the k = `chosen` with the largest `x W_r`:

        g = [a_1 n_s softmax(x W_s) ; a_2 k softmax(x W_r over the chosen, 0 elsewhere)]
        [a_1, a_2] = 2 softmax(x W_h)

    and without shared heads `a_2 = 1`. With W_s = W_r = W_h = 0 and all heads chosen every gate is 1, and the layer is
    `MultiHeadAttention`, whose weights load into it (`strict=False`). A token's choice depends on nothing but itself,
    and no token is dropped (`Router`). With `chosen=1` the one chosen has all of its share: only the load loss teaches
    W_r.

    What is saved is attention: a head's queries are taken out of the rows of the tokens that chose it, and attend to
    the keys of all tokens; so the time of the routed heads falls to about `chosen` of those there are, where the load
    is even. All projections are computed for every token: as one product they are faster than head by head. With 2
    heads of 8 shared, 2 of 6 chosen, on one core, that was a third of the layer's time at 4096 tokens without a mask, a
    tenth under `causal()`, and nothing at 1024 and below. With fewer than 256 queries, as in decoding, and in a
    compiled graph, whose sizes cannot depend on numbers, all heads are computed and what was not chosen is set to 0.

    A watcher sees each head at the tokens that took it; other rows see no key there, and their output is 0. So weights
    are measured over the rows that were taken. Gates come behind it, so the output projection is not seen.

    Args:
        embed_dim: Width of the inputs and of the output.
        heads: Heads, shared and routed ones together: a number, or a `HeadGroup` that says more of them. A bias of
            positions it cannot have.
        shared: How many of them are always on, the first ones.
        chosen: How many of the others a token takes.
        bias: Whether the four projections have one.
        dropout: Share of the attention weights dropped in training.
        backend: `"auto"`, or the name of the backend that must run.

    Attributes:
        q_proj, k_proj, v_proj, out_proj: As in `MultiHeadAttention`.
        parts: One `GroupPart`: what the group learns besides.
        router: The `Router` of the other heads, W_r; `load()` and `load_loss()` after a call.
        shared_gate: W_s, (shared, embed_dim), or None where none is shared.
        balance: W_h, (2, embed_dim), or None where none is shared.

    Raises:
        MultiheadError: Sizes that do not divide or are not positive, no head left to route, more chosen than there are,
            a bias of positions, a dropout outside of 0 <= p < 1.

    Example:
        >>> layer = MoHAttention(64, heads=8, shared=2, chosen=3)
        >>> layer(torch.randn(2, 10, 64), mask=causal()).shape
        torch.Size([2, 10, 64])
        >>> layer.router.load().shape
        torch.Size([1, 6])
    """

    SUPPORT: ClassVar[Support] = Support()

    def __init__(
        self,
        embed_dim: int,
        heads: int | HeadGroup = 8,
        *,
        shared: int = 2,
        chosen: int = 4,
        bias: bool = True,
        dropout: float = 0.0,
        backend: str = "auto",
    ) -> None:
        super().__init__(dropout=dropout, backend=backend)
        check_counts({"embed_dim": embed_dim})
        check_kinds({"bias": bias}, (bool,), "True or False")
        group = one_group(heads, embed_dim)
        check_unbiased(group, "MoHAttention")
        self.heads, self.kv_heads, self.head_dim, v_head_dim = group.sizes
        _check_shared(self.heads, shared, chosen)
        self.groups = (group,)
        self.embed_dim, self.shared, self.chosen = embed_dim, shared, chosen
        self.q_proj = nn.Linear(embed_dim, self.heads * self.head_dim, bias=bias)
        self.k_proj = nn.Linear(embed_dim, self.kv_heads * self.head_dim, bias=bias)
        self.v_proj = nn.Linear(embed_dim, self.kv_heads * v_head_dim, bias=bias)
        self.out_proj = nn.Linear(self.heads * v_head_dim, embed_dim, bias=bias)
        self.parts = nn.ModuleList([GroupPart(group, embed_dim)])
        self.router = Router(embed_dim, self.heads - shared, chosen=chosen)
        self.shared_gate = nn.Linear(embed_dim, shared, bias=False) if shared else None
        self.balance = nn.Linear(embed_dim, 2, bias=False) if shared else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start anew: Xavier-uniform weights, biases 0, norms 1, sinks 0."""
        for module in self.children():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                zero_bias(module)
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
            query: (batch, q_len, embed_dim): what takes the heads.
            key: (batch, kv_len, embed_dim); the query where it is not given.
            value: (batch, kv_len, embed_dim); the key where it is not given.
            mask: Which pairs are allowed: a pattern, or a boolean tensor (q_len, kv_len) or (batch | 1, heads | 1,
                q_len | 1, kv_len | 1), True = attend.
            q_offset: Position of the first query, where the first key has position 0. A cache knows it.
            cache: Earlier tokens, to which these are added.
            positions: Where the tokens stand for a position that turns them, (batch, q_len) or (q_len,), where that is
                not where they lie.

        Raises:
            MultiheadError: Shapes that do not belong together, or anything that `multihead.attention` refuses.
        """
        call = Call.checked(self, query, key, value, mask=mask, bias=None, q_offset=q_offset, cache=cache)
        check_visible(mask)
        choice = self.router(query)
        with kept(cache):
            heads = self._heads(call, self._taken(choice), positions)
        joined = self._part.gated(query, heads.transpose(1, 2)) * self.gates(query, choice).to(heads.dtype)[..., None]
        return self.out_proj(joined.flatten(2))

    def gates(self, query: Tensor, choice: Choice) -> Float[Tensor, "batch q_len heads"]:
        """The factor of each head, in float32 or wider; 0 where it was not chosen.

        Args:
            query: (batch, q_len, embed_dim), as `forward` gets it.
            choice: What `router` chose for it.
        """
        routed = self.chosen * choice.taken.softmax(-1)
        routed = torch.zeros_like(choice.logits).scatter(-1, choice.experts, routed)[:, :, 0]
        if self.shared_gate is None or self.balance is None:
            return routed
        shared = self.shared * self.shared_gate(query).to(routed.dtype).softmax(-1)
        first, second = (2 * self.balance(query).to(routed.dtype).softmax(-1)).split(1, -1)
        return torch.cat([first * shared, second * routed], -1)

    def attend(self, problem: Problem) -> Float[Tensor, "batch heads q_len v_head_dim"]:
        """The heads of a call, 0 where a token did not take one."""
        assert isinstance(problem, Heads)
        first, heads = problem.shared, problem.heads
        if problem.q_len < _LEAST or self.chosen == heads - first:
            return self._ran(Problem(**_facts(problem))).masked_fill(~problem.taken[..., None], 0.0)
        rows = Rows.of(problem.taken[:, first:])
        found = rows.put(self._ran(_of_rows(_picked(problem, first, heads), rows, first)), problem.q_len)
        if not first:
            return found
        shared = _picked(problem, 0, first)
        if isinstance(shared.mask, Pattern) and by_head(shared.mask):
            shared = _of_rows(shared, Rows.of(problem.taken[:, :first]), 0)
        return torch.cat([self._ran(shared), found], 1)

    def told(self, problem: Problem) -> Problem:
        """The call with rows that did not take a head masked: they see no key there, and their output is 0."""
        assert isinstance(problem, Heads)
        facts, taken, mask = _facts(problem), problem.taken[..., None], problem.mask
        if isinstance(mask, Pattern):
            # One block of all keys: a bit a row, however long the text is.
            block, start = max(problem.kv_len, 1), problem.q_offset or 0
            facts["mask"] = mask & Chosen.from_blocks(taken, block=block, kv_len=problem.kv_len, q_offset=start)
        else:
            facts["mask"] = taken if mask is None else mask & taken
        return Problem(**facts)

    def extra_repr(self) -> str:
        """Sizes for `print(model)`."""
        shown = f"{self.embed_dim}, {self.groups[0]}, shared={self.shared}, chosen={self.chosen}"
        shown += f", dropout={self.dropout:g}" if self.dropout else ""
        return shown + (f", backend={self.backend!r}" if self.backend != "auto" else "")

    @property
    def _part(self) -> GroupPart:
        return cast(GroupPart, self.parts[0])

    def _ran(self, problem: Problem) -> Tensor:
        return choose(problem, self.backend).run(problem)[0]

    def _taken(self, choice: Choice) -> Tensor:
        """Which heads each token takes, (batch, heads, q_len)."""
        routed = choice.flags[:, :, 0].transpose(1, 2)
        return torch.cat([routed.new_ones(routed.shape[0], self.shared, routed.shape[2]), routed], 1)

    def _heads(self, call: Call, taken: Tensor, positions: Tensor | None) -> Tensor:
        """(batch, heads, q_len, v_head_dim)."""
        assert call.key is not None
        assert call.value is not None
        part = self._part
        q = self.q_proj(call.query).unflatten(2, (self.heads, -1)).transpose(1, 2)
        k = self.k_proj(call.key).unflatten(2, (self.kv_heads, -1)).transpose(1, 2)
        v = self.v_proj(call.value).unflatten(2, (self.kv_heads, -1)).transpose(1, 2)
        q, k, v, first = placed(call, (0, part), (q, k, v), positions)
        where = Where(place=0, groups=self.groups, kv_len=k.shape[2], first=first)
        scoring = part.group.scoring
        options: Options = {
            "mask": call.mask_of(where),
            "scale": scoring.scale,
            "softcap": scoring.softcap,
            "normaliser": part.normaliser,
            "q_offset": call.offset(first),
        }
        return self._routed((q, k, v), options, taken)

    def _routed(self, qkv: tuple[Tensor, Tensor, Tensor], options: Options, taken: Tensor) -> Tensor:
        """What `attended` is for other modules."""
        dropout = self.dropout if self.training else 0.0
        _ = self.attend  # the compiler takes note of what it is, as in `attended`
        seen: Callable[..., Tensor] = self._looked_at
        if torch.compiler.is_compiling():
            if "attend" not in vars(self):
                heads = attention(*qkv, **options, dropout=dropout, backend=self.backend)
                return heads.masked_fill(~taken[..., None], 0.0)
            seen = cast(Callable[..., Tensor], torch.compiler.disable(self._looked_at))
        return seen(qkv, options, taken, dropout)

    def _looked_at(self, qkv: tuple[Tensor, Tensor, Tensor], options: Options, taken: Tensor, dropout: float) -> Tensor:
        problem = make_problem(*qkv, **options, dropout=dropout)
        return self.attend(Heads(**_facts(problem), taken=taken, shared=self.shared))


def _check_shared(heads: int, shared: int, chosen: int) -> None:
    """Refuses heads that leave none to choose from."""
    check_whole({"shared": shared})
    if shared >= heads:
        raise MultiheadError(
            asked="heads of which some are shared and the others chosen from",
            arrived=f"shared={shared} of heads={heads}",
            remedy=f"pass shared=0 to {heads - 1}; a layer of shared heads alone is MultiHeadAttention"
            if heads > 1
            else "pass shared=0",
        )
    check_chosen(heads - shared, chosen, of="heads that are not shared")


def _facts(problem: Problem) -> dict[str, Any]:
    """The fields of a problem of all heads and rows."""
    return {field.name: getattr(problem, field.name) for field in fields(Problem)}


def _picked(problem: Problem, first: int, stop: int) -> Problem:
    """The problem of some heads, from `first` to before `stop`; a pattern that differs by head stays that of all."""
    facts, group, heads = _facts(problem), problem.group, torch.arange(first, stop, device=problem.q.device)
    facts["q"] = problem.q[:, first:stop]
    # Keys are copied only where heads of one group are dealt apart.
    whole = first % group == 0 and stop % group == 0
    keys = slice(first // group, stop // group) if whole else heads // group
    facts["k"], facts["v"] = problem.k[:, keys], problem.v[:, keys]
    facts["normaliser"] = problem.normaliser.pick(heads)
    if isinstance(problem.mask, Tensor) and problem.mask.shape[1] > 1:
        facts["mask"] = problem.mask[:, first:stop]
    return Problem(**facts)


def _of_rows(problem: Problem, rows: Rows, first: int) -> Problem:
    """The problem of some rows of each head, where the heads from `first` on were picked."""
    facts, mask = _facts(problem), problem.mask
    facts["q"] = rows.take(problem.q)
    if isinstance(mask, Tensor) and mask.shape[2] > 1:
        mask = mask.expand(*rows.counts.shape, -1, -1)
        facts["mask"] = mask.gather(2, rows.places[..., None].expand(-1, -1, -1, mask.shape[3]))
    elif isinstance(mask, Pattern) and (mask.positional or by_head(mask)):
        heads = torch.arange(first, first + problem.heads)
        gathered = Gathered(mask, rows, problem.q_offset or 0, heads, problem.q_len)
        facts["mask"], facts["q_offset"] = gathered, 0
        if rows.places.numel() * problem.kv_len <= _STORED:
            facts["mask"] = gathered.mask(rows.places.shape[2], problem.kv_len, device=problem.q.device)
    return Problem(**facts)
