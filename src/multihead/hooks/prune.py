"""Take heads out of a model for good, by address."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from torch import nn

from multihead.error import MultiheadError, check_kinds, kind_and_text
from multihead.hooks.address import addresses
from multihead.hooks.control import read_address
from multihead.hooks.locate import check_model, locate
from multihead.layer import FAMILIES, Attends, MultiHeadAttention, Pruning
from multihead.record import HeadAddress

_ROUTED = (
    "whose router deals every token to a fixed number: without one of them its tokens would take others, so that the "
    "pruned module would give something else than this one with the head silenced"
)
_WHY = {
    "MoHAttention": f"{_ROUTED}; and the shared heads share one softmax of gates",
    "SwitchHeadAttention": "whose heads have experts of their own for values and outputs, dealt by one router for all",
    "MoAAttention": f"whose heads are copies, one for each expert a token takes, {_ROUTED}",
    "TalkingHeadsAttention": "whose heads mix their scores and weights: each has a part in what the others give",
    "DifferentialAttention": "whose heads are pairs of maps with a norm over each pair",
}
_TOGETHER = "whose parts belong to its heads together, so that no head can be cut out of them and put back exactly"
_INSTEAD = (
    "silence the head instead, in the model it belongs to: mh.gated(model, {'L0.H0': 0.0}) or mh.ablated(model, "
    "['L0.H0']); or build the module anew with fewer heads and train it"
)
_LINEAR_INSTEAD = (
    "build it as heads of a MultiHeadAttention, where they can be pruned: MultiHeadAttention(embed_dim, HeadGroup(8, "
    "scoring=LinearScoring())); or build the module anew with fewer heads and train it"
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pruned:
    """Heads that were taken out of a model, with all that is needed to put them back.

    Args:
        heads: By the dotted name of the module (`""` is the model itself) the numbers its heads had.
        parameters: How many numbers the model has lost.
    """

    heads: Mapping[str, tuple[int, ...]]
    parameters: int
    _cuts: tuple[Pruning, ...]

    def restore(self) -> None:
        """Put every head back, bit for bit; heads that stayed keep the values they have now.

        Parameters are new tensors: an optimiser has to be given them. What it kept of the old ones is its own business.

        Raises:
            MultiheadError: They were restored already, or a module was pruned once more since: restore that first.
        """
        for cut in self._cuts:
            cut.check_restorable()
        for cut in self._cuts:
            cut.restore()

    def __str__(self) -> str:
        told = "; ".join(f"{path or 'the model'}: {', '.join(map(str, heads))}" for path, heads in self.heads.items())
        return f"pruned heads of {told} ({self.parameters:,} parameters less)"


def prune_heads(model: nn.Module, heads: Iterable[HeadAddress | str | int] | Mapping[str, Sequence[int]]) -> Pruned:
    """Take heads out of `MultiHeadAttention` modules: their parameters shrink, and `restore` puts them back.

    The pruned model gives what the model gives with these heads gated to 0. What belongs to a head goes with it: its
    rows of the query, key and value projections, its columns of the output projection (whose bias stays), its norms,
    sink, position bias and gate. The other heads are then numbered anew. `module.groups` tells the layout that is left:
    `MultiHeadAttention(embed_dim, module.groups, ...)` loads the state dict.

    Heads that share a key/value head take it with them if all of them go. The key/value heads that stay have to keep
    equally many query heads each: pruning one head of every key/value head works, of one alone is refused, since the
    others of that layer would then read other keys. Caches are made anew after pruning.

    Args:
        model: A `MultiHeadAttention`, or a model with such modules.
        heads: Addresses as `locate` numbers layers, without having seen the model run: where one class serves self- and
            cross-attention name the modules, `{"layers.0.attn": [0, 3]}`. Of a module by itself the numbers will do.

    Returns:
        What was pruned, with `restore()`.

    Raises:
        MultiheadError: No heads, or none that the model has; a layer would be left without any; a key/value head would
            be shared by fewer heads than the others of its group; the layer is no `MultiHeadAttention`. Nothing is
            pruned then.

    Example:
        >>> layer = MultiHeadAttention(64, heads=8)
        >>> pruned = prune_heads(layer, [0, 3])
        >>> layer.heads, layer.q_proj.out_features
        (6, 48)
        >>> pruned.restore()
        >>> layer.heads
        8
    """
    check_model(model)
    chosen = _by_path(model, heads)
    cuts = [Pruning(_module(model, path), numbers, name=path or "the module") for path, numbers in chosen.items()]
    twice = [cut.name for place, cut in enumerate(cuts) if any(cut.module is other.module for other in cuts[:place])]
    if twice:
        raise MultiheadError(
            asked="each module under one name", arrived=f"{twice[0]} under two", remedy="name all its heads at once"
        )
    before = sum(parameter.numel() for parameter in model.parameters())
    for cut in cuts:
        cut.apply()
    lost = before - sum(parameter.numel() for parameter in model.parameters())
    return Pruned(heads={path: tuple(sorted(n)) for path, n in chosen.items()}, parameters=lost, _cuts=tuple(cuts))


def _by_path(model: nn.Module, heads: object) -> dict[str, list[int]]:
    """Numbers of heads by the dotted name of their module."""
    if isinstance(heads, Mapping):
        found = {_named(path): _numbers(numbers) for path, numbers in cast(Mapping[object, object], heads).items()}
    elif isinstance(heads, Iterable) and not isinstance(heads, str):
        found = _located(model, list(cast(Iterable[object], heads)))
    else:
        raise MultiheadError(
            asked="a list of heads", arrived=kind_and_text(heads), remedy='pass ["L18.H6"], a list also for one head'
        )
    strange = [n for numbers in found.values() for n in numbers if isinstance(n, bool) or not isinstance(n, int)]  # pyright: ignore[reportUnnecessaryIsInstance]
    if strange:
        raise MultiheadError(
            asked="numbers of heads", arrived=kind_and_text(strange[0]), remedy='pass {"layers.0.attn": [0, 3]}'
        )
    if not any(found.values()):
        raise MultiheadError(asked="at least one head", arrived="no heads", remedy='name them like ["L18.H6"]')
    return {path: numbers for path, numbers in found.items() if numbers}


def _named(path: object) -> str:
    """The name of a module."""
    check_kinds({"name of a module": path}, (str,), "a dotted name, such as 'layers.0.attn'")
    return cast(str, path)


def _numbers(given: object) -> list[int]:
    """A list of heads of one module; what they are is seen to later."""
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise MultiheadError(
            asked="a list of heads for each module",
            arrived=kind_and_text(given),
            remedy='pass {"layers.0.attn": [0, 3]}, a list also for one head',
        )
    return list(cast(Iterable[int], given))


def _located(model: nn.Module, heads: list[object]) -> dict[str, list[int]]:
    if heads and all(type(head) is int for head in heads):
        if isinstance(model, MultiHeadAttention | nn.MultiheadAttention) or _is_own(model):
            return {"": cast(list[int], heads)}
        raise MultiheadError(
            asked=f"to prune heads of {type(model).__name__}, a model of several modules",
            arrived=f"numbers of heads without their layer: {heads}"[:200],
            remedy='name them like ["L0.H3"], or by module: {"layers.0.attn": [0, 3]}',
        )
    if _is_own(model) and not isinstance(model, MultiHeadAttention):
        _ = _module(model, "")
    located = locate(model)
    paths = {place: site.module for site, place in addresses([one.site for one in located]).items()}
    found: dict[str, list[int]] = {}
    for head in heads:
        address = read_address(head)
        path = paths.get((address.stack, address.layer))
        if path is None:
            raise MultiheadError(
                asked=f"to prune head {address} of {type(model).__name__}",
                arrived="layers " + ", ".join(str(HeadAddress(*place, 0))[:-3] for place in paths),
                remedy="print(mh.locate(model)) lists its layers, counted from 0",
            )
        found.setdefault(path, []).append(address.head)
    return found


def _is_own(module: nn.Module) -> bool:
    """Whether it is attention of this library, of whatever kind."""
    return isinstance(module, (Attends, *(row.module for row in FAMILIES.values())))


def _module(model: nn.Module, path: str) -> MultiHeadAttention:
    modules = dict(model.named_modules(remove_duplicate=False))
    module = modules.get(path)
    if isinstance(module, MultiHeadAttention):
        return module
    asked = "to prune heads of a multihead.MultiHeadAttention" + (f" at {path!r}" if path else "")
    if module is not None and _is_own(module):
        raise MultiheadError(
            asked=asked,
            arrived=f"{type(module).__name__}, {_WHY.get(type(module).__name__, _TOGETHER)}",
            remedy=_INSTEAD if isinstance(module, Attends) else _LINEAR_INSTEAD,
        )
    arrived = "there is none" if module is None else f"{type(module).__module__}.{type(module).__name__}"
    raise MultiheadError(
        asked=asked,
        arrived=arrived + ("" if module is None else ", whose code takes its sizes from elsewhere"),
        remedy="silence the heads instead: mh.gated(model, {'L0.H0': 0.0}) or mh.ablated(model, ['L0.H0']); or build "
        "the model on multihead.MultiHeadAttention",
    )
