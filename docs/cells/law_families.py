"""Definitions of the other kinds of attention, in float64 and plain torch; loops where loops are plainest."""

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from cells.law import CAUSAL, HEAD_DIM, HEADS, LENGTH, WIDTH, Setting, attend, frequencies, out, rms, split, turn
from cells.law import projected as three

BLOCK, BUDGET, KEYS = 2, 2, 3
LATENTS, SHARED, CHOSEN, EXPERTS = 3, 1, 2, 4
HIDDEN, STATES = 16, 5
NSA = {"block": 4, "budget": 4, "window": 5}
INDEX_HEADS, INDEX_BUDGET, RANK = 8, 3, 12
HASH_SEED, BUCKETS, CHUNK = 3, 4, 2


def taken(s: Setting, start: int, *shape: int) -> Tensor:
    """Weights of some shape, of the setting's spare ones from a matrix on."""
    return s.spare[start:].flatten()[: math.prod(shape)].view(shape)


def linear(s: Setting) -> Tensor:
    """`phi = elu + 1`, weights divided by their sum."""
    phi_q, phi_k = (torch.where(x > 0, x + 1, x.exp()) for x in (s.q.double(), s.k.double()))
    weights = (phi_q @ phi_k.mT).tril()
    return weights / weights.sum(-1, keepdim=True) @ s.v.double()


def faded(s: Setting, logs: Tensor) -> Tensor:
    """`S = exp(log) S + k v^T`, read by q; logs (..., heads, length, head_dim)."""
    q, k, v = s.q.double(), s.k.double(), s.v.double()
    state, read = torch.zeros(2, HEADS, HEAD_DIM, HEAD_DIM).double(), []
    for t in range(LENGTH):
        state = logs[..., t, :].double().exp()[..., None] * state + k[:, :, t, :, None] * v[:, :, t, None]
        read.append((q[:, :, t, None] @ state)[:, :, 0])
    return torch.stack(read, 2)


def retention(s: Setting) -> Tensor:
    """A decay for each head."""
    return faded(s, s.decay[0, :, 0, 0][None, :, None, None].expand(2, HEADS, LENGTH, HEAD_DIM))


def gated_linear(s: Setting) -> Tensor:
    """A decay for each token and channel."""
    return faded(s, s.decay)


def delta(s: Setting, *, channels: bool = False) -> Tensor:
    """`S' = exp(log) S; S = S' + beta k (v - S'^T k)^T`, read by q / sqrt(width); keys of length 1."""
    q, v = s.q.double() * HEAD_DIM**-0.5, s.v.double()
    k = torch.nn.functional.normalize(s.k.double(), dim=-1)
    state, read = torch.zeros(2, HEADS, HEAD_DIM, HEAD_DIM).double(), []
    for t in range(LENGTH):
        log = s.decay[:, :, t] if channels else s.decay[:, :, t, :1]
        state = log.double().exp()[..., None] * state
        wrong = v[:, :, t] - (state.mT @ k[:, :, t, :, None])[..., 0]
        state = state + s.beta[:, :, t, None, None].double() * k[:, :, t, :, None] * wrong[:, :, None]
        read.append((q[:, :, t, None] @ state)[:, :, 0])
    return torch.stack(read, 2)


def keys_chosen(s: Setting) -> Tensor:
    """Of the keys a query sees the three that score highest."""
    scores = (s.q.double() @ s.k.double().mT).masked_fill(~CAUSAL, -math.inf)
    return (scores >= scores.topk(KEYS, -1).values[..., -1:]) & CAUSAL


