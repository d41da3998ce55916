"""Modules for models: multi-head attention with its projections, head layouts and caches."""

from multihead.layer.attention import MultiHeadAttention
from multihead.layer.base import Attends, Options
from multihead.layer.cache import AttentionCache, Full, Int8, Sliding, Static
from multihead.layer.differential import DifferentialAttention, LayerLambda, TokenLambda
from multihead.layer.group import HeadGroup, OutputGate, QKNorm, Scoring
from multihead.layer.indexed import Index, IndexedAttention
from multihead.layer.indexed_cache import IndexedCache
from multihead.layer.latent import Latent, LatentAttention
from multihead.layer.latent_cache import LatentCache
from multihead.layer.longformer import LongformerAttention
from multihead.layer.lsh import LSHAttention
from multihead.layer.lsh_cache import LSHCache
from multihead.layer.native_sparse import Branches, NativeSparseAttention
from multihead.layer.prune import Pruning
from multihead.layer.resampler import GatedCrossAttention, PerceiverResampler
from multihead.layer.talking import TalkingHeadsAttention

__all__ = [
    "Attends",
    "AttentionCache",
    "Branches",
    "DifferentialAttention",
    "Full",
    "GatedCrossAttention",
    "HeadGroup",
    "Index",
    "IndexedAttention",
    "IndexedCache",
    "Int8",
    "LSHAttention",
    "LSHCache",
    "Latent",
    "LatentAttention",
    "LatentCache",
    "LayerLambda",
    "LongformerAttention",
    "MultiHeadAttention",
    "NativeSparseAttention",
    "Options",
    "OutputGate",
    "PerceiverResampler",
    "Pruning",
    "QKNorm",
    "Scoring",
    "Sliding",
    "Static",
    "TalkingHeadsAttention",
    "TokenLambda",
]
