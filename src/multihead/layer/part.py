"""What a group of heads learns besides its projections: norms, sinks, a position bias, a gate."""

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, normalize, rms_norm

from multihead.attend import Normaliser, Softmax
from multihead.layer.angles import rotation_from
from multihead.layer.group import HeadGroup, QKNorm, learned
from multihead.layer.linear_options import LinearScoring
from multihead.layer.linear_part import LinearPart
from multihead.position import PositionBias, Rotary, Rotation

_SOFTMAX = Softmax()


class Norm(nn.Module):
    """The norm of queries or of keys; see `QKNorm`.

    Args:
        norm: Which.
        heads: Heads it is for.
        head_dim: Their width.

    Attributes:
        weight: Factors of what was normalised, None for `"l2"`.
    """

    def __init__(self, norm: QKNorm, heads: int, head_dim: int) -> None:
        super().__init__()
        self.norm = norm
        shape = {"head": (head_dim,), "each": (heads, head_dim), "all": (heads * head_dim,)}[norm.over]
        self.weight = None if norm.kind == "l2" else nn.Parameter(torch.ones(shape))

    def forward(self, x: Tensor) -> Tensor:
        """Normalises (batch, heads, length, head_dim)."""
        tokens = x.transpose(1, 2)
        rows = tokens.flatten(2) if self.norm.over == "all" else tokens
        wide = rows.to(torch.promote_types(rows.dtype, torch.float32))
        if self.norm.kind == "l2":
            return normalize(wide, dim=-1, eps=self.norm.eps).to(x.dtype).view_as(tokens).transpose(1, 2)
        made = rms_norm if self.norm.kind == "rms" else layer_norm
        normed = made(wide, wide.shape[-1:], eps=self.norm.eps).to(x.dtype) * cast(Tensor, self.weight)
        # The weight is wider than the input under autocast.
        return normed.to(x.dtype).view_as(tokens).transpose(1, 2)

    def extra_repr(self) -> str:
        """Kind and width for `print(model)`."""
        return f"{self.norm.kind}, over={self.norm.over!r}, eps={self.norm.eps:g}"


class GroupPart(nn.Module):
    """The learned parts of a group, and its facts.

    Args:
        group: The group, settled.
        embed_dim: Width of the queries, for the gate.

    Attributes:
        group: What it was built from.
        q_norm: Norm of the queries, or None.
        k_norm: Norm of the keys, or None.
        sinks: (heads,) or None.
        bias: The tensor of a position bias, or None.
        gate: Linear map of the queries to the logits of the gates, or None.
        linear: Features and decays of linear heads, or None.
    """

    def __init__(self, group: HeadGroup, embed_dim: int) -> None:
        super().__init__()
        self.group = group
        heads, kv_heads, head_dim, v_head_dim = group.sizes
        norm = group.scoring.norm
        self.q_norm = None if norm is None else Norm(norm, heads, head_dim)
        self.k_norm = None if norm is None else Norm(norm, kv_heads, head_dim)
        self.sinks = nn.Parameter(torch.zeros(heads)) if group.scoring.sinks else None
        parameter = learned(group.position)
        if parameter is None and isinstance(group.position, PositionBias):
            # Given, not learned: it moves with the module and is no part of what is saved.
            self.register_buffer("bias", group.position.weight, persistent=False)
        else:
            self.bias = parameter
        out = 0 if group.gate is None else heads * (1 if group.gate.per == "head" else v_head_dim)
        self.gate = None if group.gate is None else nn.Linear(embed_dim, out, bias=group.gate.bias)
        self.linear = LinearPart(group.scoring, group) if isinstance(group.scoring, LinearScoring) else None

    def reset_parameters(self) -> None:
        """Start anew, but for a position bias, which is the caller's own."""
        with torch.no_grad():
            for norm in (self.q_norm, self.k_norm):
                if norm is not None and norm.weight is not None:
                    norm.weight.fill_(1.0)
            if self.sinks is not None:
                self.sinks.zero_()
        if self.gate is not None:
            nn.init.xavier_uniform_(self.gate.weight)
            zero_bias(self.gate)

    def normed(self, x: Tensor, norm: Norm | None) -> Tensor:
        """Queries or keys (batch, heads, length, head_dim), normalised where they are to be."""
        return x if norm is None else norm(x)

    def rotation(self, positions: Tensor, like: Tensor, *, length: int | Tensor | None = None) -> Rotation | None:
        """The angles by which heads `like` these are turned as they stand; None where they are not turned."""
        position = self.group.position
        if not isinstance(position, Rotary):
            return None
        dtype = torch.promote_types(like.dtype, torch.float32)
        return position.rotation(positions, like.shape[-1], length=length, dtype=dtype)

    def rotation_from(self, first: int, like: Tensor) -> Rotation | None:
        """The same for tokens that stand at `first`, `first + 1`, ..."""
        position = self.group.position
        return rotation_from(position, first, like) if isinstance(position, Rotary) else None

    @property
    def turns(self) -> bool:
        """Whether queries and keys are turned by where they stand."""
        return isinstance(self.group.position, Rotary)

    @property
    def turns_late(self) -> bool:
        """Whether keys are turned anew at every call: by how much depends on how long the text has become."""
        return isinstance(self.group.position, Rotary) and self.group.position.depends_on_length

    @property
    def normaliser(self) -> Normaliser:
        """The normaliser with what is learned of it."""
        given = self.group.scoring.normaliser
        if self.sinks is None:
            return _SOFTMAX if given is None else given
        return Softmax(sinks=self.sinks, off_by_one=isinstance(given, Softmax) and given.off_by_one)

    @property
    def position_bias(self) -> PositionBias | None:
        """The position bias with what is learned of it, or None."""
        position = self.group.position
        if not isinstance(position, PositionBias):
            return None
        return position.with_weight(cast(Tensor, self.bias))

    def gated(self, query: Tensor, heads: Tensor) -> Tensor:
        """Head outputs (batch, q_len, heads, v_head_dim) times their gates."""
        if self.gate is None:
            return heads
        return heads * torch.sigmoid(self.gate(query)).unflatten(2, (heads.shape[2], -1))

    def extra_repr(self) -> str:
        """The group for `print(model)`."""
        return str(self.group)


def turned(x: Tensor, rotation: Rotation | None) -> Tensor:
    """Queries or keys, turned where they are to be."""
    return x if rotation is None else rotation.apply(x)


def zero_bias(linear: nn.Linear) -> None:
    """Sets the bias of a linear map to 0, where it has one."""
    for name, parameter in linear.named_parameters():
        if name == "bias":
            nn.init.zeros_(parameter)
