"""What mixtures of heads ask of a group of heads, and of the mask of a call."""

from typing import TypeVar

from torch import Tensor

from multihead.attend import Softmax
from multihead.error import MultiheadError, check_kinds
from multihead.layer.group import HeadGroup
from multihead.layer.linear_options import LinearScoring
from multihead.pattern import Pattern
from multihead.position import PositionBias

_Given = TypeVar("_Given", bound=HeadGroup | Pattern | Tensor | None)


def one_group(heads: object, embed_dim: int) -> HeadGroup:
    """The one group that a mixture was asked for, with all sizes filled in."""
    if isinstance(heads, int) and not isinstance(heads, bool):
        heads = HeadGroup(heads)
    check_kinds({"heads": heads}, (HeadGroup,), "a number of heads, or one HeadGroup(...)")
    assert isinstance(heads, HeadGroup)
    if isinstance(heads.scoring, LinearScoring) or heads.pattern is not heads.mask:
        linear = isinstance(heads.scoring, LinearScoring)
        raise MultiheadError(
            asked="a mixture of heads, which weigh keys by a softmax within a pattern",
            arrived=f"HeadGroup({'scoring=LinearScoring(...)' if linear else f'mask={heads.mask}'})",
            remedy="use MultiHeadAttention, which takes linear heads and heads that choose their keys",
        )
    return heads.settled(embed_dim, alone=True)


def check_unbiased(group: HeadGroup, what: str) -> None:
    """Refuses a bias of positions."""
    if isinstance(group.position, PositionBias):
        raise MultiheadError(
            asked=f"{what}: a position that turns queries and keys",
            arrived=f"position={type(group.position).__name__}, which is added to scores",
            remedy="pass Rotary() or None; MultiHeadAttention and SwitchHeadAttention take a bias of positions",
        )


def check_uniform(given: _Given, what: str) -> _Given:
    """Refuses what differs by head where the heads of a call are none of their own."""
    told = _differing(given)
    if told:
        raise MultiheadError(
            asked=f"{what}, so all heads of a call are alike",
            arrived=told,
            remedy="leave it out, or pass one for all heads; MoHAttention has heads of their own",
        )
    return given


def by_head(pattern: Pattern | None) -> bool:
    """Whether a pattern differs by head."""
    return pattern is not None and pattern.heads not in (None, 1)


def _differing(given: HeadGroup | Pattern | Tensor | None) -> str:
    """What of it differs by head, in words; empty where nothing does."""
    if given is None:
        return ""
    if isinstance(given, Pattern):
        return f"a mask for heads={given.heads}" if by_head(given) else ""
    if isinstance(given, Tensor):
        return f"a mask of shape {tuple(given.shape)}" if given.ndim == 4 and given.shape[1] != 1 else ""
    norm, softmax = given.scoring.norm, given.scoring.normaliser
    found = {
        "sinks=True": given.scoring.sinks,
        f"gate={given.gate}": given.gate is not None,
        f"position={type(given.position).__name__}": isinstance(given.position, PositionBias),
        f"norm={norm}": norm is not None and norm.over != "head",
        f"normaliser={softmax}": isinstance(softmax, Softmax) and softmax.sinks is not None,
        f"mask={given.mask}": by_head(given.pattern),
    }
    return ", ".join(name for name, differs in found.items() if differs)
