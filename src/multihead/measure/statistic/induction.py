"""Weight on what followed another copy of the query's token (induction heads, Olsson et al. 2022, arXiv 2209.11895)."""

from multihead.measure.scene import Scene
from multihead.measure.statistic.contract import Missing, OfTile
from multihead.measure.statistic.pairs import Pairs, copies, weight_on
from multihead.pattern import after_same_token
from multihead.record import Quantity


def prepare(scene: Scene) -> Pairs | Missing:
    """The pairs of a token and what followed a copy of it."""
    return copies(scene, after_same_token)


INDUCTION = OfTile(
    quantities=(
        Quantity(
            name="induction",
            title="weight on what followed a copy",
            unit="share",
            formula="mean of sum_j A_ij [token j-1 = token i, j-1 != i] over rows that see such a key",
        ),
    ),
    prepare=prepare,
    take=weight_on,
)
