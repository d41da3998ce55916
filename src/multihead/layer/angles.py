"""Angles of tokens that stand where they lie, made once for all layers that turn alike.

The layers of a model turn the same positions by the same angles. Beside a layer of few tokens making them anew takes
longer than turning by them, and in training each layer would keep its own.
"""

from collections.abc import Hashable

import torch
from torch import Tensor

from multihead.attend import native
from multihead.native import ops
from multihead.position import Rotary, Rotation

_MOST, _LARGEST = 4, 2**20
"""Tables that are remembered, and numbers in one of them: 4 MB in float32, 8192 positions of heads of 64."""
_KNOWN: dict[Hashable, Rotation] = {}


def rotation_from(position: Rotary, first: int, like: Tensor) -> Rotation:
    """The angles of heads `like` these, whose tokens stand at `first`, `first + 1`, ...

    Args:
        position: Its angles must not depend on the length of the text.
        first: Position of the first token.
        like: (batch, heads, length, head_dim).
    """
    length, head_dim = like.shape[2:]
    dtype = torch.promote_types(like.dtype, torch.float32)
    # Never where torch looks on: what it then makes is no plain tensor, or belongs to a graph.
    plain = (
        not torch.compiler.is_compiling() and like.is_cpu and not (ops.watched(like, like, like) or native.followed())
    )
    if not plain or 2 * length * head_dim > _LARGEST:
        return _made(position, first, like, dtype)
    # Tensors of inference mode cannot be used in training.
    facts = position, first, length, head_dim, dtype, torch.is_inference_mode_enabled()
    found = _KNOWN.get(facts)
    if found is None:
        found = _made(position, first, like, dtype)
        if len(_KNOWN) >= _MOST:
            forget()
        _KNOWN[facts] = found
    return found


def forget() -> None:
    """Forgets all angles."""
    _KNOWN.clear()


def _made(position: Rotary, first: int, like: Tensor, dtype: torch.dtype) -> Rotation:
    positions = torch.arange(first, first + like.shape[2], device=like.device)
    return position.rotation(positions, like.shape[3], dtype=dtype)
