"""Projections of a module: three linears, or one that is kept as three."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

NAMES = ("q_proj", "k_proj", "v_proj")


class FusedProjection(nn.Module):
    """Queries, keys and values of one input by one product.

    Its weights are saved as those of `q_proj`, `k_proj` and `v_proj`, and read from them.

    Args:
        split: The three linears, of one input width.

    Attributes:
        weight: (rows of q + rows of k + rows of v, width).
        bias: Likewise, or None.
    """

    def __init__(self, split: Mapping[str, nn.Linear]) -> None:
        super().__init__()
        linears = [split[name] for name in NAMES]
        self.rows = [each.out_features for each in linears]
        self.in_features = linears[0].in_features
        self.weight = nn.Parameter(torch.cat([each.weight.detach() for each in linears]))
        biases = [bias.detach() for each in linears for name, bias in each.named_parameters() if name == "bias"]
        self.bias = nn.Parameter(torch.cat(biases)) if biases else None
        for name, joined in self.named_parameters():
            joined.requires_grad_(getattr(linears[0], name).requires_grad)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of (batch, length, width), as views of one tensor."""
        q, k, v = linear(x, self.weight, self.bias).split(self.rows, -1)
        return q, k, v

    def part(self, name: str, x: Tensor) -> Tensor:
        """One of the three, by itself: of another input than the others."""
        place = NAMES.index(name)
        rows = slice(sum(self.rows[:place]), sum(self.rows[: place + 1]))
        return linear(x, self.weight[rows], None if self.bias is None else self.bias[rows])

    def split(self) -> dict[str, nn.Linear]:
        """The three linears again."""
        made: dict[str, nn.Linear] = {}
        for place, name in enumerate(NAMES):
            rows = slice(sum(self.rows[:place]), sum(self.rows[: place + 1]))
            made[name] = nn.Linear(
                self.in_features,
                self.rows[place],
                bias=self.bias is not None,
                device=self.weight.device,
                dtype=self.weight.dtype,
            )
            for kind, joined in self.named_parameters():
                own: nn.Parameter = getattr(made[name], kind)
                own.data.copy_(joined.detach()[rows])
                own.requires_grad_(joined.requires_grad)
        return made

    def extra_repr(self) -> str:
        """Sizes for `print(model)`."""
        return f"in_features={self.in_features}, rows={self.rows}, bias={self.bias is not None}"


def save_split(module: nn.Module, state: dict[str, Tensor], prefix: str, _metadata: object) -> None:
    """State dict hook: what is fused is saved as three."""
    for kind in ("weight", "bias"):
        joined = state.pop(f"{prefix}qkv_proj.{kind}", None)
        if joined is not None:
            fused = module.get_submodule("qkv_proj")
            assert isinstance(fused, FusedProjection)
            for name, rows in zip(NAMES, joined.split(fused.rows), strict=True):
                state[f"{prefix}{name}.{kind}"] = rows


def load_split(
    module: nn.Module,
    state: dict[str, Tensor],
    prefix: str,
    _metadata: object,
    _strict: bool,  # noqa: FBT001 - the signature torch calls
    _missing: list[str],
    _unexpected: list[str],
    _errors: list[str],
) -> None:
    """Load hook: what is saved as three is joined where the module is fused."""
    if not isinstance(getattr(module, "qkv_proj", None), FusedProjection):
        return
    for kind in ("weight", "bias"):
        parts = [state.pop(f"{prefix}{name}.{kind}", None) for name in NAMES]
        if all(part is not None for part in parts):
            state[f"{prefix}qkv_proj.{kind}"] = torch.cat([part for part in parts if part is not None])
