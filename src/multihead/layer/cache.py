"""Keys and values of earlier tokens: growing, of a fixed length, sliding, as bytes, or of another sequence."""

from collections.abc import Sequence
from dataclasses import dataclass
from weakref import ReferenceType, ref

import torch
from torch import Tensor

from multihead.error import MultiheadError, check_kinds
from multihead.layer.check import check_count, check_whole, listed_rows
from multihead.layer.group import HeadGroup
from multihead.layer.rows import Bytes, Plain, Rows
from multihead.layer.scan_cache import State, StateGroup
from multihead.pattern.check import whole


@dataclass(frozen=True, slots=True)
class Full:
    """Keeps every token; memory is doubled when it is full."""

    def rows(self) -> Rows:
        """Empty rows."""
        return Rows()


@dataclass(frozen=True, slots=True)
class Static:
    """Keeps every token in memory that is taken at once; more than `length` are refused.

    Args:
        length: How many tokens there may be.
    """

    length: int

    def __post_init__(self) -> None:
        check_count("length", self.length, example=4096)

    def rows(self) -> Rows:
        """Empty rows."""
        return Rows(limit=self.length)


@dataclass(frozen=True, slots=True)
class Sliding:
    """Keeps the last tokens, as many as a window needs: the memory does not grow.

    Args:
        window: Keys a query sees, itself included; the pattern must not look further back.
        spare: Tokens kept besides, so that the cache can be cut back by as many.
    """

    window: int
    spare: int = 0

    def __post_init__(self) -> None:
        check_count("window", self.window, example=512)
        check_whole({"spare": self.spare})

    def rows(self) -> Rows:
        """Empty rows."""
        return Rows(window=self.window, spare=self.spare)


@dataclass(frozen=True, slots=True)
class Int8:
    """Keeps keys and values as bytes: a row of a head is whole numbers from -127 to 127 times one factor.

    With `s = max|x| / 127` over the row, `|x - kept(x)| <= s / 2`. A score is then off by at most `scale * |q|_1
    * s_k / 2`, and an output, beside what changed scores do, by the largest `s_v / 2` among its values. A quarter of
    the memory of float32, and 4 bytes a token and head. No gradients flow through it.

    Args:
        kind: Which tokens are kept.
    """

    kind: Full | Static | Sliding = Full()

    def __post_init__(self) -> None:
        check_kinds({"kind": self.kind}, (Full, Static, Sliding), "Full(), Static(length) or Sliding(window)")

    def rows(self) -> Rows:
        """Empty rows."""
        return self.kind.rows()


Kind = Full | Static | Sliding | Int8

_KINDS = "Full(), Static(length), Sliding(window), or Int8(...) around one of them"


