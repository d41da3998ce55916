"""Weight on the sink: first token, special tokens, a learned sink together (Xiao et al. 2023, arXiv 2309.17453)."""

from multihead.measure.part import Part, Whole
from multihead.measure.scene import BINS
from multihead.measure.statistic.contract import Contribution, OfTile, OfWhole, nothing
from multihead.record import Quantity

SET = "S: the first real key, special tokens where they are known, a learned sink"


def take(part: Part, facts: None) -> tuple[Contribution, ...]:
    """Weight of every row, whether its largest lies there, and what an even spread puts there."""
    known = part.known
    top = part.sunk.total((part.sunk.key[:, None, None] == known.top_key[part.sunk.batch]).long(), part.batch)
    even = part.even(known.sees_sunk + part.scene.learned_sink)
    return (
        Contribution(part.total(known.sunk + known.sink)),
        Contribution(part.total(((top > 0) | (known.sink > known.top)).to(known.top))),
        Contribution(part.total(even)),
    )


def take_by_position(whole: Whole) -> tuple[Contribution]:
    """The weight of every row that counts, added up by the bin of the row."""
    return (Contribution(*whole.by_bin(whole.rows.sunk + whole.rows.sink, whole.scene.q_bins()[:, None], BINS)),)


SINK = OfTile(
    quantities=(
        Quantity(
            name="sink",
            title="weight on the sink",
            unit="share",
            formula=f"mean over rows of sum_j A_ij [j in S]; {SET}",
            even="sink_even",
        ),
        Quantity(
            name="sink_argmax",
            title="largest weight on the sink",
            unit="share",
            formula="share of rows whose largest weight (first of equals) is on one of S",
        ),
        Quantity(
            name="sink_even",
            title="weight on the sink, of an even spread",
            unit="share",
            formula="mean over rows of (visible keys in S) / (visible keys); a learned sink is one more key",
        ),
    ),
    prepare=nothing,
    take=take,
    of_weights=False,
)

SINK_BY_POSITION = OfWhole(
    quantities=(
        Quantity(
            name="sink_by_position",
            title="weight on the sink along the text",
            unit="share",
            formula="mean over the rows of a bin of sum_j A_ij [j in S]; row i in bin floor(32 (i - first) / length)",
            shape=(BINS,),
        ),
    ),
    take=take_by_position,
)
