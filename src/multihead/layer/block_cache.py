"""What a block keeps: the earlier tokens of its attention, and another sequence where it looks at one."""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from multihead.error import MultiheadError
from multihead.layer.cache import AttentionCache


@runtime_checkable
class Cache(Protocol):
    """What every cache can tell."""

    @property
    def length(self) -> int:
        """Tokens so far."""
        ...


class BlockCache:
    """Earlier tokens of a block, `block.cache(batch=...)`: counted, cut and reordered as those of its attention.

    Args:
        own: The cache of its attention.
        batch: Number of sequences.
        memory: The other sequence: a cache that holds it (`remember`), or the sequence itself, or None.

    Attributes:
        own, batch, memory: As above.
    """

    def __init__(self, own: Cache, *, batch: int, memory: object = None) -> None:
        self.own, self.batch, self.memory = own, batch, memory

    @property
    def length(self) -> int:
        """Tokens so far: the position of the next one."""
        return self.own.length

    @property
    def nbytes(self) -> int:
        """Memory held, in bytes."""
        held = self.memory.nbytes if isinstance(self.memory, Tensor | AttentionCache) else 0
        return getattr(self.own, "nbytes", 0) + held

    def cut(self, length: int) -> None:
        """Go back to the first `length` tokens.

        Raises:
            MultiheadError: There are fewer, or they are not kept one by one.

        Example:
            >>> cache.cut(cache.length - 3)  # doctest: +SKIP
        """
        self._ask("cut")(length)

    def select(self, index: Tensor | Sequence[int]) -> None:
        """Take batch rows in this order: beams that are reordered, sequences that are finished left out.

        Raises:
            MultiheadError: There is no such row, or none is taken.

        Example:
            >>> cache.select([0, 0, 2])  # doctest: +SKIP
        """
        self._ask("select")(index)
        if isinstance(self.memory, Tensor):
            self.memory = self.memory[torch.as_tensor(index, device=self.memory.device)]
        elif isinstance(self.memory, AttentionCache):
            self.memory.select(index)
        self.batch = len(torch.as_tensor(index))

    @contextmanager
    def kept(self) -> Generator[None]:
        """What is done within adds to the cache, or fails and leaves it as it was, where it can go back."""
        before = self.length
        try:
            yield
        except BaseException:
            if self.length != before and hasattr(self.own, "cut"):
                self.own.cut(before)  # pyright: ignore[reportAttributeAccessIssue]
            raise

    def _ask(self, what: str) -> Callable[[object], None]:
        found = getattr(self.own, what, None)
        if found is None:
            raise MultiheadError(
                asked=f"{what}: a cache whose tokens are kept one by one",
                arrived=type(self.own).__name__,
                remedy="copy.deepcopy(cache) before the step that may be taken back",
            )
        return found
