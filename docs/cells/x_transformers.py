# ruff: noqa: D103 - a row's title says what its cell does
"""x-transformers: `Attention`, and its `Attend` where queries, keys and values are given."""

import torch
from x_transformers.attend import Attend
from x_transformers.x_transformers import AlibiPositionalBias, Attention, RelativePositionBias, RotaryEmbedding

from cells.law import HEAD_DIM, HEADS, LENGTH, WIDTH, by_hand, gradient, leaf, note, split
from cells.law import entmax as entmax_of
from cells.law_families import CHOICE, KEYS, blocks_chosen, choice

PACKAGE = "x-transformers"


def run(s, q=None, k=None, v=None, **given):
    """The heads; options of the kernel are told from those of the call by name."""
    call = {name: given.pop(name) for name in ("mask", "attn_bias") if name in given}
    kernel = Attend(heads=HEADS, **given).eval()
    return kernel(*(a if b is None else b for a, b in ((s.q, q), (s.k, k), (s.v, v))), **call)


def layer(s, **given):
    made = Attention(WIDTH, dim_head=HEAD_DIM, heads=HEADS, **given).eval()
    with torch.no_grad():
        for linear, name in ((made.to_q, "q"), (made.to_k, "k"), (made.to_v, "v"), (made.to_out, "out")):
            linear.weight.copy_(s.weights[name][: linear.weight.shape[0], : linear.weight.shape[1]])
    return made


def causal(s):
    return run(s, causal=True, flash=True)[0]


def boolean_mask(s):
    return run(s, mask=s.mask, flash=True)[0]


@note("`sparse_topk`, without its flash option")
def top_keys(s):
    return run(s, causal=True, sparse_topk=KEYS)[0]


@by_hand(CHOICE)
def top_blocks(s):
    return boolean_mask(choice(s, blocks_chosen))


def padding_causal(s):
    return run(s, causal=True, flash=True, mask=s.keep)[0]


def empty_row(s):
    allowed = torch.ones(LENGTH, LENGTH).bool()
    allowed[2] = False
    q, k, v = map(leaf, (s.q, s.k, s.v))
    value = run(s, q, k, v, mask=allowed[None, None], flash=True)[0]
    return value.detach(), *torch.autograd.grad((value * value).sum(), (q, k, v))


def later_queries(s):
    return run(s, q=s.q[:, :, 5:], causal=True, flash=True)[0]


@note("`max_attend_past=2`: keys before a token, itself not counted; within a mask of every pair")
def window(s):
    made = Attention(WIDTH, dim_head=HEAD_DIM, heads=HEADS, causal=True, max_attend_past=2, flash=True)
    return identity(made, s)


def identity(made, s):
    """The heads of a layer whose projections are the identity, of queries, keys and values as columns of its input."""
    with torch.no_grad():
        for linear in (made.to_q, made.to_k, made.to_v, made.to_out):
            linear.weight.copy_(torch.eye(WIDTH))
    joined = [x.transpose(1, 2).flatten(2) for x in (s.q, s.k, s.v)]
    handles = [
        linear.register_forward_hook(lambda module, given, got, x=x: x)
        for linear, x in zip((made.to_q, made.to_k, made.to_v), joined, strict=True)
    ]
    result = made(s.x)
    for handle in handles:
        handle.remove()
    return split(result)


@by_hand("a mask of every pair")
def documents(s):
    same = s.documents[:, None, :, None] == s.documents[:, None, None]
    return run(s, causal=True, mask=same, flash=True)[0]


@by_hand("a mask of every pair")
def longformer(s):
    allowed = torch.ones(LENGTH, LENGTH).bool().triu(-2).tril(2)
    allowed[0], allowed[:, 0] = True, True
    return run(s, mask=allowed[None, None], flash=True)[0]


@note("scores of every pair")
def bias_gradient(s):
    bias = leaf(s.bias)
    value = run(s, attn_bias=bias)[0]
    return value.detach(), gradient(value, bias)


@note("without its flash option")
def softcap(s):
    return run(s, causal=True, softclamp_logits=True, logit_softclamp_value=1.5)[0]


@note("without its flash option")
def sinks(s):
    kernel = Attend(heads=HEADS, causal=True, head_learned_sink=True)
    with torch.no_grad():
        kernel.head_attn_sink.copy_(s.sinks)
    return kernel(s.q, s.k, s.v)[0]


@note("`add_zero_kv`")
def off_by_one(s):
    return run(s, causal=True, add_zero_kv=True)[0]


@note("without its flash option")
def sigmoid(s):
    return run(s, sigmoid=True)[0]


@by_hand("a function of the scores, `custom_attn_fn`")
def sparsemax(s):
    return run(s, custom_attn_fn=entmax_of(2.0))[0]


@by_hand("a function of the scores, `custom_attn_fn`")
def entmax(s):
    return run(s, custom_attn_fn=entmax_of(1.5))[0]


@note("query head h reads key/value head h % kv_heads, elsewhere it is h // group; each is copied for every query head")
def grouped(s):
    order = [0, 2, 1, 3]  # heads 0 and 1 share the first one
    found = run(s, q=s.q[:, order], k=s.few_k, v=s.few_v, causal=True, flash=True)[0]
    return found[:, order]


def value_width(s):
    return run(s, v=s.wide_v, flash=True)[0]


def free_head_dim(s):
    made = Attention(20, dim_head=8, heads=3, flash=True)
    with torch.no_grad():
        for linear, name in ((made.to_q, "q"), (made.to_k, "k"), (made.to_v, "v")):
            linear.weight.copy_(s.weights[name][:24, :20])
        made.to_out.weight.copy_(s.weights["out"][:20, :24])
    return made(s.x[..., :20])


