"""Linear-time attention: recurrences with a state, each as a law, in chunks and step by step."""

from multihead.scan.feature import Drawn, EluPlusOne, Favor, FeatureMap, Identity
from multihead.scan.functional import delta_rule, linear_attention, linear_attention_full
from multihead.scan.state import DeltaState, LinearState, Scanned

__all__ = [
    "DeltaState",
    "Drawn",
    "EluPlusOne",
    "Favor",
    "FeatureMap",
    "Identity",
    "LinearState",
    "Scanned",
    "delta_rule",
    "linear_attention",
    "linear_attention_full",
]
