"""Doors to transformers: load its models, and let them run on our attention."""

from multihead.interop import compat
from multihead.interop.convert import from_transformers
from multihead.interop.export import export_onnx
from multihead.interop.facts import (
    Filter,
    PictureFacts,
    SoundFacts,
    picture_facts,
    picture_part,
    reads_images,
    reads_sounds,
    sound_facts,
)
from multihead.interop.load import LoadedModel, load_model
from multihead.interop.mel import log_mel
from multihead.interop.packaged import load_packaged
from multihead.interop.quiet import quiet_transformers
from multihead.interop.register import register_transformers
from multihead.interop.weights import check_weights

__all__ = [
    "Filter",
    "LoadedModel",
    "PictureFacts",
    "SoundFacts",
    "check_weights",
    "compat",
    "export_onnx",
    "from_transformers",
    "load_model",
    "load_packaged",
    "log_mel",
    "picture_facts",
    "picture_part",
    "quiet_transformers",
    "reads_images",
    "reads_sounds",
    "register_transformers",
    "sound_facts",
]
