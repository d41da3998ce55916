"""One learned gate for every head of a model."""

import math
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from multihead.error import MultiheadError, kind_and_text
from multihead.hooks.address import addresses
from multihead.hooks.control import At, Control, Place, read_address
from multihead.hooks.locate import check_model, locate
from multihead.hooks.seam import tapped
from multihead.record import HeadAddress


class HeadGate(nn.Module):
    """A gate for every head of a model: `y = concat_h(gate_h * head_h) @ W_O.T + b`, on whatever kernel it runs.

    One backward pass gives the gradient of a loss with respect to all of them. At gates of 1 that is the importance of
    heads of Michel, Levy and Neubig 2019, "Are Sixteen Heads Really Better than One?" (arXiv 1905.10650), up to its
    sign and the mean over examples; trained together with a penalty, gates choose heads to prune.

    There is one parameter (heads,) a layer, in float32 or wider. Layers that `locate` does not tell are added when they
    are first called: those that state no number of heads, and the later turns of layers that share a module (ALBERT).
    Run such a model once before an optimiser gets the parameters. The model is no submodule of the gate.

    Args:
        model: A transformers model, or one built on `MultiHeadAttention`.
        initial: Where all gates begin.

    Attributes:
        layers: The parameters by layer: `"L3"`, `"encoder_L3"`.

    Raises:
        MultiheadError: It has no attention that can be seen, or `initial` is no finite number.

    Example:
        >>> gate = HeadGate(model)  # doctest: +SKIP
        >>> with gate.acting():  # doctest: +SKIP
        ...     model(**inputs, labels=labels).loss.backward()
        >>> gate.layers["L3"].grad.abs()  # doctest: +SKIP
    """

    def __init__(self, model: nn.Module, initial: float = 1.0) -> None:
        super().__init__()
        check_model(model)
        if not isinstance(initial, int | float) or not math.isfinite(initial):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise MultiheadError(
                asked="a finite number at which all gates begin", arrived=kind_and_text(initial), remedy="pass 1.0"
            )
        self.initial = float(initial)
        self.layers = nn.ParameterDict()
        # In a tuple, so that it is no submodule.
        self._model = (model,)
        located = locate(model)
        places = addresses([one.site for one in located])
        for one in located:
            if one.heads is not None:
                first = next(model.get_submodule(one.site.module).parameters(), torch.empty(0))
                self._add(places[one.site], one.heads, first)

    def __getitem__(self, address: HeadAddress | str) -> Tensor:
        """The gate of a head, (), or the gates of a layer (`"L3"`, `"encoder.L3"`), (heads,); gradients flow.

        Raises:
            MultiheadError: There is no such head, or its layer has not been called yet.
        """
        place, head = _read(address)
        gates = self._layer(place)
        return gates if head is None else gates[self._checked(place, head)]

    def __setitem__(self, address: HeadAddress | str, value: float | Tensor) -> None:
        """Set the gate of a head, or all gates of a layer to a number or to (heads,) numbers.

        Raises:
            MultiheadError: There is no such head, or its layer has not been called yet; or the value is not finite, or
                of another shape.
        """
        place, head = _read(address)
        gates = self._layer(place)
        given = torch.as_tensor(value).detach()
        fits = given.shape == () or (head is None and given.shape == gates.shape)
        if not fits or given.is_complex() or not bool(given.isfinite().all()):
            raise MultiheadError(
                asked=f"finite numbers for gate {address}: one"
                + (f", or {len(gates)} for all heads of the layer" if head is None else ""),
                arrived=f"{str(value)[:60]!r} of shape {tuple(given.shape)}",
                remedy="one number an example goes into acting({...})",
            )
        with torch.no_grad():
            gates[slice(None) if head is None else self._checked(place, head)] = given.to(gates)

    @contextmanager
    def acting(self, values: Mapping[str, Tensor] | None = None) -> Generator[None, None, None]:
        """While this is open, the gates act on the model.

        Args:
            values: For some layers (`{"L3": tensor}`) what acts in place of the parameter: (heads,), or (batch, heads)
                with gates for each example. Gradients flow to it.

        Raises:
            MultiheadError: A value is named like no layer, or the model ran and has no such layer; or it has another
                shape; or the layer has another number of heads than `locate` told.

        Example:
            >>> with gate.acting({"L3": torch.rand(2, 12)}):  # doctest: +SKIP
            ...     model(**inputs)
        """
        tap = _Acting(self, {_layer_of(name): given for name, given in (values or {}).items()})
        with tap.trace.followed(), tapped(tap, tap.model):
            yield
            tap.check_used()

    def of_call(self, at: At, like: Tensor) -> Float[Tensor, " heads"]:
        """The gates of the heads of a call; a layer that was not known is added.

        Raises:
            MultiheadError: It has another number of heads than `locate` told.
        """
        gates = self.layers[_key(at.place)] if _key(at.place) in self.layers else self._add(at.place, at.total, like)
        if len(gates) != at.total:
            raise MultiheadError(
                asked=f"{len(gates)} gates of layer {_name(at.place)}, as many as its module, or its configuration, "
                "says it has heads",
                arrived=f"{at.total} heads when it was called",
                remedy=f"pass acting({{{_name(at.place)!r}: torch.ones({at.total})}}), or use mh.gated",
            )
        return gates[at.heads.start : at.heads.stop]

    @property
    def model(self) -> nn.Module:
        """What it gates."""
        return self._model[0]

    def extra_repr(self) -> str:
        """What it gates, for `print(gate)`."""
        return f"{type(self.model).__name__}, initial={self.initial:g}"

    def _add(self, place: Place, heads: int, like: Tensor) -> nn.Parameter:
        wide = torch.promote_types(like.dtype, torch.float32)
        # What is made within `torch.inference_mode` could never learn.
        with torch.inference_mode(mode=False):
            made = nn.Parameter(torch.full((heads,), self.initial, dtype=wide, device=like.device))
            self.layers[_key(place)] = made
        return made

    def _layer(self, place: Place) -> nn.Parameter:
        if _key(place) not in self.layers:
            raise MultiheadError(
                asked=f"gates of layer {_name(place)} of {type(self.model).__name__}",
                arrived=f"gates of {', '.join(self.layers) or 'no layer'}",
                remedy="layers are counted from 0; one that shares its module with others, or states no number of "
                "heads, is there once the model has run within acting()",
            )
        return cast(nn.Parameter, self.layers[_key(place)])

    def _checked(self, place: Place, head: int) -> int:
        heads = len(self.layers[_key(place)])
        if head >= heads:
            raise MultiheadError(
                asked=f"the gate of head {HeadAddress(*place, head)}",
                arrived=f"heads 0 to {heads - 1} in this layer",
                remedy="heads are counted from 0",
            )
        return head


