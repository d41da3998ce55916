"""The statistics, one a file: a definition and a pure function of weights."""

from multihead.measure.statistic.cka import CKA
from multihead.measure.statistic.contract import Contribution, Missing, OfTile, OfWhole, Statistic
from multihead.measure.statistic.copies import COPIES
from multihead.measure.statistic.distance import DISTANCE
from multihead.measure.statistic.effective_rank import EFFECTIVE_RANK
from multihead.measure.statistic.entropy import ENTROPY
from multihead.measure.statistic.entropy_by_position import ENTROPY_BY_POSITION
from multihead.measure.statistic.entropy_share import ENTROPY_SHARE
from multihead.measure.statistic.first_token import FIRST_TOKEN
from multihead.measure.statistic.logit_max import LOGIT_MAX
from multihead.measure.statistic.max_weight import MAX_WEIGHT
from multihead.measure.statistic.output import OUTPUT
from multihead.measure.statistic.participation import PARTICIPATION
from multihead.measure.statistic.pooled_map import POOLED_MAP
from multihead.measure.statistic.reach import REACH
from multihead.measure.statistic.received import RECEIVED
from multihead.measure.statistic.rows import ROWS
from multihead.measure.statistic.similarity import SIMILARITY
from multihead.measure.statistic.sink import SINK, SINK_BY_POSITION
from multihead.measure.statistic.sink_mass import SINK_MASS
from multihead.measure.statistic.special_token import SPECIAL_TOKEN
from multihead.measure.statistic.target import DEFAULT_TARGETS, target
from multihead.measure.statistic.token_class import token_class

__all__ = [
    "DEFAULT",
    "DEFAULT_TARGETS",
    "Contribution",
    "Missing",
    "OfTile",
    "OfWhole",
    "Statistic",
    "target",
    "token_class",
]

DEFAULT: tuple[Statistic, ...] = (
    ENTROPY,
    ENTROPY_SHARE,
    PARTICIPATION,
    MAX_WEIGHT,
    LOGIT_MAX,
    SINK,
    FIRST_TOKEN,
    SPECIAL_TOKEN,
    SINK_MASS,
    COPIES,
    DISTANCE,
    OUTPUT,
    EFFECTIVE_RANK,
    ROWS,
    REACH,
    RECEIVED,
    ENTROPY_BY_POSITION,
    SINK_BY_POSITION,
    POOLED_MAP,
    SIMILARITY,
    CKA,
)
"""What is taken unless a caller says otherwise; targets and classes of tokens come on top."""
