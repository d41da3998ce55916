"""Attention as people write it themselves: tutorials, nanoGPT, torch's own modules."""

import math

import torch
from torch import nn
from torch.nn import functional

from hooks.tail import Tail
from multihead.layer import MultiHeadAttention

WIDTH, HEADS, LENGTH = 16, 4, 7


class Tutorial(nn.Module):
    """Products, softmax, products: no output projection, as most tutorials begin. `style` is how softmax is called."""

    def __init__(self, style="functional"):
        super().__init__()
        self.num_heads, self.style = HEADS, style
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x):
        q, k, v = (f(x).view(*x.shape[:2], HEADS, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        weights = {
            "functional": lambda: functional.softmax(scores, dim=-1),
            "torch": lambda: torch.softmax(scores, -1),
            "method": lambda: scores.softmax(dim=-1),
            "module": lambda: nn.Softmax(dim=-1)(scores),
        }[self.style]()
        self.seen = weights.detach()
        return (weights @ v).transpose(1, 2).reshape(x.shape)


class Head(nn.Module):
    """One head by itself, three dimensions, causal."""

    def __init__(self, width):
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(WIDTH, width, bias=False) for _ in range(3))
        self.register_buffer("tril", torch.tril(torch.ones(32, 32)))
        self.dropout = nn.Dropout(0.3)

    def forward(self, x):
        k, q, v = self.key(x), self.query(x), self.value(x)
        scores = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
        scores = scores.masked_fill(self.tril[: x.shape[1], : x.shape[1]] == 0, float("-inf"))
        weights = self.dropout(functional.softmax(scores, dim=-1))
        self.seen = weights.detach()
        return weights @ v


class ManyHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleList(Head(WIDTH // HEADS) for _ in range(HEADS))
        self.proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.proj(torch.cat([head(x) for head in self.heads], dim=-1))


class CausalSelfAttention(nn.Module):
    """nanoGPT's, fused or by hand."""

    def __init__(self, flash):
        super().__init__()
        self.n_head, self.flash = HEADS, flash
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("bias", torch.tril(torch.ones(32, 32)).view(1, 1, 32, 32))

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = (
            t.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for t in self.c_attn(x).split(WIDTH, dim=2)
        )
        if self.flash:
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
            att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
            y = functional.softmax(att, dim=-1) @ v
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


class Block(nn.Module):
    def __init__(self, attention):
        super().__init__()
        self.ln, self.attn, self.mlp = nn.LayerNorm(WIDTH), attention, nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + self.mlp(x + self.attn(self.ln(x)))


class NanoGPT(nn.Module):
    def __init__(self, flash):
        super().__init__()
        self.wte = nn.Embedding(30, WIDTH)
        self.h = nn.ModuleList(Block(CausalSelfAttention(flash)) for _ in range(2))

    def forward(self, input_ids):
        x = self.wte(input_ids)
        for block in self.h:
            x = block(x)
        return x


def attention(query, key, value, mask=None, dropout=None):
    """As the Annotated Transformer has it: a function beside the module, a mask of -1e9."""
    scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(query.size(-1))
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -1e9)
    p_attn = scores.softmax(dim=-1)
    if dropout is not None:
        p_attn = dropout(p_attn)
    return torch.matmul(p_attn, value), p_attn


class MultiHeadedAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.h = HEADS
        self.linears = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.attn, self.dropout = None, nn.Dropout(0.1)

    def forward(self, query, key, value, mask=None):
        q, k, v = (
            lin(x).view(x.size(0), -1, self.h, WIDTH // self.h).transpose(1, 2)
            for lin, x in zip(self.linears, (query, key, value), strict=False)
        )
        x, self.attn = attention(q, k, v, mask=mask, dropout=self.dropout)
        return self.linears[-1](x.transpose(1, 2).contiguous().view(x.size(0), -1, WIDTH))


class OneModule(nn.Module):
    """A whole Transformer in one forward."""

    def __init__(self):
        super().__init__()
        self.num_heads = HEADS
        self.qkv = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(3))
        self.out = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x):
        for qkv, out in zip(self.qkv, self.out, strict=True):
            q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in qkv(x).chunk(3, dim=-1))
            y = torch.einsum("bhij,bhjd->bihd", torch.einsum("bhid,bhjd->bhij", q, k).softmax(-1), v)
            x = x + out(y.flatten(2))
        return x


OWN = {
    tail.name: tail
    for tail in (
        Tail("tutorial module", Tutorial, lambda: None, "states"),
        Tail("tutorial heads", ManyHeads, lambda: None, "states"),
        Tail("annotated transformer", MultiHeadedAttention, lambda: None, "three"),
        Tail("nanogpt", lambda: NanoGPT(True), lambda: None, "few tokens"),
        Tail("nanogpt by hand", lambda: NanoGPT(False), lambda: None, "few tokens"),
        Tail("nn.MultiheadAttention", lambda: nn.MultiheadAttention(WIDTH, HEADS), lambda: None, "three"),
        Tail(
            "nn.TransformerEncoder",
            lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, HEADS, 24, batch_first=True), 2),
            lambda: None,
            "torch",
        ),
        Tail("nn.Transformer", lambda: nn.Transformer(WIDTH, HEADS, 2, 2, 24, batch_first=True), lambda: None, "two"),
        Tail("multihead.MultiHeadAttention", lambda: MultiHeadAttention(WIDTH, HEADS), lambda: None, "three"),
    )
}
