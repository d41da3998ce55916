"""Modules for models: multi-head attention with its projections, head layouts and caches."""

from multihead.layer.attention import MultiHeadAttention
from multihead.layer.base import Attends, Options
from multihead.layer.cache import AttentionCache, Full, Int8, Sliding, Static
from multihead.layer.group import HeadGroup, OutputGate, QKNorm, Scoring
from multihead.layer.prune import Pruning

__all__ = [
    "Attends",
    "AttentionCache",
    "Full",
    "HeadGroup",
    "Int8",
    "MultiHeadAttention",
    "Options",
    "OutputGate",
    "Pruning",
    "QKNorm",
    "Scoring",
    "Sliding",
    "Static",
]
