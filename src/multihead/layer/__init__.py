"""Modules for models: multi-head attention with its projections, head layouts and caches."""

from multihead.layer.attention import MultiHeadAttention
from multihead.layer.base import Attends, Options
from multihead.layer.cache import AttentionCache, Full, Int8, Sliding, Static
from multihead.layer.delta import DeltaNetState, GatedDeltaNet
from multihead.layer.differential import DifferentialAttention, LayerLambda, TokenLambda
from multihead.layer.group import HeadGroup, OutputGate, QKNorm, Scoring
from multihead.layer.latent import Latent, LatentAttention
from multihead.layer.latent_cache import LatentCache
from multihead.layer.linear import GatedLinearAttention, LinearAttention, SwishGate
from multihead.layer.linear_options import Linear, retention_decay
from multihead.layer.longformer import LongformerAttention
from multihead.layer.prune import Pruning
from multihead.layer.scan_cache import StateCache
from multihead.layer.talking import TalkingHeadsAttention

__all__ = [
    "Attends",
    "AttentionCache",
    "DeltaNetState",
    "DifferentialAttention",
    "Full",
    "GatedDeltaNet",
    "GatedLinearAttention",
    "HeadGroup",
    "Int8",
    "Latent",
    "LatentAttention",
    "LatentCache",
    "LayerLambda",
    "Linear",
    "LinearAttention",
    "LongformerAttention",
    "MultiHeadAttention",
    "Options",
    "OutputGate",
    "Pruning",
    "QKNorm",
    "Scoring",
    "Sliding",
    "StateCache",
    "Static",
    "SwishGate",
    "TalkingHeadsAttention",
    "TokenLambda",
    "retention_decay",
]
