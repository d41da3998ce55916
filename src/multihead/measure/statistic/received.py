"""Weight that keys receive from all queries together: where it lands along the sequence, and how much on one key."""

import torch

from multihead.measure.part import Whole
from multihead.measure.scene import BINS
from multihead.measure.statistic.contract import Contribution, OfWhole
from multihead.record import Quantity


def take(whole: Whole) -> tuple[Contribution, Contribution]:
    """Column sums in bins, and the largest of them."""
    keys, columns = whole.scene.keys, whole.columns
    place = torch.arange(columns.shape[-1], device=columns.device)
    edges = whole.scene.k_edges()
    inside = (place[None, :, None] >= edges[:, None, :-1]) & (place[None, :, None] < edges[:, None, 1:])
    inside = (inside & keys.kept[..., None]).to(columns)[:, None]
    some = whole.counted().any(-1).to(columns)
    return (
        Contribution((columns[:, :, None] @ inside)[:, :, 0], inside.sum(2) * some[..., None], fixed=True),
        Contribution(columns.amax(-1), columns.sum(-1)),
    )


RECEIVED = OfWhole(
    quantities=(
        Quantity(
            name="received",
            title="weight received",
            unit="weight",
            formula="mean over the keys of a bin of sum_i A_ij; key j is in bin floor(32 (j - first) / length)",
            shape=(BINS,),
        ),
        Quantity(
            name="received_top",
            title="share of all weight on one token",
            unit="share",
            formula="sum over blocks of 512 queries of max_j sum_i A_ij (i in the block) / sum_ij A_ij",
        ),
    ),
    take=take,
    of_all=("received_top",),
)
