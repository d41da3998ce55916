"""Gates on head outputs: scale a head, or silence it, before the output projection."""

import numbers
import sys
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from multihead.error import MultiheadError, kind_and_text
from multihead.hooks.address import CROSS, Numbering
from multihead.hooks.locate import check_model, locate
from multihead.hooks.seam import tapped
from multihead.hooks.tap import Tap
from multihead.hooks.trace import Trace
from multihead.layer import MultiHeadAttention
from multihead.record import HeadAddress

Gate = float | Tensor


@contextmanager
def gated(model: nn.Module, gates: Mapping[HeadAddress | str, Gate]) -> Generator[None, None, None]:
    """Multiply head outputs by gates before they are concatenated and projected.

    `y = concat_h(gate_h * head_h) @ W_O.T + b`: a gate of 0 equals zeroing the head's columns of `W_O`, exactly, and
    the gradient with respect to a gate is that of the head. Addresses are those `addresses` gives the sites of a watch:
    stacks are told from the model alone, layers are counted as they are called (so layers that share a module have an
    address each), from the moment the context opens. A first pass that leaves layers out (LayerDrop in training)
    therefore counts differently.

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
    wanted = _wanted(model, gates)
    gater = _Gater(model, wanted)
    with gater.trace.followed(), tapped(gater, model):
        yield
        gater.check_used()


def _wanted(model: object, gates: object) -> dict[tuple[str, int], dict[int, Gate]]:
    """The gates by layer and head."""
    check_model(model)
    if not isinstance(gates, Mapping):
        raise MultiheadError(
            asked="gates by head",
            arrived=kind_and_text(gates),
            remedy='pass a dict of heads and numbers: {"L3.H7": 0.0}',
        )
    wanted: dict[tuple[str, int], dict[int, Gate]] = {}
    for given, gate in cast(Mapping[object, object], gates).items():
        address = _address(given)
        heads = wanted.setdefault((address.stack, address.layer), {})
        if address.head in heads:
            raise MultiheadError(
                asked="one gate a head", arrived=f"two for {address}", remedy="multiply them, or leave one out"
            )
        heads[address.head] = _number(gate, address)
    return wanted


def _address(given: object) -> HeadAddress:
    if isinstance(given, HeadAddress):
        return given
    if isinstance(given, str):
        return HeadAddress.parse(given)
    raise MultiheadError(
        asked="a head for each gate",
        arrived=kind_and_text(given),
        remedy='name it like "L3.H7", or HeadAddress("", 3, 7)',
    )


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


class _Gater(Tap):
    """The tap behind `gated`."""

    def __init__(self, model: nn.Module, wanted: Mapping[tuple[str, int], Mapping[int, Gate]]) -> None:
        self.model = model
        self._wanted = wanted
        self._used: set[tuple[str, int]] = set()
        # Shared by all threads: each calls layers in order, so the order of first calls is the same.
        self._numbering, self._lock = Numbering(), threading.Lock()
        self._ran = False
        self._layers: dict[str, int] = {}
        for located in locate(model):
            stack = located.site.stack or ""
            self._layers[stack] = self._layers.get(stack, 0) + 1
        if any(isinstance(module, MultiHeadAttention) for module in model.modules()):
            # One class for both: only a call tells cross-attention.
            self._layers.setdefault(CROSS, 0)
        for stack, layer in wanted:
            if stack not in self._layers:
                raise self._missing(stack, layer, f"stacks of layers: {', '.join(map(repr, sorted(self._layers)))}")
        self.trace = Trace(model, on_end=self._end_pass)

    def owns(self, module: nn.Module) -> bool:
        return id(module) in self.trace.paths

    @property
    def acts(self) -> bool:
        return True

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.trace.enter(module, args, kwargs)

    def leave(self, module: nn.Module, args: tuple[Any, ...], result: object) -> None:
        self.trace.leave(module, args, result)

    def again(self, module: nn.Module) -> None:
        self.trace.again(module)

    def refuse(self, module: nn.Module, reason: str) -> None:
        raise MultiheadError(
            asked=f"gates on heads of {type(self.model).__name__}",
            arrived=f"{self.trace.paths[id(module)] or 'the model'} ({type(module).__name__}): {reason}",
            remedy="its layers cannot be counted, nor its heads multiplied; gate a model of another family",
        )

    def gate(self, module: nn.Module, output: Tensor) -> Tensor:
        if self.trace.backward and self.trace.most_visits(module) > 1:
            raise MultiheadError(
                asked="gates on the layers of a model that runs them again in the backward pass",
                arrived=f"{self.trace.paths[id(module)]} is called {self.trace.most_visits(module)} times a "
                "pass, so the second run does not tell which layer it is",
                remedy="turn gradient checkpointing off: model.gradient_checkpointing_disable()",
            )
        site = self.trace.site(module)
        with self._lock:
            place = self._numbering.number(site, site.stack or "")
        gates = self._wanted.get(place)
        if not gates:
            return output
        self._used.add(place)
        return output * self._factors(place, gates, output)

    def check_used(self) -> None:
        """Complain of gates that never acted, if the model ran."""
        unused = [place for place in self._wanted if place not in self._used]
        if self._ran and unused:
            raise self._missing(*unused[0], "the parts of the model that ran do not have this layer")

    def _factors(self, place: tuple[str, int], gates: Mapping[int, Gate], output: Tensor) -> Tensor:
        """One factor an example and head, (batch | 1, 1, heads, 1)."""
        batch, _, heads, _ = output.shape
        if max(gates) >= heads:
            raise self._missing(*place, f"this layer has heads 0 to {heads - 1}", head=max(gates))
        one = torch.ones((), dtype=output.dtype, device=output.device)
        columns = [_checked(gates.get(head, one), batch, one) for head in range(heads)]
        return torch.stack(torch.broadcast_tensors(*columns), dim=-1).reshape(-1, 1, heads, 1)

    def _end_pass(self, outermost: nn.Module | None) -> None:
        self._ran = self._ran or outermost is not None
        if outermost is not self.model:
            return
        for stack, layer in self._wanted:
            seen = self._numbering.layers(stack)
            # A part of the model that did not run this time still has its layers.
            if layer >= max(seen, self._layers[stack]):
                raise self._missing(stack, layer, f"layers 0 to {seen - 1} ran in this stack")

    def _missing(self, stack: str, layer: int, known: str, *, head: int | None = None) -> MultiheadError:
        heads = self._wanted[stack, layer]
        address = HeadAddress(stack, layer, max(heads) if head is None else head)
        return MultiheadError(
            asked=f"a gate on head {address} of {type(self.model).__name__}",
            arrived=known,
            remedy="layers and heads are counted from 0, cross-attention as cross.L0.H0; `addresses(watched.sites)` "
            "lists the layers of a watched model",
        )


def _checked(gate: Gate, batch: int, like: Tensor) -> Tensor:
    tensor = gate if isinstance(gate, Tensor) else torch.as_tensor(gate)
    if tensor.shape not in ((), (batch,)):
        raise MultiheadError(
            asked=f"a gate that is a number, or one number for each of the {batch} examples of the batch",
            arrived=f"a tensor of shape {tuple(tensor.shape)}",
            remedy=f"pass a float, a tensor of shape () or one of shape ({batch},)",
        )
    return tensor.to(like)
