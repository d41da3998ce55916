"""What one attention call of a watched model looked like."""

from dataclasses import dataclass

from jaxtyping import Bool, Float, Int
from torch import Tensor

from multihead.attend.problem import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """One attention layer of a model, told apart by the identity of its module and, where layers are shared, by call.

    Args:
        module: Dotted name of the attention module, as in `model.named_modules()`.
        repeat: How many times this module was called before within the same forward pass (ALBERT: 0 to 11).
        cross: True where keys come from another sequence than queries.
        stack: Name of its stack of layers as the whole model tells it, or None where only the sites at hand tell it.
    """

    module: str
    repeat: int = 0
    cross: bool = False
    stack: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Projection:
    """The output projection of an attention layer: y = concat(heads) @ weight.T + bias.

    Args:
        weight: (model width, heads * v_head_dim): the columns of the heads of the call.
        reason: Empty, or why there is no projection; then `weight` is None.
    """

    weight: Float[Tensor, "width inner"] | None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tokens:
    """What the model was fed, as far as it is known.

    Args:
        ids: Token ids (batch, length), or None (images, audio, embeddings).
        keep: True = real token, False = padding (batch, length), or None where every position is real.
    """

    ids: Int[Tensor, "batch length"] | None = None
    keep: Bool[Tensor, "batch length"] | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Call:
    """One attention call, complete: what went in, what the model's own kernel returned, what was done with it.

    A layer with heads of several kinds (`MultiHeadAttention` with several groups) makes a call for each kind, all at
    one site: its heads are those from `first_head` on.

    Tensors are the model's own, not copies: read them inside the callback, never write to them.

    Args:
        site: Which layer.
        problem: Queries, keys, values after position encoding and cache, with mask, bias, scale, softcap and sinks. By
            fallback, queries and keys may have head_dim 0: then the bias holds the model's scores.
        output: Head outputs (batch, q_len, heads, v_head_dim) as the model used them.
        projection: The linear map the head outputs are fed to, found by the identity of the data.
        residual: Input of the block around the layer (batch, q_len, width), or None if there is no such block.
        queries: Tokens at the query positions.
        keys: Tokens at the key positions.
        kernel: Name of the model's own implementation, e.g. `"sdpa"`; of a module that computes attention by itself,
            what was seen of it: `"softmax (fallback)"` or `"scaled_dot_product_attention (fallback)"`.
        first_head: Number of the first of these heads within the layer.
    """

    site: Site
    problem: Problem
    output: Float[Tensor, "batch q_len heads v_head_dim"]
    projection: Projection
    residual: Float[Tensor, "batch q_len width"] | None
    queries: Tokens
    keys: Tokens
    kernel: str
    first_head: int = 0
