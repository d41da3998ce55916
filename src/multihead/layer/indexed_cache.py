"""The cache of latent attention with an indexer: latent vectors, and what the indexer compares."""

from collections.abc import Sequence

import torch
from torch import Tensor

from multihead.layer.cache import Full, Static
from multihead.layer.latent_cache import LatentCache


class IndexedCache(LatentCache):
    """What indexed attention keeps of earlier tokens: what `LatentCache` does, and an index key each.

    Args:
        widths: Of the latent vectors, and of the keys that are turned.
        batch: Number of sequences.
        kind: `Full()` or `Static(length)`.
    """

    def __init__(self, widths: tuple[int, int], *, batch: int, kind: Full | Static) -> None:
        super().__init__(widths, batch=batch, kind=kind)
        self._index = kind.rows()

    def extend_index(self, k: Tensor) -> Tensor:
        """Add index keys (batch, 1, length, width); all that are kept."""
        (every,) = self._index.append((k,))
        return every

    @property
    def nbytes(self) -> int:
        """Memory held, in bytes."""
        return super().nbytes + self._index.nbytes

    def cut(self, length: int) -> None:
        """As for any cache."""
        super().cut(length)
        self._index.cut(length)

    def select(self, index: Tensor | Sequence[int]) -> None:
        """As for any cache."""
        super().select(index)
        held = self._index.parts
        rows = torch.as_tensor(index).long()
        self._index.select(rows.to(held[0].device) if held else rows)
