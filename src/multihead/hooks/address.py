"""From sites to addresses: which stack of layers a site belongs to, and its number there."""

import re
from collections.abc import Iterable, Mapping, Sequence

from multihead.hooks.call import Site

CROSS = "cross"


def addresses(sites: Sequence[Site]) -> dict[Site, tuple[str, int]]:
    """Stack and layer of each site, for `HeadAddress(stack, layer, head)`.

    The stack is `""` where self-attention has one stack of layers, `"cross"` for every cross-attention, and otherwise
    the first segment of the module's path that tells the containers of layers apart: `"encoder"` and `"decoder"`,
    `"text_model"` and `"vision_model"`. A site that carries its stack (from `locate` or `watching`) keeps it, so that
    the address does not depend on which parts of the model ran. Layers are numbered from 0 in the order given, within
    the stack: pass sites in the order of their first call.

    Args:
        sites: Sites in the order of their first call; a repeated site keeps its first number.

    Returns:
        (stack, layer) of each site; no two sites share one.

    Example:
        >>> addresses([Site(module="encoder.layer.0.attn"), Site(module="encoder.layer.1.attn")])[
        ...     Site(module="encoder.layer.1.attn")
        ... ]
        ('', 1)
    """
    named = name_stacks((site.module, site.cross) for site in sites)
    numbering = Numbering()
    for site in sites:
        numbering.number(site, named[site.module, site.cross] if site.stack is None else site.stack)
    return numbering.found


class Numbering:
    """Numbers layers within their stack, in the order in which they first appear."""

    def __init__(self) -> None:
        self.found: dict[Site, tuple[str, int]] = {}
        self._layers: dict[str, int] = {}

    def number(self, site: Site, stack: str) -> tuple[str, int]:
        """Stack and layer of a site, the next free layer if it is new."""
        if site not in self.found:
            layer = self._layers.get(stack, 0)
            self._layers[stack] = layer + 1
            self.found[site] = stack, layer
        return self.found[site]

    def layers(self, stack: str) -> int:
        """How many layers of a stack have appeared."""
        return self._layers.get(stack, 0)


def name_stacks(paths: Iterable[tuple[str, bool]]) -> Mapping[tuple[str, bool], str]:
    """The stack of each (module path, cross) of a model."""
    given = tuple(paths)
    containers = {path: _container(path) for path, cross in given if not cross}
    level = _parting_level(set(containers.values()))
    return {(path, cross): CROSS if cross else _segment(containers[path], level) for path, cross in given}


def _container(path: str) -> tuple[str, ...]:
    """Path of the list of layers a module sits in, without layer numbers; of its parent where there is no list."""
    segments = path.split(".")
    last = max((i for i, segment in enumerate(segments) if segment.isdigit()), default=len(segments) - 1)
    return tuple(segment for segment in segments[:last] if not segment.isdigit())


def _parting_level(containers: set[tuple[str, ...]]) -> int | None:
    """Index of the first segment that is not the same in all containers, or None where there is one container."""
    if len(containers) < 2:
        return None
    shortest = min(map(len, containers))
    return next((i for i in range(shortest) if len({c[i] for c in containers}) > 1), shortest)


def _segment(container: tuple[str, ...], level: int | None) -> str:
    if level is None:
        return ""
    segment = container[level] if level < len(container) else (container[-1] if container else "")
    # A head address starts its stack with a letter and has only small ones.
    return re.sub(r"^[^a-z]+", "", re.sub(r"[^a-z0-9_]", "_", segment.lower())) or "stack"
