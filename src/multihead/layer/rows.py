"""Rows of tokens that are kept: all, the last ones, or up to a limit; and how their numbers are kept."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from multihead.error import MultiheadError


class Rows:
    """Tensors (batch, heads, tokens, ...) that grow together along the tokens.

    What is kept lies in one piece and in order, so a kernel reads it as it is; the memory behind it is taken ahead of
    time, and what is not needed any more is moved away once in a window.

    Args:
        window: How many tokens a new one has to find, itself included; None keeps all.
        spare: How many tokens more are kept, so that `cut` can go back by as many.
        limit: How many tokens there may be; their memory is taken at once. None: no limit.
    """

    def __init__(self, *, window: int | None = None, spare: int = 0, limit: int | None = None) -> None:
        self._window, self._spare, self._limit = window, spare, limit
        self._parts: list[Tensor] = []
        self._start = self._stop = 0
        # Up to where a graph may have what lies in this memory: it must stay as it is.
        self._lent = 0
        self.first = 0

    @property
    def length(self) -> int:
        """Tokens so far, those that are not kept any more included."""
        return self.first + self._stop - self._start

    @property
    def nbytes(self) -> int:
        """Memory held."""
        return sum(part.untyped_storage().nbytes() for part in self._parts)

    @property
    def parts(self) -> tuple[Tensor, ...]:
        """What is kept, as views."""
        return tuple(part[:, :, self._start : self._stop] for part in self._parts)

    def append(self, new: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Add tokens, and get all that the new ones may look at, these included; `first` is the place of the first."""
        count = new[0].shape[2]
        self.check_room(count)
        self._check_alike(new)
        if self._window is not None:
            self._drop(self._window - 1 + self._spare)
        if any(part.requires_grad for part in (*new, *self._parts)):
            # Joined, not written into: earlier results need the memory as it was.
            kept = self.parts or tuple(part[:, :, :0] for part in new)
            self._parts = [torch.cat(pair, 2) for pair in zip(kept, new, strict=True)]
            self._start, self._stop = 0, self._parts[0].shape[2]
            return self.parts
        self._make_room(count, new)
        for part, added in zip(self._parts, new, strict=True):
            _beside_graphs(part)[:, :, self._stop : self._stop + count] = added
        self._stop += count
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            self._lent = max(self._lent, self._stop)
        return self.parts

    def check_room(self, count: int) -> None:
        """Refuses more tokens than there is room for."""
        if self._limit is not None and self.length + count > self._limit:
            raise MultiheadError(
                asked=f"room for {count} more tokens in a cache of {self._limit}",
                arrived=f"{self.length} tokens in it",
                remedy="build it longer: attn.cache(batch=..., kind=Static(length)), or take Full() or Sliding(window)",
            )

    def gone(self, count: int) -> int:
        """How many tokens are not kept any more once `count` more are added: what those cannot look at."""
        if self._window is None:
            return self.first
        return max(self.first, self.length - (self._window - 1 + self._spare))

    def check_cut(self, length: int) -> None:
        """Refuses to go back to where the next token would not find what it needs, or forward."""
        least = 0 if self.first == 0 else self.first + (self._window or 1) - 1
        if not least <= length <= self.length:
            kept = f", of which {self._stop - self._start} are kept" if self.first else ""
            raise MultiheadError(
                asked=f"a cache cut to {length} tokens",
                arrived=f"{self.length} tokens in it{kept}",
                remedy=f"cut to {least} to {self.length} tokens"
                + (", or build it as Sliding(window, spare=...) with more to spare" if self.first else ""),
            )

    def cut(self, length: int) -> None:
        """Go back to the first `length` tokens."""
        self.check_cut(length)
        self._stop -= self.length - length

    def select(self, index: Tensor) -> None:
        """Take batch rows, in this order; a row may be taken twice."""
        self._parts, self._lent = [part.index_select(0, index) for part in self._parts], 0

    def _check_alike(self, new: Sequence[Tensor]) -> None:
        for part, added in zip(self._parts, new, strict=False):
            if part.dtype != added.dtype or part.device != added.device:
                raise MultiheadError(
                    asked="more tokens for a cache, in its dtype and on its device",
                    arrived=f"{added.dtype} on {added.device}, the {self.length} tokens in it are {part.dtype} on "
                    f"{part.device}",
                    remedy="keep one dtype, device and autocast from its first token to its last, or build a new cache",
                )

    def _check_memory(self, room: int, new: Sequence[Tensor]) -> None:
        """Refuses what no machine has the addresses for, before torch is asked for it."""
        size = room * sum(prod((*part.shape[:2], *part.shape[3:])) * part.element_size() for part in new)
        if size > _ADDRESSES:
            raise MultiheadError(
                asked=f"memory for a cache of {room:,} tokens, taken at once",
                arrived=f"{size:,} bytes; no machine has more than 2**47",
                remedy="build it for as many tokens as there will be: Static(length), Sliding(window, spare=...)",
            )

    def _drop(self, most: int) -> None:
        beyond = max(self._stop - self._start - most, 0)
        self._start, self.first = self._start + beyond, self.first + beyond

    def _make_room(self, count: int, new: Sequence[Tensor]) -> None:
        used = self._stop - self._start
        room = self._parts[0].shape[2] if self._parts else 0
        lent = not torch.compiler.is_compiling() and count > 0 and self._stop < self._lent
        if self._parts and self._stop + count <= room and not lent and not _sealed(self._parts):
            return
        if self._limit is not None:
            room = self._limit
        elif room < 2 * used + count or not self._parts:
            room = max(2 * (used + count), 2 * (self._window or 0))
        self._check_memory(room, new)
        made: list[Tensor] = []
        for place, added in enumerate(new):
            part = added.new_empty(*added.shape[:2], room, *added.shape[3:])
            if used:
                part[:, :, :used] = self._parts[place][:, :, self._start : self._stop]
            made.append(part)
        self._parts, self._start, self._stop, self._lent = made, 0, used, 0


