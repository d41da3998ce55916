"""Doors to transformers: load its models, and let them run on our attention."""

from multihead.interop.load import LoadedModel, load_model
from multihead.interop.quiet import quiet_transformers
from multihead.interop.register import register_transformers
from multihead.interop.weights import check_weights

__all__ = ["LoadedModel", "check_weights", "load_model", "quiet_transformers", "register_transformers"]