class GroupCache:
    """Keys and values of one group of heads.

    Args:
        kind: Which tokens are kept, and how.
    """

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.rows = kind.rows()
        # What a selector found out about the keys so far; gone where some of them are.
        self.kept: object = None
        self._coding = Bytes() if isinstance(kind, Int8) else Plain()

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, int]:
        """Add tokens; all that they may look at, these included, and the position of the first of it."""
        coded = self._coding.encode(k)
        parts = self.rows.append((*coded, *self._coding.encode(v)))
        return *self._decoded(parts, k.dtype), self.rows.first

    def held(self, dtype: torch.dtype) -> tuple[Tensor, Tensor, int]:
        """All that is kept, as `append` has it."""
        return *self._decoded(self.rows.parts, dtype), self.rows.first

    def _decoded(self, parts: Sequence[Tensor], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        half = len(parts) // 2
        return self._coding.decode(parts[:half], dtype), self._coding.decode(parts[half:], dtype)


class AttentionCache:
    """What a module keeps of earlier tokens: `attn.cache(batch=...)` and `attn.remember(memory)` build it.

    Keys lie in it as they are multiplied: normalised and turned to their absolute positions. Tokens are counted from 0,
    also where a sliding cache has let go of the first ones.

    Args:
        groups: The module's groups, settled.
        batch: Number of sequences.
        kinds: One for each group.
        fixed: Whether it holds another sequence, to which nothing is added (cross-attention).

    Attributes:
        groups: One `GroupCache` for each group of heads, a `StateGroup` for linear ones.
        batch: Number of sequences.
        fixed: As above.
    """

    def __init__(
        self, groups: Sequence[HeadGroup], *, batch: int, kinds: Sequence[Kind | State], fixed: bool = False
    ) -> None:
        check_count("batch", batch, example=1)
        for kind in kinds:
            check_kinds({"kind": kind}, (Full, Static, Sliding, Int8, State), _KINDS)
        self.groups = tuple(StateGroup(kind) if isinstance(kind, State) else GroupCache(kind) for kind in kinds)
        self.batch, self.fixed = batch, fixed
        self._heads = tuple(group.sizes for group in groups)
        self._filled_by: ReferenceType[object] | None = None

    def __getstate__(self) -> dict[str, object]:
        # A copy goes on beside a copy of the module, or the module itself.
        return {**vars(self), "_filled_by": None}

    @property
    def length(self) -> int:
        """Tokens so far: the position of the next one."""
        return self.groups[0].rows.length

    @property
    def nbytes(self) -> int:
        """Memory held, in bytes; a fixed memory shared by several modules counts for each."""
        return sum(group.rows.nbytes for group in self.groups)

    def cut(self, length: int) -> None:
        """Go back to the first `length` tokens: what was tried after them is forgotten.

        Raises:
            MultiheadError: There are fewer, or a sliding cache does not keep what the next token would need.

        Example:
            >>> cache.cut(cache.length - 3)  # doctest: +SKIP
        """
        length = whole(length, asked="cut(length): how many of the first tokens stay, a whole number")
        # All are asked before one is cut: a refusal leaves them alike.
        for group in self.groups:
            group.rows.check_cut(length)
        for group in self.groups:
            group.rows.cut(length)
            group.kept = None

    def select(self, index: Tensor | Sequence[int]) -> None:
        """Take batch rows in this order: beams that are reordered, sequences that are finished left out.

        Raises:
            MultiheadError: There is no such row, or none is taken.

        Example:
            >>> cache.select([0, 0, 2])  # doctest: +SKIP
        """
        rows = listed_rows(index)
        if rows.ndim != 1 or rows.is_floating_point() or rows.dtype == torch.bool or rows.numel() == 0:
            raise MultiheadError(
                asked="rows of the batch: at least one whole number",
                arrived=f"shape {tuple(rows.shape)}, {rows.dtype}",
                remedy=f"pass numbers from 0 to {self.batch - 1}; `keep.nonzero()[:, 0]` for a boolean mask",
            )
        if int(rows.min()) < 0 or int(rows.max()) >= self.batch:
            raise MultiheadError(
                asked=f"rows of a batch of {self.batch}",
                arrived=f"{rows.tolist()}"[:100],
                remedy=f"pass numbers from 0 to {self.batch - 1}",
            )
        for group in self.groups:
            held = group.rows.parts
            group.kept = None
            group.rows.select(rows.long().to(held[0].device) if held else rows)
        self.batch = rows.numel()

    def check(self, groups: Sequence[HeadGroup], batch: int, count: int) -> None:
        """Refuses `count` more tokens, of another module or batch or without room, before anything is written."""
        if tuple(group.sizes for group in groups) != self._heads:
            raise MultiheadError(
                asked="a cache of this module",
                arrived=f"a cache for groups of (heads, kv_heads, head_dim, v_head_dim) {self._heads}, the module has "
                f"{tuple(group.sizes for group in groups)}",
                remedy="build it with this module: cache = attn.cache(batch=...); each layer needs its own",
            )
        if batch != self.batch:
            raise MultiheadError(
                asked=f"queries for the cache's batch of {self.batch}",
                arrived=f"a batch of {batch}",
                remedy=f"build a new one with attn.cache(batch={batch}), or take rows of this one: cache.select(index)",
            )
        for group in self.groups:
            group.rows.check_room(count)

    def check_filled_by(self, module: object) -> None:
        """Refuses a module of the same sizes that is not the one whose tokens these are, and remembers which it is."""
        if torch.compiler.is_compiling():
            return
        filled_by = None if self._filled_by is None else self._filled_by()
        if self.length and filled_by not in (None, module):
            raise MultiheadError(
                asked="a cache of this module",
                arrived=f"a cache with {self.length} tokens of another {type(filled_by).__name__} of the same sizes",
                remedy="give each layer its own: caches = [layer.attn.cache(batch=...) for layer in layers]; "
                "cache.cut(0) empties one, and copy.deepcopy(cache) may go to another module",
            )
        self._filled_by = ref(module)
