"""Are the weights of a model numbers?"""

import torch
from torch import nn

from multihead.error import MultiheadError

_SHOWN = 3


def check_weights(model: nn.Module) -> None:
    """Refuse a model with NaN or infinity among its parameters.

    Args:
        model: Any model; buffers (masks may hold -inf) are not looked at.

    Raises:
        MultiheadError: A parameter is not finite; the message names the first ones, with the numbers.

    Example:
        >>> check_weights(nn.Linear(3, 4))
    """
    broken = [
        (name, wrong, parameter.numel())
        for name, parameter in model.named_parameters()
        if parameter.is_floating_point() and (wrong := _not_finite(parameter))
    ]
    if not broken:
        return
    shown = ", ".join(f"{name}: {wrong} of {total}" for name, wrong, total in broken[:_SHOWN])
    more = f" and {len(broken) - _SHOWN} more parameters" if len(broken) > _SHOWN else ""
    raise MultiheadError(
        asked=f"{type(model).__name__} with finite weights",
        arrived=f"NaN or infinity in {shown}{more}",
        remedy="the file is damaged, or training diverged: load an earlier checkpoint, or one stored in a wider dtype",
    )


def _not_finite(parameter: torch.Tensor) -> int:
    values = parameter.detach()
    # A sum is NaN or infinite if any term is; only then (or if it overflows) is counting worth its memory.
    if bool(torch.isfinite(values.sum(dtype=torch.float64 if values.device.type == "cpu" else None))):
        return 0
    return int(values.numel() - torch.isfinite(values).sum())
