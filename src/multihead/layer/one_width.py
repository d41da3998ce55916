"""What modules have in common whose inputs are all of one width, and whose heads are cached group by group."""

from multihead.layer.base import Attends
from multihead.layer.cache import AttentionCache, Full, Kind
from multihead.layer.group import HeadGroup


class OneWidth(Attends):
    """A module of queries, keys and values of one width.

    Attributes:
        embed_dim: That width.
        groups: Its heads, settled.
    """

    embed_dim: int
    groups: tuple[HeadGroup, ...]

    def cache(self, *, batch: int, kind: Kind | None = None) -> AttentionCache:
        """An empty cache for decoding step by step: `layer(x, mask=causal(), cache=cache)`.

        Args:
            batch: Number of sequences.
            kind: `Full()`, `Static(length)`, `Sliding(window)`, or `Int8(...)` around one of them; None is `Full()`.

        Raises:
            MultiheadError: A batch that is no count.

        Example:
            >>> DifferentialAttention(64, heads=4).cache(batch=1).length
            0
        """
        return AttentionCache(self.groups, batch=batch, kinds=[Full() if kind is None else kind])

    def widths(self) -> dict[str, int]:
        """Input widths of query, key and value."""
        return dict.fromkeys(("query", "key", "value"), self.embed_dim)
