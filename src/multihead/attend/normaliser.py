"""How a row of scores becomes a row of weights.

Each normaliser settles complete rows, -inf where a key is not allowed: two numbers a row, from which every weight of
the row follows by itself, so that a tile of weights can be made again without its neighbours. The first is the size of
the scores, which is taken off them before anything else, so that huge scores cost no precision. A row without any
allowed key gets weights 0 and gradient 0 from every normaliser.
"""

import math
from dataclasses import dataclass, field, replace
from numbers import Real

import torch
from jaxtyping import Float, Int
from torch import Tensor

from multihead.error import MultiheadError, check_kinds


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Softmax:
    """Softmax, if wanted with something besides the keys that takes up weight and gives nothing.

    `weights[j] = exp(scores[j]) / (exp(sink) + 1 + sum_k exp(scores[k]))`, where `exp(sink)` is there with `sinks` and
    the 1 with `off_by_one` (a sink of 0, also called softmax1).

    Args:
        sinks: (heads,) learned logits, one for each query head (gpt-oss), or None.
        off_by_one: True adds 1 to the denominator, so that a head can attend to nothing.

    Raises:
        MultiheadError: If `sinks` is not a floating tensor of one dimension.

    Example:
        >>> attention(q, k, v, normaliser=Softmax(sinks=torch.zeros(8)))  # doctest: +SKIP
    """

    sinks: Float[Tensor, " heads"] | None = None
    off_by_one: bool = False

    def __post_init__(self) -> None:
        if self.sinks is not None:
            check_kinds({"sinks": self.sinks}, (Tensor,), "a floating tensor of shape (heads,)")
        check_kinds({"off_by_one": self.off_by_one}, (bool,), "True or False")
        if self.sinks is not None and (self.sinks.ndim != 1 or not self.sinks.is_floating_point()):
            raise MultiheadError(
                asked="sinks: one floating logit for each query head, shape (heads,)",
                arrived=f"shape {tuple(self.sinks.shape)}, {self.sinks.dtype}",
                remedy="pass a floating tensor of shape (heads,)",
            )

    @property
    def plain(self) -> bool:
        """True where nothing but the keys takes part."""
        return self.sinks is None and not self.off_by_one

    @property
    def has_lse(self) -> bool:
        """True: the number a row settles on is its log-sum-exp."""
        return True

    @property
    def streams(self) -> bool:
        """True: a row may be computed key by key, rescaled as its highest score grows (flash attention)."""
        return True

    @property
    def merges(self) -> bool:
        """True: `merge` joins rows over several sets of keys, through their log-sum-exp; sinks are counted after it."""
        return True

    def pick(self, heads: Int[Tensor, " chosen"]) -> "Softmax":
        """The normaliser of some heads."""
        return self if self.sinks is None else replace(self, sinks=self.sinks[heads])

    def sink_logit(self, like: Tensor) -> Float[Tensor, "_ 1"] | None:
        """The one logit a head that `sinks` and `off_by_one` amount to, (heads | 1, 1), in the dtype of `like`."""
        if self.sinks is None:
            return like.new_zeros(1, 1) if self.off_by_one else None
        sinks = self.sinks.to(like)[:, None]
        return torch.logaddexp(sinks, torch.zeros_like(sinks)) if self.off_by_one else sinks

    def with_sink(self, lse: Float[Tensor, "batch heads rows"]) -> Float[Tensor, "batch heads rows"]:
        """The log-sum-exp of the keys, with that of the sink added."""
        sink = self.sink_logit(lse)
        return lse if sink is None else torch.logaddexp(lse, sink.expand_as(lse))

    def settle(self, scores: Float[Tensor, "batch heads rows keys"]) -> Float[Tensor, "batch heads rows 2"]:
        """The highest of scores and sink (0 in an empty row), and the log of the sum of exponentials below it."""
        sink = self.sink_logit(scores)
        peak = _peak(scores)
        if sink is not None:
            peak = torch.maximum(peak, sink.detach())
        # A sink of +inf takes up all the weight.
        peak = torch.where(peak.isneginf(), 0.0, peak).clamp(max=torch.finfo(peak.dtype).max)
        total = torch.exp(scores - peak[..., None]).sum(-1)
        if sink is not None:
            total = total + torch.exp(sink - peak)
        rest = torch.where(total == 0, -math.inf, torch.log(torch.where(total == 0, 1.0, total)))
        return torch.stack([peak, rest], -1)

    def lse(self, settled: Float[Tensor, "batch heads rows 2"]) -> Float[Tensor, "batch heads rows"]:
        """Log-sum-exp of each row, the sink included; -inf in an empty row without a sink."""
        return settled.sum(-1)

    def weigh(
        self, scores: Float[Tensor, "batch heads rows keys"], settled: Float[Tensor, "batch heads rows 2"]
    ) -> Float[Tensor, "batch heads rows keys"]:
        """`exp(scores - lse)`, 0 in an empty row."""
        peak, rest = settled[..., :1], settled[..., 1:]
        return (scores - peak).exp_() * torch.exp(-torch.where(rest.isneginf(), 0.0, rest))

    def pull(
        self, weights: Float[Tensor, "batch heads rows keys"], grad: Float[Tensor, "batch heads rows keys"]
    ) -> Float[Tensor, "batch heads rows keys"]:
        """Gradient of the scores from that of the weights: `weights * (grad - sum(weights * grad))`."""
        return weights * (grad - (weights * grad).sum(-1, keepdim=True))

    def __str__(self) -> str:
        parts = ["sinks"] * (self.sinks is not None) + ["off_by_one"] * self.off_by_one
        return f"Softmax({', '.join(parts)})"


