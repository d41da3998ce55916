"""Weight on the first token, where most sinks are (Xiao et al. 2023, arXiv 2309.17453)."""

from jaxtyping import Int
from torch import Tensor

from multihead.measure.part import Part
from multihead.measure.scene import Scene
from multihead.measure.statistic.contract import Contribution, OfTile
from multihead.record import Quantity


def prepare(scene: Scene) -> Int[Tensor, "_ 1"]:
    """Place of the first real key."""
    return scene.keys.first


def take(part: Part, facts: Int[Tensor, "_ 1"]) -> tuple[Contribution, ...]:
    """The weight of every row on the first real key, which always belongs to the sink."""
    sunk, first, known = part.sunk, facts - part.cols.start, part.known
    is_first = (sunk.key == first.expand(part.batch, -1)[sunk.batch, 0])[:, None, None]
    seen = sunk.total((is_first & sunk.seen).long(), part.batch)
    return (
        Contribution(part.total(part.on_sunk(is_first))),
        Contribution(part.total((known.top_key == first[..., None]).to(known.top))),
        Contribution(part.total(part.even(seen))),
    )


FIRST_TOKEN = OfTile(
    quantities=(
        Quantity(
            name="first_token",
            title="weight on the first token",
            unit="share",
            formula="mean over rows of A_i,first; padding is no token",
            even="first_token_even",
        ),
        Quantity(
            name="first_token_argmax",
            title="largest weight on the first token",
            unit="share",
            formula="share of rows whose largest weight (first of equals) is on the first token",
        ),
        Quantity(
            name="first_token_even",
            title="weight on the first token, of an even spread",
            unit="share",
            formula="mean over rows of [first is visible] / (visible keys); a learned sink is one more key",
        ),
    ),
    prepare=prepare,
    take=take,
    of_weights=False,
)
