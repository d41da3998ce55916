"""Multiplicative alignment, over the whole memory or near a place."""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from multihead.align.aligned import Aligned, AlignerSupport, Memory, selected
from multihead.align.base import Aligner, Score, summed
from multihead.align.check import check_number, check_sizes, check_state
from multihead.align.score import Additive, Dot, General, weigh
from multihead.error import MultiheadError, check_kinds

ScoreName = Literal["dot", "general", "concat"]


@dataclass(frozen=True, slots=True)
class LocalMonotonic:
    """Step t looks at the entries from t - width to t + width: source and target go along together (local-m).

    Steps and real entries are counted from 0. A step further than `width` behind the end of the memory sees nothing:
    its weights are 0.

    Args:
        width: D: entries to either side.

    Raises:
        MultiheadError: A width that is no whole number of at least 0.

    Example:
        >>> Luong(8, 8, local=LocalMonotonic(2)).support.carries
        True
    """

    width: int

    def __post_init__(self) -> None:
        check_sizes({"width": self.width}, least=0)


@dataclass(frozen=True, slots=True)
class LocalPredictive:
    """A query says where it looks: `p = S sigmoid(v_p . tanh(W_p s))`, with S the number of real entries (local-p).

    Weights are softmax over the entries within `width` of p, each then times `exp(-(j - p)^2 / (2 sigma^2))`. They are
    not made to sum to 1 again, as in the paper. Real entries j are counted from 0. Only the Gaussian has a gradient
    that reaches p.

    Args:
        width: D: how far around p.
        sigma: Width of the Gaussian; None is D / 2.

    Raises:
        MultiheadError: A width that is no whole number of at least 1, or a sigma that is not above 0.

    Example:
        >>> Luong(8, 8, local=LocalPredictive(10)).local.deviation
        5.0
    """

    width: int
    sigma: float | None = None

    def __post_init__(self) -> None:
        check_sizes({"width": self.width})
        if self.sigma is not None:
            check_number("sigma", self.sigma, above=0.0)

    @property
    def deviation(self) -> float:
        """Sigma."""
        return self.width / 2 if self.sigma is None else self.sigma


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Steps:
    """How many steps an aligner with `LocalMonotonic` has made.

    Args:
        count: (batch,).
    """

    count: Int64[Tensor, " batch"]

    def select(self, rows: Tensor) -> "Steps":
        """The same for other rows of the batch (`Memory.select`)."""
        return Steps(count=selected(self.count, rows))


