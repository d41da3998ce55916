"""Aligners of recurrent decoders: one query at a time against a memory, with what was looked at before."""

from multihead.align.aligned import Aligned, AlignerSupport, Memory
from multihead.align.bahdanau import Bahdanau, Coverage, Covered
from multihead.align.base import Aligner
from multihead.align.luong import LocalMonotonic, LocalPredictive, Luong, Steps
from multihead.align.monotonic import Chunk, Monotonic, Walk

__all__ = [
    "Aligned",
    "Aligner",
    "AlignerSupport",
    "Bahdanau",
    "Chunk",
    "Coverage",
    "Covered",
    "LocalMonotonic",
    "LocalPredictive",
    "Luong",
    "Memory",
    "Monotonic",
    "Steps",
    "Walk",
]
