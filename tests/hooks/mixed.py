"""A model whose layers have heads of several kinds, and the same model put together from plain layers."""

import torch
from torch import nn

from multihead.layer import HeadGroup, MultiHeadAttention
from multihead.pattern import causal, padding, sliding_window
from multihead.position import ALiBi, alibi_slopes

WIDTH, LAYERS, VOCAB = 24, 2, 40
GROUPS = (
    HeadGroup(2, 12, kv_heads=1, v_head_dim=5),
    HeadGroup(1, 8, mask=sliding_window(3)),
    HeadGroup(4, 4, kv_heads=2, v_head_dim=7, position=ALiBi(alibi_slopes(4))),
)
HEADS = [(group, head) for group, one in enumerate(GROUPS) for head in range(one.heads)]
"""Group, and number in it, of each head of a layer."""


def columns(head):
    """The columns of an output projection that one head is multiplied with, counted by hand."""
    widths = [GROUPS[group].v_head_dim or GROUPS[group].head_dim for group, _ in HEADS]
    return slice(sum(widths[:head]), sum(widths[: head + 1]))


@torch.no_grad()
def randomise(model):
    for parameter in model.parameters():
        scale = 1.0 if parameter.ndim == 1 else 1.5 * parameter.shape[-1] ** -0.5
        parameter.copy_(torch.randn(parameter.shape) * scale)
    return model.eval()


class Block(nn.Module):
    def __init__(self, attn):
        super().__init__()
        self.norm, self.attn = nn.LayerNorm(WIDTH), attn

    def forward(self, hidden_states, mask, cache=None):
        given = {} if cache is None else {"cache": cache}
        return hidden_states + self.attn(self.norm(hidden_states), mask=mask, **given)


class Model(nn.Module):
    def __init__(self, attentions):
        super().__init__()
        self.embed, self.layers = nn.Embedding(VOCAB, WIDTH), nn.ModuleList(map(Block, attentions))

    def forward(self, input_ids, attention_mask=None, caches=(None, None)):
        mask = causal() if attention_mask is None else causal() & padding(attention_mask.bool())
        hidden = self.embed(input_ids)
        for layer, cache in zip(self.layers, caches, strict=True):
            hidden = layer(hidden, mask, cache)
        return hidden


class Apart(nn.Module):
    """The groups of a mixed layer as layers of their own, whose outputs are added."""

    def __init__(self, layer):
        super().__init__()
        self.parts = nn.ModuleList()
        start = {"q": 0, "k": 0, "v": 0, "out": 0}
        for group in GROUPS:
            part = MultiHeadAttention(WIDTH, group)
            with torch.no_grad():
                for name in ("q", "k", "v"):
                    whole, own = getattr(layer, f"{name}_proj"), getattr(part, f"{name}_proj")
                    rows = slice(start[name], start[name] + own.out_features)
                    own.weight.copy_(whole.weight[rows]), own.bias.copy_(whole.bias[rows])
                    start[name] = rows.stop
                cut = slice(start["out"], start["out"] + part.out_proj.in_features)
                part.out_proj.weight.copy_(layer.out_proj.weight[:, cut])
                part.out_proj.bias.copy_(layer.out_proj.bias / len(GROUPS))
                start["out"] = cut.stop
            self.parts.append(part)

    def forward(self, x, mask):
        return sum(part(x, mask=mask) for part in self.parts)


def mixed():
    return randomise(Model(MultiHeadAttention(WIDTH, list(GROUPS)) for _ in range(LAYERS)))


def plain():
    return randomise(Model(MultiHeadAttention(WIDTH, 4, kv_heads=2) for _ in range(LAYERS)))


def apart(model):
    """The same model, built of plain layers."""
    twin = Model(Apart(layer.attn) for layer in model.layers)
    with torch.no_grad():
        twin.embed.weight.copy_(model.embed.weight)
        for own, other in zip(twin.layers, model.layers, strict=True):
            own.norm.load_state_dict(other.norm.state_dict())
    return twin.eval()


def tokens(batch=2, length=9):
    return torch.randint(VOCAB, (batch, length))
