"""How the entropy of the weights changes along the sequence."""

import torch

from multihead.measure.scene import BINS
from multihead.measure.statistic.contract import Contribution, OfWhole
from multihead.measure.tile import Whole
from multihead.record import Quantity


def take(whole: Whole) -> tuple[Contribution]:
    """The entropy of every row that counts, added up by the bin of the row."""
    counted = whole.counted()
    entropy = torch.where(counted, whole.rows.entropy, 0.0).double()
    own = torch.nn.functional.one_hot(whole.scene.q_bins(), BINS).double()[:, None]
    return (Contribution((entropy[:, :, None] @ own)[:, :, 0], (counted.double()[:, :, None] @ own)[:, :, 0]),)


ENTROPY_BY_POSITION = OfWhole(
    quantities=(
        Quantity(
            name="entropy_by_position",
            title="entropy along the text",
            unit="nats",
            formula="mean over the rows of a bin of -sum_j A_ij ln A_ij; row i in bin floor(32 (i - first) / length)",
            shape=(BINS,),
        ),
    ),
    take=take,
)
