"""Attention of tokens to those that lie near them once all are sorted by bucket: tiles, and several rounds of them."""

from dataclasses import dataclass, replace
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import dropout, pad
from torch.utils.checkpoint import checkpoint

from multihead.attend.merge import Merged, merge

_TARGET = 2**22  # scores of a block, over all batch rows and heads
_NONE = -2  # the code of no token: equal to no tile, nor to the -1 of "looks back to none"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tiles:
    """Where each token lies in each round.

    A query sees the tokens of its own tile, and those of the tile it looks back to. Tiles are numbered through all
    rounds.

    Args:
        slots: (batch, heads, rounds, tiles, chunk): the token in each slot, `length` where there is none.
        before: Likewise: the tokens of the tile that those of a tile look back to.
        places: (batch, heads, rounds, length): the slot of each token in its round.
        own: (batch, heads, rounds, length): the tile of each token.
        back: Likewise: the tile it looks back to, -1 for none.
        wraps: Whether the first tile of a round looks back to the last of the round before.
    """

    slots: Int[Tensor, "batch heads rounds tiles chunk"]
    before: Int[Tensor, "batch heads rounds tiles chunk"]
    places: Int[Tensor, "batch heads rounds length"]
    own: Int[Tensor, "batch heads rounds length"]
    back: Int[Tensor, "batch heads rounds length"]
    wraps: bool

    @classmethod
    def lay(cls, keys: Int[Tensor, "batch heads rounds length"], chunk: int, *, wraps: bool) -> "Tiles":
        """Tokens sorted by key, then by position, and cut into tiles of `chunk`.

        Args:
            keys: The bucket of each token in each round.
            chunk: Tokens in a tile.
            wraps: Tiles are cut through all buckets, and the first looks back to the last of the round before, as the
                Reformer has it. Otherwise each bucket begins a tile of its own, and tiles look back within it.
        """
        rounds, length = keys.shape[2:]
        found, order = keys.sort(dim=-1, stable=True)
        rank = torch.arange(length, device=keys.device)
        within = rank.expand_as(found) if wraps else rank - _start(found, rank)
        tile = (within % chunk == 0).cumsum(-1) - 1
        tiles = int(tile.max()) + 1
        slot = tile * chunk + within % chunk
        slots = keys.new_full((*keys.shape[:3], tiles * chunk), length).scatter_(-1, slot, order)
        own = tile + tiles * torch.arange(rounds, device=keys.device)[:, None]
        back = (own - 1) % (rounds * tiles) if wraps else torch.where(within >= chunk, own - 1, -1)
        if rounds * tiles == 1:
            back = torch.full_like(back, -1)
        slots = slots.unflatten(-1, (tiles, chunk))
        before = slots.flatten(2, 3).roll(1, 2).view_as(slots)
        looks = back.new_full((*keys.shape[:3], tiles), -1).scatter_(-1, tile, back) >= 0
        return cls(
            slots=slots,
            before=before.where(looks[..., None], length),
            places=torch.empty_like(order).scatter_(-1, order, slot),
            own=_unsorted(own, order).to(torch.int32),
            back=_unsorted(back, order).to(torch.int32),
            wraps=wraps,
        )

    def without(self, real: Tensor) -> "Tiles":
        """The same where some tokens, False in (batch | 1, length), are neither queries nor keys."""
        batch, length = self.own.shape[0], self.own.shape[3]
        kept = pad(real.expand(batch, -1), (0, 1))

        def left(slots: Tensor) -> Tensor:
            stays = kept.gather(1, slots.flatten(1)).view_as(slots)
            return slots.where(stays, length)

        return Tiles(
            slots=left(self.slots),
            before=left(self.before),
            places=self.places,
            own=self.own,
            back=self.back,
            wraps=self.wraps,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rules:
    """What holds besides the tiles.

    Args:
        causal: Whether keys come before their query.
        dedupe: Whether a key that is met in several rounds counts once.
        ids: (batch | 1, length): tokens with different ones do not see each other; None where tiles are of one id.
        dropout: Share of the weights dropped.
    """

    causal: bool
    dedupe: bool
    ids: Tensor | None = None
    dropout: float = 0.0


def tile_attention(
    q: Float[Tensor, "batch heads length head_dim"],
    k: Float[Tensor, "batch heads length head_dim"],
    v: Float[Tensor, "batch heads length v_head_dim"],
    tiles: Tiles,
    rules: Rules,
) -> Merged:
    """Softmax over the tokens that a query meets in all rounds, itself left out.

    Args:
        q: Queries, scaled.
        k: Keys.
        v: Values.
        tiles: Who meets whom.
        rules: What holds besides.

    Returns:
        Output and log-sum-exp (batch, heads, length); 0 and -inf where a token meets no other.
    """
    count, chunk = tiles.slots.shape[3:]
    # Slots without a token look up a row of zeros behind the others; made once, as blocks are as many as tokens.
    q, k, v = (pad(x, (0, 0, 0, 1)) for x in (q, k, v))
    codes = tuple(pad(x, (0, 1), value=_NONE) for x in (tiles.own, tiles.back))
    ids = None if rules.ids is None else pad(rules.ids.expand(q.shape[0], -1), (0, 1))
    rules = replace(rules, ids=ids)
    height = max(_TARGET // (2 * q.shape[0] * q.shape[1] * chunk * chunk), 1)
    again = torch.is_grad_enabled() and (count > height or tiles.slots.shape[2] > 1)
    rounds: list[Merged] = []
    for place in range(tiles.slots.shape[2]):
        blocks: list[tuple[Tensor, Tensor]] = []
        for first in range(0, count, height):
            given = (q, k, v, tiles, codes, rules, (place, slice(first, first + height)))
            # What a block remembers for its gradient is as large as its scores, several times: it is computed again.
            made = checkpoint(_block, *given, use_reentrant=False) if again else _block(*given)
            blocks.append(cast(tuple[Tensor, Tensor], made))
        out, lse = (torch.cat(parts, 2).flatten(2, 3) for parts in zip(*blocks, strict=True))
        here = tiles.places[:, :, place]
        rounds.append(Merged(out=_taken(out, here), lse=lse.gather(2, here)))
    return merge(rounds)


def multiplicity(
    own: Int[Tensor, "batch heads rounds kv_len"],
    rows: tuple[Int[Tensor, "batch heads rounds q_len"], Int[Tensor, "batch heads rounds q_len"]],
    *,
    wraps: bool = False,
) -> Int[Tensor, "batch heads q_len kv_len"]:
    """How often queries meet keys, over all rounds: O(q_len * kv_len), for few queries or to look at.

    Args:
        own: Tiles of the keys.
        rows: Tiles of the queries, and those they look back to.
        wraps: As in `Tiles`.
    """
    mine, back = rows
    total = torch.zeros(*mine.shape[:2], mine.shape[3], own.shape[3], dtype=torch.int32, device=own.device)
    for place in range(own.shape[2]):
        keys, queries, behind = (x[:, :, place] for x in (own, mine, back))
        total += keys[:, :, None] == queries[..., None]
        total += keys[:, :, None] == behind[..., None]
        if wraps and own.shape[2] > 1:
            total += own[:, :, place - 1, None] == behind[..., None]
    return total


def _block(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tiles: Tiles,
    codes: tuple[Tensor, ...],
    rules: Rules,
    where: tuple[int, slice],
) -> tuple[Tensor, Tensor]:
    """Output (batch, heads, tiles, chunk, v_head_dim) and log-sum-exp of some tiles of a round."""
    place, some = where
    rows = tiles.slots[:, :, place, some]
    keys = torch.cat([tiles.before[:, :, place, some], rows], -1)
    allowed = _allowed(rows, keys, rules, q.shape[2] - 1)
    if rules.dedupe:
        _met_before(allowed, (rows, keys), codes, place, wraps=tiles.wraps)
    scores = (_taken(q, rows) @ _taken(k, keys).mT).where(allowed, -torch.inf)
    peak = scores.detach().amax(-1, keepdim=True)
    peak = peak.where(~peak.isneginf(), 0.0)
    weights = torch.exp(scores - peak)
    total = weights.sum(-1, keepdim=True)
    empty = total == 0
    safe = total.where(~empty, 1.0)
    if rules.dropout:
        weights = dropout(weights, rules.dropout)
    lse = (peak + safe.log()).where(~empty, -torch.inf)
    return weights @ _taken(v, keys) / safe, lse[..., 0]


def _allowed(rows: Tensor, keys: Tensor, rules: Rules, length: int) -> Tensor:
    """Which keys (batch, heads, tiles, 2 chunk) the queries of their tiles see, (batch, heads, tiles, chunk, 2 chunk).

    Slots without a token are numbered `length`, which comes after every token.
    """
    i, j = rows[..., None].to(torch.int32), keys[..., None, :].to(torch.int32)
    allowed = j < i if rules.causal else (j != i) & (j < length)
    if rules.ids is not None:
        allowed &= _looked_up(rules.ids, rows)[..., None] == _looked_up(rules.ids, keys)[..., None, :]
    return allowed


def _met_before(
    allowed: Tensor, where: tuple[Tensor, Tensor], codes: tuple[Tensor, ...], place: int, *, wraps: bool
) -> None:
    """Takes out, in place, what is met in an earlier round, or in both tiles that a query sees of this one.

    Each pair is left once: the same as log(how often it is met) subtracted from its scores, at less cost.
    """
    (rows, keys), (own, back) = where, codes
    for earlier in range(place):
        theirs = _looked_up(own[:, :, earlier], keys)[..., None, :]
        mine, behind = (_looked_up(x[:, :, earlier], rows)[..., None] for x in (own, back))
        allowed &= theirs != mine
        allowed &= theirs != behind
        if wraps:
            allowed &= _looked_up(own[:, :, earlier - 1], keys)[..., None, :] != behind
    if wraps:
        chunk = rows.shape[-1]
        theirs = _looked_up(own[:, :, place], keys[..., :chunk])[..., None, :]
        allowed[..., :chunk] &= theirs != _looked_up(own[:, :, place], rows)[..., None]


def _taken(x: Tensor, index: Tensor) -> Tensor:
    """Rows of (batch, heads, length, width), by index (batch, heads, ...) into the lengths."""
    batch, heads, length, width = x.shape
    first = length * torch.arange(batch * heads, device=x.device).view(batch, heads, *[1] * (index.ndim - 2))
    flat = (index + first).flatten()
    return x.reshape(-1, width).index_select(0, flat).view(*index.shape, width)


def _looked_up(values: Tensor, index: Tensor) -> Tensor:
    """Values (batch, length) or (batch, heads, length) by index (batch, heads, tiles, slots)."""
    if values.ndim == 2:
        return values.gather(1, index.flatten(1)).view_as(index)
    return values.gather(2, index.flatten(2)).view_as(index)


def _start(found: Tensor, rank: Tensor) -> Tensor:
    """The rank at which the run of equal keys begins that each sorted key is in."""
    opens = pad(found[..., 1:] != found[..., :-1], (1, 0), value=True)
    return torch.where(opens, rank, 0).cummax(-1).values


def _unsorted(x: Tensor, order: Tensor) -> Tensor:
    return torch.empty_like(order).scatter_(-1, order, x.expand_as(order))
