"""Patterns of what stands at a position: documents, padding, equal tokens, what followed an equal token."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int, Int8, Integer
from torch import Tensor

from multihead.error import MultiheadError
from multihead.pattern.algebra import Pattern
from multihead.pattern.check import is_whole, merged_batch, plain
from multihead.pattern.held import Held
from multihead.pattern.law import Facts, grade
from multihead.pattern.show import Spot


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Padding(Pattern):
    """Keys that are real tokens."""

    keep: Held

    def _facts(self) -> Facts:
        return Facts(batch=self.keep.batch, positional=False)

    def _contains(self, q: Int[Tensor, "_ 1 rows 1"], k: Int[Tensor, "_ 1 1 cols"]) -> Bool[Tensor, "_ _ _ _"]:
        return self.keep.look_up(k, side="key")

    def _classify(self, rows: Int[Tensor, " rows"], cols: Int[Tensor, " cols"]) -> Int8[Tensor, "_ _ _ _"]:
        self.keep.check(int(cols[0]), int(cols[-1]) - 1, side="key")
        keep = self.keep.rows()
        before = torch.nn.functional.pad(keep.cumsum(-1), (1, 0))
        count = before[:, cols].diff()
        return grade(count == 0, count == cols.diff())[:, None, None]

    def _held(self) -> tuple[Held, ...]:
        return (self.keep,)

    def _identity(self) -> object:
        return self.keep.digest

    def _text(self) -> str:
        return f"padding(#{self.keep.name})"

    def _detail(self, spot: Spot) -> str:
        return "" if self._has(spot) else f" (key {spot.key} is padding)"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Match(Pattern):
    """ids[query] == keys[key - step].

    Args:
        form: Name of the factory.
        ids: Values at query positions.
        keys: Values at key positions; the same object where both sides are one sequence.
        step: 0, or 1 for keys that follow a match.
        others: Whether a token does not match itself (only within one sequence).
    """

    form: str
    ids: Held
    keys: Held
    step: int
    others: bool

    def _facts(self) -> Facts:
        return Facts(batch=merged_batch([self.ids.batch, self.keys.batch]))

    def _contains(self, q: Int[Tensor, "_ 1 rows 1"], k: Int[Tensor, "_ 1 1 cols"]) -> Bool[Tensor, "_ _ _ _"]:
        self.keys.check_all(k, side="key")
        matched = k - self.step
        # Key 0 follows nothing: it looks at itself to stay inside the ids, and is then left out.
        values = self.keys.look_up(matched.clamp(min=0), side="key")
        inside = (self.ids.look_up(q, side="query") == values) & (matched >= 0)
        return inside & (matched != q) if self.others else inside

    def _classify(self, rows: Int[Tensor, " rows"], cols: Int[Tensor, " cols"]) -> Int8[Tensor, "_ _ _ _"]:
        self.keys.check(int(cols[0]), int(cols[-1]) - 1, side="key")
        matched = (cols - self.step).clamp(min=0)
        q_low, q_high = (bound[:, None, :, None] for bound in _spread(self.ids, rows, side="query"))
        k_low, k_high = (bound[:, None, None, :] for bound in _spread(self.keys, matched, side="key"))
        none = (q_high < k_low) | (k_high < q_low)
        every = (q_low == q_high) & (k_low == k_high) & (q_low == k_low) & (cols[:-1] >= self.step)
        if self.others:
            every = every & ((rows[1:, None] <= matched[:-1]) | (matched[1:] <= rows[:-1, None]))
        return grade(none, every)

    def _held(self) -> tuple[Held, ...]:
        return (self.ids,) if self.keys is self.ids else (self.ids, self.keys)

    def _identity(self) -> object:
        return (self.form, *(held.digest for held in self._held()))

    def _text(self) -> str:
        return f"{self.form}({', '.join(f'#{held.name}' for held in self._held())})"

    def _detail(self, spot: Spot) -> str:
        matched = spot.key - self.step
        if matched < 0:
            return " (nothing precedes key 0)"
        if self.others and matched == spot.query:
            return f" (token {matched} is the query itself)"
        left, right = _value(self.ids, spot.query, spot.batch), _value(self.keys, matched, spot.batch)
        return f" (id {left} at query {spot.query}, id {right} at key {matched})"


def document(
    ids: Integer[Tensor, "*batch length"], *, keys: Integer[Tensor, "*rows length_k"] | None = None
) -> Pattern:
    """Queries see the keys of their own document: ids[query] == ids[key].

    Several texts packed into one row do not see each other. Ids are looked up at absolute positions, so a sequence that
    grows in a cache needs the ids of all of it.

    Args:
        ids: Document of each position, (length,) for every batch row or (batch, length). Copied.
        keys: Documents of the key positions, for cross attention between two sequences; None = `ids`.

    Raises:
        MultiheadError: The ids are no integers of that shape. When the pattern is used: a position outside the ids.

    Example:
        >>> document(torch.tensor([0, 0, 1])).mask(3, 3).int().tolist()
        [[[[1, 1, 0], [1, 1, 0], [0, 0, 1]]]]
    """
    return _match("document", ids, keys, step=0, others=False)


def padding(keep: Bool[Tensor, "*batch length"]) -> Pattern:
    """Keys that are real tokens: keep[key]. It asks nothing of the query.

    Args:
        keep: True = real token, (batch, length), or (length,) for every batch row. Copied. The `attention_mask` of a
            tokenizer is `padding(attention_mask.bool())`.

    Raises:
        MultiheadError: `keep` is not boolean or has another shape. When the pattern is used: a key outside of it.

    Example:
        >>> padding(torch.tensor([[True, True, False]])).mask(2, 3).int().tolist()
        [[[[1, 1, 0], [1, 1, 0]]]]
    """
    asked = "padding(keep): a boolean tensor (batch, length) or (length,), True = real token"
    remedy = "pass attention_mask.bool(), of the tokens and not of pairs of them"
    keep = plain(keep, asked=asked, remedy=remedy)
    if keep.dtype is not torch.bool or keep.ndim not in (1, 2):
        raise MultiheadError(asked=asked, arrived=f"{keep.dtype} of shape {tuple(keep.shape)}", remedy=remedy)
    return Padding(Held(keep, what="padding(keep)"))


def same_token(
    ids: Integer[Tensor, "*batch length"], *, keys: Integer[Tensor, "*rows length_k"] | None = None
) -> Pattern:
    """Other copies of the query's token, before it and after it: ids[query] == ids[key] and query != key.

    What a duplicate-token head looks at (Wang et al. 2022, arXiv 2211.00593).

    Args:
        ids: Token ids, (length,) for every batch row or (batch, length). Copied.
        keys: Token ids at the key positions of another sequence; then no key is the query itself: all count.

    Raises:
        MultiheadError: The ids are no integers of that shape. When the pattern is used: a position outside the ids.

    Example:
        >>> same_token(torch.tensor([7, 8, 7])).mask(3, 3).int().tolist()
        [[[[0, 0, 1], [0, 0, 0], [1, 0, 0]]]]
    """
    return _match("same_token", ids, keys, step=0, others=keys is None)


def after_same_token(
    ids: Integer[Tensor, "*batch length"], *, keys: Integer[Tensor, "*rows length_k"] | None = None
) -> Pattern:
    """What followed other copies of the query's token: key >= 1, ids[key - 1] == ids[query] and key - 1 != query.

    What an induction head looks at (Olsson et al. 2022, arXiv 2209.11895). All copies count, earlier ones and, where
    the head can see them, later ones.

    Args:
        ids: Token ids, (length,) for every batch row or (batch, length). Copied.
        keys: Token ids at the key positions of another sequence; then no copy is the query itself: all count.

    Raises:
        MultiheadError: The ids are no integers of that shape. When the pattern is used: a position outside the ids.

    Example:
        >>> after_same_token(torch.tensor([7, 8, 7])).mask(3, 3).int().tolist()
        [[[[0, 0, 0], [0, 0, 0], [0, 1, 0]]]]
    """
    return _match("after_same_token", ids, keys, step=1, others=keys is None)


def _match(form: str, ids: Tensor, keys: Tensor | None, *, step: int, others: bool) -> Pattern:
    held = _ids(form, ids, name="ids")
    other = held if keys is None else _ids(form, keys, name="keys")
    merged_batch([held.batch, other.batch])
    return Match(form, held, other, step, others)


def _ids(form: str, ids: Tensor, *, name: str) -> Held:
    asked, remedy = (
        f"{form}({name}): an integer tensor (batch, length) or (length,)",
        "pass one integer for every position",
    )
    ids = plain(ids, asked=asked, remedy=f"{remedy}, as a tensor: torch.tensor([0, 0, 1])")
    if not is_whole(ids) or ids.ndim not in (1, 2):
        raise MultiheadError(asked=asked, arrived=f"{ids.dtype} of shape {tuple(ids.shape)}", remedy=remedy)
    return Held(ids, what=f"{form}({name})")


def _spread(held: Held, edges: Int[Tensor, " edges"], *, side: str) -> tuple[Tensor, Tensor]:
    """Least and greatest value between edges, each (batch | 1, tiles); an empty tile has least > greatest."""
    held.check(int(edges[0]), int(edges[-1]) - 1, side=side)
    values = held.rows()[:, int(edges[0]) : int(edges[-1])]
    place = torch.bucketize(torch.arange(int(edges[0]), int(edges[-1])), edges, right=True) - 1
    places, shape = place.expand_as(values), (values.shape[0], edges.numel() - 1)
    limits = torch.iinfo(torch.int64)
    least = torch.full(shape, limits.max).scatter_reduce(1, places, values, "amin")
    return least, torch.full(shape, limits.min).scatter_reduce(1, places, values, "amax")


def _value(held: Held, pos: int, batch: int) -> int:
    found = held.look_up(torch.tensor(pos).view(1, 1, 1, 1), side="").flatten()
    return int(found[min(batch, found.numel() - 1)])
