"""Modules for models: multi-head attention with its projections, head layouts and caches."""

from multihead.layer.attention import MultiHeadAttention
from multihead.layer.base import Attends, Options
from multihead.layer.block import Block, BlockNorm
from multihead.layer.block_cache import BlockCache
from multihead.layer.cache import AttentionCache, Full, Int8, Sliding, Static
from multihead.layer.delta import DeltaNetState, GatedDeltaNet
from multihead.layer.differential import DifferentialAttention, LayerLambda, TokenLambda
from multihead.layer.family import FAMILIES, build_attention, find_family
from multihead.layer.family_table import Family
from multihead.layer.feed_forward import FeedForward, FeedForwardLayer
from multihead.layer.group import HeadGroup, OutputGate, QKNorm, Scoring
from multihead.layer.indexed import Index, IndexedAttention
from multihead.layer.indexed_cache import IndexedCache
from multihead.layer.latent import Latent, LatentAttention
from multihead.layer.latent_cache import LatentCache
from multihead.layer.linear import GatedLinearAttention, LinearAttention
from multihead.layer.linear_options import LinearScoring, retention_decay
from multihead.layer.longformer import LongformerAttention
from multihead.layer.lsh import LSHAttention
from multihead.layer.lsh_cache import LSHCache
from multihead.layer.mixture_of_attention import MoAAttention
from multihead.layer.mixture_of_heads import MoHAttention
from multihead.layer.native_sparse import Branches, NativeSparseAttention
from multihead.layer.prune import Pruning
from multihead.layer.resampler import GatedCrossAttention, PerceiverResampler
from multihead.layer.routing import Router
from multihead.layer.scan_cache import StateCache
from multihead.layer.support import Support
from multihead.layer.swish_gate import SwishGate
from multihead.layer.switch_head import SwitchHeadAttention
from multihead.layer.talking import TalkingHeadsAttention

__all__ = [
    "FAMILIES",
    "Attends",
    "AttentionCache",
    "Block",
    "BlockCache",
    "BlockNorm",
    "Branches",
    "DeltaNetState",
    "DifferentialAttention",
    "Family",
    "FeedForward",
    "FeedForwardLayer",
    "Full",
    "GatedCrossAttention",
    "GatedDeltaNet",
    "GatedLinearAttention",
    "HeadGroup",
    "Index",
    "IndexedAttention",
    "IndexedCache",
    "Int8",
    "LSHAttention",
    "LSHCache",
    "Latent",
    "LatentAttention",
    "LatentCache",
    "LayerLambda",
    "LinearAttention",
    "LinearScoring",
    "LongformerAttention",
    "MoAAttention",
    "MoHAttention",
    "MultiHeadAttention",
    "NativeSparseAttention",
    "Options",
    "OutputGate",
    "PerceiverResampler",
    "Pruning",
    "QKNorm",
    "Router",
    "Scoring",
    "Sliding",
    "StateCache",
    "Static",
    "Support",
    "SwishGate",
    "SwitchHeadAttention",
    "TalkingHeadsAttention",
    "TokenLambda",
    "build_attention",
    "find_family",
    "retention_decay",
]