class Luong(Aligner[Steps]):
    """Multiplicative alignment: weights are softmax over j of a score of the decoder's state s and the entry h_j.

    `"dot"` is `s . h` (unscaled), `"general"` is `s . W h`, `"concat"` is `v . tanh(W s + U h)`. Luong, Pham and
    Manning, "Effective approaches to attention-based neural machine translation" (2015), arXiv:1508.04025. `W h` and
    `U h` are computed once a source, by `remember`.

    Args:
        query_dim: Width of a query.
        memory_dim: Width of an entry, and of the context.
        score: `"general"`, `"dot"` (of equal widths) or `"concat"`.
        hidden: Width of the sum inside tanh for `"concat"`; None is `query_dim`.
        local: `LocalMonotonic(width)` or `LocalPredictive(width)`; None looks everywhere.

    Attributes:
        score: Parameters of the score: `memory_proj` and, for `"concat"`, `query_proj` and `vector`.
        place_proj: W_p (query_dim, query_dim), with `LocalPredictive`.
        place_vector: v_p (query_dim,), with `LocalPredictive`.

    Raises:
        MultiheadError: Sizes that are no whole numbers of at least 1, an unknown score, `"dot"` of two widths, `hidden`
            without `"concat"`.

    Example:
        >>> aligner = Luong(32, 64, local=LocalPredictive(4))
        >>> memory = aligner.remember(torch.randn(2, 10, 64))
        >>> aligner(torch.randn(2, 7, 32), memory).context.shape
        torch.Size([2, 7, 64])
    """

    def __init__(
        self,
        query_dim: int,
        memory_dim: int,
        *,
        score: ScoreName = "general",
        hidden: int | None = None,
        local: LocalMonotonic | LocalPredictive | None = None,
    ) -> None:
        check_sizes({"query_dim": query_dim, "memory_dim": memory_dim})
        check_kinds(
            {"local": local},
            (LocalMonotonic, LocalPredictive, type(None)),
            "LocalMonotonic(width), LocalPredictive(width) or None",
        )
        super().__init__(query_dim, memory_dim)
        self.local = local
        self.score: Score = _score(score, query_dim, memory_dim, hidden)
        if isinstance(local, LocalPredictive):
            self.place_proj = nn.Linear(query_dim, query_dim, bias=False)
            self.place_vector = nn.Parameter(torch.empty(query_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start anew: Xavier-uniform weights, vectors uniform within the root of their width."""
        if not isinstance(self.score, Dot):
            self.score.reset_parameters()
        if isinstance(self.local, LocalPredictive):
            bound = self.query_dim**-0.5
            nn.init.xavier_uniform_(self.place_proj.weight)
            nn.init.uniform_(self.place_vector, -bound, bound)

    @property
    def support(self) -> AlignerSupport:
        """What it can be asked for."""
        return AlignerSupport(carries=isinstance(self.local, LocalMonotonic))

    def places(self, queries: Float[Tensor, "batch q_len query_dim"], memory: Memory) -> Float[Tensor, "batch q_len"]:
        """The places p that queries of an aligner with `LocalPredictive` say, between 0 and the number of real entries.

        Args:
            queries: (batch, q_len, query_dim).
            memory: What `remember` gave.

        Raises:
            MultiheadError: An aligner without `LocalPredictive`, or what `forward` refuses.
        """
        if not isinstance(self.local, LocalPredictive):
            raise MultiheadError(
                asked="the places that queries say",
                arrived=f"Luong(local={self.local})",
                remedy="build it with local=LocalPredictive(width)",
            )
        self._check(queries, memory, None, step=False)
        return self._places(queries, memory)

    def extra_repr(self) -> str:
        """Sizes for `print(model)`."""
        return f"{self.query_dim}, {self.memory_dim}" + (f", local={self.local}" if self.local else "")

    def _scores(self) -> tuple[Score]:
        return (self.score,)

    def _check_state(self, state: Steps, memory: Memory) -> None:
        if not isinstance(self.local, LocalMonotonic):
            raise MultiheadError(
                asked="a step of an aligner that knows nothing of earlier ones",
                arrived=f"state={type(state).__name__}",
                remedy="leave state out",
            )
        check_state(state, Steps, memory, {"count": (memory.batch,)})

    def _align(self, queries: Tensor, memory: Memory, state: Steps | None) -> Aligned:
        scores, seen = self.score(queries, memory.keys[0]), memory.keep[:, None]
        after = factor = None
        if isinstance(self.local, LocalMonotonic):
            done = torch.zeros(memory.batch, dtype=torch.long, device=queries.device) if state is None else state.count
            steps = done[:, None] + torch.arange(queries.shape[1], device=queries.device)
            seen = seen & ((memory.places()[:, None] - steps[..., None]).abs() <= self.local.width)
            after = Steps(count=done + queries.shape[1])
        elif self.local is not None:
            off = memory.places()[:, None] - self._places(queries, memory)[..., None]
            seen = seen & (off.detach().abs() <= self.local.width)
            factor = torch.exp(-0.5 * (off / self.local.deviation).square())
        weights = weigh(scores, seen)
        if factor is not None:
            weights = weights * factor
        return Aligned(context=summed(weights, memory), weights=weights, state=after)

    def _places(self, queries: Tensor, memory: Memory) -> Tensor:
        """(batch, q_len), in float32 (float64 for float64): bfloat16 knows no place beyond 256 exactly."""
        logits = torch.tanh(self.place_proj(queries)) @ self.place_vector
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return memory.keep.sum(1, keepdim=True) * logits.sigmoid()


def _score(name: str, query_dim: int, memory_dim: int, hidden: int | None) -> Score:
    if name not in get_args(ScoreName):
        raise MultiheadError(
            asked=f"score: one of {', '.join(map(repr, get_args(ScoreName)))}",
            arrived=f"score={name!r}"[:200],
            remedy='"general" takes any widths',
        )
    if hidden is not None:
        check_sizes({"hidden": hidden})
        if name != "concat":
            raise MultiheadError(
                asked=f"score={name!r}, which has no hidden width",
                arrived=f"hidden={hidden}",
                remedy='leave hidden out, or take score="concat"',
            )
    if name == "concat":
        return Additive(query_dim, memory_dim, query_dim if hidden is None else hidden, bias=False)
    if name == "general":
        return General(query_dim, memory_dim)
    if query_dim != memory_dim:
        raise MultiheadError(
            asked='score="dot" of queries and entries of one width',
            arrived=f"query_dim={query_dim}, memory_dim={memory_dim}",
            remedy='make them equal, or take score="general"',
        )
    return Dot(query_dim)
