"""Weight on special tokens ([CLS], [SEP], BOS)."""

from jaxtyping import Bool
from torch import Tensor

from multihead.measure.part import Part
from multihead.measure.scene import Scene
from multihead.measure.statistic.contract import Contribution, Missing, OfTile
from multihead.record import Quantity

NO_IDS = "the keys have no token ids"


def prepare(scene: Scene) -> Bool[Tensor, "_ kv_len"] | Missing:
    """Which keys are special tokens."""
    if scene.special is not None:
        return scene.special
    return Missing("which tokens are special was not told" if scene.vocabulary is None else NO_IDS)


def take(part: Part, facts: Bool[Tensor, "_ kv_len"]) -> tuple[Contribution, ...]:
    """The weight of every row on special tokens, which all belong to the sink."""
    known, special = part.known, facts[:, part.cols].expand(part.batch, -1)
    of_sunk = special[part.sunk.batch, part.sunk.key][:, None, None]
    top = special[:, None].expand(-1, known.top_key.shape[1], -1).gather(-1, known.top_key)
    return Contribution(part.total(part.on_sunk(of_sunk))), Contribution(part.total(top.to(known.top)))


SPECIAL_TOKEN = OfTile(
    quantities=(
        Quantity(
            name="special_token",
            title="weight on special tokens",
            unit="share",
            formula="mean over rows of sum_j A_ij [key j is a special token]",
        ),
        Quantity(
            name="special_token_argmax",
            title="largest weight on a special token",
            unit="share",
            formula="share of rows whose largest weight (first of equals) is on a special token",
        ),
    ),
    prepare=prepare,
    take=take,
    of_weights=False,
)
