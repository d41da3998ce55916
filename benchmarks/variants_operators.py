"""The contenders of `variants.py`: kinds of attention, each as a function of what it is given, eight heads of 64.

An operator takes queries, keys and values (1, 8, length, 64); a layer takes (1, length, 512), projections included, and
is held against a layer of multi-head attention. A kind of attention is added as one row of `OPERATORS` or `LAYERS`.
"""

import torch
from torch.nn.functional import scaled_dot_product_attention

HEADS, HEAD_DIM, WIDTH = 8, 64, 512
WINDOW, BLOCK, BLOCKS = 256, 64, 8


def generator():
    return torch.Generator().manual_seed(0)


def normal(*shape):
    return torch.randn(*shape, generator=generator())


def qkv(length):
    """Queries, keys and values, not the same numbers."""
    return list(normal(3, 1, HEADS, length, HEAD_DIM).unbind())


def sdpa(length):
    return qkv(length), lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=True)


def ours(length):
    from multihead.attend import attention
    from multihead.pattern import causal

    return qkv(length), lambda q, k, v: attention(q, k, v, mask=causal())


def window(length):
    from multihead.attend import attention
    from multihead.pattern import sliding_window

    return qkv(length), lambda q, k, v: attention(q, k, v, mask=sliding_window(WINDOW))


def longformer(length):
    from multihead.attend import attention
    from multihead.pattern import band, global_tokens

    seen = band(WINDOW, WINDOW) | global_tokens([0])
    return qkv(length), lambda q, k, v: attention(q, k, v, mask=seen)


def strided(length):
    """Sparse Transformer, the stride the root of the length: two kinds of heads."""
    from multihead.attend import attention
    from multihead.pattern import strided as pattern

    seen = pattern(max(round(length**0.5), 1), heads=HEADS)
    return qkv(length), lambda q, k, v: attention(q, k, v, mask=seen)


def linear(length):
    from multihead.scan import EluPlusOne, linear_attention

    features = EluPlusOne()
    return qkv(length), lambda q, k, v: linear_attention(features.queries(q), features.keys(k), v).out


def retention(length):
    """RetNet's: one decay a head."""
    from multihead.scan import linear_attention

    decay = torch.log1p(-(2.0 ** (-5 - torch.arange(HEADS).float())))
    return qkv(length), lambda q, k, v: linear_attention(q, k, v, log_decay=decay, normalise=False).out


def gated_linear(length):
    """A decay a token and channel."""
    from multihead.scan import linear_attention

    given = [*qkv(length), -torch.rand(1, HEADS, length, HEAD_DIM, generator=generator())]
    return given, lambda q, k, v, decay: linear_attention(q, k, v, log_decay=decay, normalise=False).out


def delta(length):
    """A decay a token, beta a token: Gated DeltaNet's."""
    from multihead.scan import delta_rule

    q, k, v = qkv(length)
    k = torch.nn.functional.normalize(k, dim=-1)
    per_token = torch.rand(2, 1, HEADS, length, generator=generator())
    return [q, k, v, *per_token.unbind()], lambda q, k, v, beta, decay: delta_rule(q, k, v, beta, log_decay=-decay).out


def top_blocks(length):
    """MoBA: eight blocks of 64 keys a query."""
    from multihead.attend import attention
    from multihead.attend.selector import TopBlocks
    from multihead.pattern import causal

    chooser = TopBlocks(BLOCK, BLOCKS)

    def run(q, k, v):
        return attention(q, k, v, mask=causal() & chooser.select(q, k, mask=causal()))

    return qkv(length), run


def hashing(length):
    """LSH with as many buckets as the length asks for, as published."""
    from multihead.layer import LSHAttention

    return layer_of(LSHAttention(WIDTH, HEADS), length)


def named(name):
    """A layer as it is built by name."""

    def build(length):
        from multihead.layer import build_attention

        return layer_of(build_attention(name, WIDTH, HEADS), length)

    return build


def layer_sdpa(length):
    from multihead.layer import MultiHeadAttention

    return layer_of(MultiHeadAttention(WIDTH, HEADS, backend="sdpa"), length)


def layer_of(layer, length):
    from multihead.pattern import causal

    return [normal(1, length, WIDTH)], lambda x: layer(x, mask=causal()), layer


OPERATORS = {
    "sdpa": sdpa,
    "ours": ours,
    "window": window,
    "longformer": longformer,
    "strided": strided,
    "linear": linear,
    "retention": retention,
    "gated linear": gated_linear,
    "delta": delta,
    "top blocks": top_blocks,
}
LAYERS = {
    "sdpa layer": layer_sdpa,
    "our layer": named("multi_head"),
    "lsh": hashing,
    "native sparse": named("native_sparse"),
    "indexed": named("indexed"),
    "mixture of heads": named("mixture_of_heads"),
    "switch head": named("switch_head"),
    "mixture of attention": named("mixture_of_attention"),
    "latent": named("latent"),
    "differential": named("differential"),
}
EVERYBODY = OPERATORS | LAYERS
BASES = ("sdpa", "ours", "sdpa layer", "our layer")
"""Dense attention, which the others are held against; the first of each kind counts as the base of ratios."""
LONG = ("window", "longformer", "linear", "retention", "gated linear", "delta")
"""What goes on where dense attention takes too long."""
GROWTH = {
    "sdpa": (1.8, 2.2),
    "ours": (1.8, 2.2),
    "window": (0.0, 1.1),
    "longformer": (0.0, 1.1),
    "linear": (0.0, 1.1),
    "retention": (0.0, 1.1),
    "gated linear": (0.0, 1.1),
    "delta": (0.0, 1.1),
    "lsh": (0.0, 1.25),
}
"""Between what the fitted power of the length should lie."""


def base_of(name):
    """What a contender is held against."""
    return "sdpa layer" if name in LAYERS else "sdpa"
