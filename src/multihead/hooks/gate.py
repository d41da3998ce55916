"""Gates on head outputs: scale a head, or silence it, before the output projection."""

import numbers
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor, nn

from multihead.error import MultiheadError, kind_and_text
from multihead.hooks.control import At, Chosen, Place, by_place, read_address
from multihead.hooks.locate import check_model
from multihead.hooks.seam import tapped
from multihead.record import HeadAddress

Gate = float | Tensor


@contextmanager
def gated(model: nn.Module, gates: Mapping[HeadAddress | str, Gate]) -> Generator[None, None, None]:
    """Multiply head outputs by gates before they are concatenated and projected.

    `y = concat_h(gate_h * head_h) @ W_O.T + b`: a gate of 0 equals zeroing the head's columns of `W_O`, exactly, and
    the gradient with respect to a gate is that of the head. Addresses are those `addresses` gives the sites of a watch:
    stacks are told from the model alone, layers are counted as they are called (so layers that share a module have an
    address each), from the moment the context opens. A first pass that leaves layers out (LayerDrop in training)
    therefore counts differently. Heads of several kinds in one layer are numbered through, kind after kind.

    Args:
        model: A transformers model, or one built on `MultiHeadAttention`.
        gates: For each head a number, a scalar tensor, or a tensor (batch,) with one gate an example.

    Raises:
        MultiheadError: A gate is no finite number, or one head has two; there is no such stack; or the model ran and
            has no such layer or head; or a gate has a shape other than () or (batch,).

    Example:
        >>> gate = torch.ones((), requires_grad=True)
        >>> with gated(model, {"L3.H7": 0.0, "L5.H1": gate}):
        ...     model(**inputs).logits.sum().backward()  # doctest: +SKIP
    """
    gater = _Gater(model, "gates on", _wanted(model, gates))
    with gater.trace.followed(), tapped(gater, model):
        yield
        gater.check_used()


def _wanted(model: object, gates: object) -> dict[Place, dict[int, Gate]]:
    """The gates by layer and head."""
    check_model(model)
    if not isinstance(gates, Mapping):
        raise MultiheadError(
            asked="gates by head",
            arrived=kind_and_text(gates),
            remedy='pass a dict of heads and numbers: {"L3.H7": 0.0}',
        )
    given = [(read_address(name), gate) for name, gate in cast(Mapping[object, object], gates).items()]
    return by_place([(address, _number(gate, address)) for address, gate in given])


def _number(gate: object, address: HeadAddress) -> Gate:
    """A gate that can multiply something; its shape is looked at when the batch is known."""
    held = gate.detach() if isinstance(gate, Tensor) else gate
    if isinstance(held, Tensor):
        good = not held.is_complex() and held.ndim <= 1 and bool(torch.isfinite(held).all())
    else:
        good = isinstance(held, numbers.Real) and bool(abs(cast(float, held)) <= sys.float_info.max)
    if not good:
        shape = f" of shape {tuple(held.shape)}" if isinstance(held, Tensor) else ""
        raise MultiheadError(
            asked=f"a finite number as the gate of {address}, or a tensor of shape () or (batch,) of them",
            arrived=f"{type(gate).__name__}{shape} {str(held)[:60]!r}",
            remedy="0.0 silences the head, 1.0 leaves it as it is",
        )
    return gate if isinstance(gate, Tensor) else float(cast(float, gate))


class _Gater(Chosen[Gate]):
    """The tap behind `gated`."""

    def act(self, chosen: Mapping[int, Gate], at: At, output: Tensor) -> Tensor:
        batch, _, heads, _ = output.shape
        one = torch.ones((), dtype=output.dtype, device=output.device)
        columns = [_checked(chosen.get(head, one), batch, one) for head in range(heads)]
        return output * torch.stack(torch.broadcast_tensors(*columns), dim=-1).reshape(-1, 1, heads, 1)


def _checked(gate: Gate, batch: int, like: Tensor) -> Tensor:
    tensor = gate if isinstance(gate, Tensor) else torch.as_tensor(gate)
    if tensor.shape not in ((), (batch,)):
        raise MultiheadError(
            asked=f"a gate that is a number, or one number for each of the {batch} examples of the batch",
            arrived=f"a tensor of shape {tuple(tensor.shape)}",
            remedy=f"pass a float, a tensor of shape () or one of shape ({batch},)",
        )
    return tensor.to(like)