@dataclass(frozen=True, slots=True)
class Sigmoid:
    """Each weight by itself: `weights[j] = 1 / (1 + exp(-(scores[j] + bias)))` (Ramapuram et al. 2024).

    Rows do not sum to 1 and there is no log-sum-exp.

    Args:
        bias: Added to every score; the paper starts at `-log(kv_len)`.

    Raises:
        MultiheadError: If `bias` is not finite.
    """

    bias: float = 0.0

    def __post_init__(self) -> None:
        if not (isinstance(self.bias, Real) and math.isfinite(self.bias)):
            raise MultiheadError(
                asked="a finite bias of Sigmoid", arrived=f"bias={self.bias}"[:200], remedy="pass a number"
            )

    @property
    def has_lse(self) -> bool:
        """False: there is no common denominator."""
        return False

    @property
    def streams(self) -> bool:
        """True: each weight follows from its score alone."""
        return True

    @property
    def merges(self) -> bool:
        """True: outputs over several sets of keys are added; there is nothing to rescale."""
        return True

    def pick(self, heads: Int[Tensor, " chosen"]) -> "Sigmoid":
        """The same for all heads."""
        return self

    def settle(self, scores: Float[Tensor, "batch heads rows keys"]) -> Float[Tensor, "batch heads rows 2"]:
        """Nothing: each weight follows from its score alone."""
        return scores.new_zeros(*scores.shape[:-1], 2)

    def lse(self, settled: Float[Tensor, "batch heads rows 2"]) -> None:
        """None: there is no common denominator."""

    def weigh(
        self, scores: Float[Tensor, "batch heads rows keys"], settled: Float[Tensor, "batch heads rows 2"]
    ) -> Float[Tensor, "batch heads rows keys"]:
        """`sigmoid(scores + bias)`."""
        return torch.sigmoid(scores + self.bias)

    def pull(
        self, weights: Float[Tensor, "batch heads rows keys"], grad: Float[Tensor, "batch heads rows keys"]
    ) -> Float[Tensor, "batch heads rows keys"]:
        """Gradient of the scores from that of the weights: `weights * (1 - weights) * grad`."""
        return weights * (1 - weights) * grad


