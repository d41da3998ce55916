"""Weight on the first token, where most sinks are (Xiao et al. 2023, arXiv 2309.17453)."""

from jaxtyping import Int
from torch import Tensor

from multihead.measure.scene import Scene
from multihead.measure.statistic.contract import Contribution, OfTile
from multihead.measure.tile import Tile
from multihead.record import Quantity


def prepare(scene: Scene) -> Int[Tensor, "_ 1 1"]:
    """Place of the first real key."""
    return scene.keys.first[:, None]


def take(tile: Tile, facts: Int[Tensor, "_ 1 1"]) -> tuple[Contribution]:
    """The weight of every row on the first real key."""
    return (Contribution(tile.total(tile.at(facts)[..., 0])),)


FIRST_TOKEN = OfTile(
    quantities=(
        Quantity(
            name="first_token",
            title="weight on the first token",
            unit="share",
            formula="mean over rows of A_i,first; padding is no token",
        ),
    ),
    prepare=prepare,
    take=take,
)
