"""The sizes of an attention call, and how many pairs of queries and keys it has: whole numbers of any length."""

from dataclasses import KW_ONLY, dataclass

from multihead.error import MultiheadError, check_kinds

LARGEST = 2**40
"""Of what a size may be: no longer text, and no wider layer, is asked about."""
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float64": 8}
"""Of a number, by the name of its dtype."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of one layer's call.

    Args:
        q_len: Tokens it is given: all of a text, or one in a step of decoding.
        kv_len: Tokens that are looked at, those in a cache included; None is `q_len`.
        batch: Number of sequences.
        heads: Query heads.
        head_dim: Width of a head.
        dtype: Name of the dtype of all numbers: `"float32"`, `"bfloat16"`, `"float16"` or `"float64"`.
        causal: Whether tokens see only themselves and those before.

    Raises:
        MultiheadError: A size that is no whole number from 1 to 2**40, an unknown dtype, fewer keys than queries.

    Example:
        >>> Sizes(4096).pairs, Sizes(1, 4096).pairs
        (8390656, 4096)
    """

    q_len: int
    kv_len: int | None = None
    _: KW_ONLY
    batch: int = 1
    heads: int = 8
    head_dim: int = 64
    dtype: str = "float32"
    causal: bool = True

    def __post_init__(self) -> None:
        told = {"q_len": self.q_len, "batch": self.batch, "heads": self.heads, "head_dim": self.head_dim}
        told |= {} if self.kv_len is None else {"kv_len": self.kv_len}
        wrong = [f"{name}={size!r}" for name, size in told.items() if not is_size(size)]
        if wrong:
            raise MultiheadError(
                asked="sizes that are whole numbers from 1 to 2**40",
                arrived=", ".join(wrong)[:200],
                remedy="for example Sizes(4096, heads=8, head_dim=64)",
            )
        if self.keys < self.q_len:
            raise MultiheadError(
                asked="at least as many keys as queries: those of a cache and those of the call",
                arrived=f"q_len={self.q_len}, kv_len={self.kv_len}",
                remedy=f"leave kv_len out, or pass {self.q_len} or more",
            )
        check_kinds({"causal": self.causal}, (bool,), "True or False")
        if not isinstance(self.dtype, str) or self.dtype not in BYTES:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise MultiheadError(
                asked=f"dtype: one of {', '.join(BYTES)}",
                arrived=repr(self.dtype)[:100],
                remedy='pass its name, such as "bfloat16"',
            )

    @property
    def keys(self) -> int:
        """Tokens that are looked at."""
        return self.q_len if self.kv_len is None else self.kv_len

    @property
    def embed_dim(self) -> int:
        """Width of the layer."""
        return self.heads * self.head_dim

    @property
    def number(self) -> int:
        """Bytes of a number."""
        return BYTES[self.dtype]

    @property
    def pairs(self) -> int:
        """Pairs of a query and a key it may see, of one sequence and head."""
        if not self.causal:
            return self.q_len * self.keys
        return _seen(self.keys) - _seen(self.keys - self.q_len)

    def near(self, window: int) -> int:
        """Those of them that are near.

        Args:
            window: Keys a query sees on one side, itself included.

        Example:
            >>> Sizes(4096).near(256)
            1015936
        """
        back = _seen(self.keys, window) - _seen(self.keys - self.q_len, window)
        # What lies ahead of the last tokens is not there: as much as lies behind the first ones.
        return back if self.causal else back + _seen(self.q_len, window) - self.q_len

    def chosen(self, block: int, count: int) -> int:
        """Pairs of queries that look back with the keys of blocks they choose, their own among them.

        Args:
            block: Keys in a block.
            count: Blocks that a query attends to.

        Example:
            >>> Sizes(4096).chosen(64, 16)
            3670528
        """
        return _in_blocks(self.keys, block, count) - _in_blocks(self.keys - self.q_len, block, count)


def _in_blocks(length: int, block: int, count: int) -> int:
    """Pairs of the first tokens with `count` blocks each, of the own one with what is before."""
    every = min(length, block * count)
    whole, rest = divmod(length - every, block)
    own = whole * block * (block + 1) // 2 + rest * (rest + 1) // 2
    return every * (every + 1) // 2 + (length - every) * (count - 1) * block + own


def _seen(length: int, window: int | None = None) -> int:
    """Pairs of the first tokens with those before them and themselves, at most `window` each."""
    short = length if window is None else min(length, window)
    return short * (short + 1) // 2 + (length - short) * short


def is_size(size: object) -> bool:
    """Whether it is a whole number from 1 to `LARGEST`; a truth value is none.

    Args:
        size: Anything.
    """
    return isinstance(size, int) and not isinstance(size, bool) and 1 <= size <= LARGEST
