"""Weight on special tokens ([CLS], [SEP], BOS)."""

from jaxtyping import Float
from torch import Tensor

from multihead.measure.scene import Scene
from multihead.measure.statistic.contract import Contribution, Missing, OfTile
from multihead.measure.statistic.vocabulary import look_up
from multihead.measure.tile import Tile
from multihead.record import Quantity


def prepare(scene: Scene) -> Float[Tensor, "_ kv_len 1"] | Missing:
    """1 for keys that are special tokens."""
    if scene.vocabulary is None:
        return Missing("which tokens are special was not told")
    found = look_up(scene, scene.vocabulary.special)
    return found if isinstance(found, Missing) else found[..., None].to(scene.problem.wide)


def take(tile: Tile, facts: Float[Tensor, "_ kv_len 1"]) -> tuple[Contribution]:
    """The weight of every row on special tokens."""
    return (Contribution(tile.total(tile.mass(facts[:, tile.cols])[..., 0])),)


SPECIAL_TOKEN = OfTile(
    quantities=(
        Quantity(
            name="special_token",
            title="weight on special tokens",
            unit="share",
            formula="mean over rows of sum_j A_ij [key j is a special token]",
        ),
    ),
    prepare=prepare,
    take=take,
)
