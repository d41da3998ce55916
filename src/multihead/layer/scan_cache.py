"""States of earlier tokens: what a module of linear attention keeps in place of keys and values."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast, runtime_checkable
from weakref import ReferenceType, ref

import torch
from torch import Tensor

from multihead.error import MultiheadError, check_kinds
from multihead.layer.check import check_count, listed_rows
from multihead.pattern.check import whole


@runtime_checkable
class Selectable(Protocol):
    """A state, whatever is in it: a dataclass of tensors, and of states."""

    def select(self, rows: Tensor) -> "Selectable":
        """Rows of the batch."""
        ...


@dataclass(frozen=True, slots=True)
class State:
    """Keeps a state of fixed size: what linear heads have whatever kind of cache was asked for."""


class StateRows:
    """A state and the number of its tokens; what the rows of other heads can be asked for, it answers too."""

    def __init__(self) -> None:
        self.state: Selectable | None = None
        self.length = 0
        self._before: tuple[Selectable | None, int] | None = None

    first = 0

    @property
    def parts(self) -> tuple[Tensor, ...]:
        """The tensors of the state."""
        return tuple(_tensors(self.state))

    @property
    def nbytes(self) -> int:
        """Memory held, that of the state before the last call included."""
        before = None if self._before is None else self._before[0]
        storages = [part.untyped_storage() for part in (*self.parts, *_tensors(before))]
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())

    def put(self, state: Selectable, count: int) -> None:
        """Go on by `count` tokens."""
        self._before = (self.state, self.length)
        self.state, self.length = _by_itself(state), self.length + count

    def check_room(self, count: int) -> None:
        """There always is."""

    def gone(self, count: int) -> int:
        """All tokens are in the sum."""
        return 0

    def check_cut(self, length: int) -> None:
        """Refuses to go back to anywhere but to the start, or to before the last call."""
        allowed = {0, self.length} | ({self._before[1]} if self._before is not None else set())
        if length not in allowed:
            raise MultiheadError(
                asked=f"a state cut to {length} tokens",
                arrived=f"{self.length} tokens in it: they are one sum, from which none can be taken out",
                remedy=f"cut to {' or '.join(map(str, sorted(allowed)))}, or keep copy.deepcopy(cache) to go back to",
            )

    def cut(self, length: int) -> None:
        """Go back."""
        self.check_cut(length)
        if length == self.length:
            return
        before = self._before
        self.state, self.length = before if before is not None and before[1] == length else (None, 0)
        self._before = None

    def select(self, index: Tensor) -> None:
        """Take batch rows, in this order."""
        self.state = None if self.state is None else self.state.select(index)
        self._before = None


class StateGroup:
    """The state of one group of linear heads, beside the keys and values of others."""

    def __init__(self, kind: State) -> None:
        self.kind = kind
        self.rows = StateRows()
        # Of selectors, which linear heads have none of.
        self.kept: object = None


class StateCache:
    """What a module of linear attention keeps of earlier tokens: `layer.cache(batch=...)` builds it.

    It does not grow. It can go back to the start, or to before the last call.

    Args:
        batch: Number of sequences.
        sizes: Of the module's state, by which it knows its own.

    Attributes:
        batch: Number of sequences.
    """

    def __init__(self, *, batch: int, sizes: tuple[int, ...]) -> None:
        check_count("batch", batch, example=1)
        self.batch = batch
        self._sizes = sizes
        self._rows = StateRows()
        self._filled_by: ReferenceType[object] | None = None

    def __getstate__(self) -> dict[str, object]:
        # A copy goes on beside a copy of the module, or the module itself.
        return {**vars(self), "_filled_by": None}

    @property
    def length(self) -> int:
        """Tokens so far: the position of the next one."""
        return self._rows.length

    @property
    def nbytes(self) -> int:
        """Memory held, in bytes."""
        return self._rows.nbytes

    @property
    def state(self) -> Selectable | None:
        """The state; None before the first token."""
        return self._rows.state

    def put(self, state: Selectable, count: int) -> None:
        """Go on by `count` tokens."""
        self._rows.put(state, count)

    def cut(self, length: int) -> None:
        """Go back to the first `length` tokens: to none, or to those before the last call.

        Raises:
            MultiheadError: To any others.
        """
        self._rows.cut(whole(length, asked="cut(length): how many of the first tokens stay, a whole number"))

    def select(self, index: Tensor | Sequence[int]) -> None:
        """Take batch rows in this order: beams that are reordered, sequences that are finished left out.

        Raises:
            MultiheadError: There is no such row, or none is taken.
        """
        rows = listed_rows(index)
        fits = rows.ndim == 1 and rows.numel() and not rows.is_floating_point() and rows.dtype != torch.bool
        if not fits or int(rows.min()) < 0 or int(rows.max()) >= self.batch:
            raise MultiheadError(
                asked=f"rows of a batch of {self.batch}: at least one whole number",
                arrived=f"{index!r}"[:100],
                remedy=f"pass numbers from 0 to {self.batch - 1}",
            )
        parts = self._rows.parts
        self._rows.select(rows.long().to(parts[0].device) if parts else rows)
        self.batch = rows.numel()

    def check(self, module: object, sizes: tuple[int, ...], batch: int) -> None:
        """Refuses another module or batch, and remembers whose it is."""
        if sizes != self._sizes:
            raise MultiheadError(
                asked="a cache of this module",
                arrived=f"a state for {self._sizes}, the module has {sizes}",
                remedy="build it with this module: cache = layer.cache(batch=...); each layer needs its own",
            )
        if batch != self.batch:
            raise MultiheadError(
                asked=f"tokens for the cache's batch of {self.batch}",
                arrived=f"a batch of {batch}",
                remedy=f"build a new one with layer.cache(batch={batch}), or take rows of it: cache.select(index)",
            )
        if torch.compiler.is_compiling():
            return
        filled_by = None if self._filled_by is None else self._filled_by()
        if self.length and filled_by not in (None, module):
            raise MultiheadError(
                asked="a cache of this module",
                arrived=f"a cache with {self.length} tokens of another {type(filled_by).__name__} of the same sizes",
                remedy="give each layer its own: caches = [layer.cache(batch=...) for layer in layers]",
            )
        self._filled_by = ref(module)


def check_cache(cache: object) -> None:
    """Refuses what is no cache of states."""
    check_kinds({"cache": cache}, (StateCache, type(None)), "layer.cache(batch=...), or None")


def _by_itself(state: Selectable) -> Selectable:
    """A state that keeps no larger tensor alive, such as the states of all chunks of a text or its whole input."""
    if torch.compiler.is_compiling():
        # A graph's outputs have memory of their own.
        return state
    fields: dict[str, object] = {name: getattr(state, name) for name in _names(state)}
    own = {name: value for name, part in fields.items() if (value := _own(part)) is not part}
    return replace(cast(Any, state), **own) if own else state


def _own(part: object) -> object:
    if isinstance(part, Tensor):
        return part if part.untyped_storage().nbytes() == part.nbytes else part.clone()
    return _by_itself(cast(Selectable, part)) if _names(part) else part


def _names(state: object) -> tuple[str, ...]:
    return tuple(getattr(type(state), "__dataclass_fields__", {}))


def _tensors(state: object) -> list[Tensor]:
    """The tensors in a state, one within another."""
    if isinstance(state, Tensor):
        return [state]
    return [found for name in _names(state) for found in _tensors(getattr(state, name))]
