"""Every option of a group of heads, and a module written out head by head and number by number in float64."""

import math

import torch
from torch import nn

from laws import oracle
from multihead.attend import Entmax, Sigmoid, Softmax, Sparsemax
from multihead.layer import HeadGroup, MultiHeadAttention, OutputGate, QKNorm, Scoring
from multihead.pattern import causal, distance, per_head, sliding_window
from multihead.position import AdaptiveSpan, ALiBi, RelativeTable, Rotary

WIDTH, HEADS, HEAD_DIM = 10, 4, 6


def options(heads=HEADS):
    """Fields of a group by name; names with the same first word exclude each other."""
    each = [causal(), sliding_window(2), distance(1) | distance(0), ~distance(2)]
    return {
        "kv": {"kv_heads": heads // 2},
        "values": {"v_head_dim": 3},
        "mask window": {"mask": sliding_window(3)},
        "mask heads": {"mask": per_head([each[h % 4] for h in range(heads)])},
        "position half": {"position": Rotary(50.0)},
        "position interleaved": {"position": Rotary(50.0, layout="interleaved", dim=4)},
        "position alibi": {"position": ALiBi(torch.rand(heads).double() + 0.3)},
        "position table": {"position": RelativeTable(nn.Parameter(torch.randn(8, heads)), max_distance=6)},
        "position span": {"position": AdaptiveSpan(torch.rand(heads).double() * 3, ramp=2)},
        "norm rms": {"norm": QKNorm(eps=1e-3)},
        "norm layer": {"norm": QKNorm(kind="layer", over="each", eps=1e-3)},
        "norm all": {"norm": QKNorm(over="all", eps=1e-3)},
        "norm l2": {"norm": QKNorm(kind="l2")},
        "scale": {"scale": 0.9},
        "softcap": {"softcap": 0.5},
        "normaliser sinks": {"sinks": True},
        "normaliser both": {"sinks": True, "normaliser": Softmax(off_by_one=True)},
        "normaliser sigmoid": {"normaliser": Sigmoid(-0.5)},
        "normaliser sparsemax": {"normaliser": Sparsemax()},
        "normaliser entmax": {"normaliser": Entmax(1.5)},
        "gate head": {"gate": OutputGate(bias=True)},
        "gate channel": {"gate": OutputGate(per="channel")},
    }


NAMES = list(options())


def kind(name):
    """What excludes others of its kind."""
    return name.split()[0]


def group_of(values, names, heads=HEADS, head_dim=HEAD_DIM):
    """A group with some of the options."""
    fields = {key: value for name in names for key, value in values[name].items()}
    scoring = {key: fields.pop(key) for key in ("norm", "scale", "softcap", "normaliser", "sinks") if key in fields}
    return HeadGroup(heads, head_dim, scoring=Scoring(**scoring), **fields)


def module_of(*groups, bias=True, backend="auto"):
    """A module with random weights, biases, norms and sinks, in float64."""
    layer = MultiHeadAttention(WIDTH, list(groups), bias=bias, backend=backend).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            scale = 1.0 if parameter.ndim == 1 else parameter.shape[-1] ** -0.5
            parameter.copy_(torch.randn(parameter.shape) * scale)
    return layer


def compose(layer, x, sees=None, key=None):
    """The layer by hand: `sees(b, h, i, j)` is the mask of the call; keys and values are made from `key`."""
    state = {name: tensor.detach().double() for name, tensor in layer.state_dict().items()}
    x, key = x.double(), (x if key is None else key).double()
    starts, made = {"q_proj": 0, "k_proj": 0, "v_proj": 0}, []

    def rows(name, tensor, count):
        start = starts[name]
        starts[name] += count
        out = tensor @ state[f"{name}.weight"][start : start + count].T
        return out + state[f"{name}.bias"][start : start + count] if f"{name}.bias" in state else out

    for place, group in enumerate(layer.groups):
        heads, kv_heads, width, v_width = group.sizes
        q = rows("q_proj", x, heads * width).unflatten(-1, (heads, width))
        k = rows("k_proj", key, kv_heads * width).unflatten(-1, (kv_heads, width))
        v = rows("v_proj", key, kv_heads * v_width).unflatten(-1, (kv_heads, v_width))
        part = {n.removeprefix(f"parts.{place}."): t for n, t in state.items() if n.startswith(f"parts.{place}.")}
        norm = group.scoring.norm
        q, k = (normed(y, norm, part.get(f"{n}_norm.weight")) for y, n in ((q, "q"), (k, "k")))
        q, k = (turned(y, group.position) for y in (q, k))
        out = attended(layer, place, (q, k, v), sees, part)
        if group.gate is not None:
            logits = x @ part["gate.weight"].T + part.get("gate.bias", 0)
            gates = 1 / (1 + (-logits).exp())
            out = out * (gates[..., None] if group.gate.per == "head" else gates.unflatten(-1, (heads, v_width)))
        made.append(out.flatten(2))
    joined = torch.cat(made, -1) @ state["out_proj.weight"].T
    return joined + state["out_proj.bias"] if "out_proj.bias" in state else joined


def attended(layer, place, qkv, sees, part):
    """Heads of a group (batch, length, heads, width), by the rules of pattern, position and normaliser."""
    group, before = layer.groups[place], sum(g.heads for g in layer.groups[:place])
    own = None if group.mask is None else group.mask.mask(30, 30)
    scoring = group.scoring

    def allowed(b, h, i, j):
        inside = own is None or bool(own[0, min(h, own.shape[1] - 1), i, j])
        return inside and (sees is None or sees(b, h + before, i, j))

    out, _ = oracle.attend(
        *(y.transpose(1, 2) for y in qkv),
        sees=allowed,
        added=added(group.position, part),
        scale=scoring.scale,
        softcap=scoring.softcap,
        weigh=weigher(scoring, part),
    )
    return out.transpose(1, 2)


def weigher(scoring, part):
    given = scoring.normaliser
    one = 1.0 if isinstance(given, Softmax) and given.off_by_one else 0.0
    if scoring.sinks:
        return oracle.with_sinks(part["sinks"], one)
    if isinstance(given, Sigmoid):
        return oracle.sigmoid(given.bias)
    if isinstance(given, Entmax):
        return oracle.sparsemax if given.alpha == 2.0 else oracle.entmax15
    return oracle.off_by_one if one else oracle.softmax


def added(position, part):
    """The rule of a position bias."""
    if isinstance(position, ALiBi):
        return lambda b, h, i, j: -float(position.slopes[h]) * abs(i - j)
    if isinstance(position, RelativeTable):
        return lambda b, h, i, j: float(part["bias"][oracle.bucket(i - j), h])
    if isinstance(position, AdaptiveSpan):
        return lambda b, h, i, j: oracle.faded(float(position.spans[h]), 2, i - j)
    return None


def normed(y, norm, weight):
    """(batch, length, heads, width), each row or all heads of a token normalised."""
    if norm is None:
        return y
    numbers = y.flatten(2)[:, :, None] if norm.over == "all" else y
    if norm.kind == "l2":
        return (numbers / numbers.square().sum(-1, keepdim=True).sqrt()).view_as(y)
    if norm.kind == "layer":
        numbers = numbers - numbers.mean(-1, keepdim=True)
    return (numbers / (numbers.square().mean(-1, keepdim=True) + norm.eps).sqrt() * weight).view_as(y)


def turned(y, position):
    """(batch, length, heads, width), each pair of each token turned by its angle."""
    if not isinstance(position, Rotary):
        return y
    dim, made = position.dim or y.shape[-1], y.clone()
    for p in range(y.shape[1]):
        for pair in range(dim // 2):
            angle = p * position.base ** (-2 * pair / dim)
            one, two = (pair, pair + dim // 2) if position.layout == "half" else (2 * pair, 2 * pair + 1)
            a, b = y[:, p, :, one], y[:, p, :, two]
            made[:, p, :, one] = a * math.cos(angle) - b * math.sin(angle)
            made[:, p, :, two] = b * math.cos(angle) + a * math.sin(angle)
    return made
