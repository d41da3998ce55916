"""Position biases: what a score gains or loses because of where query and key stand."""

from multihead.position.alibi import ALiBi, alibi_slopes
from multihead.position.pairwise import Llama3, LongRoPE, YaRN
from multihead.position.relative import RelativeTable
from multihead.position.rotary import Rotary, Rotation, permute_rows
from multihead.position.scaling import NTK, DynamicNTK, Linear, Proportional, Scaling

__all__ = [
    "NTK",
    "ALiBi",
    "DynamicNTK",
    "Linear",
    "Llama3",
    "LongRoPE",
    "Proportional",
    "RelativeTable",
    "Rotary",
    "Rotation",
    "Scaling",
    "YaRN",
    "alibi_slopes",
    "permute_rows",
]
