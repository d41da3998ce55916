"""Modules for models: multi-head attention with its projections, head layouts and caches."""

from multihead.layer.attention import MultiHeadAttention
from multihead.layer.cache import AttentionCache, Full, Int8, Sliding, Static
from multihead.layer.group import HeadGroup, OutputGate, QKNorm, Scoring

__all__ = [
    "AttentionCache",
    "Full",
    "HeadGroup",
    "Int8",
    "MultiHeadAttention",
    "OutputGate",
    "QKNorm",
    "Scoring",
    "Sliding",
    "Static",
]
