"""What a pattern holds: tensors, copied once, never changed, named by their content; and functions, by a name."""

import hashlib
from collections.abc import Callable

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from multihead.error import MultiheadError

# Says which pairs are in a pattern: (query positions, key positions) -> truth values.
PairRule = Callable[[Tensor, Tensor], Tensor]


class HeldRule:
    """A function held by a pattern, known by its identity alone: what it does cannot be compared or hashed.

    Args:
        rule: The function.
        name: What it is called in text.
    """

    __slots__ = ("name", "rule")

    def __init__(self, rule: PairRule, name: str) -> None:
        self.rule = rule
        self.name = name

    def copy(self) -> PairRule:
        """The function itself."""
        return self.rule

    def __deepcopy__(self, memo: dict[int, object]) -> "HeldRule":
        # A copy of what the function is bound to would be another function.
        return self


class Held:
    """Values per position, (length,) or (batch, length), or a table of whole numbers.

    Args:
        values: Copied, so that the caller may change them afterwards.
        what: What they are, for errors: `"document(ids)"`.
    """

    __slots__ = ("_digest", "_on", "_values", "what")

    def __init__(self, values: Tensor, *, what: str) -> None:
        kept = values.detach()
        kept = kept.clone() if kept.dtype is torch.bool else kept.to(torch.int64, copy=True)
        self._values = kept.contiguous()
        self._on = {self._values.device: self._values}
        self._digest = b""
        self.what = what

    @property
    def batch(self) -> int | None:
        """Number of rows; None for values that hold for every row."""
        return self._values.shape[0] if self._values.ndim == 2 else None

    @property
    def shape(self) -> torch.Size:
        """Sizes of the values."""
        return self._values.shape

    @property
    def length(self) -> int:
        """Number of positions."""
        return self._values.shape[-1]

    @property
    def digest(self) -> bytes:
        """16 bytes that depend on the kind, shape and values and on nothing else."""
        if not self._digest:
            values = self.on("cpu")
            head = f"{values.dtype} {tuple(values.shape)} ".encode()
            self._digest = hashlib.blake2b(head + values.numpy().tobytes(), digest_size=16).digest()
        return self._digest

    @property
    def name(self) -> str:
        """The first 8 hexadecimal digits of the digest: what stands for the values in text."""
        return self.digest.hex()[:8]

    def copy(self) -> Tensor:
        """A copy of the values."""
        return self._values.clone()

    def rows(self) -> Tensor:
        """The values as (batch | 1, length), on the CPU."""
        values = self.on("cpu")
        return values if values.ndim == 2 else values[None]

    def on(self, device: torch.device | str) -> Tensor:
        """The values on a device; moved there once."""
        place = torch.device(device)
        if place not in self._on:
            if self._values.is_meta:
                raise MultiheadError(
                    asked=f"the values of {self.what} on {place}",
                    arrived=f"a tensor {tuple(self._values.shape)} on meta, which holds none",
                    remedy="make the pattern of a tensor with values: patterns are no part of what is built on meta",
                )
            self._on[place] = self._values.to(place)
        return self._on[place]

    def look_up(
        self, pos: Int[Tensor, "_ 1 rows cols"], *, side: str
    ) -> Int[Tensor, "_ 1 rows cols"] | Bool[Tensor, "_ 1 rows cols"]:
        """The values at absolute positions.

        Args:
            pos: Positions (batch | 1, 1, rows, cols).
            side: `"query"` or `"key"`, for the error.

        Raises:
            MultiheadError: A position is negative or beyond the values held.
        """
        self.check_all(pos, side=side)
        values = self.on(pos.device)
        if values.ndim == 1:
            return values[pos]
        rows = pos.flatten(1).expand(values.shape[0], -1)
        return values.gather(1, rows).view(values.shape[0], *pos.shape[1:])

    def check_all(self, pos: Int[Tensor, "..."], *, side: str) -> None:
        """Refuse positions outside the values; negative ones would wrap around without a word.

        Raises:
            MultiheadError: A position is negative or beyond the values held.
        """
        if pos.numel() and not pos.is_meta:
            low, high = pos.aminmax()
            self.check(int(low), int(high), side=side)

    def check(self, low: int, high: int, *, side: str) -> None:
        """Refuse positions outside the values.

        Raises:
            MultiheadError: `low` is negative or `high` beyond the values held.
        """
        if low < 0:
            raise MultiheadError(
                asked=f"{self.what} at {side} positions {low} to {high}; positions are counted from 0",
                arrived=f"position {low}",
                remedy="check the q_offset: the first position is q_offset",
            )
        if high >= self.length:
            raise MultiheadError(
                asked=f"{self.what} at {side} positions up to {high}, which needs length {high + 1}",
                arrived=f"length {self.length}",
                remedy="pass one value for every position of the whole sequence, cached ones and new ones included",
            )


# What stands in the text form of a pattern as #name.
Kept = Held | HeldRule
