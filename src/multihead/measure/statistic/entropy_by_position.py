"""How the entropy of the weights changes along the sequence, and with the number of keys there are."""

import torch

from multihead.measure.part import Whole
from multihead.measure.scene import BINS
from multihead.measure.statistic.contract import Contribution, OfWhole
from multihead.record import Quantity

OCTAVES = 19
"""Numbers of visible keys: 2-3, 4-7, ..., 2^k to 2^(k+1) - 1, ..., and all from 2^19 on."""

LABELS = (*(f"{2**k}-{2 ** (k + 1) - 1}" for k in range(1, OCTAVES)), f"{2**OCTAVES}+")


def take(whole: Whole) -> tuple[Contribution, ...]:
    """The entropy of every row that counts, added up by the bin of the row."""
    rows = whole.rows
    # The exponent of a number tells its octave exactly.
    octave = (torch.frexp(rows.sees.clamp(min=2).double())[1] - 2).clamp(max=OCTAVES - 1)
    return (
        Contribution(*whole.by_bin(rows.entropy, whole.scene.q_bins()[:, None], BINS)),
        Contribution(*whole.by_bin(rows.entropy, octave.long(), OCTAVES)),
    )


ENTROPY_BY_POSITION = OfWhole(
    quantities=(
        Quantity(
            name="entropy_by_position",
            title="entropy along the text",
            unit="nats",
            formula="mean over the rows of a bin of -sum_j A_ij ln A_ij; row i in bin floor(32 (i - first) / length)",
            shape=(BINS,),
        ),
        Quantity(
            name="entropy_by_length",
            title="entropy by number of keys",
            unit="nats",
            formula="mean of -sum_j A_ij ln A_ij over rows that see 2-3, 4-7, ..., 2^19 and more keys",
            shape=(OCTAVES,),
            labels=LABELS,
        ),
    ),
    take=take,
)
