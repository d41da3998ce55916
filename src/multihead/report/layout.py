"""Where every head stands in the grid, and the style that depends on the model: sizes, bands, pictures."""

import base64
import math
from collections.abc import Sequence
from dataclasses import dataclass

from multihead.record import HeadAddress
from multihead.record.heads import Array
from multihead.report.sprite import draw_sprite, ink_levels, looks_back_only

SIZES = (96, 64, 32)
"""Widths of a thumbnail in pixels: whole multiples of 32 bins, so that its cells stay square and sharp."""
PLAIN = 28
"""Width of a head without a picture."""
TALLEST = 820
"""A grid is made no taller than this while a smaller size is left."""
TIERS = ((1392, None, 1280), (1240, 1391, 1128), (1001, 1239, 889), (900, 1000, 828), (640, 899, 568), (0, 639, 288))
"""Window widths from, to, and the width of the page's column at the narrowest of them, less a scroll bar."""
_LABEL = 64
_GAP = 4
_TIGHT = 3
_GROUP_GAP = 12
_WIDEST_GAP = 9
_BETWEEN = 44
_WIDE = 1001


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One head of the grid: its place among the page's heads, its address, and its place in its layer's picture."""

    index: int
    address: str
    head: int
    slot: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer: its heads in groups that share keys and values (one group if none do)."""

    number: int
    picture: int
    groups: tuple[tuple[Place, ...], ...]

    def places(self) -> tuple[Place, ...]:
        """All heads of the layer."""
        return tuple(place for group in self.groups for place in group)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """One grid.

    Args:
        number: Counted over the page.
        name: `""` where the model has only one.
        layers: In order.
        shared: Whether some heads share keys and values.
        causal: Whether every head's average map is empty above the diagonal.
    """

    number: int
    name: str
    layers: tuple[Layer, ...]
    shared: bool
    causal: bool

    def widest(self) -> int:
        """Most heads in one layer."""
        return max(len(layer.places()) for layer in self.layers)

    def heads(self) -> int:
        """Number of heads."""
        return sum(len(layer.places()) for layer in self.layers)

    def key_values(self) -> int:
        """Most key/value groups in one layer."""
        return max(len(layer.groups) for layer in self.layers)


def arrange(heads: Sequence[HeadAddress], kv_heads: Sequence[int], maps: Array | None) -> tuple[Stack, ...]:
    """Sort the heads into stacks, layers and groups, in order of appearance."""
    found: dict[str, dict[int, list[int]]] = {}
    for i, address in enumerate(heads):
        found.setdefault(address.stack, {}).setdefault(address.layer, []).append(i)
    stacks: list[Stack] = []
    picture = 0
    for number, (name, layers) in enumerate(found.items()):
        rows = [indices for _, indices in sorted(layers.items())]
        shared = any(len({kv_heads[i] for i in row}) < len(row) for row in rows)
        members = [i for row in rows for i in row]
        arranged: list[Layer] = []
        for row in rows:
            arranged.append(
                Layer(number=heads[row[0]].layer, picture=picture, groups=_groups(row, heads, kv_heads, shared=shared))
            )
            picture += 1
        causal = maps is not None and looks_back_only(maps[members])
        stacks.append(Stack(number=number, name=name, layers=tuple(arranged), shared=shared, causal=causal))
    return tuple(stacks)


def is_deep(stacks: Sequence[Stack]) -> bool:
    """Whether layers run across the page: the longer axis does."""
    return max(len(s.layers) for s in stacks) > max(s.widest() for s in stacks)


def style_pictures(stacks: Sequence[Stack], maps: Array | None, *, scope: str = "") -> str:
    """One rule a layer with its picture, one rule a place in a picture; `scope` is a selector with a blank behind."""
    if maps is None:
        return ""
    rules: list[str] = []
    for stack in stacks:
        for layer in stack.layers:
            levels = ink_levels(maps[[place.index for place in layer.places()]], causal=stack.causal)
            url = base64.b64encode(draw_sprite(levels)).decode()
            rules.append(f"{scope}.p{layer.picture} i::after{{background-image:url(data:image/png;base64,{url})}}")
    slots = max(stack.widest() for stack in stacks)
    rules += [f".k{slot} i::after{{background-position:0 calc(var(--r)*-{slot})}}" for slot in range(1, slots)]
    return "\n".join(rules)


