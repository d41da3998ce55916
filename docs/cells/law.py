"""The inputs of every cell, the definitions its numbers are held against, and what a cell may say.

Definitions are in float64 and plain torch, and share no code with any library in the table.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

HEADS, KV_HEADS, LENGTH, HEAD_DIM, WIDTH = 4, 2, 8, 8, 32
CAUSAL = torch.ones(LENGTH, LENGTH).tril().bool()
DASH = "–"
TOLERANCE = 1e-4


class Lacking(Exception):
    """The library has no such thing; the words say why."""


class Wrong(Exception):
    """It has it, and what it gives is not what it should be."""


def claim(holds: object, words: str) -> None:
    """What is true of a cell besides its numbers."""
    if not holds:
        raise Wrong(words)


def by_hand(words: str) -> Callable[[Callable], Callable]:
    """Marks a cell in which the user makes the thing itself and hands it over, such as a mask."""

    def mark(cell: Callable) -> Callable:
        cell.by_hand = words
        return cell

    return mark


def note(words: str) -> Callable[[Callable], Callable]:
    """Words that stand beside a cell."""

    def mark(cell: Callable) -> Callable:
        cell.note = words
        return cell

    return mark


@dataclass
class Setting:
    """Random numbers for one cell."""

    q: Tensor = field(default_factory=lambda: torch.randn(2, HEADS, LENGTH, HEAD_DIM))
    k: Tensor = field(default_factory=lambda: torch.randn(2, HEADS, LENGTH, HEAD_DIM))
    v: Tensor = field(default_factory=lambda: torch.randn(2, HEADS, LENGTH, HEAD_DIM))
    few_k: Tensor = field(default_factory=lambda: torch.randn(2, KV_HEADS, LENGTH, HEAD_DIM))
    few_v: Tensor = field(default_factory=lambda: torch.randn(2, KV_HEADS, LENGTH, HEAD_DIM))
    wide_v: Tensor = field(default_factory=lambda: torch.randn(2, HEADS, LENGTH, 12))
    x: Tensor = field(default_factory=lambda: torch.randn(2, LENGTH, WIDTH))
    weights: dict[str, Tensor] = field(
        default_factory=lambda: {name: torch.randn(WIDTH, WIDTH) * WIDTH**-0.5 for name in ("q", "k", "v", "out")}
    )
    mask: Tensor = field(
        default_factory=lambda: (torch.rand(2, HEADS, LENGTH, LENGTH) < 0.6) | torch.eye(LENGTH).bool()
    )
    bias: Tensor = field(default_factory=lambda: torch.randn(1, HEADS, LENGTH, LENGTH))
    keep: Tensor = field(default_factory=lambda: torch.arange(LENGTH) < torch.tensor([[LENGTH], [5]]))
    documents: Tensor = field(
        default_factory=lambda: torch.tensor([[0, 0, 0, 1, 1, 1, 1, 2], [0, 1, 1, 1, 1, 1, 2, 2]])
    )
    sinks: Tensor = field(default_factory=lambda: torch.randn(HEADS))
    norms: Tensor = field(default_factory=lambda: torch.rand(2, HEAD_DIM) + 0.5)
    gate: Tensor = field(default_factory=lambda: torch.randn(HEADS, WIDTH) * WIDTH**-0.5)
    mixes: Tensor = field(default_factory=lambda: torch.eye(HEADS) + torch.randn(2, HEADS, HEADS) * 0.3)
    table: Tensor = field(default_factory=lambda: torch.randn(8, HEADS))
    slopes: Tensor = field(default_factory=lambda: 2.0 ** -torch.arange(2.0, 2 * HEADS + 2, 2))
    heads: Tensor = field(default_factory=lambda: torch.rand(HEADS))
    decay: Tensor = field(default_factory=lambda: -torch.rand(2, HEADS, LENGTH, HEAD_DIM))
    beta: Tensor = field(default_factory=lambda: torch.rand(2, HEADS, LENGTH))
    long: Tensor = field(default_factory=lambda: torch.randn(2, 24, WIDTH))
    spare: Tensor = field(default_factory=lambda: torch.randn(8, WIDTH, WIDTH) * WIDTH**-0.5)


def softmax(scores: Tensor, sinks: Tensor | None = None) -> Tensor:
    """Rows that sum to 1, or to 0 where all is -inf; a sink takes its share."""
    sink = (
        torch.full_like(scores[..., :1], -math.inf)
        if sinks is None
        else sinks[:, None, None].expand_as(scores[..., :1])
    )
    joined = torch.cat([scores, sink], -1)
    peak = joined.amax(-1, keepdim=True).clamp(min=-1e300)
    raised = (joined - peak).exp()
    return raised[..., :-1] / raised.sum(-1, keepdim=True).clamp(min=1e-300)


def sigmoid(scores: Tensor) -> Tensor:
    """Each score by itself."""
    return torch.sigmoid(scores)


def entmax(alpha: float) -> Callable[[Tensor], Tensor]:
    """`[(alpha - 1) s - t]_+ ^ (1 / (alpha - 1))`, t by bisection so that rows sum to 1."""

    def weigh(scores: Tensor) -> Tensor:
        s = (alpha - 1) * scores
        low, high = s.amax(-1, keepdim=True) - 1, s.amax(-1, keepdim=True)
        for _ in range(200):
            middle = (low + high) / 2
            over = ((s - middle).clamp(min=0) ** (1 / (alpha - 1))).sum(-1, keepdim=True) > 1
            low, high = torch.where(over, middle, low), torch.where(over, high, middle)
        return (s - low).clamp(min=0) ** (1 / (alpha - 1))

    return weigh


def scores(q: Tensor, k: Tensor, *, allowed=None, bias=None, scale=None, softcap=None) -> Tensor:
    """Scaled products, capped, biased, -inf where nothing is allowed."""
    q, k = q.double(), k.double().repeat_interleave(q.shape[1] // k.shape[1], 1)
    s = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    s = s if softcap is None else softcap * torch.tanh(s / softcap)
    s = s if bias is None else s + bias.double()
    return s if allowed is None else s.masked_fill(~allowed, -math.inf)


def attend(q: Tensor, k: Tensor, v: Tensor, *, weigh=softmax, **given) -> Tensor:
    """(batch, heads, q_len, v_head_dim)."""
    return weigh(scores(q, k, **given)) @ v.double().repeat_interleave(q.shape[1] // v.shape[1], 1)


def join(heads: Tensor) -> Tensor:
    """Heads side by side: (batch, length, heads * width)."""
    return heads.transpose(1, 2).flatten(2)


def split(x: Tensor, heads: int = HEADS) -> Tensor:
    """The reverse."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def projected(s: Setting) -> list[Tensor]:
    """Queries, keys and values of the module's input, in float64."""
    return [split(s.x.double() @ s.weights[name].double().T) for name in "qkv"]


