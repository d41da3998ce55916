"""The norm and the gate behind heads of linear attention."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn
from torch.nn.functional import silu

from multihead.error import MultiheadError
from multihead.layer.check import check_eps
from multihead.layer.group import QKNorm
from multihead.layer.part import Norm


@dataclass(frozen=True, slots=True, kw_only=True)
class SwishGate:
    """Outputs are normalised head by head and multiplied by `silu(x W_g)`: `silu(x W_g) * norm(heads)`.

    Args:
        norm: `"layer"`: RetNet's group norm, without biases; `"rms"`: that of gated linear attention.
        eps: Keeps the norm's division finite.
    """

    norm: Literal["layer", "rms"] = "layer"
    eps: float = 1e-5

    def __post_init__(self) -> None:
        check_eps("SwishGate", self.eps)
        if self.norm not in ("layer", "rms"):
            raise MultiheadError(
                asked="SwishGate(norm=...): 'layer' or 'rms'", arrived=repr(self.norm), remedy="pass one of these"
            )


class Finish(nn.Module):
    """What is done to heads before they are projected: norm and gate.

    Args:
        options: Which.
        embed_dim: Width of the tokens.
        heads: Number of heads.
        v_head_dim: Their width.

    Attributes:
        norm: With a weight (heads, v_head_dim).
        gate: W_g, (heads * v_head_dim, embed_dim).
    """

    def __init__(self, options: SwishGate, *, embed_dim: int, heads: int, v_head_dim: int) -> None:
        super().__init__()
        self.norm = Norm(QKNorm(kind=options.norm, over="each", eps=options.eps), heads, v_head_dim)
        self.gate = nn.Linear(embed_dim, heads * v_head_dim, bias=False)

    def forward(self, heads: Tensor, x: Tensor) -> Tensor:
        """Heads (batch, heads, length, v_head_dim) of tokens (batch, length, embed_dim), joined."""
        return self.norm(heads).transpose(1, 2).flatten(2) * silu(self.gate(x))
