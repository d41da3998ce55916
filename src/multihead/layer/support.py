"""What a module can be asked for: each kind of attention says it, and whoever builds models reads it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Support:
    """Which calls a module takes; what it does not take it refuses, with the reason.

    Args:
        causal: Each token sees itself and those before: `mask=causal()`.
        bidirectional: Each token sees all: `mask=None`.
        cross: Queries look at another sequence: `layer(x, memory)`.
        patterns: Any pattern as `mask`; elsewhere only `causal()`, `padding(keep)` and `document(ids)`, as far as the
            other fields go.
        cached: Token by token with `cache=layer.cache(batch=...)`.
    """

    causal: bool = True
    bidirectional: bool = True
    cross: bool = True
    patterns: bool = True
    cached: bool = True
