# ruff: noqa: D103 - a row's title says what its cell does
"""The rows of the feature table: what is asked, and what the numbers must be."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from cells import law_families as families
from cells.law import (
    CAUSAL,
    HEADS,
    LENGTH,
    Setting,
    alibi,
    attend,
    distance_bias,
    entmax,
    frequencies,
    gradient,
    leaf,
    llama3,
    out,
    projected,
    rms,
    scores,
    sigmoid,
    softmax,
    turn,
    yarn,
)

WINDOW = CAUSAL & CAUSAL.T.triu(0).new_ones(LENGTH, LENGTH).triu(-2)


@dataclass(frozen=True)
class Row:
    """One row.

    Args:
        key: Its name; a cell is the function of that name in a library's file.
        title: What the page calls it.
        want: What a cell must return, in float64: a tensor, or several.
    """

    key: str
    title: str
    want: Callable[[Setting], object]


def core(**given):
    """Attention of the setting's queries, keys and values."""
    return lambda s: attend(s.q, s.k, s.v, **given)


def module(s, **given):
    """A module's answer."""
    return out(s, attend(*projected(s), **given))


def with_gradient(make, name):
    """Output and gradient of what is learned."""

    def want(s):
        learned = leaf(getattr(s, name), torch.float64)
        value = make(s, learned)
        return value.detach(), gradient(value, learned)

    return want


def empty_row(s):
    """Row 2 sees nothing: 0, and gradients are finite and those of the other rows."""
    allowed = torch.ones(LENGTH, LENGTH).bool()
    allowed[2] = False
    q, k, v = (leaf(x, torch.float64) for x in (s.q, s.k, s.v))
    value = attend(q, k, v, allowed=allowed)
    return value.detach(), *torch.autograd.grad((value * value).sum(), (q, k, v))


def documents(s):
    return attend(s.q, s.k, s.v, allowed=CAUSAL & (s.documents[:, None, :, None] == s.documents[:, None, None, :]))


def global_tokens():
    allowed = WINDOW | WINDOW.T
    allowed = allowed.clone()
    allowed[0], allowed[:, 0] = True, True
    return allowed


def mixed(s):
    """Two heads of 8 and four of 4."""
    q, k, v = (s.x.double() @ s.weights[name].double().T for name in "qkv")
    wide = attend(*(x[..., :16].unflatten(-1, (2, 8)).transpose(1, 2) for x in (q, k, v)))
    slim = attend(*(x[..., 16:].unflatten(-1, (4, 4)).transpose(1, 2) for x in (q, k, v)))
    joined = torch.cat([x.transpose(1, 2).flatten(2) for x in (wide, slim)], -1)
    return joined @ s.weights["out"].double().T


def free_head_dim(s):
    """Three heads of 8 in a width of 20."""
    w = {name: weight.double() for name, weight in s.weights.items()}
    q, k, v = ((s.x[..., :20].double() @ w[name][:24, :20].T).unflatten(-1, (3, 8)).transpose(1, 2) for name in "qkv")
    return attend(q, k, v).transpose(1, 2).flatten(2) @ w["out"][:20, :24].T


def normed(s):
    q, k, v = projected(s)
    return out(s, attend(rms(q, s.norms[0]), rms(k, s.norms[1]), v, allowed=CAUSAL))


def gated(s):
    gate = torch.sigmoid(s.x.double() @ s.gate.double().T)
    return out(s, attend(*projected(s), allowed=CAUSAL) * gate.transpose(1, 2)[..., None])


def rotary(s, f=None, amplitude=1.0):
    q, k, v = projected(s)
    f = frequencies() if f is None else f
    return out(s, attend(turn(q, f, amplitude=amplitude), turn(k, f, amplitude=amplitude), v, allowed=CAUSAL))


def yarned(s):
    return rotary(s, *yarn(frequencies()))


def latent(s):
    """Rank 8, parts of 4 and 4, values of 8; queries straight from the input; pairs side by side."""
    x, w = s.x.double(), {name: weight.double() for name, weight in s.weights.items()}
    c = rms(x @ w["k"][:8].T, s.norms[0])
    shared = turn((x @ w["k"][8:12].T)[:, None], frequencies(dim=4), layout="interleaved")
    q = (x @ w["q"].T).unflatten(-1, (HEADS, 8)).transpose(1, 2)
    up = (c @ torch.cat([w["v"], w["k"][12:28]])[:48, :8].T).unflatten(-1, (HEADS, 12)).transpose(1, 2)
    q = torch.cat([q[..., :4], turn(q[..., 4:], frequencies(dim=4), layout="interleaved")], -1)
    k = torch.cat([up[..., :4], shared.expand(-1, HEADS, -1, -1)], -1)
    return out(s, attend(q, k, up[..., 4:], allowed=CAUSAL))