def blocks_chosen(s: Setting) -> Tensor:
    """The own block and, of those before, the one whose mean fits best."""
    means = s.k.double().unflatten(2, (-1, BLOCK)).mean(3)
    scores = s.q.double() @ means.mT
    own = torch.arange(LENGTH)[:, None] // BLOCK
    columns = torch.arange(LENGTH // BLOCK)
    scores = scores.masked_fill(columns > own, -math.inf).masked_fill(columns == own, math.inf)
    inside = (scores >= scores.topk(BUDGET, -1).values[..., -1:]) & (columns <= own)
    return inside.repeat_interleave(BLOCK, -1) & CAUSAL


def over(choose: Callable[[Setting], Tensor]) -> Callable[[Setting], Tensor]:
    """Attention over what was chosen."""
    return lambda s: attend(s.q, s.k, s.v, allowed=choose(s))


def choice(s: Setting, choose: Callable[[Setting], Tensor]) -> Setting:
    """The setting with the mask of a choice, for libraries that are given masks."""
    return replace(s, mask=choose(s))


def native_sparse(s: Setting) -> Tensor:
    """Compressed blocks, the best of them in full, and a window; two query heads share keys and values."""
    x, length = s.long.double(), s.long.shape[1]
    block, places = NSA["block"], torch.arange(length)
    w = {name: weight.double() for name, weight in s.weights.items()}
    q, k, v = (split(x @ w[name][:rows].T, heads) for name, rows, heads in (("q", 32, 4), ("k", 16, 2), ("v", 16, 2)))
    few_k, few_v = (part.unflatten(2, (-1, block)).mean(3) for part in (k, v))
    columns = torch.arange(length // block)
    whole = (columns + 1) * block - 1 <= places[:, None]
    scores = (q @ few_k.repeat_interleave(2, 1).mT * HEAD_DIM**-0.5).masked_fill(~whole, -math.inf)
    weights = scores.softmax(-1).nan_to_num(0.0)
    rank = weights.unflatten(1, (2, 2)).mean(2).masked_fill(~whole, -math.inf)
    own = places[:, None] // block
    forced = (columns == 0) | (columns == own) | (columns == own - 1)
    rank = rank.masked_fill(forced, math.inf)
    best = torch.zeros_like(rank, dtype=torch.bool).scatter(-1, rank.topk(NSA["budget"], -1).indices, value=True)
    seen = best.repeat_interleave(2, 1).repeat_interleave(block, -1) & (places <= places[:, None])
    near = (places <= places[:, None]) & (places > places[:, None] - NSA["window"])
    parts = [weights @ few_v.repeat_interleave(2, 1), attend(q, k, v, allowed=seen), attend(q, k, v, allowed=near)]
    gates = torch.sigmoid(x @ s.spare[0, :12].double().T).unflatten(-1, (3, HEADS)).permute(2, 0, 3, 1)
    return out(s, sum(gate[..., None] * part for gate, part in zip(gates, parts, strict=True)))


def indexed(s: Setting) -> Tensor:
    """Latent attention, of rank 12 for queries and 8 for keys, to the three keys that index heads score highest."""
    x, w = s.x.double(), {name: weight.double() for name, weight in s.weights.items()}
    r = rms(x @ taken(s, 0, RANK, WIDTH).double().T, torch.ones(RANK))
    q = split(r @ w["q"][:, :RANK].T)
    c = rms(x @ w["k"][:8].T, s.norms[0])
    shared = turn((x @ w["k"][8:12].T)[:, None], frequencies(dim=4), layout="interleaved")
    up = split(c @ torch.cat([w["v"], w["k"][12:28]])[:48, :8].T)
    q = torch.cat([q[..., :4], turn(q[..., 4:], frequencies(dim=4), layout="interleaved")], -1)
    k = torch.cat([up[..., :4], shared.expand(-1, HEADS, -1, -1)], -1)
    index_q = split(r @ taken(s, 4, 8 * INDEX_HEADS, RANK).double().T, INDEX_HEADS)
    index_k = torch.nn.functional.layer_norm(x @ s.spare[2, :8].double().T, (8,), eps=1e-6)[:, None]
    index_q, index_k = (
        torch.cat([turn(part[..., :4], frequencies(dim=4)), part[..., 4:]], -1) for part in (index_q, index_k)
    )
    each = torch.relu(index_q @ index_k.mT * 8**-0.5)
    shares = x @ s.spare[3, :INDEX_HEADS].double().T * INDEX_HEADS**-0.5
    scores = torch.einsum("bth,bhts->bts", shares, each).masked_fill(~CAUSAL, -math.inf)
    best = torch.zeros_like(scores, dtype=torch.bool).scatter(-1, scores.topk(INDEX_BUDGET, -1).indices, value=True)
    return out(s, attend(q, k, up[..., 4:], allowed=(best & CAUSAL)[:, None]))


def lsh(s: Setting) -> Tensor:
    """One round: tokens sorted by (bucket, position), in tiles of 2, of which each sees itself and the one before."""
    qk, v = (split(s.x.double() @ s.weights[name].double().T) for name in "qv")
    shape = (HEADS, HEAD_DIM, 1, BUCKETS // 2)
    turned = qk @ torch.randn(shape, generator=torch.Generator().manual_seed(HASH_SEED)).double()[:, :, 0]
    buckets = torch.cat([turned, -turned], -1).argmax(-1)
    order = (buckets * LENGTH + torch.arange(LENGTH)).argsort(-1)
    tile = torch.empty_like(order).scatter(-1, order, torch.arange(LENGTH).expand_as(order)) // CHUNK
    apart = (tile[..., :, None] - tile[..., None, :]) % (LENGTH // CHUNK)
    met = (apart <= 1) & CAUSAL
    others = met & ~torch.eye(LENGTH).bool()
    met = torch.where(others.any(-1, keepdim=True), others, met)
    keys = qk / torch.sqrt((qk * qk).sum(-1, keepdim=True) + 1e-6 * HEAD_DIM)
    return attend(qk, keys, v, allowed=met, scale=1.0).transpose(1, 2).flatten(2)


def mixture_of_heads(s: Setting) -> Tensor:
    """One head for all tokens, two of the other three for each."""
    x = s.x.double()
    routed = torch.softmax(kept(x @ s.spare[0, : HEADS - SHARED].double().T), -1) * CHOSEN
    shared = torch.softmax(x @ s.spare[1, :SHARED].double().T, -1) * SHARED
    first, second = (2 * torch.softmax(x @ s.spare[2, :2].double().T, -1)).split(1, -1)
    gates = torch.cat([first * shared, second * routed], -1)
    return out(s, attend(*three(s), allowed=CAUSAL) * gates.transpose(1, 2)[..., None])


def kept(logits: Tensor) -> Tensor:
    """All but the two largest are -inf."""
    index = logits.topk(CHOSEN, -1).indices
    return torch.full_like(logits, -math.inf).scatter(-1, index, logits.gather(-1, index))


def switch_head(s: Setting) -> Tensor:
    """Two heads of 8 with four experts each for values and outputs, two of them taken."""
    x = s.x.double()
    q, k = (split(x @ s.weights[name][:16].double().T, 2) for name in "qk")
    v_gates, out_gates = (
        torch.sigmoid(kept((x @ s.spare[place, :8].double().T).unflatten(-1, (2, EXPERTS)))) for place in (0, 1)
    )
    v = torch.einsum("bld,hewd,blhe->bhlw", x, taken(s, 2, 2, EXPERTS, 8, WIDTH).double(), v_gates)
    heads = attend(q, k, v, allowed=CAUSAL)
    return torch.einsum("bhlw,hedw,blhe->bld", heads, taken(s, 4, 2, EXPERTS, WIDTH, 8).double(), out_gates)


def mixture_of_attention(s: Setting) -> Tensor:
    """Four experts of two heads, two of them taken; keys and values for all."""
    x = s.x.double()
    gates = torch.softmax(kept(x @ s.spare[0, :EXPERTS].double().T), -1)
    k, v = (split(x @ s.weights[name][:16].double().T, 2) for name in "kv")
    total = s.spare[1, 0].double()
    for e in range(EXPERTS):
        q = split(x @ taken(s, 2, EXPERTS, 16, WIDTH)[e].double().T, 2)
        heads = attend(q, k, v, allowed=CAUSAL).transpose(1, 2).flatten(2)
        total = total + gates[..., e, None] * (heads @ taken(s, 4, EXPERTS, WIDTH, 16)[e].double().T)
    return total


def load_loss(s: Setting) -> Tensor:
    """Experts times the sum of (share of tokens that took one, its mean probability)."""
    logits = (s.x.double() @ s.spare[0, :EXPERTS].double().T).flatten(0, 1)
    share = torch.isfinite(kept(logits)).double().mean(0)
    return EXPERTS * (share * logits.softmax(-1).mean(0)).sum()


def normed(x: Tensor) -> Tensor:
    """Layer norm without weights."""
    return torch.nn.functional.layer_norm(x, x.shape[-1:])


def resampler(s: Setting) -> Tensor:
    """Three latents look at the tokens once."""
    latents = s.spare[0, :LATENTS].double().expand(2, -1, -1)
    seen, w = torch.cat([normed(s.x.double()), normed(latents)], 1), s.weights
    q = split(normed(latents) @ w["q"].double().T)
    k, v = (split(seen @ w[name].double().T) for name in "kv")
    latents = latents + out(s, attend(q, k, v))
    up, down = taken(s, 0, 4 * WIDTH, WIDTH).double(), taken(s, 4, WIDTH, 4 * WIDTH).double()
    return normed(latents + torch.relu(normed(latents) @ up.T) @ down.T)


def gated_cross(s: Setting) -> Tensor:
    """`x + tanh(a) attention`, then `+ tanh(b) ffn`."""
    x, media, w = s.x.double(), s.long.double(), s.weights
    k, v = (split(media @ w[name].double().T) for name in "kv")
    a, b = s.heads[:2].double().tanh()
    x = x + a * out(s, attend(split(normed(x) @ w["q"].double().T), k, v))
    up, down = taken(s, 0, 4 * WIDTH, WIDTH).double(), taken(s, 4, WIDTH, 4 * WIDTH).double()
    return x + b * (torch.nn.functional.gelu(normed(x) @ up.T) @ down.T)


def additive_scores(s: Setting, i: int, covered: Tensor | None = None, v: Tensor | None = None) -> Tensor:
    """`v . tanh(W s_i + U h + b + w_c cov)`, (batch, entries)."""
    inner = (s.x[:, i].double() @ s.spare[0, :HIDDEN].double().T + s.spare[1, 0, :HIDDEN].double())[:, None]
    inner = inner + s.long.double() @ s.spare[2, :HIDDEN].double().T
    if covered is not None:
        inner = inner + covered[..., None] * s.spare[4, 0, :HIDDEN].double()
    return torch.tanh(inner) @ (s.spare[3, 0, :HIDDEN].double() if v is None else v)


def context(s: Setting, rows: list[Tensor]) -> Tensor:
    """Sums of the entries by their weights."""
    return torch.stack(rows, 1) @ s.long.double()


def additive(s: Setting) -> Tensor:
    """A softmax of additive scores."""
    return context(s, [additive_scores(s, i).softmax(-1) for i in range(STATES)])


def coverage(s: Setting) -> tuple[Tensor, Tensor]:
    """Contexts, and the loss of each step."""
    covered, rows, losses = torch.zeros(2, s.long.shape[1]).double(), [], []
    for i in range(STATES):
        rows.append(additive_scores(s, i, covered).softmax(-1))
        losses.append(torch.minimum(rows[-1], covered).sum(-1))
        covered = covered + rows[-1]
    return context(s, rows), torch.stack(losses, 1)


def luong(s: Setting) -> Tensor:
    """A softmax of `s . W h`."""
    scores = s.x[:, :STATES].double() @ s.spare[0].double() @ s.long.double().mT
    return scores.softmax(-1) @ s.long.double()


def monotonic(s: Setting) -> Tensor:
    """Probabilities of stopping at each entry, by all ways from where the walk stood."""
    count = s.long.shape[1]
    standing, rows = torch.eye(count)[:1].double().expand(2, -1), []
    v = s.spare[3, 0, :HIDDEN].double()
    for i in range(STATES):
        p = torch.sigmoid(additive_scores(s, i, v=0.7 * v / v.norm()) - 0.5)
        stop = torch.zeros_like(p)
        for start in range(count):
            going = standing[:, start]
            for j in range(start, count):
                stop[:, j] += going * p[:, j]
                going = going * (1 - p[:, j])
        standing = stop
        rows.append(stop)
    return context(s, rows)


CHOICE = "chosen by the user; a mask of every pair"
NEITHER = "always a softmax of products"
FUNCTION = dict.fromkeys(
    ["linear", "retention", "gated_linear", "gated_delta", "gated_delta_steps", "channel_delta"], NEITHER
) | dict.fromkeys(["lsh", "lsh_causal"], "keys cannot be found by hashing")
LAYERS = [
    "native_sparse",
    "indexed",
    "mixture_of_heads",
    "switch_head",
    "mixture_of_attention",
    "load_loss",
    "resampler",
    "gated_cross",
    "block",
    "cost",
]
ALIGNERS = dict.fromkeys(["additive", "coverage", "monotonic"], "scores are products of queries and keys")
