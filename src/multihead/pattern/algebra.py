"""The pattern and its algebra: `&`, `|`, `~`, and the shift of queries."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from jaxtyping import Bool, Int, Int8
from torch import Tensor

from multihead.error import MultiheadError
from multihead.pattern.check import merged_batch, merged_heads, whole
from multihead.pattern.held import HeldRule, Kept, PairRule
from multihead.pattern.law import Bounds, Facts, Tile, beyond, farthest, nearest, shifted_bounds, together
from multihead.pattern.show import Shown, Spot

# How tightly a form binds in text: an operand that binds less is put in parentheses.
OR, AND, NOT, ATOM = range(4)


class Pattern(Shown):
    """An immutable set of (query position, key position) pairs, which may differ by batch row and by head.

    Patterns are joined with `&` (in both), `|` (in either) and `~` (not in it). Two patterns are equal, and hash
    alike, when they are written alike up to the order of `&` and `|`; equal patterns are the same set, but the same set
    can be written in ways that do not compare equal. `str(p)` is the text form, which `parse_pattern` reads back.

    Example:
        >>> from multihead.pattern import causal, global_tokens, sliding_window
        >>> p = causal() & (sliding_window(4) | global_tokens([0]))
        >>> print(p)
        causal & (sliding_window(4) | global_tokens([0]))
        >>> p.why(9, 2)
        'query 9 -> key 2: outside sliding_window(4) and outside global_tokens([0])'
    """

    __slots__ = ()
    _binds = ATOM

    def _identity(self) -> object:
        """What equality and hash are made of."""
        return self._text()

    def _held(self) -> tuple[Kept, ...]:
        """The tensors and functions inside."""
        return ()

    def _offsets(self) -> frozenset[tuple[int, int]]:
        """Shifts of queries and keys of the parts that depend on the query position, or are shifted."""
        return frozenset({(0, 0)}) if self.positional else frozenset()

    def _shifted(self, q_offset: int, k_offset: int) -> "Pattern":
        """`at` for offsets that are checked, 0 for queries that do not matter."""
        if self.period is not None:
            # Both positions can be moved back by whole periods: one form for what is the same set.
            whole_periods = k_offset - k_offset % self.period
            q_offset, k_offset = q_offset - whole_periods if self.positional else 0, k_offset - whole_periods
        return Shifted(self, q_offset, k_offset) if q_offset or k_offset else self

    def _operand(self, binds: int) -> str:
        """The text form as an operand of something that binds as tightly as this."""
        return self._text() if self._binds > binds else f"({self._text()})"

    def _joined(self, rule: "Rule", other: "Pattern") -> "Pattern":
        """Join two patterns, simplified where neither the set nor what it states of itself changes."""
        if not isinstance(other, Pattern):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise MultiheadError(
                asked=f"a pattern on both sides of {rule.sign}",
                arrived=f"{self} {rule.sign} {type(other).__name__}",
                remedy="make a tensor of real tokens padding(keep), a tensor of ids document(ids)",
            )
        sides = [side.parts if isinstance(side, rule.kind) else (side,) for side in (self, other)]
        parts: list[Pattern] = []
        for part in (part for side in sides for part in side):
            if part != rule.neutral and part not in parts:
                parts.append(part)
        # Sizes first, so that the error comes from the line that mixes them.
        merged_batch([part.batch for part in parts])
        merged_heads([part.heads for part in parts])
        if len(parts) < 2:
            return parts[0] if parts else rule.neutral
        # Called by its name, as torch.compile does not follow the sign.
        if rule.absorbing in parts or any(part.__invert__() in parts for part in parts):
            # The set is constant, but a part that states a batch, heads or a length stays: its checks must not vanish.
            kept = [part for part in parts if part != rule.absorbing and not part._free()]
            return rule.kind((rule.absorbing, *kept)) if kept else rule.absorbing
        return rule.kind(tuple(parts))

    def _free(self) -> bool:
        """Whether it states no batch, no heads and no length."""
        return self.batch is None and self.heads is None and not self._held()

    @property
    def functions(self) -> tuple[str, ...]:
        """Names of the functions in it (`from_callable`), of which nothing is known before they are asked."""
        return tuple(held.name for held in self._held() if isinstance(held, HeldRule))

    @property
    def data(self) -> dict[str, Tensor | PairRule]:
        """Copies of the tensors held, by the hash that stands for them in the text form, and functions by their name.

        Raises:
            MultiheadError: Two functions have the same name.

        Example:
            >>> import torch
            >>> from multihead.pattern import document, parse_pattern
            >>> p = document(torch.tensor([0, 0, 1]))
            >>> parse_pattern(str(p), data=p.data) == p
            True
        """
        found: dict[str, Tensor | PairRule] = {}
        for held in self._held():
            given = held.copy()
            if callable(given) and found.get(held.name, given) is not given:
                raise MultiheadError(
                    asked="the data of a pattern, each function under a name of its own",
                    arrived=f"two functions called #{held.name}",
                    remedy="tell them apart: from_callable(rule, name=...)",
                )
            found[held.name] = given
        return found

    def at(self, *, q_offset: int = 0, k_offset: int = 0) -> "Pattern":
        """The pattern with positions shifted: `p.at(q_offset=s, k_offset=t).allows(q, k)` is `p.allows(q + s, k + t)`.

        A cache that hands over the keys from position `first` on as keys 0, 1, ... attends within `p.at(q_offset=first,
        k_offset=first)`, its queries counted from there too. A pattern that a shift does not change returns itself: one
        without query positions (padding, listed keys) for queries; one of the distance alone (causal, windows,
        `dilated`) for both shifted alike, and shifting its keys is shifting its queries the other way; chunks for whole
        chunks.

        Args:
            q_offset: What is added to every query position; may be negative.
            k_offset: What is added to every key position; may be negative.

        Raises:
            MultiheadError: An offset is no whole number, or beyond 2**40.

        Example:
            >>> from multihead.pattern import causal, prefix
            >>> print(causal().at(q_offset=2).at(q_offset=3))
            causal.at(5)
            >>> print((causal() & prefix(9)).at(q_offset=4, k_offset=4))
            causal & prefix(9).at(4, 4)
        """
        q = whole(q_offset, asked="q_offset: what is added to query positions")
        k = whole(k_offset, asked="k_offset: what is added to key positions")
        q = q if self.positional else 0
        return self._shifted(q, k) if q or k else self

    def __and__(self, other: "Pattern") -> "Pattern":
        return self._joined(_AND, other)

    def __or__(self, other: "Pattern") -> "Pattern":
        return self._joined(_OR, other)

    def __invert__(self) -> "Pattern":
        return Not(self)

    def __eq__(self, other: object) -> bool:
        # Types first: the content hash of a tensor is made only where two patterns could really be equal.
        return isinstance(other, Pattern) and type(self) is type(other) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash((type(self), self._identity()))

    def __bool__(self) -> bool:
        raise MultiheadError(
            asked="the truth value of a pattern",
            arrived=f"`and`, `or`, `not` or `if` on {self}",
            remedy="join patterns with &, | and ~; to test whether there is one, write `is not None`",
        )

    def __str__(self) -> str:
        shifts = self._offsets()
        if self._binds not in (AND, OR) or len(shifts) != 1:
            return self._text()
        ((queries, keys),) = shifts
        if keys or not queries:
            return self._text()
        return f"({self._shifted(-queries, 0)._text()}).at({queries})"

    def __repr__(self) -> str:
        return f"<pattern {self}>"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Constant(Pattern):
    """Every pair, or no pair."""

    tile_class: Tile

    def _facts(self) -> Facts:
        if self.tile_class is Tile.FULL:
            return Facts(positional=False, window=(None, None), period=1)
        return Facts(positional=False, reach=(0, 0), period=1)

    def _contains(self, q: Int[Tensor, "_ 1 rows 1"], k: Int[Tensor, "_ 1 1 cols"]) -> Bool[Tensor, "_ _ _ _"]:
        return torch.full((1, 1, 1, 1), self.tile_class is Tile.FULL, device=q.device)

    def _classify(self, rows: Int[Tensor, " rows"], cols: Int[Tensor, " cols"]) -> Int8[Tensor, "_ _ _ _"]:
        return torch.full((1, 1, 1, 1), int(self.tile_class), dtype=torch.int8)

    def _text(self) -> str:
        return "everything" if self.tile_class is Tile.FULL else "nothing"

    def __invert__(self) -> Pattern:
        return NOTHING if self.tile_class is Tile.FULL else EVERYTHING


EVERYTHING, NOTHING = Constant(Tile.FULL), Constant(Tile.SKIP)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Shifted(Pattern):
    """One pattern that is no `&`, `|` or `~`, with its positions shifted; `at` pushes shifts down to here."""

    part: Pattern
    queries: int
    keys: int

    def _facts(self) -> Facts:
        facts, offset = self.part._facts(), self.queries - self.keys
        window = None if facts.window is None else shifted_bounds(facts.window, offset)
        return facts._replace(reach=shifted_bounds(facts.reach, offset), window=window)

    def _contains(self, q: Int[Tensor, "_ 1 rows 1"], k: Int[Tensor, "_ 1 1 cols"]) -> Bool[Tensor, "_ _ _ _"]:
        return self.part._contains(q + self.queries, k + self.keys)

    def _classify(self, rows: Int[Tensor, " rows"], cols: Int[Tensor, " cols"]) -> Int8[Tensor, "_ _ _ _"]:
        return self.part._classify(rows + self.queries, cols + self.keys)

    def _text(self) -> str:
        return f"{self.part._text()}.at({self.queries}{f', {self.keys}' if self.keys else ''})"

    def _identity(self) -> object:
        return (self.part, self.queries, self.keys)

    def _held(self) -> tuple[Kept, ...]:
        return self.part._held()

    def _offsets(self) -> frozenset[tuple[int, int]]:
        return frozenset({(self.queries, self.keys)})

    def _shifted(self, q_offset: int, k_offset: int) -> Pattern:
        return self.part.at(q_offset=self.queries + q_offset, k_offset=self.keys + k_offset)

    def _detail(self, spot: Spot) -> str:
        moved = Spot(query=spot.query + self.queries, key=spot.key + self.keys, batch=spot.batch, head=spot.head)
        return self.part._detail(moved)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Not(Pattern):
    """The pairs that are not in the part."""

    part: Pattern
    _binds = NOT

    def _facts(self) -> Facts:
        facts = self.part._facts()
        window = beyond(facts.window)
        return facts._replace(reach=window or (None, None), window=window)

    def _contains(self, q: Int[Tensor, "_ 1 rows 1"], k: Int[Tensor, "_ 1 1 cols"]) -> Bool[Tensor, "_ _ _ _"]:
        return ~self.part._contains(q, k)

    def _classify(self, rows: Int[Tensor, " rows"], cols: Int[Tensor, " cols"]) -> Int8[Tensor, "_ _ _ _"]:
        return 2 - self.part._classify(rows, cols)

    def _text(self) -> str:
        return f"~{self.part._operand(NOT)}"

    def _identity(self) -> object:
        return self.part

    def _held(self) -> tuple[Kept, ...]:
        return self.part._held()

    def _offsets(self) -> frozenset[tuple[int, int]]:
        return self.part._offsets()

    def _shifted(self, q_offset: int, k_offset: int) -> Pattern:
        return ~self.part.at(q_offset=q_offset, k_offset=k_offset)

    def _words(self, spot: Spot) -> str:
        inner = self.part._detail(spot) if self.part._binds == ATOM else f" ({self.part._words(spot)})"
        return f"{self._side(spot)} {self._text()}{inner}"

    def __invert__(self) -> Pattern:
        return self.part


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Join(Pattern):
    """Patterns joined by one operator; two or more, none of them joined by the same operator."""

    parts: tuple[Pattern, ...]

    def _facts(self) -> Facts:
        facts = [part._facts() for part in self.parts]
        return Facts(
            batch=merged_batch([fact.batch for fact in facts]),
            heads=merged_heads([fact.heads for fact in facts]),
            positional=any(fact.positional for fact in facts),
            reach=self._bounds([fact.reach for fact in facts]),
            window=self._window([fact.window for fact in facts]),
            period=together([fact.period for fact in facts]),
        )

    def _bounds(self, bounds: Sequence[Bounds]) -> Bounds:
        bound = self._rule.bound
        return (bound([left for left, _ in bounds]), bound([right for _, right in bounds]))

    def _window(self, windows: Sequence[Bounds | None]) -> Bounds | None:
        # Windows overlap in a window; what two windows cover together is one only sometimes, and not looked into.
        known = [window for window in windows if window is not None]
        return self._bounds(known) if self._binds == AND and len(known) == len(windows) else None

    @property
    @abstractmethod
    def _rule(self) -> "Rule":
        """The operator."""

    def _contains(self, q: Int[Tensor, "_ 1 rows 1"], k: Int[Tensor, "_ 1 1 cols"]) -> Bool[Tensor, "_ _ _ _"]:
        return reduce(self._rule.fold, [part._contains(q, k) for part in self.parts])

    def _classify(self, rows: Int[Tensor, " rows"], cols: Int[Tensor, " cols"]) -> Int8[Tensor, "_ _ _ _"]:
        return reduce(self._rule.fold, [part._classify(rows, cols) for part in self.parts])

    def _text(self) -> str:
        return f" {self._rule.sign} ".join(part._operand(self._binds) for part in self.parts)

    def _identity(self) -> object:
        return frozenset(self.parts)

    def _held(self) -> tuple[Kept, ...]:
        return tuple(held for part in self.parts for held in part._held())

    def _offsets(self) -> frozenset[tuple[int, int]]:
        return frozenset[tuple[int, int]]().union(*(part._offsets() for part in self.parts))

    def _shifted(self, q_offset: int, k_offset: int) -> Pattern:
        return type(self)(tuple(part.at(q_offset=q_offset, k_offset=k_offset) for part in self.parts))

    def _words(self, spot: Spot) -> str:
        # One part outside decides `&`, one inside decides `|`; otherwise all of them together do.
        deciding = [part for part in self.parts if part._has(spot) is self._rule.decides]
        return " and ".join(part._words(spot) for part in deciding or self.parts)


class And(Join):
    """The pairs that are in every part."""

    __slots__ = ()
    _binds = AND

    @property
    def _rule(self) -> "Rule":
        return _AND


class Or(Join):
    """The pairs that are in a part or more."""

    __slots__ = ()
    _binds = OR

    @property
    def _rule(self) -> "Rule":
        return _OR


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """How one operator joins patterns.

    Args:
        sign: Its sign in text.
        kind: The class of the joined pattern.
        fold: Joins truth values, and tile classes, of two parts.
        bound: Joins the bounds of all parts on one side.
        neutral: The constant that changes nothing.
        absorbing: The constant that decides alone.
        decides: The truth value of one part that decides alone.
    """

    sign: str
    kind: type[Join]
    fold: Callable[[Tensor, Tensor], Tensor]
    bound: Callable[[Sequence[int | None]], int | None]
    neutral: Pattern
    absorbing: Pattern
    decides: bool


_AND = Rule(sign="&", kind=And, fold=torch.minimum, bound=nearest, neutral=EVERYTHING, absorbing=NOTHING, decides=False)
_OR = Rule(sign="|", kind=Or, fold=torch.maximum, bound=farthest, neutral=NOTHING, absorbing=EVERYTHING, decides=True)