_ADDRESSES = 2**47  # bytes that a machine can tell apart


def _sealed(parts: Sequence[Tensor]) -> bool:
    """Whether torch refuses to write here: memory from inference mode, out of which the caller has gone."""
    if torch.compiler.is_compiling() or torch.is_inference_mode_enabled():
        return False
    return any(part.is_inference() for part in parts)


def _beside_graphs(part: Tensor) -> Tensor:
    """The memory of a part, to be written where no graph looks: graphs keep the tokens before, and need only those.

    Where queries are trained and keys are not, a graph keeps keys, and torch would refuse it as soon as any token is
    added behind them.
    """
    return part if torch.compiler.is_compiling() else part.data


class Plain:
    """Numbers kept as they are."""

    def encode(self, x: Tensor) -> tuple[Tensor, ...]:
        """As it is."""
        return (x,)

    def decode(self, parts: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
        """As it is."""
        (x,) = parts
        return x


@dataclass(frozen=True, slots=True)
class Bytes:
    """Numbers kept as whole numbers from -127 to 127 times one factor a token and head.

    With `s = max|x| / 127` over a head's row, `|x - kept(x)| <= s / 2`: at most 1/254 of the row's largest number.
    """

    def encode(self, x: Tensor) -> tuple[Tensor, ...]:
        """Whole numbers (batch, heads, length, width) and factors (batch, heads, length, 1) in float32."""
        factor = x.detach().to(torch.float32).abs().amax(-1, keepdim=True) / 127
        codes = (x.detach().to(torch.float32) / torch.where(factor > 0, factor, 1.0)).round()
        return codes.to(torch.int8), factor

    def decode(self, parts: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
        """The numbers again, nearly."""
        codes, factor = parts
        return (codes.to(torch.float32) * factor).to(dtype)