@dataclass(frozen=True, slots=True)
class Entmax:
    """Between softmax and sparsemax (Peters, Niculae, Martins 2019): `alpha` 1 is softmax, 2 is sparsemax.

    `weights[j] = max((alpha - 1) * scores[j] - tau, 0) ** (1 / (alpha - 1))` with the tau that makes the row sum to 1.
    There is no log-sum-exp.

    Args:
        alpha: Above 1; the larger, the sparser.

    Raises:
        MultiheadError: If `alpha` is not a finite number above 1.
    """

    alpha: float = 1.5

    def __post_init__(self) -> None:
        if not (isinstance(self.alpha, Real) and math.isfinite(self.alpha) and self.alpha > 1):
            raise MultiheadError(
                asked="Entmax with a finite alpha above 1",
                arrived=f"alpha={self.alpha}"[:200],
                remedy="pass alpha > 1 (1.5 is usual), or Softmax() for alpha = 1",
            )

    @property
    def has_lse(self) -> bool:
        """False: the number a row settles on is a threshold."""
        return False

    @property
    def streams(self) -> bool:
        """False: the threshold of a row needs all its scores before the first weight is known."""
        return False

    @property
    def merges(self) -> bool:
        """False: the threshold over several sets of keys does not follow from those over each."""
        return False

    def pick(self, heads: Int[Tensor, " chosen"]) -> "Entmax":
        """The same for all heads."""
        return self

    def settle(self, scores: Float[Tensor, "batch heads rows keys"]) -> Float[Tensor, "batch heads rows 2"]:
        """The highest score (0 in an empty row), and how far below it the threshold tau lies."""
        peak = _peak(scores)
        peak = torch.where(peak.isneginf(), 0.0, peak)
        below = (scores - peak[..., None]) * (self.alpha - 1)
        return torch.stack([peak, _threshold(below, 1 / (self.alpha - 1)) + 0 * peak], -1)

    def lse(self, settled: Float[Tensor, "batch heads rows 2"]) -> None:
        """None: there is a threshold, no denominator."""

    def weigh(
        self, scores: Float[Tensor, "batch heads rows keys"], settled: Float[Tensor, "batch heads rows 2"]
    ) -> Float[Tensor, "batch heads rows keys"]:
        """`max((alpha - 1) * scores - tau, 0) ** (1 / (alpha - 1))`."""
        below = (scores - settled[..., :1]) * (self.alpha - 1)
        threshold = settled[..., 1:]
        return _lift(below - threshold, 1 / (self.alpha - 1)) + 0 * threshold  # NaN, which is not above 0, stays

    def pull(
        self, weights: Float[Tensor, "batch heads rows keys"], grad: Float[Tensor, "batch heads rows keys"]
    ) -> Float[Tensor, "batch heads rows keys"]:
        """Gradient of the scores: with s = weights ** (2 - alpha), `s * (grad - sum(s * grad) / sum(s))`."""
        steep = _lift(weights, 2 - self.alpha)
        total = steep.sum(-1, keepdim=True)
        return steep * (grad - (steep * grad).sum(-1, keepdim=True) / torch.where(total > 0, total, 1.0))


@dataclass(frozen=True, slots=True)
class Sparsemax(Entmax):
    """The point of the simplex nearest to the scores (Martins, Astudillo 2016): most weights are exactly 0.

    `weights[j] = max(scores[j] - tau, 0)` with the tau that makes the row sum to 1. There is no log-sum-exp.
    """

    alpha: float = field(default=2.0, init=False, repr=False)


Normaliser = Softmax | Sigmoid | Entmax


def _peak(scores: Tensor) -> Tensor:
    """The highest score of each row, without a gradient; -inf where there is none.

    It is NaN where it is +inf: beside such a score no weight can be told, and a user sees that in every number.
    """
    if scores.shape[-1] == 0:
        return scores.new_full(scores.shape[:-1], -math.inf)
    peak = scores.detach().amax(-1)
    return torch.where(peak == math.inf, math.nan, peak)


def _lift(above: Tensor, power: float) -> Tensor:
    """max(above, 0) ** power, whose gradient is 0 where above is not positive, whatever the power."""
    return torch.where(above > 0, torch.where(above > 0, above, 1.0) ** power, 0.0)


def _threshold(below: Tensor, power: float) -> Tensor:
    """The tau in [-1, 0] with sum(max(below - tau, 0) ** power) = 1, for rows whose highest number is 0.

    It is found by halving, which has no gradient; a Newton step after it has the one of the implicit function theorem.
    """
    fixed = below.detach()
    tau = fixed.new_full((*below.shape[:-1], 1), -1.0)
    for halving in range(1, 2 - math.frexp(torch.finfo(below.dtype).eps)[1]):
        higher = tau + 0.5**halving
        tau = torch.where(_lift(fixed - higher, power).sum(-1, keepdim=True) >= 1, higher, tau)
    slope = power * _lift(fixed - tau, power - 1).sum(-1, keepdim=True)
    step = (_lift(below - tau, power).sum(-1, keepdim=True) - 1) / torch.where(slope > 0, slope, math.inf)
    return (tau + step)[..., 0]
