"""Position biases: what a score gains or loses because of where query and key stand."""

from multihead.position.alibi import ALiBi, alibi_slopes
from multihead.position.relative import RelativeTable

__all__ = ["ALiBi", "RelativeTable", "alibi_slopes"]
