"""What was measured: documents, definitions of statistics, and what the reader must know."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One document that was measured: the unit over which intervals are taken.

    Args:
        name: File name or title.
        digest: First 16 hex digits of the SHA-256 of its content.
        tokens: Tokens measured, special tokens included.
    """

    name: str
    digest: str
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """What one statistic is: its name, unit and formula.

    Args:
        name: Identifier, e.g. `"entropy"`.
        title: Words for people, e.g. `"entropy"`.
        unit: `"nats"`, `"share"`, `"tokens"`, `"logit"` or another unit.
        formula: The definition in one line.
        shape: `()` for a number a head; else the shape of its array.
        labels: Names of the entries of the last axis, where they have names.
        fold: `"mean"`: value = sum / count over documents; `"max"`: the largest over documents; `"cosine"`: of the
            sums S of a head with the heads of its layer, value[h, g] = S[h, g] / sqrt(S[h, h] S[g, g]).
        pairs: Whether the last axis runs over the heads of the head's own layer, by their number there; it is as long
            as the widest layer of the model has heads, and NaN where a layer has fewer.
        content_of: Name of the statistic this one repeats with the sink set aside, or `""`.
        even: Name of the statistic with what an even spread over the visible keys would have, its baseline, or `""`.
    """

    name: str
    title: str
    unit: str
    formula: str
    shape: tuple[int, ...] = ()
    labels: tuple[str, ...] = ()
    fold: Literal["mean", "max", "cosine"] = "mean"
    pairs: bool = False
    content_of: str = ""
    even: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Something the reader must know: a statistic that could not be taken, rows left out, NaN met.

    Args:
        about: A head address, a layer such as `"L3"`, or `""` for the whole run.
        quantity: Name of the statistic, or `""`.
        text: The reason, in one sentence.
    """

    about: str
    quantity: str
    text: str
