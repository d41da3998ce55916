"""The cache of latent attention: one vector a token, from which keys and values of all heads are made."""

from collections.abc import Sequence

import torch
from torch import Tensor

from multihead.layer.cache import AttentionCache, GroupCache, Int8, Kind
from multihead.layer.group import HeadGroup


class LatentRows(GroupCache):
    """The latent vectors of earlier tokens with the turned key behind each, in one piece."""

    def extend(self, latent: Tensor, rope: Tensor) -> tuple[Tensor, int]:
        """Add tokens (batch, 1, length, width) each; all that is kept, and the position of the first of it."""
        if isinstance(self.kind, Int8):
            # A factor for each of the two: their sizes have nothing to do with one another.
            latent, rope, first = self.append(latent, rope)
            return joined(latent, rope), first
        (every,) = self.rows.append((joined(latent, rope),))
        return every, self.rows.first


class LatentCache(AttentionCache):
    """What latent attention keeps of earlier tokens: `kv_rank + rope_dim` numbers each, whatever the heads.

    `LatentAttention.cache` builds it; it is cut back, selected from and copied like any `AttentionCache`.

    Args:
        widths: Of the latent vectors, and of the keys that are turned.
        batch: Number of sequences.
        kind: Which tokens are kept, and how.

    Attributes:
        widths: As above.
    """

    def __init__(self, widths: tuple[int, int], *, batch: int, kind: Kind) -> None:
        self._own = (HeadGroup(1, widths[0], v_head_dim=widths[1]),)
        super().__init__(self._own, batch=batch, kinds=[kind])
        self.widths = widths
        self._rows = LatentRows(kind)
        self.groups = (self._rows,)

    def extend(self, latent: Tensor, rope: Tensor) -> tuple[Tensor, int]:
        """As `LatentRows.extend`."""
        return self._rows.extend(latent, rope)

    def check(self, groups: Sequence[HeadGroup], batch: int, count: int) -> None:
        """As for any cache, but that heads do not matter: it holds none."""
        super().check(self._own, batch, count)


def joined(first: Tensor, second: Tensor) -> Tensor:
    """One behind the other, in each row."""
    return torch.cat([first, second], -1)