class _Acting(Control):
    """The tap behind `HeadGate.acting`."""

    def __init__(self, gate: HeadGate, given: Mapping[Place, Tensor]) -> None:
        super().__init__(gate.model, "gates on")
        self._gate, self._given = gate, given
        self._used: set[Place] = set()
        self._ran = False

    def change(self, at: At, output: Tensor) -> Tensor:
        batch, _, heads, _ = output.shape
        given = self._given.get(at.place)
        if given is None:
            return output * self._gate.of_call(at, output).to(output).reshape(1, 1, heads, 1)
        if given.shape not in ((at.total,), (batch, at.total)):
            raise MultiheadError(
                asked=f"gates of layer {_name(at.place)}: ({at.total},), or ({batch}, {at.total}) with one for each "
                "example",
                arrived=f"a tensor of shape {tuple(given.shape)}",
                remedy=f"this layer has {at.total} heads, and the batch {batch} examples",
            )
        self._used.add(at.place)
        return output * given[..., at.heads.start : at.heads.stop].to(output).reshape(-1, 1, heads, 1)

    def check_used(self) -> None:
        unused = [_name(place) for place in self._given if place not in self._used]
        if self._ran and unused:
            raise MultiheadError(
                asked=f"gates of {unused[0]} of {type(self.model).__name__}",
                arrived=f"layers {', '.join(map(_name, self.numbering.found.values()))}",
                remedy="name a layer that runs, like 'L3' or 'encoder.L3'",
            )

    def end_pass(self, outermost: nn.Module | None) -> None:
        self._ran = self._ran or outermost is not None


def _read(address: HeadAddress | str) -> tuple[Place, int | None]:
    """A layer, and a head of it or None for all."""
    if isinstance(address, str) and ".H" not in address:
        return _layer_of(address), None
    head = read_address(address)
    return (head.stack, head.layer), head.head


def _layer_of(name: str) -> Place:
    try:
        address = HeadAddress.parse(f"{name}.H0")
    except MultiheadError as wrong:
        raise MultiheadError(
            asked="a layer such as L3 or encoder.L3, or a head such as L3.H7",
            arrived=repr(name),
            remedy="write the layer, counted from 0",
        ) from wrong
    return address.stack, address.layer


def _name(place: Place) -> str:
    stack, layer = place
    return f"{stack}.L{layer}" if stack else f"L{layer}"


def _key(place: Place) -> str:
    """Name of the parameter: it may hold no dot."""
    return _name(place).replace(".", "_")
