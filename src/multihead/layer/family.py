"""The kinds of attention by name: what builds one, what it can be asked for, where it comes from, what it loses."""

from collections.abc import Mapping
from difflib import get_close_matches

from torch import nn

from multihead.error import MultiheadError, kind_and_text
from multihead.layer.check import check_counts, divided
from multihead.layer.family_table import ROWS, Family

FAMILIES: Mapping[str, Family] = {row.name: row for row in ROWS}
"""Every kind of attention that a `Block` takes by name."""


def find_family(name: str) -> Family:
    """A kind of attention by its name.

    Args:
        name: One of `FAMILIES`.

    Raises:
        MultiheadError: There is none of that name; the message has those that read alike.

    Example:
        >>> find_family("latent").module.__name__
        'LatentAttention'
    """
    found = FAMILIES.get(name) if isinstance(name, str) else None  # pyright: ignore[reportUnnecessaryIsInstance]
    if found is None:
        alike = get_close_matches(str(name), FAMILIES, n=3, cutoff=0.5)
        raise MultiheadError(
            asked=f"a kind of attention: one of {', '.join(FAMILIES)}",
            arrived=repr(name)[:100] if isinstance(name, str) else kind_and_text(name),  # pyright: ignore[reportUnnecessaryIsInstance]
            remedy=f"perhaps {' or '.join(map(repr, alike))}" if alike else "pass one of these names, or a module",
        )
    return found


def build_attention(name: str, embed_dim: int, heads: int) -> nn.Module:
    """A module of a kind of attention, all but its sizes at sensible defaults.

    Args:
        name: One of `FAMILIES`.
        embed_dim: Width of its input and output.
        heads: Number of heads, a divisor of it.

    Raises:
        MultiheadError: An unknown name, or sizes that do not divide or are no whole numbers of at least 1.

    Example:
        >>> build_attention("multi_query", 64, 8).kv_heads
        1
    """
    found = find_family(name)
    check_counts({"embed_dim": embed_dim, "heads": heads})
    divided(embed_dim, heads)
    return found.build(embed_dim, heads)


def able(what: str) -> str:
    """The kinds of attention that can be asked for something, as they are named in messages.

    Args:
        what: A field of `Support`.

    Example:
        >>> able("cross")[:28]
        'multi_head, grouped_query, m'
    """
    return ", ".join(row.name for row in FAMILIES.values() if getattr(row.support, what))
