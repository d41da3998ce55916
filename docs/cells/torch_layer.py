# ruff: noqa: D103 - a row's title says what its cell does
"""`nn.MultiheadAttention` of torch, its projections set to the identity where queries, keys and values are given."""

import torch
from torch import nn

from cells.law import CAUSAL, HEADS, LENGTH, WIDTH, by_hand, claim, distance_bias, gradient, join, leaf, note, split
from cells.law_families import CHOICE, blocks_chosen, choice, keys_chosen

PACKAGE = "torch"
EYE = dict.fromkeys(("q", "k", "v", "out"), torch.eye(WIDTH))


def layer(weights=EYE, **given):
    made = nn.MultiheadAttention(WIDTH, HEADS, bias=False, batch_first=True, **given)
    with torch.no_grad():
        made.in_proj_weight.copy_(torch.cat([weights[name] for name in "qkv"]))
        made.out_proj.weight.copy_(weights["out"])
    return made


def run(s, q=None, **given):
    """The heads of the setting's queries, keys and values; in training mode, without dropout."""
    given = {"need_weights": False} | given
    return split(layer()(join(s.q if q is None else q), join(s.k), join(s.v), **given)[0])


@by_hand("a mask of every pair")
def causal(s):
    return run(s, attn_mask=~CAUSAL, is_causal=True)


@note("True = masked; one mask for each sequence and head, (batch * heads, length, length)")
def boolean_mask(s):
    return run(s, attn_mask=~s.mask.flatten(0, 1))


@by_hand(CHOICE)
def top_keys(s):
    return boolean_mask(choice(s, keys_chosen))


@by_hand(CHOICE)
def top_blocks(s):
    return boolean_mask(choice(s, blocks_chosen))


@by_hand("a mask of every pair")
def padding_causal(s):
    return run(s, attn_mask=~CAUSAL, key_padding_mask=~s.keep)


@note("0 without weights in training; with `need_weights=True`, its default, or in evaluation without gradients, NaN")
def empty_row(s):
    allowed = torch.ones(LENGTH, LENGTH).bool()
    allowed[2] = False
    made = layer().eval()
    with torch.no_grad():
        plain = made(join(s.q), join(s.k), join(s.v), attn_mask=~allowed)[0]
    q, k, v = map(leaf, (s.q, s.k, s.v))
    value = split(layer()(join(q), join(k), join(v), attn_mask=~allowed)[0])
    claim(not plain.isnan().any() and not value.isnan().any(), "NaN, except in training with `need_weights=False`")
    return value.detach(), *torch.autograd.grad((value * value).sum(), (q, k, v))


@by_hand("a mask of every pair")
def later_queries(s):
    return run(s, q=s.q[:, :, 5:], attn_mask=~CAUSAL[5:])


@by_hand("a mask of every pair")
def window(s):
    return run(s, attn_mask=~(CAUSAL & CAUSAL.new_ones(LENGTH, LENGTH).triu(-2)))


@by_hand("a mask of every pair, for each head")
def documents(s):
    allowed = CAUSAL & (s.documents[:, :, None] == s.documents[:, None])
    return run(s, attn_mask=~allowed.repeat_interleave(HEADS, 0))


@by_hand("a mask of every pair")
def longformer(s):
    allowed = torch.ones(LENGTH, LENGTH).bool().triu(-2).tril(2)
    allowed[0], allowed[:, 0] = True, True
    return run(s, attn_mask=~allowed)


@by_hand("scores of every pair")
def bias_gradient(s):
    bias = leaf(s.bias)
    value = run(s, attn_mask=bias.expand(2, -1, -1, -1).flatten(0, 1))
    return value.detach(), gradient(value, bias)


@by_hand("scores of every pair")
def alibi(s):
    return run(s, attn_mask=learned_alibi(s.slopes))


@by_hand("scores of every pair")
def alibi_learned(s):
    slopes = leaf(s.slopes)
    value = run(s, attn_mask=learned_alibi(slopes))
    return value.detach(), gradient(value, slopes)


def learned_alibi(slopes):
    distance = (torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)).abs()
    bias = (-slopes[:, None, None] * distance).masked_fill(~CAUSAL, float("-inf"))
    return bias.repeat(2, 1, 1)


@by_hand("scores of every pair")
def distance_table(s):
    table = leaf(s.table)
    bias = distance_bias(table).masked_fill(~CAUSAL, float("-inf")).expand(2, -1, -1, -1)
    value = run(s, attn_mask=bias.flatten(0, 1))
    return value.detach(), gradient(value, table)


@note("`average_attn_weights=False`; its plain path, with a matrix of every pair")
def weights(s):
    return layer()(join(s.q), join(s.k), join(s.v), attn_mask=~CAUSAL, average_attn_weights=False)[1]


def clean_weights(s):
    made = layer(dropout=0.5).train()
    return made(join(s.q), join(s.k), join(s.v), average_attn_weights=False)[1].sum(-1)


@by_hand("columns of the output projection set to 0")
def ablate(s):
    made = layer(s.weights)
    with torch.no_grad():
        made.out_proj.weight[:, 8:16] = 0
    return made(s.x, s.x, s.x, need_weights=False)[0]


@note("with `need_weights=True`")
def double_backward(s):
    q = leaf(s.q)
    value = split(layer()(join(q), join(s.k), join(s.v))[0])
    (first,) = torch.autograd.grad((value * value).sum(), q, create_graph=True)
    return torch.autograd.grad((first * first).sum(), q)[0]


def eval_dropout(s):
    return split(layer(dropout=0.5).eval()(join(s.q), join(s.k), join(s.v), need_weights=False)[0])


@by_hand("a mask of every pair")
def compile(s):
    torch.compiler.reset()
    made = layer()

    def call(q, k, v, mask):
        return made(q, k, v, attn_mask=mask, need_weights=False)[0]

    run_it = torch.compile(call, fullgraph=True, dynamic=True, backend="eager")
    for length in (5, 6, 7, 8):
        q, k, v = (join(x[:, :, :length]) for x in (s.q, s.k, s.v))
        result = run_it(q, k, v, ~CAUSAL[:length, :length])
    torch.compiler.reset()
    return split(result)


def onnx(s):
    from cells.exporting import exported

    made = layer(s.weights).eval()

    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = made

        def forward(self, x):
            return self.inner(x, x, x, attn_mask=~CAUSAL, need_weights=False)[0]

    return exported(Whole(), s.x)


def from_torch(s):
    return layer(s.weights)(s.x, s.x, s.x, need_weights=False)[0]


NO = {
    "value_width": "`vdim` is the width of the input: values of a head are as wide as its keys",
    "free_head_dim": "`embed_dim must be divisible by num_heads`",
    "block": "`nn.TransformerEncoderLayer` has one kind",
    "sinks": "`add_zero_attn` is a key with score 0, not a sink that learns",
}


@note("`add_zero_attn=True`")
def off_by_one(s):
    made = layer(add_zero_attn=True)
    return split(made(join(s.q), join(s.k), join(s.v), attn_mask=~CAUSAL, need_weights=False)[0])
