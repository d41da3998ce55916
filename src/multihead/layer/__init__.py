"""Modules for models: multi-head attention with its projections, head layouts and caches."""

from multihead.layer.attention import MultiHeadAttention
from multihead.layer.base import Attends, Options
from multihead.layer.cache import AttentionCache, Full, Int8, Sliding, Static
from multihead.layer.differential import DifferentialAttention, LayerLambda, TokenLambda
from multihead.layer.group import HeadGroup, OutputGate, QKNorm, Scoring
from multihead.layer.latent import Latent, LatentAttention
from multihead.layer.latent_cache import LatentCache
from multihead.layer.longformer import LongformerAttention
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
    "Int8",
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
