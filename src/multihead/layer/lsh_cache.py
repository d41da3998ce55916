"""What locality-sensitive attention keeps of earlier tokens: what they were hashed to, besides keys and values."""

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn.functional import pad

from multihead.layer.cache import AttentionCache, Full, Static
from multihead.layer.group import HeadGroup

_BITS = 32  # of a code that count the tiles of a bucket; those above are the bucket


class LSHCache(AttentionCache):
    """Shared queries and keys, values, and the tile of each token in each round.

    `LSHAttention.cache` builds it; it is cut back, selected from and copied like any `AttentionCache`.

    Args:
        group: The module's group, settled.
        batch: Number of sequences.
        kind: `Full()` or `Static(length)`.
    """

    def __init__(self, group: HeadGroup, *, batch: int, kind: Full | Static) -> None:
        super().__init__((group,), batch=batch, kinds=[kind])

    @property
    def kept(self) -> tuple[Tensor, ...]:
        """Shared queries and keys, values, and codes (batch, heads, tokens, rounds); nothing before the first token."""
        return self.groups[0].rows.parts

    def extend(self, qk: Tensor, v: Tensor, codes: Tensor) -> None:
        """Add tokens (batch, heads, length, ...)."""
        self.groups[0].rows.append((qk, v, codes))


def codes_of(buckets: Int[Tensor, "batch heads rounds length"], groups: Tensor, chunk: int) -> Tensor:
    """The tile of each token: its bucket, and which tile of that bucket's; it depends on earlier tokens alone.

    Args:
        buckets: Of all tokens.
        groups: What tokens are sorted by: buckets, told apart by document.
        chunk: Tokens in a tile.
    """
    found, order = groups.sort(dim=-1, stable=True)
    rank = torch.arange(found.shape[-1], device=found.device)
    opens = pad(found[..., 1:] != found[..., :-1], (1, 0), value=True)
    within = rank - torch.where(opens, rank, 0).cummax(-1).values
    number = torch.empty_like(order).scatter_(-1, order, within // chunk)
    return (buckets << _BITS) + number


def next_codes(buckets: Tensor, same: Tensor, chunk: int) -> Tensor:
    """The same for tokens that follow others, of which `same` tells those of their own bucket that came before.

    Args:
        buckets: Of the new tokens, (batch, heads, rounds, q_len).
        same: (batch, heads, rounds, q_len, kv_len).
        chunk: Tokens in a tile.
    """
    return (buckets << _BITS) + same.sum(-1) // chunk


def bucket_of(codes: Tensor) -> Tensor:
    """The bucket in a code."""
    return codes >> _BITS


def behind(codes: Tensor) -> Tensor:
    """The code of the tile that one looks back to; that of no tile where it is the first of its bucket."""
    return codes - 1
