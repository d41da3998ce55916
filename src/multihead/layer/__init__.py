"""Modules for models: multi-head attention with its projections, head layouts and caches."""

from multihead.layer.attention import MultiHeadAttention
from multihead.layer.base import Attends, Options
from multihead.layer.cache import AttentionCache, Full, Int8, Sliding, Static
from multihead.layer.group import HeadGroup, OutputGate, QKNorm, Scoring

__all__ = [
    "Attends",
    "AttentionCache",
    "Full",
    "HeadGroup",
    "Int8",
    "MultiHeadAttention",
    "Options",
    "OutputGate",
    "QKNorm",
    "Scoring",
    "Sliding",
    "Static",
]
