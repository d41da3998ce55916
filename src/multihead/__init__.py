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
        Merged,
        Sigmoid,
        Softmax,
        Sparsemax,
        attention,
        attention_lse,
        explain_backend,
        merge,
    )
    from multihead.error import BackendRefused, MultiheadError, RecordError
    from multihead.hooks import HeadGate, gated, locate, prune_heads
    from multihead.interop import compat, export_onnx, from_transformers, load_model, register_transformers
    from multihead.layer import (
        AttentionCache,
        DifferentialAttention,
        Full,
        HeadGroup,
        Int8,
        Latent,
        LatentAttention,
        LongformerAttention,
        MultiHeadAttention,
        OutputGate,
        QKNorm,
        Scoring,
        Sliding,
        Static,
        TalkingHeadsAttention,
    )
    from multihead.measure import Batch, Run, ablated, discard_journal, mean_outputs, observe, watch
    from multihead.pattern import (
        Pattern,
        after_same_token,
        band,
        bigbird,
        block_band,
        causal,
        chunk,
        dilated,
        distance,
        document,
        every,
        everything,
        fixed,
        from_callable,
        global_blocks,
        global_tokens,
        grid_window,
        keys_every,
        longformer,
        neighbourhood,
        nothing,
        padding,
        pairs,
        parse_pattern,
        per_head,
        prefix,
        random_blocks,
        random_pairs,
        same_token,
        sliding_window,
        strided,
    )
    from multihead.position import (
        NTK,
        AdaptiveSpan,
        ALiBi,
        DynamicNTK,
        Llama3,
        LongRoPE,
        RelativeTable,
        Rotary,
        ShawRelative,
        TransformerXLRelative,
        YaRN,
        alibi_slopes,
        permute_rows,
        sinusoid,
    )
    from multihead.record import HeadAddress, HeadStatistics
    from multihead.workflow import Compared, Report, checkup, compare, load_checkup, open_model

_HOMES = {
    "attend": (
        "Attended Entmax Explanation Merged Sigmoid Softmax Sparsemax attention attention_lse explain_backend merge"
    ),
    "error": "BackendRefused MultiheadError RecordError",
    "hooks": "HeadGate gated locate prune_heads",
    "interop": "compat export_onnx from_transformers load_model register_transformers",
    "layer": (
        "AttentionCache DifferentialAttention Full HeadGroup Int8 Latent LatentAttention LongformerAttention "
        "MultiHeadAttention OutputGate QKNorm Scoring Sliding Static TalkingHeadsAttention"
    ),
    "measure": "Batch Run ablated discard_journal mean_outputs observe watch",
    "pattern": (
        "Pattern after_same_token band bigbird block_band causal chunk dilated distance document every "
        "everything fixed from_callable global_blocks global_tokens grid_window keys_every longformer "
        "neighbourhood nothing padding pairs parse_pattern per_head prefix random_blocks random_pairs "
        "same_token sliding_window strided"
    ),
    "position": (
        "NTK ALiBi AdaptiveSpan DynamicNTK Llama3 LongRoPE RelativeTable Rotary ShawRelative "
        "TransformerXLRelative YaRN alibi_slopes permute_rows sinusoid"
    ),
    "record": "HeadAddress HeadStatistics",
    "workflow": "Compared Report checkup compare load_checkup open_model",
}
_HOME_OF = {name: room for room, names in _HOMES.items() for name in names.split()}

__version__ = "0.1.0"

__all__ = [
    "NTK",
    "ALiBi",
    "AdaptiveSpan",
    "Attended",
    "AttentionCache",
    "BackendRefused",
    "Batch",
    "Compared",
    "DifferentialAttention",
    "DynamicNTK",
    "Entmax",
    "Explanation",
    "Full",
    "HeadAddress",
    "HeadGate",
    "HeadGroup",
    "HeadStatistics",
    "Int8",
    "Latent",
    "LatentAttention",
    "Llama3",
    "LongRoPE",
    "LongformerAttention",
    "Merged",
    "MultiHeadAttention",
    "MultiheadError",
    "OutputGate",
    "Pattern",
    "QKNorm",
    "RecordError",
    "RelativeTable",
    "Report",
    "Rotary",
    "Run",
    "Scoring",
    "ShawRelative",
    "Sigmoid",
    "Sliding",
    "Softmax",
    "Sparsemax",
    "Static",
    "TalkingHeadsAttention",
    "TransformerXLRelative",
    "YaRN",
    "ablated",
    "after_same_token",
    "alibi_slopes",
    "attention",
    "attention_lse",
    "band",
    "bigbird",
    "block_band",
    "causal",
    "checkup",
    "chunk",
    "compare",
    "compat",
    "dilated",
    "discard_journal",
    "distance",
    "document",
    "every",
    "everything",
    "explain_backend",
    "export_onnx",
    "fixed",
    "from_callable",
    "from_transformers",
    "gated",
    "global_blocks",
    "global_tokens",
    "grid_window",
    "keys_every",
    "load_checkup",
    "load_model",
    "locate",
    "longformer",
    "mean_outputs",
    "merge",
    "neighbourhood",
    "nothing",
    "observe",
    "open_model",
    "padding",
    "pairs",
    "parse_pattern",
    "per_head",
    "permute_rows",
    "prefix",
    "prune_heads",
    "random_blocks",
    "random_pairs",
    "register_transformers",
    "same_token",
    "sinusoid",
    "sliding_window",
    "strided",
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
