# ruff: noqa: D103 - a row's title says what its cell does
"""`torch.nn.attention.flex_attention`, not compiled: compiled it has no backward pass on a CPU."""

import torch
from torch.nn.attention.flex_attention import AuxRequest, and_masks, create_block_mask, flex_attention

from cells.law import DASH, HEADS, LENGTH, Lacking, by_hand, gradient, join, leaf, note, split
from cells.law_families import ALIGNERS, CHOICE, FUNCTION, LAYERS, STATES, blocks_chosen, choice, keys_chosen

PACKAGE = "torch"
FORWARD = "on a CPU there is no backward pass to queries, keys and values"
CAPTURED = "its gradient; on a CPU none of queries, keys and values"


def causal_pair(b, h, q, k):
    return q >= k


def masked(s, pairs, q=None, *, by_batch=False, by_head=False):
    q = s.q if q is None else q
    mask = create_block_mask(
        pairs, 2 if by_batch else None, HEADS if by_head else None, q.shape[2], LENGTH, device="cpu"
    )
    return flex_attention(q, s.k, s.v, block_mask=mask)


def causal(s):
    return masked(s, causal_pair)


def boolean_mask(s):
    return masked(s, lambda b, h, q, k: s.mask[b, h, q, k], by_batch=True, by_head=True)


@by_hand(CHOICE)
def top_keys(s):
    return boolean_mask(choice(s, keys_chosen))


@by_hand(CHOICE)
def top_blocks(s):
    return boolean_mask(choice(s, blocks_chosen))


@by_hand("memory projected by the user; the scale is 1")
def luong(s):
    keys = (s.long @ s.spare[0].T)[:, None]
    return flex_attention(s.x[:, None, :STATES], keys, s.long[:, None], scale=1.0)[:, 0]


def padding_causal(s):
    return masked(s, and_masks(causal_pair, lambda b, h, q, k: s.keep[b, k]), by_batch=True)


def empty_row(s):
    mask = create_block_mask(lambda b, h, q, k: q != 2, None, None, LENGTH, LENGTH, device="cpu")
    return with_gradients(s, lambda q, k, v: flex_attention(q, k, v, block_mask=mask))


def with_gradients(s, call):
    """Output and gradients of queries, keys and values."""
    q, k, v = map(leaf, (s.q, s.k, s.v))
    try:
        value = call(q, k, v)
    except NotImplementedError as fault:
        raise Lacking(FORWARD) from fault
    return value.detach(), *torch.autograd.grad((value * value).sum(), (q, k, v))


@note("the user adds the offset in the function of pairs")
def later_queries(s):
    return masked(s, lambda b, h, q, k: q + 5 >= k, q=s.q[:, :, 5:])


def window(s):
    return masked(s, lambda b, h, q, k: (q >= k) & (q - k < 3))


def documents(s):
    return masked(s, lambda b, h, q, k: (q >= k) & (s.documents[b, q] == s.documents[b, k]), by_batch=True)


def longformer(s):
    return masked(s, lambda b, h, q, k: ((q - k).abs() <= 2) | (q == 0) | (k == 0))


def scored(s, change, *, mask=True, **given):
    block = create_block_mask(causal_pair, None, None, LENGTH, LENGTH, device="cpu") if mask else None
    return flex_attention(s.q, s.k, s.v, score_mod=change, block_mask=block, **given)


@note(CAPTURED)
def bias_gradient(s):
    bias = leaf(s.bias)
    value = scored(s, lambda x, b, h, q, k: x + bias[0, h, q, k], mask=False)
    return value.detach(), gradient(value, bias)


def softcap(s):
    return scored(s, lambda x, b, h, q, k: 1.5 * torch.tanh(x / 1.5))


@by_hand("the output scaled after the call, by the log-sum-exp")
def sinks(s):
    return with_sink(s, s.sinks)


@by_hand("the output scaled after the call, by the log-sum-exp")
def off_by_one(s):
    return with_sink(s, torch.zeros(HEADS))


def with_sink(s, sinks):
    value, aux = scored(s, None, return_aux=AuxRequest(lse=True))
    return value * torch.sigmoid(aux.lse - sinks[:, None])[..., None]


def grouped(s):
    mask = create_block_mask(causal_pair, None, None, LENGTH, LENGTH, device="cpu")
    return flex_attention(s.q, s.few_k, s.few_v, block_mask=mask, enable_gqa=True)


def value_width(s):
    return flex_attention(s.q, s.k, s.wide_v)


def alibi(s):
    return scored(s, lambda x, b, h, q, k: x - s.slopes[h] * (q - k).abs())


@note(CAPTURED)
def alibi_learned(s):
    slopes = leaf(s.slopes)
    value = scored(s, lambda x, b, h, q, k: x - slopes[h] * (q - k).abs())
    return value.detach(), gradient(value, slopes)


@note(CAPTURED)
def distance_table(s):
    table = leaf(s.table)
    value = scored(s, lambda x, b, h, q, k: x + table[(q - k).clamp(min=0), h])
    return value.detach(), gradient(value, table)


def lse(s):
    return scored(s, None, return_aux=AuxRequest(lse=True))[1].lse


@by_hand("joined by the user, from the log-sum-exps")
def merge(s):
    found = [
        flex_attention(s.q, s.k[:, :, part], s.v[:, :, part], return_aux=AuxRequest(lse=True))
        for part in (slice(0, 3), slice(3, None))
    ]
    share = torch.stack([aux.lse for _, aux in found]).softmax(0)[..., None]
    return sum(weight * value for weight, (value, _) in zip(share, found, strict=True))


@by_hand("exp(scores - log-sum-exp), computed by the user")
def weights_slice(s):
    _, aux = scored(s, None, return_aux=AuxRequest(lse=True))
    scores = s.q[:, 1:2, 6:] @ s.k[:, 1:2].mT * 8**-0.5
    allowed = torch.ones(2, LENGTH).bool().tril(6)
    return torch.exp(scores - aux.lse[:, 1:2, 6:, None]).masked_fill(~allowed, 0)


@by_hand("heads gated after the call")
def head_gate(s):
    gates = leaf(s.heads)
    q, k, v = (split(s.x @ s.weights[name].T) for name in "qkv")
    value = join(flex_attention(q, k, v) * gates[:, None, None]) @ s.weights["out"].T
    return value.detach(), gradient(value, gates)


def double_backward(s):
    return with_gradients(s, flex_attention)[1]


def compile(s):
    torch.compiler.reset()

    def call(q, k, v, mask):
        return flex_attention(q, k, v, block_mask=mask)

    made = torch.compile(call, fullgraph=True, dynamic=True, backend="eager")
    for length in (5, 6, 7, 8):
        mask = create_block_mask(causal_pair, None, None, length, length, device="cpu")
        result = made(*(x[:, :, :length] for x in (s.q, s.k, s.v)), mask)
    torch.compiler.reset()
    return result


NO = (
    dict.fromkeys(
        [
            "free_head_dim",
            "mixed_widths",
            "qk_norm",
            "output_gate",
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
            "eval_dropout",
        ],
        DASH,
    )
    | FUNCTION
    | ALIGNERS
    | dict.fromkeys(LAYERS, DASH)
    | {
        "talking": "the scores of all heads are nowhere",
        "sigmoid": "always a softmax",
        "sparsemax": "always a softmax",
        "entmax": "always a softmax",
        "clean_weights": "no dropout",
        "onnx": "torch's exporter has no translation of it",
    }
)
