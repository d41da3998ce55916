"""Which masks a scan can keep to: `causal()`, `padding(keep)`, `document(ids)` and what they make together."""

from dataclasses import dataclass

import torch
from torch import Tensor

from multihead.error import MultiheadError
from multihead.pattern import Pattern
from multihead.pattern.algebra import EVERYTHING, And
from multihead.pattern.held import Held
from multihead.pattern.tokens import Match, Padding


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Order:
    """A mask in the words of a scan.

    Args:
        causal: Whether each token sees itself and those before; otherwise all.
        reset: True where a document begins, (batch, length), or None.
        valid: True = a real token, (batch, length), or None.
    """

    causal: bool
    reset: Tensor | None = None
    valid: Tensor | None = None

    @classmethod
    def of(cls, mask: Pattern | Tensor | None, like: Tensor, *, start: int = 0) -> "Order":
        """Reads a mask.

        Args:
            mask: As a module got it.
            like: The tokens it holds for, (batch, length, width).
            start: Position of the first of them.

        Raises:
            MultiheadError: A mask that a state cannot keep to, with the reason.
        """
        if isinstance(mask, Tensor):
            raise refused("a boolean tensor: any pairs of tokens")
        batch, length = like.shape[:2]
        pos = torch.arange(start, start + length, device=like.device).view(1, 1, 1, -1)
        causal, reset, valid = False, None, None
        for part in _parts(mask):
            if part.batch not in (None, 1, batch):
                raise MultiheadError(
                    asked=f"a mask for {batch} sequences",
                    arrived=f"{part} for batch={part.batch}"[:200],
                    remedy="pass one row for each sequence, or one for all",
                )
            if part.window == (None, 0):
                causal = True
            elif isinstance(part, Padding):
                real = part.keep.look_up(pos, side="key").reshape(-1, length).expand(batch, -1)
                valid = real if valid is None else valid & real
            elif isinstance(part, Match) and part.form == "document" and part.keys is part.ids:
                begins = _begins(part.ids, pos, start).expand(batch, -1)
                reset = begins if reset is None else reset | begins
            else:
                raise refused(str(part))
        if reset is not None and not causal:
            raise refused("document(ids) without causal(): each document would need a state of its own")
        return cls(causal=causal, reset=reset, valid=valid)


def refused(what: str) -> MultiheadError:
    """The refusal of a mask."""
    return MultiheadError(
        asked="linear attention, whose heads see earlier tokens only as one sum: causal(), padding(keep), "
        "document(ids) with causal(), or None",
        arrived=what[:200],
        remedy="keep to these, or let softmax heads have it: MultiHeadAttention, HeadGroup(...) with no LinearScoring",
    )


def check_causal(order: Order, what: str) -> None:
    """Refuses a mask that is not causal where a state is all there is.

    Raises:
        MultiheadError: It is not.
    """
    if not order.causal:
        raise MultiheadError(
            asked=f"{what}: each token sees itself and those before",
            arrived="a mask without causal()",
            remedy="pass mask=causal(), or causal() & padding(keep); LinearAttention and MultiHeadAttention also see "
            "later tokens, without a cache",
        )


def _parts(mask: Pattern | None) -> tuple[Pattern, ...]:
    if mask is None or mask is EVERYTHING:
        return ()
    return mask.parts if isinstance(mask, And) else (mask,)


def _begins(ids: Held, pos: Tensor, start: int) -> Tensor:
    """Where the id is another than before, (batch | 1, length)."""
    rows = ids.look_up(pos, side="query").reshape(-1, pos.shape[-1])
    known = (ids.rows() if ids.length else rows).to(pos.device)[:, : start + pos.shape[-1]]
    turns = known[:, 1:] != known[:, :-1]
    if not torch.compiler.is_compiling() and bool((turns.sum(1) + 1 > _kinds(known)).any()):
        raise refused("document(ids) with an id that comes back after another: its first tokens are not known any more")
    first = torch.ones_like(known[:, :1], dtype=torch.bool)
    return torch.cat([first, turns], 1)[:, start:]


def _kinds(ids: Tensor) -> Tensor:
    """How many different ids there are in each row."""
    ordered = ids.sort(1).values
    return (ordered[:, 1:] != ordered[:, :-1]).sum(1) + 1
