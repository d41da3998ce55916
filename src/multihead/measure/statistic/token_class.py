"""Weight on each class of tokens."""

import torch
from jaxtyping import Float64
from torch import Tensor

from multihead.measure.part import Whole
from multihead.measure.scene import Scene, look_up
from multihead.measure.statistic.contract import Contribution, Missing, OfWhole, with_aside
from multihead.record import Quantity

NO_IDS = "the keys have no token ids"


def token_class(names: tuple[str, ...]) -> OfWhole:
    """The statistic for a list of classes.

    Args:
        names: Names of the classes.
    """

    def take(whole: Whole) -> tuple[Contribution | Missing, ...]:
        member = _members(whole.scene, len(names))
        if isinstance(member, Missing):
            return member, member
        rows, left = whole.counted().sum(-1, dtype=torch.float64), whole.total(whole.rows.left)
        return _share(whole.columns, member, rows), _share(whole.content_columns(), member, left)

    return OfWhole(
        quantities=with_aside(
            Quantity(
                name="token_class",
                title="weight by class of token",
                unit="share",
                formula="mean over rows of sum_j A_ij [key j is of the class]",
                shape=(len(names),),
                labels=names,
            ),
            "sum of A_ij [key j is of the class] over keys outside of the sink / sum of all A_ij there",
        ),
        take=take,
    )


def _members(scene: Scene, count: int) -> Float64[Tensor, "_ kv_len classes"] | Missing:
    """1 where a key is of a class: by its place where that was told, or else by its id."""
    if scene.vocabulary is None:
        return Missing("the classes of tokens were not told")
    classes = scene.classes
    if classes is None:
        if scene.keys.ids is None:
            return Missing(NO_IDS)
        classes = look_up(scene.keys.ids, scene.vocabulary.table)
    return torch.nn.functional.one_hot(classes.long(), count).double()


def _share(columns: Tensor, member: Tensor, count: Tensor) -> Contribution:
    sums = columns @ member
    return Contribution(sums, count[..., None].expand_as(sums))
