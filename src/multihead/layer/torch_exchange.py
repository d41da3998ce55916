"""Weights of our module from those of `nn.MultiheadAttention`, and back."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from multihead.error import MultiheadError, check_kinds
from multihead.layer.group import HeadGroup, Scoring


def torch_weights(module: nn.MultiheadAttention) -> dict[str, Tensor]:
    """The weights of an nn.MultiheadAttention under our names, its packed ones taken apart.

    Raises:
        MultiheadError: It was built with `add_bias_kv` or `add_zero_attn`: keys that no input has.
    """
    check_kinds({"module": module}, (nn.MultiheadAttention,), "an nn.MultiheadAttention")
    extra = {"add_bias_kv=True": module.bias_k is not None, "add_zero_attn=True": module.add_zero_attn}
    found = [name for name, present in extra.items() if present]
    if found:
        raise MultiheadError(
            asked="an nn.MultiheadAttention whose keys are those of its input",
            arrived=f"{' and '.join(found)}: another key stands behind them in every row, outside of every mask",
            remedy="build it without; for a head that may attend to nothing, multihead.attention has "
            "normaliser=Softmax(off_by_one=True)",
        )
    given = module.state_dict()
    if "in_proj_weight" in given:
        weights = given["in_proj_weight"].chunk(3)
    else:
        weights = tuple(given[f"{name}_proj_weight"] for name in "qkv")
    named = {f"{name}_proj.weight": weight for name, weight in zip("qkv", weights, strict=True)}
    if "in_proj_bias" in given:
        named |= {f"{name}_proj.bias": bias for name, bias in zip("qkv", given["in_proj_bias"].chunk(3), strict=True)}
    return named | {name: weight for name, weight in given.items() if name.startswith("out_proj.")}


def torch_module(state: dict[str, Tensor], *, heads: int, dropout: float) -> nn.MultiheadAttention:
    """An nn.MultiheadAttention with these weights, given under our names."""
    q, k, v = (state[f"{name}_proj.weight"] for name in "qkv")
    made = nn.MultiheadAttention(
        q.shape[1],
        heads,
        dropout=dropout,
        bias="q_proj.bias" in state,
        kdim=k.shape[1],
        vdim=v.shape[1],
        batch_first=True,
        device=q.device,
        dtype=q.dtype,
    )
    packed: dict[str, Tensor] = {name: value for name, value in state.items() if name.startswith("out_proj.")}
    if q.shape[1] == k.shape[1] == v.shape[1]:
        packed["in_proj_weight"] = torch.cat([q, k, v])
    else:
        packed |= {"q_proj_weight": q, "k_proj_weight": k, "v_proj_weight": v}
    if "q_proj.bias" in state:
        packed["in_proj_bias"] = torch.cat([state[f"{name}_proj.bias"] for name in "qkv"])
    made.load_state_dict(packed)
    return made


def check_plain(groups: Sequence[HeadGroup], embed_dim: int) -> None:
    """Refuses heads that an nn.MultiheadAttention cannot have."""
    group, heads = groups[0], sum(group.heads for group in groups)
    width = None if embed_dim % heads else embed_dim // heads
    told = {
        f"{len(groups)} groups of heads": len(groups) > 1,
        f"head_dim={group.head_dim}, v_head_dim={group.v_head_dim}": group.sizes[2:] != (width, width),
        f"kv_heads={group.kv_heads}": group.kv_heads != group.heads,
        f"mask={group.mask}": group.mask is not None,
        f"position={group.position}": group.position is not None,
        f"{group.scoring}": group.scoring != Scoring(),
        "gates": group.gate is not None,
    }
    beyond = [what for what, present in told.items() if present]
    if beyond:
        raise MultiheadError(
            asked="an nn.MultiheadAttention of the same heads",
            arrived="; ".join(beyond),
            remedy="it knows plain heads of embed_dim / heads only; multihead.compat.MultiheadAttention has its "
            "signature on our kernels",
        )
