"""How a row of scores becomes a row of weights.

Each normaliser settles complete rows, -inf where a key is not allowed: one number a row, from which every weight of the
row follows by itself, so that a tile of weights can be made again without its neighbours. A row without any allowed key
gets weights 0 and gradient 0 from every one of them.
"""

import math
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from multihead.error import MultiheadError


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

    def settle(self, scores: Float[Tensor, "batch heads rows keys"]) -> Float[Tensor, "batch heads rows"]:
        """Log-sum-exp of each row, the sink included; -inf in an empty row without a sink."""
        return self.with_sink(_logsumexp(scores))

    def weigh(
        self, scores: Float[Tensor, "batch heads rows keys"], settled: Float[Tensor, "batch heads rows"]
    ) -> Float[Tensor, "batch heads rows keys"]:
        """`exp(scores - settled)`, 0 in an empty row."""
        return torch.exp(scores - torch.where(settled.isneginf(), 0.0, settled)[..., None])

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
        if not math.isfinite(self.bias):
            raise MultiheadError(asked="a finite bias of Sigmoid", arrived=f"bias={self.bias}", remedy="pass a number")

    @property
    def has_lse(self) -> bool:
        """False: there is no common denominator."""
        return False

    def pick(self, heads: Int[Tensor, " chosen"]) -> "Sigmoid":
        """The same for all heads."""
        return self

    def settle(self, scores: Float[Tensor, "batch heads rows keys"]) -> Float[Tensor, "batch heads rows"]:
        """The same for each row: minus the bias."""
        return scores.new_full(scores.shape[:-1], -self.bias)

    def weigh(
        self, scores: Float[Tensor, "batch heads rows keys"], settled: Float[Tensor, "batch heads rows"]
    ) -> Float[Tensor, "batch heads rows keys"]:
        """`sigmoid(scores - settled)`."""
        return torch.sigmoid(scores - settled[..., None])

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
        if not (math.isfinite(self.alpha) and self.alpha > 1):
            raise MultiheadError(
                asked="Entmax with a finite alpha above 1",
                arrived=f"alpha={self.alpha}",
                remedy="pass alpha > 1 (1.5 is usual), or Softmax() for alpha = 1",
            )

    @property
    def has_lse(self) -> bool:
        """False: the number a row settles on is a threshold."""
        return False

    def pick(self, heads: Int[Tensor, " chosen"]) -> "Entmax":
        """The same for all heads."""
        return self

    def settle(self, scores: Float[Tensor, "batch heads rows keys"]) -> Float[Tensor, "batch heads rows"]:
        """The threshold tau of each row."""
        if scores.shape[-1] == 0:
            return scores.new_zeros(scores.shape[:-1])
        scaled = scores * (self.alpha - 1)
        return _threshold(scaled, 1 / (self.alpha - 1))[..., 0]

    def weigh(
        self, scores: Float[Tensor, "batch heads rows keys"], settled: Float[Tensor, "batch heads rows"]
    ) -> Float[Tensor, "batch heads rows keys"]:
        """`max((alpha - 1) * scores - settled, 0) ** (1 / (alpha - 1))`."""
        return _lift(scores * (self.alpha - 1) - settled[..., None], 1 / (self.alpha - 1))

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


def _logsumexp(scores: Tensor) -> Tensor:
    """Log-sum-exp of the last axis, -inf with gradient 0 where it is empty or -inf throughout."""
    if scores.shape[-1] == 0:
        return scores.sum(-1) - math.inf
    peak = scores.detach().amax(-1)
    shift = torch.where(peak.isneginf(), 0.0, peak)
    total = torch.exp(scores - shift[..., None]).sum(-1)
    return torch.where(total == 0, -math.inf, shift + torch.log(torch.where(total == 0, 1.0, total)))


def _lift(above: Tensor, power: float) -> Tensor:
    """max(above, 0) ** power, whose gradient is 0 where above is not positive, whatever the power."""
    return torch.where(above > 0, torch.where(above > 0, above, 1.0) ** power, 0.0)


def _threshold(scaled: Tensor, power: float) -> Tensor:
    """The tau with sum(max(scaled - tau, 0) ** power) = 1, by halving the interval [max - 1, max] that holds it.

    The halving has no gradient; the Newton step after it has the one of tau by the implicit function theorem.
    """
    fixed = scaled.detach()
    peak = fixed.amax(-1, keepdim=True)
    tau = torch.where(peak.isneginf(), 0.0, peak) - 1
    for halving in range(1, 2 - math.frexp(torch.finfo(scaled.dtype).eps)[1]):
        higher = tau + 0.5**halving
        tau = torch.where(_lift(fixed - higher, power).sum(-1, keepdim=True) >= 1, higher, tau)
    slope = power * _lift(fixed - tau, power - 1).sum(-1, keepdim=True)
    return tau + (_lift(scaled - tau, power).sum(-1, keepdim=True) - 1) / torch.where(slope > 0, slope, math.inf)