def style_sizes(stacks: Sequence[Stack], shape: tuple[int, int] | None, *, beside: int = 1) -> str:
    """The size of the heads, and how many layers stand in a band, for each width of the window.

    Args:
        stacks: What stands in the grid.
        shape: Rows and columns of a map, or None without maps.
        beside: How many such grids stand beside each other where the window is wide enough.
    """
    rules: list[str] = []
    for low, high, full in TIERS:
        width = full if low < _WIDE else (full - _BETWEEN * (beside - 1)) // beside
        size = PLAIN if shape is None else _choose_size(stacks, width)
        height = size if shape is None else max(8, round(size * shape[0] / shape[1]))
        inner = "".join(_style_stack(stack, width - _LABEL, size, deep=is_deep(stacks)) for stack in stacks)
        until = f" and (max-width:{high}.98px)" if high is not None else ""
        rules.append(f"@media (min-width:{low}px){until}{{.heads{{--c:{size}px;--r:{height}px}}{inner}}}")
    return "\n".join(rules)


def _choose_size(stacks: Sequence[Stack], width: int) -> int:
    """The largest size at which every stack fits the width and all of them, as they wrap, the height."""
    deep = is_deep(stacks)
    across = max(_across(stack, deep=deep) for stack in stacks)
    down = max(stack.widest() if deep else len(stack.layers) for stack in stacks)
    for size in SIZES[:-1]:
        one = _LABEL + across * (size + _GAP) + _room_for_groups(stacks[0], deep=deep)
        beside = min(len(stacks), (width + _BETWEEN) // (one + _BETWEEN))
        if beside and math.ceil(len(stacks) / beside) * down * (size + _GAP) <= TALLEST:
            return size
    return SIZES[-1]


def _style_stack(stack: Stack, width: int, size: int, *, deep: bool) -> str:
    across, room = _across(stack, deep=deep), width - _room_for_groups(stack, deep=deep)
    most = max(1, min(across, (room + _GAP) // (size + _GAP)))
    # A hair's breadth must not break a grid that would fit into two bands.
    narrow = most < across and (room + _TIGHT) // (size + _TIGHT) >= across
    fit = across if narrow else math.ceil(across / math.ceil(across / most))
    least = _TIGHT if narrow else _GAP
    gap = least if fit < 2 else max(least, min(_WIDEST_GAP, (room - fit * size) // (fit - 1)))
    own = f".g{stack.number}{{--g:{gap}px;--n:{fit}}}"
    if fit < across and not deep:
        # A layer breaks into lines: the next layer stands farther away than its next line.
        own += f".g{stack.number} .layers{{--between:18px}}"
    if deep:
        own += f".g{stack.number} .layer:nth-child({fit}n+1){{--mark:block}}"
    return own


def _across(stack: Stack, *, deep: bool) -> int:
    return len(stack.layers) if deep else stack.widest()


def _room_for_groups(stack: Stack, *, deep: bool) -> int:
    return 0 if deep or not stack.shared else (stack.key_values() - 1) * (_GROUP_GAP - _GAP)


def _groups(
    row: Sequence[int], heads: Sequence[HeadAddress], kv_heads: Sequence[int], *, shared: bool
) -> tuple[tuple[Place, ...], ...]:
    ordered = sorted(row, key=lambda i: heads[i].head)
    groups: dict[int, list[Place]] = {}
    for slot, i in enumerate(ordered):
        place = Place(index=i, address=str(heads[i]), head=heads[i].head, slot=slot)
        groups.setdefault(kv_heads[i] if shared else 0, []).append(place)
    return tuple(tuple(group) for group in groups.values())
