"""Those who change head outputs: which layer of the model a call is, and which of its heads are asked for."""

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from torch import Tensor, nn

from multihead.error import MultiheadError, kind_and_text
from multihead.hooks.address import CROSS, Numbering
from multihead.hooks.locate import Located, locate
from multihead.hooks.once import runs_once
from multihead.hooks.tap import Tap
from multihead.hooks.trace import Trace, is_told_by_name
from multihead.layer import MultiHeadAttention
from multihead.record import HeadAddress

Place = tuple[str, int]
"""Stack and layer."""

Wish = TypeVar("Wish")


@dataclass(frozen=True, slots=True, kw_only=True)
class At:
    """Which heads a call has.

    Args:
        place: The layer.
        heads: Their numbers within it: all of them, or those of one kind.
        total: How many the layer has.
    """

    place: Place
    heads: range
    total: int


class Control(Tap):
    """A tap that changes head outputs. Layers are counted as they are called, from the moment it is opened.

    Args:
        model: The model.
        what: What is done to a head, in words that precede "head L3.H7": `"gates on"`.
    """

    def __init__(self, model: nn.Module, what: str) -> None:
        self.model, self.what = model, what
        # Shared by all threads: each calls layers in order, so the order of first calls is the same.
        self.numbering, self._lock = Numbering(), threading.Lock()
        self.trace = Trace(model, on_end=self.end_pass)

    def owns(self, module: nn.Module) -> bool:
        """Every module of the model."""
        return id(module) in self.trace.paths

    @property
    def acts(self) -> bool:
        """It does."""
        return True

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """See `Tap`."""
        self.trace.enter(module, args, kwargs)

    def leave(self, module: nn.Module, args: tuple[Any, ...], result: object) -> None:
        """See `Tap`."""
        self.trace.leave(module, args, result)

    def begin(self, module: nn.Module) -> None:
        """See `Tap`."""
        self.trace.begin(module)

    def again(self, module: nn.Module) -> None:
        """See `Tap`."""
        self.trace.again(module)

    def refuse(self, module: nn.Module, reason: str) -> None:
        """What cannot be told cannot be changed."""
        raise MultiheadError(
            asked=f"{self.what} heads of {type(self.model).__name__}",
            arrived=f"{self.trace.paths[id(module)] or 'the model'} ({type(module).__name__}): {reason}",
            remedy="its layers cannot be counted, nor its heads changed; take a model of another family",
        )

    def gate(self, module: nn.Module, output: Tensor) -> Tensor:
        """See `Tap`; finds out which heads these are."""
        if self.trace.backward and self.trace.most_visits(module) > 1:
            raise MultiheadError(
                asked=f"{self.what} heads of a model that runs its layers again in the backward pass",
                arrived=f"{self.trace.paths[id(module)]} is called {self.trace.most_visits(module)} times a "
                "pass, so the second run does not tell which layer it is",
                remedy="turn gradient checkpointing off: model.gradient_checkpointing_disable()",
            )
        site, first, count = self.trace.site(module), self.trace.heads_before(module), output.shape[2]
        with self._lock:
            place = self.numbering.number(site, site.stack or "")
        total = module.heads if isinstance(module, MultiHeadAttention) else count
        return self.change(At(place=place, heads=range(first, first + count), total=total), output)

    def change(self, at: At, output: Tensor) -> Tensor:
        """Head outputs (batch, q_len, heads, v_head_dim) as they shall go on."""
        raise NotImplementedError

    def end_pass(self, outermost: nn.Module | None) -> None:
        """A pass has ended, with its outermost module, or with None if it raised."""


class Chosen(Control, Generic[Wish]):
    """Changes some heads; those that are not there are refused, before the model runs where it tells.

    Args:
        model: The model.
        what: See `Control`.
        wanted: By layer and head what is asked for.

    Raises:
        MultiheadError: The model has no such stack, layer or head, as far as it tells without running.
    """

    def __init__(self, model: nn.Module, what: str, wanted: Mapping[Place, Mapping[int, Wish]]) -> None:
        super().__init__(model, what)
        self._wanted = wanted
        self._used: set[Place] = set()
        self._ran = False
        self._layers = check_there(model, what, {place: max(heads) for place, heads in wanted.items() if heads})

    def change(self, at: At, output: Tensor) -> Tensor:
        """Head outputs after the change."""
        chosen = self._wanted.get(at.place)
        if not chosen:
            return output
        if max(chosen) >= at.total:
            raise self._missing(*at.place, f"this layer has heads 0 to {at.total - 1}")
        self._used.add(at.place)
        mine = {head - at.heads.start: wish for head, wish in chosen.items() if head in at.heads}
        return self.act(mine, at, output) if mine else output

    def act(self, chosen: Mapping[int, Wish], at: At, output: Tensor) -> Tensor:
        """Change some heads of a call.

        Args:
            chosen: What is asked for, by the place of the head in the call.
            at: Which call.
            output: Head outputs (batch, q_len, heads, v_head_dim).
        """
        raise NotImplementedError

    def check_used(self) -> None:
        """Complain of heads that were never met, if the model ran."""
        unused = [place for place in self._wanted if place not in self._used]
        if self._ran and unused:
            raise self._missing(*unused[0], "the parts of the model that ran do not have this layer")

    def end_pass(self, outermost: nn.Module | None) -> None:
        """Complain of layers that the whole model does not have."""
        self._ran = self._ran or outermost is not None
        if outermost is not self.model:
            return
        for stack, layer in self._wanted:
            seen = self.numbering.layers(stack)
            # A part of the model that did not run this time still has its layers.
            if layer >= max(seen, len(self._layers[stack])):
                raise self._missing(stack, layer, f"layers 0 to {seen - 1} ran in this stack")

    def _missing(self, stack: str, layer: int, known: str) -> MultiheadError:
        return _missing(self.model, self.what, HeadAddress(stack, layer, max(self._wanted[stack, layer])), known)


