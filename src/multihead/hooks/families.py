"""The families of models that were tried, with how their attention is seen. The list is made by docs/families.py."""

from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Literal

_FILE = "families.txt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A kind of model.

    Args:
        name: As people call it.
        how: `"seen"` through a seam of its own; by `"fallback"`; `"partly"`: some layers are; or `"not seen"`.
        reason: Why not, or not all.
    """

    name: str
    how: Literal["seen", "fallback", "partly", "not seen"]
    reason: str = ""


@cache
def families() -> tuple[Family, ...]:
    """Every family of models that was tried, with how it is seen.

    A tiny random model of each was run with and without watch; outputs were the same bit for bit, and the weights told
    those the model itself returns, where it returns any.

    Example:
        >>> {family.name: family.how for family in families()}["bert"]
        'seen'
    """
    lines = (resources.files("multihead.hooks") / _FILE).read_text(encoding="utf-8").splitlines()
    rows = [line.split("\t") for line in lines if line and not line.startswith("#")]
    return tuple(Family(name=name, how=how, reason=reason) for name, how, reason in rows)  # pyright: ignore[reportArgumentType]
