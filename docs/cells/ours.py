# ruff: noqa: D102, D103 - a row's title says what its cell does
"""This library."""

import copy
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import nn

import multihead as mh
from cells import ours_families
from cells.law import HEAD_DIM, HEADS, LENGTH, WIDTH, Setting, claim, gradient, leaf, note

TITLE, PACKAGE = "multihead", "multihead"
MORE = ours_families


def layer(s: Setting, group=None, cls=mh.MultiHeadAttention, **given):
    """A module with the setting's projections."""
    made = cls(WIDTH, mh.HeadGroup(HEADS) if group is None else group, bias=False, **given)
    state = {f"{name}_proj.weight": weight for name, weight in s.weights.items()}
    made.load_state_dict(state, strict=False)
    return made.eval()


def causal(s):
    return mh.attention(s.q, s.k, s.v, mask=mh.causal())


def boolean_mask(s):
    return mh.attention(s.q, s.k, s.v, mask=s.mask)


def padding_causal(s):
    return mh.attention(s.q, s.k, s.v, mask=mh.causal() & mh.padding(s.keep))


def empty_row(s):
    allowed = torch.ones(LENGTH, LENGTH).bool()
    allowed[2] = False
    q, k, v = map(leaf, (s.q, s.k, s.v))
    value = mh.attention(q, k, v, mask=allowed)
    return value.detach(), *torch.autograd.grad((value * value).sum(), (q, k, v))


def later_queries(s):
    return mh.attention(s.q[:, :, 5:], s.k, s.v, mask=mh.causal(), q_offset=5)


def window(s):
    return mh.attention(s.q, s.k, s.v, mask=mh.sliding_window(3))


def documents(s):
    return mh.attention(s.q, s.k, s.v, mask=mh.causal() & mh.document(s.documents))


def longformer(s):
    return mh.attention(s.q, s.k, s.v, mask=mh.band(2, 2) | mh.global_tokens([0]))


def bias_gradient(s):
    bias = leaf(s.bias)
    value = mh.attention(s.q, s.k, s.v, bias=bias)
    return value.detach(), gradient(value, bias)


def softcap(s):
    return mh.attention(s.q, s.k, s.v, softcap=1.5, mask=mh.causal())


def sinks(s):
    return mh.attention(s.q, s.k, s.v, normaliser=mh.Softmax(sinks=s.sinks), mask=mh.causal())


def off_by_one(s):
    return mh.attention(s.q, s.k, s.v, normaliser=mh.Softmax(off_by_one=True), mask=mh.causal())


def sigmoid(s):
    return mh.attention(s.q, s.k, s.v, normaliser=mh.Sigmoid())


def sparsemax(s):
    return mh.attention(s.q, s.k, s.v, normaliser=mh.Sparsemax())


def entmax(s):
    return mh.attention(s.q, s.k, s.v, normaliser=mh.Entmax(1.5))


def grouped(s):
    return mh.attention(s.q, s.few_k, s.few_v, mask=mh.causal())


def value_width(s):
    return mh.attention(s.q, s.k, s.wide_v)


def free_head_dim(s):
    made = mh.MultiHeadAttention(20, 3, head_dim=8, bias=False)
    state = {f"{name}_proj.weight": s.weights[name][:24, :20] for name in "qkv"}
    made.load_state_dict(state | {"out_proj.weight": s.weights["out"][:20, :24]})
    return made(s.x[..., :20])


def mixed_widths(s):
    return layer(s, [mh.HeadGroup(2, 8), mh.HeadGroup(4, 4)])(s.x)


def qk_norm(s):
    made = layer(s, mh.HeadGroup(HEADS, scoring=mh.Scoring(norm=mh.QKNorm())))
    with torch.no_grad():
        made.parts[0].q_norm.weight.copy_(s.norms[0])
        made.parts[0].k_norm.weight.copy_(s.norms[1])
    return made(s.x, mask=mh.causal())


def output_gate(s):
    made = layer(s, mh.HeadGroup(HEADS, gate=mh.OutputGate(per="head")))
    with torch.no_grad():
        made.parts[0].gate.weight.copy_(s.gate)
    return made(s.x, mask=mh.causal())


def talking(s):
    made = layer(s, cls=mh.TalkingHeadsAttention)
    with torch.no_grad():
        made.logit_mix.copy_(s.mixes[0])
        made.weight_mix.copy_(s.mixes[1])
    return made(s.x, mask=mh.causal())


def differential(s):
    from multihead.layer import LayerLambda

    made = layer(s, 2, cls=mh.DifferentialAttention, lambdas=LayerLambda(start=0.5))
    with torch.no_grad():
        made.vectors.zero_()
        made.norm.weight.fill_(1)
    return made(s.x, mask=mh.causal())


