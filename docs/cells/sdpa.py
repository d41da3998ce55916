# ruff: noqa: D102, D103 - a row's title says what its cell does
"""`torch.nn.functional.scaled_dot_product_attention`."""

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as sdpa

from cells.law import CAUSAL, DASH, LENGTH, by_hand, distance_bias, gradient, join, leaf, note, split
from cells.law_families import ALIGNERS, CHOICE, FUNCTION, LAYERS, STATES, blocks_chosen, choice, keys_chosen

PACKAGE = "torch"


def causal(s):
    return sdpa(s.q, s.k, s.v, is_causal=True)


def boolean_mask(s):
    return sdpa(s.q, s.k, s.v, attn_mask=s.mask)


@by_hand(CHOICE)
def top_keys(s):
    return boolean_mask(choice(s, keys_chosen))


@by_hand(CHOICE)
def top_blocks(s):
    return boolean_mask(choice(s, blocks_chosen))


@by_hand("memory projected by the user; the scale is 1")
def luong(s):
    keys = (s.long @ s.spare[0].T)[:, None]
    return sdpa(s.x[:, None, :STATES], keys, s.long[:, None], scale=1.0)[:, 0]


@by_hand("a mask of every pair")
def padding_causal(s):
    return sdpa(s.q, s.k, s.v, attn_mask=CAUSAL & s.keep[:, None, None])


def empty_row(s):
    allowed = torch.ones(LENGTH, LENGTH).bool()
    allowed[2] = False
    q, k, v = map(leaf, (s.q, s.k, s.v))
    value = sdpa(q, k, v, attn_mask=allowed)
    return value.detach(), *torch.autograd.grad((value * value).sum(), (q, k, v))


@note("`causal_lower_right`; `is_causal=True` counts from the first key")
def later_queries(s):
    from torch.nn.attention.bias import causal_lower_right

    return sdpa(s.q[:, :, 5:], s.k, s.v, attn_mask=causal_lower_right(3, LENGTH))


@by_hand("a mask of every pair")
def window(s):
    return sdpa(s.q, s.k, s.v, attn_mask=CAUSAL & torch.ones(LENGTH, LENGTH).bool().triu(-2))


@by_hand("a mask of every pair")
def documents(s):
    same = s.documents[:, None, :, None] == s.documents[:, None, None]
    return sdpa(s.q, s.k, s.v, attn_mask=CAUSAL & same)


@by_hand("a mask of every pair")
def longformer(s):
    allowed = torch.ones(LENGTH, LENGTH).bool().triu(-2).tril(2)
    allowed[0], allowed[:, 0] = True, True
    return sdpa(s.q, s.k, s.v, attn_mask=allowed)


@note("scores of every pair")
def bias_gradient(s):
    bias = leaf(s.bias)
    value = sdpa(s.q, s.k, s.v, attn_mask=bias)
    return value.detach(), gradient(value, bias)


@by_hand("a key of zeros in front, with the sink as its bias, and a value of zeros")
def sinks(s):
    return with_sink(s, s.sinks)


@by_hand("a key of zeros in front, with the sink as its bias, and a value of zeros")
def off_by_one(s):
    return with_sink(s, torch.zeros(4))


def with_sink(s, sinks):
    k, v = (torch.cat([torch.zeros_like(x[:, :, :1]), x], 2) for x in (s.k, s.v))
    bias = torch.zeros(LENGTH, LENGTH).masked_fill(~CAUSAL, float("-inf")).expand(4, -1, -1)
    return sdpa(s.q, k, v, attn_mask=torch.cat([sinks[:, None, None].expand(4, LENGTH, 1), bias], -1))


def grouped(s):
    return sdpa(s.q, s.few_k, s.few_v, is_causal=True, enable_gqa=True)


@note("on a CPU by its plain path, with a matrix of every pair")
def value_width(s):
    return sdpa(s.q, s.k, s.wide_v)


def positional(slopes):
    distance = (torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)).abs()
    return (-slopes[:, None, None] * distance).masked_fill(~CAUSAL, float("-inf"))


@by_hand("scores of every pair")
def alibi(s):
    return sdpa(s.q, s.k, s.v, attn_mask=positional(s.slopes))


@by_hand("scores of every pair")
def alibi_learned(s):
    slopes = leaf(s.slopes)
    value = sdpa(s.q, s.k, s.v, attn_mask=positional(slopes))
    return value.detach(), gradient(value, slopes)


@by_hand("heads gated after the call")
def head_gate(s):
    gates = leaf(s.heads)
    q, k, v = (split(s.x @ s.weights[name].T) for name in "qkv")
    value = join(sdpa(q, k, v) * gates[:, None, None]) @ s.weights["out"].T
    return value.detach(), gradient(value, gates)


@note("by `SDPBackend.MATH`")
def double_backward(s):
    q = leaf(s.q)
    with sdpa_kernel(SDPBackend.MATH):
        value = sdpa(q, s.k, s.v)
        (first,) = torch.autograd.grad((value * value).sum(), q, create_graph=True)
        return torch.autograd.grad((first * first).sum(), q)[0]


def compile(s):
    torch.compiler.reset()
    made = torch.compile(lambda q, k, v: sdpa(q, k, v, is_causal=True), fullgraph=True, dynamic=True, backend="eager")
    for length in (5, 6, 7, 8):
        result = made(*(x[:, :, :length] for x in (s.q, s.k, s.v)))
    torch.compiler.reset()
    return result


class Layer(nn.Module):
    """Projections around the call."""

    def __init__(self, weights):
        super().__init__()
        self.weights = nn.ParameterDict(weights)

    def forward(self, x):
        q, k, v = (split(x @ self.weights[name].T) for name in "qkv")
        return sdpa(q, k, v, is_causal=True).transpose(1, 2).flatten(2) @ self.weights["out"].T


def onnx(s):
    from cells.exporting import exported

    return exported(Layer(s.weights).eval(), s.x)


MODULE = dict.fromkeys(
    [
        "free_head_dim",
        "mixed_widths",
        "qk_norm",
        "output_gate",
        "talking",
        "differential",
        "latent",
        "rotary",
        "rotary_llama3",
        "rotary_yarn",
        "cache",
        "cache_chunks",
        "cache_static",
        "cache_sliding",
        "cache_int8",
        "rollback",
        "beams",
        "prune",
        "from_torch",
        "from_transformers",
        "ablate",
    ],
    DASH,
)
NO = (
    MODULE
    | FUNCTION
    | ALIGNERS
    | dict.fromkeys(LAYERS, DASH)
    | {
        "talking": "the scores of all heads are nowhere",
        "eval_dropout": "dropout is applied as it is given, in evaluation too",
        "lse": "only private operators return it",
        "explain": "warnings while all kernels but one are switched off",
    }
)


@by_hand("scores of every pair")
def distance_table(s):
    table = leaf(s.table)
    value = sdpa(s.q, s.k, s.v, attn_mask=distance_bias(table).masked_fill(~CAUSAL, float("-inf")))
    return value.detach(), gradient(value, table)