def out(s: Setting, heads: Tensor) -> Tensor:
    """The output projection."""
    return join(heads) @ s.weights["out"].double().T


def rms(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """The norm by the root of the mean square."""
    return weight.double() * x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps)


def frequencies(base: float = 10000.0, dim: int = HEAD_DIM) -> Tensor:
    """One for each pair."""
    return base ** (-torch.arange(0, dim, 2).double() / dim)


def llama3(f: Tensor, factor=8.0, low=1.0, high=4.0, trained=64) -> Tensor:
    """Long waves divided, short ones kept, a smooth way between."""
    mix = ((trained * f / (2 * math.pi) - low) / (high - low)).clamp(0, 1)
    return (1 - mix) * f / factor + mix * f


def yarn(f: Tensor, factor=4.0, trained=64, fast=32.0, slow=1.0, base=10000.0, dim=HEAD_DIM) -> tuple[Tensor, float]:
    """Slow pairs divided, fast ones kept, a line between; and the amplitude."""
    place = [dim * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(base)) for turns in (fast, slow)]
    first, last = max(math.floor(place[0]), 0), min(math.ceil(place[1]), dim - 1)
    ramp = ((torch.arange(dim // 2).double() - first) / max(last - first, 1e-3)).clamp(0, 1)
    return f / factor * ramp + f * (1 - ramp), 0.1 * math.log(factor) + 1


def turn(x: Tensor, f: Tensor, *, layout: str = "half", amplitude: float = 1.0) -> Tensor:
    """Pairs turned by position times frequency."""
    angle = torch.arange(x.shape[-2]).double()[:, None] * f
    pairs = x.double().unflatten(-1, (2, -1)).mT if layout == "half" else x.double().unflatten(-1, (-1, 2))
    a, b = pairs.unbind(-1)
    turned = torch.stack([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1) * amplitude
    return turned.mT.flatten(-2) if layout == "half" else turned.flatten(-2)


def distance_bias(table: Tensor) -> Tensor:
    """A learned number for each distance; with 8 buckets up to distance 8 T5's buckets of 0 to 7 are the distances."""
    distance = (torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)).clamp(min=0)
    return table[distance].permute(2, 0, 1)[None]


def alibi(slopes: Tensor) -> Tensor:
    """A penalty that grows with the distance."""
    distance = (torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)).abs()
    return (-slopes.double()[:, None, None] * distance)[None]


def gradient(value: Tensor, of: Tensor) -> Tensor:
    """Of the sum of squares, an arbitrary loss."""
    return torch.autograd.grad((value * value).sum(), of)[0]


def leaf(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """A copy that gets a gradient."""
    return x.detach().to(dtype or x.dtype).clone().requires_grad_()
