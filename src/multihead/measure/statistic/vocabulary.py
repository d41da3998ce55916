"""What tables over the vocabulary say of the keys of a call."""

from torch import Tensor

from multihead.error import MultiheadError
from multihead.measure.scene import Scene
from multihead.measure.statistic.contract import Missing

NO_IDS = "the keys have no token ids"


def look_up(scene: Scene, table: Tensor) -> Tensor | Missing:
    """`table[ids]` of the keys, (batch, kv_len).

    Raises:
        MultiheadError: An id lies outside the table.
    """
    ids = scene.keys.ids
    if ids is None:
        return Missing(NO_IDS)
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= len(table):
        raise MultiheadError(
            asked=f"token ids from 0 to {len(table) - 1}, which the token classes cover",
            arrived=f"ids from {low} to {high}",
            remedy="build the classes with the tokenizer of this model, and with size= the rows of its embedding",
        )
    return table.to(ids.device)[ids]