def latent(s):
    sizes = mh.Latent(8, nope_dim=4, rope_dim=4, v_dim=8)
    made = mh.LatentAttention(WIDTH, HEADS, sizes, position=mh.Rotary(layout="interleaved"))
    with torch.no_grad():
        made.q_proj.weight.copy_(s.weights["q"])
        made.kv_down.weight.copy_(s.weights["k"][:12])
        made.kv_norm.weight.copy_(s.norms[0])
        made.kv_up.weight.copy_(torch.cat([s.weights["v"], s.weights["k"][12:28]])[:, :8])
        made.out_proj.weight.copy_(s.weights["out"])
    return made(s.x, mask=mh.causal())


def rotary(s):
    return layer(s, mh.HeadGroup(HEADS, position=mh.Rotary()))(s.x, mask=mh.causal())


def rotary_llama3(s):
    scaling = mh.Llama3(factor=8.0, trained_length=64)
    return layer(s, mh.HeadGroup(HEADS, position=mh.Rotary(scaling=scaling)))(s.x, mask=mh.causal())


def rotary_yarn(s):
    scaling = mh.YaRN(4.0, 64)
    return layer(s, mh.HeadGroup(HEADS, position=mh.Rotary(scaling=scaling)))(s.x, mask=mh.causal())


def alibi(s):
    return mh.attention(s.q, s.k, s.v, bias=mh.ALiBi(s.slopes), mask=mh.causal())


def alibi_learned(s):
    slopes = leaf(s.slopes)
    value = mh.attention(s.q, s.k, s.v, bias=mh.ALiBi(slopes), mask=mh.causal())
    return value.detach(), gradient(value, slopes)


def distance_table(s):
    table = leaf(s.table)
    bias = mh.RelativeTable(table, bidirectional=False, max_distance=8)
    value = mh.attention(s.q, s.k, s.v, bias=bias, mask=mh.causal())
    return value.detach(), gradient(value, table)


def in_parts(made, s, cache, sizes, mask=None):
    """The module's answer part by part, through a cache."""
    mask = mh.causal() if mask is None else mask
    with torch.no_grad():
        return torch.cat([made(part, mask=mask, cache=cache) for part in s.x.split(sizes, 1)], 1)


def cache(s):
    made = layer(s)
    return in_parts(made, s, made.cache(batch=2), 1)


def cache_chunks(s):
    made = layer(s)
    return in_parts(made, s, made.cache(batch=2), [3, 1, 4])


def cache_static(s):
    from multihead.layer import Static

    made = layer(s)
    cache = made.cache(batch=2, kind=Static(LENGTH))
    result = in_parts(made, s, cache, [1, 3, 4])
    claim(cache.nbytes == 2 * 2 * HEADS * LENGTH * HEAD_DIM * 4, f"{cache.nbytes} bytes")
    return result


def cache_sliding(s):
    made = layer(s, mh.HeadGroup(HEADS, mask=mh.sliding_window(3)))
    cache = made.cache(batch=2)
    result = in_parts(made, s, cache, 1, mask=mh.causal())
    claim(cache.groups[0].held(torch.float32)[0].shape[2] <= 3, "it keeps more than the window")
    return result


@note("bound of the error: half of a row's largest number / 127")
def cache_int8(s):
    made = layer(s)
    exact, cache = in_parts(made, s, made.cache(batch=2), 1), made.cache(batch=2, kind=mh.Int8())
    got = in_parts(made, s, cache, 1)
    claim(0 < float((got - exact).abs().max()) < 0.05, "it is far off, or no bytes")
    # Within the error of bytes: the numbers of the table are held against the exact ones.
    return exact


def rollback(s):
    made = layer(s)
    cache = made.cache(batch=2)
    with torch.no_grad():
        first = made(s.x[:, :5], mask=mh.causal(), cache=cache)
        made(torch.randn(2, 3, WIDTH), mask=mh.causal(), cache=cache)
        cache.cut(5)
        return torch.cat([first, made(s.x[:, 5:], mask=mh.causal(), cache=cache)], 1)


def beams(s):
    from multihead.layer.cache import AttentionCache, Full

    cache = AttentionCache([mh.HeadGroup(HEADS, HEAD_DIM)], batch=2, kinds=[Full()])
    cache.groups[0].append(s.k[:, :, :6], s.v[:, :, :6])
    cache.select([1, 1])
    k, v, _ = cache.groups[0].append(s.k[:, :, 6:], s.v[:, :, 6:])
    return mh.attention(s.q[:, :, 6:], k, v, mask=mh.causal(), q_offset=6)


def lse(s):
    return mh.attention_lse(s.q, s.k, s.v, mask=mh.causal()).lse