def check_there(model: nn.Module, what: str, wanted: Mapping[Place, int]) -> dict[str, list[Located]]:
    """Refuse heads that a model does not have, as far as it tells without running.

    It does not tell how many layers there are where one may run several times a pass, nor which of them are
    cross-attention where one class serves both: that shows when it runs.

    Args:
        model: The model.
        what: What is done to a head, in words that precede "head L3.H7": `"gates on"`.
        wanted: For each layer that is asked for its highest head.

    Returns:
        Its layers, by stack.

    Raises:
        MultiheadError: There is no such stack, layer or head; the message has those that there are.
    """
    located = locate(model)
    # Some classes serve self- and cross-attention, so that only a call tells which it is.
    told = all(is_told_by_name(model.get_submodule(one.site.module)) for one in located)
    layers: dict[str, list[Located]] = {} if told else {CROSS: []}
    for one in located:
        layers.setdefault(one.site.stack or "", []).append(one)
    once = all(one.how == "seen" for one in located) and runs_once(model, [one.site.module for one in located])
    for (stack, layer), head in wanted.items():
        address = HeadAddress(stack, layer, head)
        if stack not in layers:
            raise _missing(model, what, address, f"stacks of layers: {', '.join(map(repr, sorted(layers)))}")
        open_cross = stack == CROSS and not told
        there = list(located) if open_cross else layers[stack]
        if once and layer >= len(there):
            raise _missing(model, what, address, _shown(there, "" if open_cross else stack))
        # Which layer it is can be told by its number only where each runs, and once.
        most = _most_heads(there)
        if most is not None and head >= most:
            raise _missing(model, what, address, f"its layers have heads 0 to {most - 1}")
    return layers


def _shown(layers: Sequence[Located], stack: str) -> str:
    """Layers of a stack and their heads, in words."""
    name = f"{stack}.".lstrip(".")
    most = _most_heads(layers)
    heads = "" if most is None else f", with heads 0 to {most - 1}"
    several = f"layers {name}L0 to {name}L{len(layers) - 1}" if len(layers) > 1 else f"one layer, {name}L0"
    return several + heads


def _missing(model: nn.Module, what: str, address: HeadAddress, known: str) -> MultiheadError:
    return MultiheadError(
        asked=f"{what} head {address} of {type(model).__name__}",
        arrived=known,
        remedy="layers and heads are counted from 0, cross-attention as cross.L0.H0; see mh.locate(model)",
    )


def read_address(given: object) -> HeadAddress:
    """An address from what a caller names a head with.

    Raises:
        MultiheadError: It is no address.
    """
    if isinstance(given, HeadAddress):
        return given
    if isinstance(given, str):
        return HeadAddress.parse(given)
    raise MultiheadError(
        asked="a head",
        arrived=kind_and_text(given),
        remedy='name it like "L3.H7", or HeadAddress("", 3, 7)',
    )


def by_place(given: Iterable[tuple[HeadAddress, Wish]]) -> dict[Place, dict[int, Wish]]:
    """What is asked for, by layer and head.

    Raises:
        MultiheadError: A head is named twice.
    """
    found: dict[Place, dict[int, Wish]] = {}
    for address, wish in given:
        heads = found.setdefault((address.stack, address.layer), {})
        if address.head in heads:
            raise MultiheadError(asked="each head once", arrived=f"{address} twice", remedy="leave one out")
        heads[address.head] = wish
    return found


def _most_heads(layers: Iterable[Located]) -> int | None:
    """Heads of the widest layer, None where one does not state them."""
    counts = [located.heads for located in layers]
    return max((count for count in counts if count is not None), default=None) if None not in counts else None
