"""Positions: rotations of queries and keys, and what a score gains or loses because of where the two stand."""

from multihead.position.alibi import ALiBi, alibi_slopes
from multihead.position.pairwise import Llama3, LongRoPE, YaRN
from multihead.position.relative import RelativeTable
from multihead.position.rotary import Rotary, Rotation, permute_rows
from multihead.position.scaling import NTK, DynamicNTK, Linear, Proportional, Scaling
from multihead.position.shaw import ShawRelative
from multihead.position.sinusoid import sinusoid
from multihead.position.span import AdaptiveSpan
from multihead.position.transformer_xl import TransformerXLRelative

PositionBias = ALiBi | RelativeTable | AdaptiveSpan

__all__ = [
    "NTK",
    "ALiBi",
    "AdaptiveSpan",
    "DynamicNTK",
    "Linear",
    "Llama3",
    "LongRoPE",
    "PositionBias",
    "Proportional",
    "RelativeTable",
    "Rotary",
    "Rotation",
    "Scaling",
    "ShawRelative",
    "TransformerXLRelative",
    "YaRN",
    "alibi_slopes",
    "permute_rows",
    "sinusoid",
]
