"""Weight on each class of tokens."""

import torch
from jaxtyping import Float
from torch import Tensor

from multihead.measure.scene import Scene
from multihead.measure.statistic.contract import Contribution, Missing, OfTile
from multihead.measure.statistic.vocabulary import look_up
from multihead.measure.tile import Tile
from multihead.record import Quantity

_WIDTH = 16


def token_class(names: tuple[str, ...]) -> OfTile[Float[Tensor, "_ kv_len classes"]]:
    """The statistic for a list of classes.

    Args:
        names: Names of the classes.
    """

    def prepare(scene: Scene) -> Float[Tensor, "_ kv_len classes"] | Missing:
        if scene.vocabulary is None:
            return Missing("the classes of tokens were not told")
        found = look_up(scene, scene.vocabulary.table)
        if isinstance(found, Missing):
            return found
        # Products with 2 to 15 columns take another path in BLAS and are slower than with 16.
        width = -(-len(names) // _WIDTH) * _WIDTH
        return torch.nn.functional.one_hot(found, width).to(scene.problem.wide)

    def take(tile: Tile, facts: Float[Tensor, "_ kv_len classes"]) -> tuple[Contribution]:
        return (Contribution(tile.total(tile.mass(facts[:, tile.cols])[..., : len(names)])),)

    return OfTile(
        quantities=(
            Quantity(
                name="token_class",
                title="weight by class of token",
                unit="share",
                formula="mean over rows of sum_j A_ij [key j is of the class]",
                shape=(len(names),),
                labels=names,
            ),
        ),
        prepare=prepare,
        take=take,
    )
