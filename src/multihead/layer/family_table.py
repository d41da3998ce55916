"""The rows of the table of kinds of attention: what builds one at sensible defaults."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import nn

from multihead.attend.selector import Buckets, TopBlocks
from multihead.layer.attention import MultiHeadAttention
from multihead.layer.check import divided, divisors
from multihead.layer.delta import GatedDeltaNet
from multihead.layer.differential import DifferentialAttention
from multihead.layer.group import HeadGroup
from multihead.layer.indexed import Index, IndexedAttention
from multihead.layer.latent import Latent, LatentAttention
from multihead.layer.linear import GatedLinearAttention, LinearAttention
from multihead.layer.linear_options import LinearScoring
from multihead.layer.longformer import LongformerAttention
from multihead.layer.lsh import LSHAttention
from multihead.layer.mixture_of_attention import MoAAttention
from multihead.layer.mixture_of_heads import MoHAttention
from multihead.layer.native_sparse import NativeSparseAttention
from multihead.layer.support import Support
from multihead.layer.switch_head import SwitchHeadAttention
from multihead.layer.talking import TalkingHeadsAttention
from multihead.pattern import band
from multihead.position import Rotary
from multihead.scan import Favor

WINDOW = 256
"""Keys that a head with a window sees on one side, its own included: 255 before it, and 255 behind it, and itself."""
BLOCK, BLOCKS = 64, 16
"""Keys in a block, and blocks that a query attends to, where blocks are chosen."""
CHOSEN = 512
"""Keys a query attends to, where an indexer chooses them."""
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
    kv_heads = max(n for n in divisors(heads) if n <= max(heads // _GROUP, 1))
    return MultiHeadAttention(embed_dim, heads, kv_heads=kv_heads)


def _window(embed_dim: int, heads: int) -> nn.Module:
    return MultiHeadAttention(embed_dim, HeadGroup(heads, mask=band(WINDOW - 1, WINDOW - 1)))


def _sizes(embed_dim: int, heads: int) -> Latent:
    """The proportions of DeepSeek-V3: a latent vector of four heads' width, half a head turned."""
    head_dim = divided(embed_dim, heads)
    return Latent(4 * head_dim, nope_dim=head_dim, rope_dim=max(head_dim // 4 * 2, 2), v_dim=head_dim)


def _latent(embed_dim: int, heads: int) -> nn.Module:
    return LatentAttention(embed_dim, heads, _sizes(embed_dim, heads), position=Rotary(layout="interleaved"))


def _indexed(embed_dim: int, heads: int) -> nn.Module:
    latent = _sizes(embed_dim, heads)
    index = Index(CHOSEN, heads=4, head_dim=max(latent.nope_dim, latent.rope_dim))
    return IndexedAttention(embed_dim, heads, latent, index, position=Rotary(layout="interleaved"))


def _top_blocks(embed_dim: int, heads: int) -> nn.Module:
    return MultiHeadAttention(embed_dim, HeadGroup(heads, mask=TopBlocks(BLOCK, BLOCKS)))


def _lsh(embed_dim: int, heads: int) -> nn.Module:
    """Buckets that stay as they are, so that there is a cache: 64, whose long ones are cut into tiles."""
    return LSHAttention(embed_dim, heads, Buckets((8, 8), seed=0))


def _performer(embed_dim: int, heads: int) -> nn.Module:
    return LinearAttention(embed_dim, heads, scoring=LinearScoring(features=Favor()))


def _mixture_of_heads(embed_dim: int, heads: int) -> nn.Module:
    """A quarter of the heads always on, half of the others chosen."""
    shared = heads // 4
    return MoHAttention(embed_dim, heads, shared=shared, chosen=max((heads - shared) // 2, 1))


def _switch_head(embed_dim: int, heads: int) -> nn.Module:
    """A quarter of the heads, with four experts each, two of them chosen."""
    group = HeadGroup(max(heads // 4, 1), divided(embed_dim, heads))
    return SwitchHeadAttention(embed_dim, group, experts=4, chosen=2)


def _mixture_of_attention(embed_dim: int, heads: int) -> nn.Module:
    """Eight experts of half the heads, two of them chosen; keys and values of half the heads for all."""
    return MoAAttention(embed_dim, HeadGroup(max(heads // 2, 1), divided(embed_dim, heads)), experts=8, chosen=2)


ROWS = (
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
        about=f"every query weighs its own key and the {WINDOW - 1} nearest on each side",
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
    Family(
        name="linear",
        module=LinearAttention,
        build=LinearAttention,
        support=LinearAttention.SUPPORT,
        paper="Katharopoulos et al. 2020, arXiv:2006.16236",
        about="a state of fixed size, read through elu(x) + 1",
        loses="single tokens in a long text: the state holds no more than its size",
    ),
    Family(
        name="performer",
        module=LinearAttention,
        build=_performer,
        support=LinearAttention.SUPPORT,
        paper="Choromanski et al. 2020, arXiv:2009.14794",
        about="a state of fixed size, read through random features of the softmax",
        loses="sharp weights: the error grows with the length of queries and keys",
    ),
    Family(
        name="retention",
        module=LinearAttention,
        build=LinearAttention.retnet,
        support=replace(LinearAttention.SUPPORT, bidirectional=False, cross=False),
        paper="Sun et al. 2023, arXiv:2307.08621",
        about="a state that fades, each head at its own pace",
        loses="what lies far back: it fades whatever it is",
    ),
    Family(
        name="gated_linear",
        module=GatedLinearAttention,
        build=GatedLinearAttention,
        support=GatedLinearAttention.SUPPORT,
        paper="Yang et al. 2023, arXiv:2312.06635",
        about="a state whose channels fade as each token says",
        loses="single tokens in a long text: the state holds no more than its size",
    ),
    Family(
        name="gated_delta",
        module=GatedDeltaNet,
        build=GatedDeltaNet,
        support=GatedDeltaNet.SUPPORT,
        paper="Yang et al. 2024, arXiv:2412.06464",
        about="a state in which a key's new value takes the place of its old one",
        loses="more keys than a head is wide",
    ),
    Family(
        name="lsh",
        module=LSHAttention,
        build=_lsh,
        support=LSHAttention.SUPPORT,
        paper="Kitaev et al. 2020, arXiv:2001.04451",
        about="every query weighs the keys that hash alike",
        loses="keys that fall into other buckets, by chance; queries and keys are one",
    ),
    Family(
        name="top_blocks",
        module=MultiHeadAttention,
        build=_top_blocks,
        support=replace(_DENSE, cross=False),
        paper="Lu et al. 2025, arXiv:2502.13189",
        about="every query weighs the 16 blocks of 64 keys whose mean it fits best",
        loses="keys in blocks whose mean does not show them",
    ),
    Family(
        name="native_sparse",
        module=NativeSparseAttention,
        build=NativeSparseAttention,
        support=NativeSparseAttention.SUPPORT,
        paper="Yuan et al. 2025, arXiv:2502.11089",
        about="compressed blocks, chosen blocks and a window, gated",
        loses="keys in blocks whose summary does not show them",
    ),
    Family(
        name="indexed",
        module=IndexedAttention,
        build=_indexed,
        support=IndexedAttention.SUPPORT,
        paper="DeepSeek-AI 2025, arXiv:2512.02556",
        about="latent attention to the 512 keys that a learned indexer chooses",
        loses="keys beyond the budget; the indexer must be trained",
    ),
    Family(
        name="mixture_of_heads",
        module=MoHAttention,
        build=_mixture_of_heads,
        support=MoHAttention.SUPPORT,
        paper="Jin et al. 2024, arXiv:2410.11842",
        about="each token takes some of the heads",
        loses="heads that a token did not choose",
    ),
    Family(
        name="switch_head",
        module=SwitchHeadAttention,
        build=_switch_head,
        support=SwitchHeadAttention.SUPPORT,
        paper="Csordas et al. 2023, arXiv:2312.07987",
        about="few heads, with experts for values and outputs",
        loses="maps of weights: a quarter of the heads",
    ),
    Family(
        name="mixture_of_attention",
        module=MoAAttention,
        build=_mixture_of_attention,
        support=MoAAttention.SUPPORT,
        paper="Zhang et al. 2022, arXiv:2210.05144",
        about="each token takes some experts of queries and outputs; keys are shared",
        loses="keys and values of their own for each head",
    ),
)
"""In the order they are listed."""
