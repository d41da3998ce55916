"""What a module's heads are: groups of equal heads, each with its own sizes, pattern, position and scoring."""

from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from types import NoneType
from typing import Literal, get_args

from torch import Tensor, nn

from multihead.attend import Normaliser, Softmax
from multihead.attend.selector import Selector
from multihead.error import MultiheadError, check_kinds
from multihead.layer.check import check_counts, check_eps, check_product, divided, listed_divisors
from multihead.layer.linear_options import LinearScoring
from multihead.pattern import Pattern
from multihead.position import PositionBias, Rotary

Position = Rotary | PositionBias
POSITION = "Rotary(), ALiBi(...), RelativeTable(...) or AdaptiveSpan(...), or None"
_MASK = "a pattern, such as sliding_window(256), a selector, such as TopBlocks(64, 8), or None"
NormKind = Literal["rms", "layer", "l2"]
NormWidth = Literal["head", "each", "all"]


@dataclass(frozen=True, slots=True, kw_only=True)
class QKNorm:
    """Queries and keys are normalised before they are multiplied (Henry et al. 2020, "Query-Key Normalization").

    `"rms"`: `weight * x / sqrt(mean(x^2) + eps)` (Qwen 3, Gemma 3, OLMo 2). `"layer"`: `weight * (x - mean(x)) /
    sqrt(var(x) + eps)` (Cohere, ViT-22B). `"l2"`: `x / max(|x|, eps)`, nothing to learn: give `Scoring(scale=...)`,
    since products then lie in -1 to 1. Means are taken in float32 or wider.

    Args:
        kind: Which.
        over: `"head"`: over each head's width, one weight (head_dim,) for all heads. `"each"`: over each head's width,
            a weight (heads, head_dim). `"all"`: over the joined heads, a weight (heads * head_dim,).
        eps: Keeps the division finite.

    Raises:
        MultiheadError: A kind or width that there is not, or an eps that is not above 0.

    Example:
        >>> HeadGroup(8, 64, scoring=Scoring(norm=QKNorm())).scoring.norm.kind
        'rms'
    """

    kind: NormKind = "rms"
    over: NormWidth = "head"
    eps: float = 1e-6

    def __post_init__(self) -> None:
        _check_choice("QKNorm(kind=...)", self.kind, get_args(NormKind))
        _check_choice("QKNorm(over=...)", self.over, get_args(NormWidth))
        check_eps("QKNorm", self.eps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoring:
    """How queries and keys become weights: normalised, multiplied, scaled, capped, then `normaliser`.

    Args:
        norm: Of queries and keys, or None.
        scale: Factor of the products; None is head_dim ** -0.5.
        softcap: c in c * tanh(scaled / c), or None.
        normaliser: None is `Softmax()`.
        sinks: Whether each head learns a logit that takes up weight and gives nothing (gpt-oss). It starts at 0.

    Raises:
        MultiheadError: Sinks with a normaliser that has none, or that has them already.
    """

    norm: QKNorm | None = None
    scale: float | None = None
    softcap: float | None = None
    normaliser: Normaliser | None = None
    sinks: bool = False

    def __post_init__(self) -> None:
        check_kinds({"norm": self.norm}, (QKNorm, NoneType), "QKNorm(...) or None")
        # A tensor of sinks would be taken for a yes, and its numbers lost.
        check_kinds({"sinks": self.sinks}, (bool,), "True for learned ones; given ones are Softmax(sinks=...)")
        if self.sinks and not (isinstance(self.normaliser, Softmax | None) and _sinkless(self.normaliser)):
            raise MultiheadError(
                asked="Scoring(sinks=True): a learned logit in the denominator of a softmax",
                arrived=f"normaliser={self.normaliser}",
                remedy="leave the normaliser out or pass Softmax(off_by_one=...); a Softmax with its own sinks needs "
                "no sinks=True",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputGate:
    """Head outputs times `sigmoid(query W_g + b_g)`, before they are joined (Qiu et al. 2025, "Gated Attention").

    Args:
        per: `"head"`: one gate for each head; `"channel"`: one for each number of each head's output.
        bias: Whether the gate's projection has a bias.

    Raises:
        MultiheadError: `per` is neither.
    """

    per: Literal["head", "channel"] = "head"
    bias: bool = False

    def __post_init__(self) -> None:
        _check_choice("OutputGate(per=...)", self.per, ("head", "channel"))
        check_kinds({"bias": self.bias}, (bool,), "True or False")


@dataclass(frozen=True, slots=True, eq=False)
class HeadGroup:
    """Heads of one kind.

    A module takes one group, or several of different kinds: `[HeadGroup(4, 128), HeadGroup(8, 64)]` are four wide heads
    and eight narrow ones side by side in one layer.

    Args:
        heads: Query heads.
        head_dim: Width of queries and keys; None for `embed_dim / heads`, where there is one group.
        kv_heads: Key/value heads, a divisor of `heads`; None for as many as query heads.
        v_head_dim: Width of values and of a head's output; None for `head_dim`.
        mask: Pairs these heads are kept to, besides the mask of a call: a pattern, or a selector such as `TopBlocks`,
            which chooses them anew in every call from what its mask allows.
        position: `Rotary`, which turns queries and keys, or a bias: `ALiBi`, `RelativeTable`, `AdaptiveSpan`. A bias
            whose tensor is an `nn.Parameter` is learned with the module; give several modules the same one to share it.
        scoring: Norm of queries and keys, scale, softcap, normaliser, sinks; or `LinearScoring`, for linear attention.
        gate: Of the outputs, or None.

    Raises:
        MultiheadError: Sizes that are no whole numbers of at least 1 or do not divide.

    Example:
        >>> MultiHeadAttention(1024, [HeadGroup(4, 128), HeadGroup(8, 64, mask=sliding_window(256))]).heads
        12
    """

    heads: int
    head_dim: int | None = None
    _: KW_ONLY
    kv_heads: int | None = None
    v_head_dim: int | None = None
    mask: Pattern | Selector | None = None
    position: Position | None = None
    scoring: Scoring | LinearScoring = field(default_factory=Scoring)
    gate: OutputGate | None = None

    def __post_init__(self) -> None:
        sizes = {"head_dim": self.head_dim, "kv_heads": self.kv_heads, "v_head_dim": self.v_head_dim}
        check_counts({"heads": self.heads} | {name: size for name, size in sizes.items() if size is not None})
        check_kinds(
            {"mask": self.mask},
            (Pattern, Selector, NoneType),
            _MASK,
        )
        check_kinds({"position": self.position}, (Rotary, *get_args(PositionBias), NoneType), POSITION)
        check_kinds(
            {"scoring": self.scoring},
            (Scoring, LinearScoring),
            "Scoring(...), or LinearScoring(...) for linear attention",
        )
        self._check_linear()
        check_kinds({"gate": self.gate}, (OutputGate, NoneType), "OutputGate(...) or None")
        if self.kv_heads is not None and self.heads % self.kv_heads:
            raise MultiheadError(
                asked="kv_heads that divide heads evenly",
                arrived=f"heads={self.heads}, kv_heads={self.kv_heads}",
                remedy=f"kv_heads={listed_divisors(self.heads, self.kv_heads)}",
            )
        stated = [("mask", self.pattern.heads if self.pattern is not None else None)]
        stated += [("position", self.position.heads)] if isinstance(self.position, PositionBias) else []
        for name, heads in stated:
            if heads not in (None, self.heads):
                raise MultiheadError(
                    asked=f"a {name} for the group's heads={self.heads}",
                    arrived=f"{getattr(self, name)} for heads={heads}",
                    remedy=f"build it for {self.heads} heads",
                )

    def _check_linear(self) -> None:
        """Refuses a mask of heads that see earlier tokens as one sum only."""
        if isinstance(self.scoring, LinearScoring) and self.mask is not None:
            raise MultiheadError(
                asked="linear heads, which see earlier tokens only as one sum",
                arrived=f"mask={self.mask}",
                remedy="leave the mask out, or use softmax heads: HeadGroup(..., mask=...) with no LinearScoring(...)",
            )

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """(heads, kv_heads, head_dim, v_head_dim) of a group that is settled."""
        assert self.head_dim is not None
        return self.heads, self.kv_heads or self.heads, self.head_dim, self.v_head_dim or self.head_dim

    @property
    def pattern(self) -> Pattern | None:
        """The mask, where it is a pattern."""
        return self.mask if isinstance(self.mask, Pattern) else None

    def settled(self, embed_dim: int, *, alone: bool) -> "HeadGroup":
        """The group with its defaults filled in, for a module of this width."""
        if self.head_dim is None and not alone:
            raise MultiheadError(
                asked="head_dim for each of several groups",
                arrived=f"HeadGroup(heads={self.heads}, head_dim=None)",
                remedy="say how wide its heads are: HeadGroup(4, 128)",
            )
        head_dim = divided(embed_dim, self.heads) if self.head_dim is None else self.head_dim
        kv_heads = self.heads if self.kv_heads is None else self.kv_heads
        v_head_dim = head_dim if self.v_head_dim is None else self.v_head_dim
        check_product({"heads": self.heads, "head_dim": max(head_dim, v_head_dim)})
        return replace(self, head_dim=head_dim, kv_heads=kv_heads, v_head_dim=v_head_dim)

    def __str__(self) -> str:
        heads, kv_heads, head_dim, v_head_dim = self.sizes
        parts = [f"{heads} x {head_dim}"]
        parts += [f"kv_heads={kv_heads}"] if kv_heads != heads else []
        parts += [f"v_head_dim={v_head_dim}"] if v_head_dim != head_dim else []
        parts += [f"mask={self.mask}"] if self.mask is not None else []
        if self.position is not None:
            parts.append(f"position={type(self.position).__name__}")
        parts += [f"gate per {self.gate.per}"] if self.gate is not None else []
        return ", ".join(parts)


def read_groups(
    heads: int | HeadGroup | Sequence[HeadGroup], kv_heads: int | None, head_dim: int | None
) -> list[HeadGroup]:
    """The groups that a module was asked for."""
    if isinstance(heads, int):
        return [HeadGroup(heads, head_dim, kv_heads=kv_heads)]
    several = isinstance(heads, Iterable) and not isinstance(heads, Tensor)
    given = [heads] if isinstance(heads, HeadGroup) else list(heads) if several else []
    if not given or not all(isinstance(group, HeadGroup) for group in given):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise MultiheadError(
            asked="heads: a number, a HeadGroup, or at least one HeadGroup in a list",
            arrived=f"{heads!r}"[:200],
            remedy="for example heads=8, or heads=[HeadGroup(4, 128), HeadGroup(8, 64)]",
        )
    if kv_heads is not None or head_dim is not None:
        raise MultiheadError(
            asked="sizes of heads in the groups",
            arrived=f"heads as HeadGroup with kv_heads={kv_heads}, head_dim={head_dim} beside it",
            remedy="say them in each group: HeadGroup(8, 64, kv_heads=2)",
        )
    return given


def learned(position: Position | None) -> nn.Parameter | None:
    """The tensor of a position bias, where it is to be learned."""
    weight = position.weight if isinstance(position, PositionBias) else None
    return weight if isinstance(weight, nn.Parameter) else None


def _sinkless(normaliser: Softmax | None) -> bool:
    return normaliser is None or normaliser.sinks is None


def _check_choice(what: str, given: str, choices: tuple[str, ...]) -> None:
    if given not in choices:
        raise MultiheadError(
            asked=f"{what}: one of {', '.join(map(repr, choices))}", arrived=repr(given), remedy="pass one of these"
        )
