"""Sizes a module is built of, with the messages for those that do not fit."""

from collections.abc import Mapping

from multihead.error import MultiheadError


def check_counts(sizes: Mapping[str, object]) -> None:
    """Refuses sizes that are no whole numbers of at least 1, by their names."""
    wrong = [f"{name}={size!r}" for name, size in sizes.items() if not _is_count(size)]
    if wrong:
        raise MultiheadError(
            asked="sizes that are whole numbers of at least 1",
            arrived=", ".join(wrong),
            remedy="for example embed_dim=512, heads=8",
        )


def check_dropout(dropout: float) -> None:
    """Refuses what is no share below 1."""
    if not 0.0 <= dropout < 1.0:
        raise MultiheadError(
            asked="dropout: a share p with 0 <= p < 1", arrived=f"dropout={dropout}", remedy="for example dropout=0.1"
        )


def divided(embed_dim: int, heads: int) -> int:
    """`embed_dim / heads`, refused with the counts that divide where it is no whole number."""
    if embed_dim % heads:
        raise MultiheadError(
            asked="heads that divide embed_dim evenly",
            arrived=f"embed_dim={embed_dim}, heads={heads}: {embed_dim} / {heads} = {embed_dim / heads:.4g}",
            remedy=f"heads={listed_divisors(embed_dim, heads)}, or heads of another size with head_dim=",
        )
    return embed_dim // heads


def listed_divisors(number: int, near: int, *, most: int = 8) -> str:
    """The divisors of a number that are nearest to another, in order: `2, 4 or 8`."""
    divisors = [n for n in range(1, number + 1) if number % n == 0]
    nearest = sorted(sorted(divisors, key=lambda n: abs(n - near))[:most])
    *others, last = map(str, nearest)
    return f"{', '.join(others)} or {last}" if others else last


def _is_count(size: object) -> bool:
    return isinstance(size, int) and not isinstance(size, bool) and size >= 1
