"""Modules for models: multi-head attention with its projections."""

from multihead.layer.attention import MultiHeadAttention

__all__ = ["MultiHeadAttention"]
