"""multihead: build, run, study and mend multi-head attention.

Every public name is loaded at its first use, so `import multihead` costs no import of torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from multihead.attend import (
        Attended,
        Entmax,
        Explanation,
        Sigmoid,
        Softmax,
        Sparsemax,
        attention,
        attention_lse,
        explain_backend,
    )
    from multihead.error import BackendRefused, MultiheadError, RecordError
    from multihead.hooks import gated, locate
    from multihead.interop import load_model, register_transformers
    from multihead.layer import MultiHeadAttention
    from multihead.measure import Batch, Run, discard_journal, observe, watch
    from multihead.pattern import (
        Pattern,
        after_same_token,
        band,
        causal,
        distance,
        document,
        everything,
        global_tokens,
        nothing,
        padding,
        pairs,
        parse_pattern,
        per_head,
        prefix,
        same_token,
        sliding_window,
    )
    from multihead.position import ALiBi, RelativeTable, alibi_slopes
    from multihead.record import HeadAddress, HeadStatistics
    from multihead.workflow import Compared, Report, checkup, compare, load_checkup, open_model

_HOMES = {
    "attend": ("Attended Entmax Explanation Sigmoid Softmax Sparsemax attention attention_lse explain_backend"),
    "error": "BackendRefused MultiheadError RecordError",
    "hooks": "gated locate",
    "interop": "load_model register_transformers",
    "layer": "MultiHeadAttention",
    "measure": "Batch Run discard_journal observe watch",
    "pattern": (
        "Pattern after_same_token band causal distance document everything global_tokens nothing padding pairs "
        "parse_pattern per_head prefix same_token sliding_window"
    ),
    "position": "ALiBi RelativeTable alibi_slopes",
    "record": "HeadAddress HeadStatistics",
    "workflow": "Compared Report checkup compare load_checkup open_model",
}
_HOME_OF = {name: room for room, names in _HOMES.items() for name in names.split()}

__version__ = "0.1.0"

__all__ = [
    "ALiBi",
    "Attended",
    "BackendRefused",
    "Batch",
    "Compared",
    "Entmax",
    "Explanation",
    "HeadAddress",
    "HeadStatistics",
    "MultiHeadAttention",
    "MultiheadError",
    "Pattern",
    "RecordError",
    "RelativeTable",
    "Report",
    "Run",
    "Sigmoid",
    "Softmax",
    "Sparsemax",
    "after_same_token",
    "alibi_slopes",
    "attention",
    "attention_lse",
    "band",
    "causal",
    "checkup",
    "compare",
    "discard_journal",
    "distance",
    "document",
    "everything",
    "explain_backend",
    "gated",
    "global_tokens",
    "load_checkup",
    "load_model",
    "locate",
    "nothing",
    "observe",
    "open_model",
    "padding",
    "pairs",
    "parse_pattern",
    "per_head",
    "prefix",
    "register_transformers",
    "same_token",
    "sliding_window",
    "watch",
]


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'multihead' has no attribute {name!r}")
    found = getattr(import_module(f"multihead.{_HOME_OF[name]}"), name)
    globals()[name] = found  # found without this function from now on
    return found


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
