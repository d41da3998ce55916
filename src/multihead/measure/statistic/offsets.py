"""Weight at each small distance."""

import torch
from jaxtyping import Int
from torch import Tensor

from multihead.measure.scene import Scene
from multihead.measure.statistic.contract import Contribution, OfTile
from multihead.measure.tile import Tile
from multihead.record import Quantity

FARTHEST = 16
OFFSETS = range(-FARTHEST, FARTHEST + 1)


def prepare(scene: Scene) -> Int[Tensor, " offsets"]:
    """The distances, ahead first."""
    return torch.arange(-FARTHEST, FARTHEST + 1, device=scene.problem.q.device)


def take(tile: Tile, facts: Int[Tensor, " offsets"]) -> tuple[Contribution]:
    """The weight of every row on the key at each distance; 0 where there is no such key."""
    return (Contribution(tile.total(tile.at(tile.centers()[..., None] - facts))),)


OFFSET_WEIGHTS = OfTile(
    quantities=(
        Quantity(
            name="offsets",
            title="weight by offset",
            unit="share",
            formula="mean over rows of A_i,i-o, o = query - key from -16 (ahead) to 16 (back); 0 without such a key",
            shape=(len(OFFSETS),),
            labels=tuple(str(o) for o in OFFSETS),
        ),
    ),
    prepare=prepare,
    take=take,
)
