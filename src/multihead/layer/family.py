"""The kinds of attention by name: what builds one, what it can be asked for, where it comes from, what it loses."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches

from torch import nn

from multihead.error import MultiheadError, kind_and_text
from multihead.layer.attention import MultiHeadAttention
from multihead.layer.check import check_counts, divided
from multihead.layer.differential import DifferentialAttention
from multihead.layer.group import HeadGroup
from multihead.layer.latent import Latent, LatentAttention
from multihead.layer.longformer import LongformerAttention
from multihead.layer.support import Support
from multihead.layer.talking import TalkingHeadsAttention
from multihead.pattern import band
from multihead.position import Rotary

WINDOW = 256
"""Keys that a head with a window sees on its side, itself included."""
_GROUP = 4
_DENSE = MultiHeadAttention.SUPPORT


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A kind of attention.

    Args:
        name: Its name.
        module: The class.
        build: Makes one of (embed_dim, heads), all else at sensible defaults.
        support: What it can be asked for.
        paper: Where it comes from.
        about: What it is, in a few words.
        loses: What it gives up against attention of all pairs, in a few words; empty where it gives up nothing.
    """

    name: str
    module: type[nn.Module]
    build: Callable[[int, int], nn.Module]
    support: Support
    paper: str
    about: str
    loses: str = ""


def _grouped(embed_dim: int, heads: int) -> nn.Module:
    """Four query heads a key/value head, or as near to it as divides."""
    kv_heads = max(n for n in range(1, heads + 1) if heads % n == 0 and n <= max(heads // _GROUP, 1))
    return MultiHeadAttention(embed_dim, heads, kv_heads=kv_heads)


def _window(embed_dim: int, heads: int) -> nn.Module:
    return MultiHeadAttention(embed_dim, HeadGroup(heads, mask=band(WINDOW - 1, WINDOW - 1)))


def _latent(embed_dim: int, heads: int) -> nn.Module:
    """The proportions of DeepSeek-V3: a latent vector of four heads' width, half a head turned."""
    head_dim = divided(embed_dim, heads)
    turned = max(head_dim // 4 * 2, 2)
    latent = Latent(4 * head_dim, nope_dim=head_dim, rope_dim=turned, v_dim=head_dim)
    return LatentAttention(embed_dim, heads, latent, position=Rotary(layout="interleaved"))


_ROWS = (
    Family(
        name="multi_head",
        module=MultiHeadAttention,
        build=MultiHeadAttention,
        support=_DENSE,
        paper="Vaswani et al. 2017, arXiv:1706.03762",
        about="every query weighs every key",
    ),
    Family(
        name="grouped_query",
        module=MultiHeadAttention,
        build=_grouped,
        support=_DENSE,
        paper="Ainslie et al. 2023, arXiv:2305.13245",
        about="four query heads share keys and values",
        loses="keys and values of their own for each head",
    ),
    Family(
        name="multi_query",
        module=MultiHeadAttention,
        build=lambda embed_dim, heads: MultiHeadAttention(embed_dim, heads, kv_heads=1),
        support=_DENSE,
        paper="Shazeer 2019, arXiv:1911.02150",
        about="all query heads share keys and values",
        loses="keys and values of their own for each head",
    ),
    Family(
        name="latent",
        module=LatentAttention,
        build=_latent,
        support=LatentAttention.SUPPORT,
        paper="DeepSeek-AI 2024, arXiv:2405.04434",
        about="keys and values of all heads from one short vector a token",
        loses="keys and values of full rank",
    ),
    Family(
        name="differential",
        module=DifferentialAttention,
        build=DifferentialAttention,
        support=DifferentialAttention.SUPPORT,
        paper="Ye et al. 2024, arXiv:2410.05258",
        about="what one map sees, less a share of what another sees",
        loses="half the width of queries and keys, dropout of weights",
    ),
    Family(
        name="talking_heads",
        module=TalkingHeadsAttention,
        build=TalkingHeadsAttention,
        support=TalkingHeadsAttention.SUPPORT,
        paper="Shazeer et al. 2020, arXiv:2003.02436",
        about="heads exchange scores and weights",
        loses="fast kernels: weights of all heads are computed together",
    ),
    Family(
        name="window",
        module=MultiHeadAttention,
        build=_window,
        # Where a window lies in another sequence nobody can say.
        support=replace(_DENSE, cross=False),
        paper="Beltagy et al. 2020, arXiv:2004.05150; Jiang et al. 2023, arXiv:2310.06825",
        about=f"every query weighs the {WINDOW} nearest keys on each side",
        loses=f"all that is {WINDOW} tokens away or more, in one layer",
    ),
    Family(
        name="longformer",
        module=LongformerAttention,
        build=lambda embed_dim, heads: LongformerAttention(embed_dim, heads, window=2 * WINDOW),
        support=LongformerAttention.SUPPORT,
        paper="Beltagy et al. 2020, arXiv:2004.05150",
        about="a window for all tokens, and a few tokens that see and are seen by all",
        loses=f"all that is more than {WINDOW} tokens away and not a global token",
    ),
)

FAMILIES: Mapping[str, Family] = {row.name: row for row in _ROWS}
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
