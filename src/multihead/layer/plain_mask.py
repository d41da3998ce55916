"""The masks that a module takes which computes no general pattern: causal, padding, documents, and these together."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from multihead.error import MultiheadError
from multihead.layer.call import check_mask_kind
from multihead.pattern import Pattern, everything
from multihead.pattern.algebra import And
from multihead.pattern.tokens import Match, Padding


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlainMask:
    """What a mask asks for.

    Args:
        causal: Whether keys come no later than their query.
        keep: Which tokens are real, (batch | 1, length); None for all.
        ids: The document of each token, (batch | 1, length); None for one.
    """

    causal: bool
    keep: Tensor | None
    ids: Tensor | None

    @classmethod
    def read(cls, mask: Pattern | Tensor | None, like: Tensor, *, length: int, asked: str) -> "PlainMask":
        """A mask of `causal()`, `padding(keep)` and `document(ids)`, joined with `&`.

        Args:
            mask: As it was given.
            like: The input, (batch, q_len, width).
            length: How many tokens there are so far.
            asked: Who takes no other mask, for the error.

        Raises:
            MultiheadError: Any other mask, or one for another batch or fewer tokens.
        """
        check_mask_kind(mask)
        if isinstance(mask, Tensor):
            raise _refused(asked, f"a tensor {tuple(mask.shape)}")
        causal, keep, ids = False, list[Tensor](), list[Tensor]()
        parts = () if mask is None else mask.parts if isinstance(mask, And) else (mask,)
        for part in parts:
            if part.window == (None, 0):
                causal = True
            elif isinstance(part, Padding):
                part.keep.check(0, length - 1, side="key")
                keep.append(_rows(part.keep.on(like.device), length))
            elif isinstance(part, Match) and part.form == "document" and part.keys is part.ids:
                part.ids.check(0, length - 1, side="key")
                ids.append(_rows(part.ids.on(like.device), length).unique(return_inverse=True)[1])
            elif part != everything():
                raise _refused(asked, str(part))
        _check_batch((*keep, *ids), like.shape[0], mask)
        return cls(causal=causal, keep=_all(keep), ids=_together(ids))


def _rows(values: Tensor, length: int) -> Tensor:
    return torch.atleast_2d(values)[:, :length]


def _check_batch(rows: Sequence[Tensor], batch: int, mask: Pattern | None) -> None:
    for given in rows:
        if given.shape[0] not in (1, batch):
            raise MultiheadError(
                asked=f"a mask for the batch of {batch}",
                arrived=f"{mask} for a batch of {given.shape[0]}",
                remedy="pass ids and padding (batch, length), or (length,) for all rows alike",
            )


def _all(keep: list[Tensor]) -> Tensor | None:
    """Tokens that are real by all of them."""
    if not keep:
        return None
    first, *others = keep
    for other in others:
        first = first & other
    return first


def _together(ids: list[Tensor]) -> Tensor | None:
    """Numbers that are equal where all of them are."""
    if not ids:
        return None
    first, *others = ids
    for other in others:
        first = first * (int(other.max()) + 1 if other.numel() else 1) + other
    return first


def _refused(asked: str, arrived: str) -> MultiheadError:
    return MultiheadError(
        asked=f"{asked}: mask=causal(), padding(keep), document(ids), these joined with &, or None",
        arrived=f"mask={arrived}"[:200],
        remedy="any other pattern or a tensor of pairs is for MultiHeadAttention(..., mask=...)",
    )
