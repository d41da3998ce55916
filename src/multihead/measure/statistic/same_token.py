"""Weight on other copies of the query's token (duplicate-token heads, Wang et al. 2022, arXiv 2211.00593)."""

from multihead.measure.scene import Scene
from multihead.measure.statistic.contract import Missing, OfTile
from multihead.measure.statistic.pairs import Pairs, copies, weight_on
from multihead.pattern import same_token
from multihead.record import Quantity


def prepare(scene: Scene) -> Pairs | Missing:
    """The pairs of equal tokens."""
    return copies(scene, same_token)


SAME_TOKEN = OfTile(
    quantities=(
        Quantity(
            name="same_token",
            title="weight on the same token",
            unit="share",
            formula="mean of sum_j A_ij [token j = token i, j != i] over rows that see such a key",
        ),
    ),
    prepare=prepare,
    take=weight_on,
)