def differential(s):
    """Two heads of two maps; lambda 0.5 taken off, and a norm."""
    x, w = s.x.double(), {name: weight.double() for name, weight in s.weights.items()}
    q, k = ((x @ w[name].T).unflatten(-1, (2, 2, 8)).permute(3, 0, 2, 1, 4) for name in "qk")
    v = (x @ w["v"].T).unflatten(-1, (2, 16)).transpose(1, 2)
    maps = [softmax(scores(q[i], k[i], allowed=CAUSAL)) for i in range(2)]
    heads = rms((maps[0] - 0.5 * maps[1]) @ v, torch.ones(16), 1e-5) * 0.5
    return heads.transpose(1, 2).flatten(2) @ w["out"].T


def talking(s):
    q, k, v = projected(s)
    before, after = s.mixes.double()
    mixed_scores = torch.einsum("hg,bgij->bhij", before, scores(q, k))
    mixed_weights = torch.einsum("hg,bgij->bhij", after, softmax(mixed_scores.masked_fill(~CAUSAL, -math.inf)))
    return out(s, mixed_weights @ v)


def weights(s):
    return softmax(scores(s.q, s.k, allowed=CAUSAL))


def without_head_one(s):
    heads = attend(*projected(s))
    heads[:, 1] = 0
    return out(s, heads)


def head_gates(s):
    """Heads times a learned number each, and the gradient of these."""
    gates = leaf(s.heads, torch.float64)
    value = out(s, attend(*projected(s)) * gates[:, None, None])
    return value.detach(), gradient(value, gates)


def double_backward(s):
    """The gradient of the square of a gradient."""
    q = leaf(s.q, torch.float64)
    value = attend(q, s.k, s.v)
    (first,) = torch.autograd.grad((value * value).sum(), q, create_graph=True)
    return torch.autograd.grad((first * first).sum(), q)[0]


def beams(s):
    """Two steps; then both rows go on from the second sequence."""
    q, k, v = (torch.cat([x[:, :, :6], x[:, :, 6:]], 2) for x in (s.q, s.k, s.v))
    k, v = (torch.cat([x[[1, 1]][:, :, :6], x[:, :, 6:]], 2) for x in (k, v))
    return attend(q[:, :, 6:], k, v, allowed=CAUSAL[6:])


def window_3(s):
    return attend(s.q, s.k, s.v, allowed=WINDOW)