def merge(s):
    halves = [mh.attention_lse(s.q, s.k[:, :, part], s.v[:, :, part]) for part in (slice(0, 3), slice(3, None))]
    return mh.merge(halves).out


def weights(s):
    return mh.attention_lse(s.q, s.k, s.v, mask=mh.causal()).weights()


@note("recomputed from q and k, on whatever kernel ran")
def weights_slice(s):
    attended = mh.attention_lse(s.q, s.k, s.v, mask=mh.causal())
    claim(attended.backend not in ("reference", "tiled"), f"ran on {attended.backend}")
    return attended.weights(rows=slice(6, 8), heads=[1])


def clean_weights(s):
    return mh.attention_lse(s.q, s.k, s.v, dropout=0.5).weights().sum(-1)


@note("any transformers model too")
def ablate(s):
    made = layer(s)
    with mh.ablated(made, ["L0.H1"]):
        return made(s.x)


@note("any transformers model too")
def head_gate(s):
    made = layer(s)
    gate = mh.HeadGate(made)
    gate["L0"] = s.heads
    with gate.acting():
        value = made(s.x)
    (learned,) = gate.parameters()
    return value.detach(), gradient(value, learned)


def prune(s):
    made = layer(s)
    before, whole = copy.deepcopy(made.state_dict()), made(s.x)
    pruned = mh.prune_heads(made, [1])
    claim(sum(p.numel() for p in made.parameters()) == 3 * sum(p.numel() for p in before.values()) // 4, "not smaller")
    result = made(s.x)
    pruned.restore()
    claim(torch.equal(made(s.x), whole), "restored, it gives something else")
    return result


def explain(s):
    told = mh.explain_backend(s.q, s.k, s.v, softcap=1.5)
    claim(told.chosen is not None, "none chosen")
    claim(all(v.reasons or v.backend for v in told.verdicts), "a backend without a word")
    return ()


@note('by `backend="reference"`')
def double_backward(s):
    q = leaf(s.q)
    value = mh.attention(q, s.k, s.v, backend="reference")
    (first,) = torch.autograd.grad((value * value).sum(), q, create_graph=True)
    return torch.autograd.grad((first * first).sum(), q)[0]


def eval_dropout(s):
    made = mh.MultiHeadAttention(WIDTH, HEADS, dropout=0.5, bias=False).eval()
    with torch.no_grad():
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            getattr(made, name).weight.copy_(torch.eye(WIDTH))
    flat = [x.transpose(1, 2).flatten(2) for x in (s.q, s.k, s.v)]
    return made(*flat).unflatten(2, (HEADS, HEAD_DIM)).transpose(1, 2)


def compile(s):
    torch.compiler.reset()
    made = torch.compile(
        lambda q, k, v: mh.attention(q, k, v, mask=mh.causal()), fullgraph=True, dynamic=True, backend="eager"
    )
    for length in (5, 6, 7):
        q, k, v = (x[:, :, :length] for x in (s.q, s.k, s.v))
        made(q, k, v)
    result = made(s.q, s.k, s.v)
    torch.compiler.reset()
    return result


class Causal(nn.Module):
    """The layer with its mask, as a model of its own."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x, mask=mh.causal())


def onnx(s):
    import onnxruntime

    with TemporaryDirectory() as folder:
        path = Path(folder) / "layer.onnx"
        made = mh.export_onnx(Causal(layer(s)).eval(), (s.x,), path, names=["x"])
        kinds = [node.op_type for node in made.model.graph]
        claim(kinds.count("Attention") == 1, f"{kinds.count('Attention')} Attention nodes")
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        return torch.from_numpy(session.run(None, {"x": s.x.numpy()})[0])


def from_torch(s):
    theirs = nn.MultiheadAttention(WIDTH, HEADS, bias=False, batch_first=True).eval()
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([s.weights[name] for name in "qkv"]))
        theirs.out_proj.weight.copy_(s.weights["out"])
    ours = mh.MultiHeadAttention.from_torch(theirs)
    back = ours.to_torch()
    claim(all(torch.equal(a, b) for a, b in zip(back.parameters(), theirs.parameters(), strict=True)), "other weights")
    return ours(s.x)


@note("attention modules of 14 families")
def from_transformers(s):
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaAttention

    config = LlamaConfig(hidden_size=WIDTH, num_attention_heads=HEADS, num_key_value_heads=HEADS)
    config._attn_implementation = "eager"
    theirs = LlamaAttention(config, 0).eval()
    with torch.no_grad():
        for linear, name in ((theirs.q_proj, "q"), (theirs.k_proj, "k"), (theirs.v_proj, "v"), (theirs.o_proj, "out")):
            linear.weight.copy_(s.weights[name])
    return mh.from_transformers(theirs)(s.x, mask=mh.causal())


NO: dict[str, str] = {}
