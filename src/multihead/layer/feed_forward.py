"""The other half of a Transformer block: two linear maps with something between that is not linear."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import dropout, gelu, relu, silu

from multihead.error import MultiheadError, check_kinds
from multihead.layer.check import check_counts, check_dropout
from multihead.layer.part import zero_bias

Curve = Callable[[Tensor], Tensor]


def _quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


_CURVES: dict[str, Curve] = {
    "relu": relu,
    "gelu": gelu,
    "gelu_tanh": partial(gelu, approximate="tanh"),
    "quick_gelu": _quick_gelu,
    "silu": silu,
}
_GATED = {"reglu": "relu", "geglu": "gelu", "geglu_tanh": "gelu_tanh", "swiglu": "silu"}
ACTIVATIONS = (*_CURVES, *_GATED)


@dataclass(frozen=True, slots=True)
class FeedForward:
    """What each token goes through by itself: `down(act(up(x)))`, or `down(act(gate(x)) * up(x))`.

    The first form is that of Vaswani et al. (2017), with a ReLU; the second that of Shazeer, "GLU Variants Improve
    Transformer" (2020), arXiv:2002.05202: `"reglu"`, `"geglu"` and `"swiglu"` are gated by ReLU, GELU and SiLU.
    `"gelu"` is exact, `"gelu_tanh"` its approximation (GPT-2, Gemma), `"quick_gelu"` is `x sigmoid(1.702 x)` (CLIP).

    Args:
        hidden: Width between the maps; None is four times the width of the input, or as many parameters in three maps.
        activation: What is between them.
        bias: Whether the maps have one.
        dropout: Share of the hidden numbers dropped in training.

    Raises:
        MultiheadError: A width that is no whole number of at least 1, an unknown activation, a dropout outside of 0 <=
            p < 1.

    Example:
        >>> FeedForward(1024, "swiglu", bias=False).gated
        True
    """

    hidden: int | None = None
    activation: str = "gelu"
    bias: bool = True
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.hidden is not None:
            check_counts({"hidden": self.hidden})
        if self.activation not in ACTIVATIONS:
            raise MultiheadError(
                asked=f"FeedForward(activation=...): one of {', '.join(ACTIVATIONS)}",
                arrived=repr(self.activation)[:100],
                remedy="pass one of these names",
            )
        check_kinds({"bias": self.bias}, (bool,), "True or False")
        check_dropout(self.dropout)

    @property
    def gated(self) -> bool:
        """Whether there are three maps."""
        return self.activation in _GATED

    def width(self, embed_dim: int) -> int:
        """Width between the maps.

        Args:
            embed_dim: Width of the input.
        """
        if self.hidden is not None:
            return self.hidden
        return max(8 * embed_dim // 3, 1) if self.gated else 4 * embed_dim


class FeedForwardLayer(nn.Module):
    """A `FeedForward` with its weights.

    Args:
        embed_dim: Width of the input and of the output.
        options: What it is.

    Attributes:
        up: (hidden, embed_dim).
        gate: Likewise, where it is gated.
        down: (embed_dim, hidden).

    Example:
        >>> FeedForwardLayer(64, FeedForward(256, "swiglu"))(torch.randn(2, 10, 64)).shape
        torch.Size([2, 10, 64])
    """

    def __init__(self, embed_dim: int, options: FeedForward) -> None:
        super().__init__()
        check_counts({"embed_dim": embed_dim})
        self.embed_dim, self.options = embed_dim, options
        hidden = options.width(embed_dim)
        self.up = nn.Linear(embed_dim, hidden, bias=options.bias)
        if options.gated:
            self.gate = nn.Linear(embed_dim, hidden, bias=options.bias)
        self.down = nn.Linear(hidden, embed_dim, bias=options.bias)
        self._curve = _CURVES[_GATED.get(options.activation, options.activation)]
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start anew: Xavier-uniform weights (Glorot and Bengio 2010), biases 0."""
        for linear in self.children():
            assert isinstance(linear, nn.Linear)
            nn.init.xavier_uniform_(linear.weight)
            zero_bias(linear)

    def forward(self, x: Float[Tensor, "*batch embed_dim"]) -> Float[Tensor, "*batch embed_dim"]:
        """Each token by itself.

        Args:
            x: (..., embed_dim).
        """
        made = self._curve(self.gate(x)) * self.up(x) if self.options.gated else self._curve(self.up(x))
        return self.down(dropout(made, self.options.dropout, self.training))

    def extra_repr(self) -> str:
        """Sizes for `print(model)`."""
        return str(self.options)