SECTIONS = {
    "Which pairs": [
        Row("causal", "causal", core(allowed=CAUSAL)),
        Row(
            "boolean_mask", "a boolean mask for each sequence and head", lambda s: attend(s.q, s.k, s.v, allowed=s.mask)
        ),
        Row(
            "padding_causal",
            "padding and causal together",
            lambda s: attend(s.q, s.k, s.v, allowed=CAUSAL & s.keep[:, None, None]),
        ),
        Row("empty_row", "a query that sees no key: 0, finite gradients", empty_row),
        Row(
            "later_queries",
            "causal, the last 3 queries of 8 tokens",
            lambda s: attend(s.q[:, :, 5:], s.k, s.v, allowed=CAUSAL[5:]),
        ),
        Row("window", "sliding window of 3 keys", window_3),
        Row("documents", "documents in one sequence, causal", documents),
        Row("longformer", "window and a token that sees and is seen by all", core(allowed=global_tokens())),
    ],
    "Scores": [
        Row(
            "bias_gradient",
            "a bias on the scores that learns",
            with_gradient(lambda s, b: attend(s.q, s.k, s.v, bias=b), "bias"),
        ),
        Row("softcap", "softcap", core(softcap=1.5, allowed=CAUSAL)),
        Row(
            "sinks",
            "a learned sink for each head",
            lambda s: attend(s.q, s.k, s.v, allowed=CAUSAL, weigh=lambda x: softmax(x, s.sinks.double())),
        ),
        Row(
            "off_by_one",
            "softmax with 1 more in the denominator",
            core(allowed=CAUSAL, weigh=lambda x: softmax(x, torch.zeros(HEADS).double())),
        ),
        Row("sigmoid", "sigmoid", core(weigh=sigmoid)),
        Row("sparsemax", "sparsemax", core(weigh=entmax(2.0))),
        Row("entmax", "entmax 1.5", core(weigh=entmax(1.5))),
    ],
    "Heads": [
        Row("grouped", "grouped key/value heads, stored once", lambda s: attend(s.q, s.few_k, s.few_v, allowed=CAUSAL)),
        Row("value_width", "values of another width than keys", lambda s: attend(s.q, s.k, s.wide_v)),
        Row("free_head_dim", "head width not width / heads", free_head_dim),
        Row("mixed_widths", "heads of several widths in one layer", mixed),
        Row("qk_norm", "norm of queries and keys, with weights", normed),
        Row("output_gate", "output gate for each head", gated),
        Row("talking", "talking heads", talking),
        Row("differential", "differential attention", differential),
        Row("latent", "latent attention (MLA)", latent),
    ],
    "Positions": [
        Row("rotary", "rotary", rotary),
        Row("rotary_llama3", "rotary, Llama 3's scaling", lambda s: rotary(s, llama3(frequencies()))),
        Row("rotary_yarn", "rotary, YaRN", yarned),
        Row("alibi", "ALiBi", lambda s: attend(s.q, s.k, s.v, bias=alibi(s.slopes), allowed=CAUSAL)),
        Row(
            "alibi_learned",
            "ALiBi whose slopes learn",
            with_gradient(lambda s, t: attend(s.q, s.k, s.v, bias=alibi(t), allowed=CAUSAL), "slopes"),
        ),
        Row(
            "distance_table",
            "T5's table of distances, which learns",
            with_gradient(lambda s, t: attend(s.q, s.k, s.v, bias=distance_bias(t), allowed=CAUSAL), "table"),
        ),
    ],
    "Caches": [
        Row("cache", "token by token equals one pass", lambda s: module(s, allowed=CAUSAL)),
        Row("cache_chunks", "in chunks of 3, 1 and 4 equals one pass", lambda s: module(s, allowed=CAUSAL)),
        Row("cache_static", "memory taken once", lambda s: module(s, allowed=CAUSAL)),
        Row("cache_sliding", "a window's cache does not grow", lambda s: module(s, allowed=WINDOW)),
        Row("cache_int8", "keys and values as bytes", lambda s: module(s, allowed=CAUSAL)),
        Row("rollback", "go back to an earlier token", lambda s: module(s, allowed=CAUSAL)),
        Row("beams", "reorder sequences between steps", beams),
    ],
    "What heads do": [
        Row("lse", "log-sum-exp of each row", lambda s: scores(s.q, s.k, allowed=CAUSAL).logsumexp(-1)),
        Row("merge", "join attention over two sets of keys", core()),
        Row("weights", "weights of each head", weights),
        Row("weights_slice", "weights of 2 rows of a head, without the others", lambda s: weights(s)[:, 1:2, 6:]),
        Row("clean_weights", "weights and dropout: rows still sum to 1", lambda s: torch.ones(2, HEADS, LENGTH)),
        Row("ablate", "switch a head off", without_head_one),
        Row("head_gate", "a gate for each head that learns", head_gates),
        Row("prune", "prune a head: fewer parameters, then put back", without_head_one),
        Row("explain", "says which kernel runs, and why not the others", lambda s: ()),
    ],
    "Attention with a state": [
        Row("linear", "linear attention, elu + 1", families.linear),
        Row("retention", "one decay for each head (RetNet)", families.retention),
        Row("gated_linear", "a decay for each token and channel (GLA)", families.gated_linear),
        Row("gated_delta", "gated delta rule", families.delta),
        Row("gated_delta_steps", "gated delta rule, token by token with a state that does not grow", families.delta),
        Row("channel_delta", "delta rule, a decay for each channel (KDA)", lambda s: families.delta(s, channels=True)),
    ],
    "What the content chooses": [
        Row("top_keys", "the 3 keys of each query that score highest", families.over(families.keys_chosen)),
        Row("top_blocks", "blocks whose mean fits best (MoBA)", families.over(families.blocks_chosen)),
        Row("native_sparse", "native sparse attention (NSA)", families.native_sparse),
        Row("indexed", "latent attention with a learned indexer (DSA)", families.indexed),
        Row("lsh", "LSH attention, tiles through all buckets (Reformer)", families.lsh),
        Row("lsh_causal", "LSH attention in which later tokens change nothing", lambda s: ()),
    ],
    "Mixtures and reducers": [
        Row("mixture_of_heads", "mixture of heads (MoH)", families.mixture_of_heads),
        Row("switch_head", "experts of values and outputs (SwitchHead)", families.switch_head),
        Row("mixture_of_attention", "experts of queries and outputs (MoA)", families.mixture_of_attention),
        Row("load_loss", "a loss for an even load", families.load_loss),
        Row("resampler", "Perceiver resampler", families.resampler),
        Row("gated_cross", "gated cross-attention (Flamingo)", families.gated_cross),
    ],
    "Aligners of recurrent decoders": [
        Row("additive", "additive (Bahdanau)", families.additive),
        Row("coverage", "coverage and its loss", families.coverage),
        Row("luong", "multiplicative (Luong)", families.luong),
        Row("monotonic", "monotonic, expected", families.monotonic),
    ],
    "Around it": [
        Row("double_backward", "gradient of a gradient", double_backward),
        Row("eval_dropout", "no dropout in evaluation", core()),
        Row("compile", "one graph for every length (`fullgraph`, `dynamic`)", core(allowed=CAUSAL)),
        Row("onnx", "one ONNX Attention node, opset 23", lambda s: module(s, allowed=CAUSAL)),
        Row("block", "a Transformer block that takes any kind of attention by name", lambda s: ()),
        Row("cost", "multiply-adds and memory of a kind at given sizes, and where it pays", lambda s: ()),
        Row("from_torch", "weights of `nn.MultiheadAttention` in and out", module),
        Row("from_transformers", "weights of a transformers layer", lambda s: rotary(s)),
    ],
}
