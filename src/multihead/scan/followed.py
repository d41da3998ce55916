"""Whether anything follows what is computed; where nothing does, numbers may be written over one another."""

import torch
from torch import Tensor
from torch.autograd import forward_ad


def unfollowed(*given: Tensor | None) -> bool:
    """Whether there are numbers on a CPU alone: no gradient, no derivative forwards, no vmap, no graph being made."""
    present = [x for x in given if x is not None]
    if any(x.device.type != "cpu" for x in present) or torch.compiler.is_compiling():
        return False
    if torch.is_grad_enabled() and any(x.requires_grad for x in present):
        return False
    # Torch tells of these by no public name.
    followed = forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active()  # pyright: ignore[reportPrivateUsage]
    return not (followed or torch._C._is_tracing())  # pyright: ignore[reportPrivateUsage]