@note("`qk_rmsnorm`, a weight for each head")
def qk_norm(s):
    made = layer(s, causal=True, qk_rmsnorm=True, flash=True)
    with torch.no_grad():
        # It counts the weight from 1.
        made.q_rmsnorm.gamma.copy_((s.norms[0] - 1).expand_as(made.q_rmsnorm.gamma))
        made.k_rmsnorm.gamma.copy_((s.norms[1] - 1).expand_as(made.k_rmsnorm.gamma))
    return made(s.x)


def output_gate(s):
    made = layer(s, causal=True, gate_value_heads=True, flash=True)
    with torch.no_grad():
        made.to_v_head_gate.weight.copy_(s.gate)
        made.to_v_head_gate.bias.zero_()
    return made(s.x)


@note("its mixing is added to the scores; mixing of weights likewise as an option")
def talking(s):
    made = layer(s, causal=True, pre_talking_heads=True, post_talking_heads=True)
    with torch.no_grad():
        before, after = made.attend.pre_softmax_talking_heads, made.attend.post_softmax_talking_heads
        before.weight.copy_((s.mixes[0] - torch.eye(HEADS))[..., None, None])
        after.weight.copy_(s.mixes[1][..., None, None])
    return made(s.x)


@note("pairs side by side; held against our definition with the rows of queries and keys reordered")
def rotary(s):
    order = torch.arange(WIDTH).view(HEADS, 2, HEAD_DIM // 2).mT.flatten()
    made = layer(s, causal=True, flash=True)
    with torch.no_grad():
        made.to_q.weight.copy_(s.weights["q"][order])
        made.to_k.weight.copy_(s.weights["k"][order])
    return made(s.x, rotary_pos_emb=RotaryEmbedding(HEAD_DIM).forward_from_seq_len(LENGTH))


def alibi(s):
    return run(s, causal=True, attn_bias=AlibiPositionalBias(HEADS)(LENGTH, LENGTH)[None])[0]


def distance_table(s):
    position = RelativePositionBias(1.0, causal=True, num_buckets=8, max_distance=8, heads=HEADS)
    with torch.no_grad():
        position.relative_attention_bias.weight.copy_(s.table)
    value = run(s, causal=True, attn_bias=position(LENGTH, LENGTH)[None])[0]
    return value.detach(), gradient(value, position.relative_attention_bias.weight)


def in_parts(made, s, sizes):
    found, kept = [], None
    with torch.no_grad():
        for part in s.x.split(sizes, 1):
            value, kept = made(part, cache=kept, return_intermediates=True)
            found.append(value)
    return torch.cat(found, 1)


def cache(s):
    return in_parts(layer(s, causal=True), s, 1)


def cache_chunks(s):
    return in_parts(layer(s, causal=True), s, [3, 1, 4])


@by_hand("tensors cut by the user")
def rollback(s):
    made = layer(s, causal=True)
    with torch.no_grad():
        first, kept = made(s.x[:, :5], return_intermediates=True)
        _, kept = made(torch.randn(2, 3, WIDTH), cache=kept, return_intermediates=True)
        kept.cached_kv = tuple(x[:, :, :5] for x in kept.cached_kv)
        return torch.cat([first, made(s.x[:, 5:], cache=kept)], 1)


@by_hand("tensors indexed by the user")
def beams(s):
    k, v = (torch.cat([x[[1, 1]][:, :, :6], x[:, :, 6:]], 2) for x in (s.k, s.v))
    return run(s, q=s.q[:, :, 6:], k=k, v=v, causal=True)[0]


@note("without its flash option, with a matrix of every pair")
def weights(s):
    return run(s, causal=True)[1].post_softmax_attn


@note("those before dropout are given")
def clean_weights(s):
    kernel = Attend(heads=HEADS, dropout=0.5).train()
    return kernel(s.q, s.k, s.v)[1].post_softmax_attn.sum(-1)


@by_hand("`head_scale`, which multiplies heads by learned numbers, set to 0")
def ablate(s):
    made = layer(s, head_scale=True, flash=True)
    with torch.no_grad():
        made.head_scale_params[:, 1] = 0
    return made(s.x)


@note("`head_scale`")
def head_gate(s):
    made = layer(s, head_scale=True, flash=True)
    with torch.no_grad():
        made.head_scale_params.copy_(s.heads[None, :, None, None])
    value = made(s.x)
    return value.detach(), gradient(value, made.head_scale_params).flatten()


@note("without its flash option")
def double_backward(s):
    q = leaf(s.q)
    value = run(s, q=q)[0]
    (first,) = torch.autograd.grad((value * value).sum(), q, create_graph=True)
    return torch.autograd.grad((first * first).sum(), q)[0]


def eval_dropout(s):
    return run(s, dropout=0.5, flash=True)[0]


def compile(s):
    torch.compiler.reset()
    made = torch.compile(Attend(heads=HEADS, causal=True, flash=True), fullgraph=True, dynamic=True, backend="eager")
    for length in (5, 6, 7, 8):
        result = made(*(x[:, :, :length] for x in (s.q, s.k, s.v)))[0]
    torch.compiler.reset()
    return result


def onnx(s):
    from cells.exporting import exported

    return exported(layer(s, causal=True, flash=True), s.x)


NO = {
    "alibi_learned": "its slopes are a buffer",
    "block": "its blocks have one kind of attention, with options",
    "latent": "not compared: it has latents without a norm, and turns whole heads",
    "rotary_llama3": "scalings: interpolation by a factor, xPos",
    "rotary_yarn": "scalings: interpolation by a factor, xPos",
}
