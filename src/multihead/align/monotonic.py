"""Monotonic alignment: a decoder that walks along the memory and never looks back."""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from multihead.align.aligned import Aligned, AlignerSupport, Memory, selected
from multihead.align.base import Aligner, summed
from multihead.align.check import check_number, check_sizes, check_state
from multihead.align.score import Additive, weigh
from multihead.error import MultiheadError, check_kinds

Form = Literal["auto", "expected", "hard"]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Softmax over the `width` entries that end where the walk stands, with a score of its own (MoChA).

    Chiu and Raffel, "Monotonic chunkwise attention" (2018), arXiv:1712.05382.

    Args:
        width: Entries of a chunk.

    Raises:
        MultiheadError: A width that is no whole number of at least 1.

    Example:
        >>> Monotonic(8, 8, 16, chunk=Chunk(2)).chunk_score is not None
        True
    """

    width: int

    def __post_init__(self) -> None:
        check_sizes({"width": self.width})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Walk:
    """Where the walk stands after a step.

    Args:
        standing: (batch, memory_len): probability that it stopped at each entry, in float32 (float64 for float64
            inputs). Their sum falls below 1 by what ran off the end.
        hard: Whether these are 0 and 1.
    """

    standing: Float[Tensor, "batch memory_len"]
    hard: bool

    def select(self, rows: Tensor) -> "Walk":
        """The same for other rows of the batch (`Memory.select`)."""
        return Walk(standing=selected(self.standing, rows), hard=self.hard)


class Monotonic(Aligner[Walk]):
    """Monotonic alignment: from where it stopped last, the walk goes on until an entry makes it stop.

    At entry j step i stops with probability `p_ij = sigmoid(e_ij)`, `e = g v/|v| . tanh(W s + U h + b) + r`. Hard:
    `e_ij > 0` stops, the context is that entry. Expected: the weights are the probabilities of stopping there,

        a_ij = p_ij q_ij,   q_ij = (1 - p_i,j-1) q_i,j-1 + a_i-1,j

    which is `p_i c_i cumsum(a_i-1 / c_i)` with c the exclusive cumulative product of 1 - p, here without its division
    by what may be 0. Before the first step the walk stands at entry 0. What runs off the end is lost, then and in
    later steps: weights may sum to less than 1, or be 0. Raffel, Luong, Liu, Weiss and Eck, "Online and linear-time
    attention by enforcing monotonic alignments" (2017), arXiv:1704.00784.

    Unlike elsewhere, training and evaluation differ, as the paper has it: `form="auto"` is expected in training, with
    noise on e that drives p to 0 or 1, and hard in evaluation. Hard weights have no gradient.

    Many queries at once share what is parallel, the scores; the walk itself goes step by step. The noise of one call is
    drawn at once, so that it is another one than that of so many steps.

    Args:
        query_dim: Width of a query.
        memory_dim: Width of an entry, and of the context.
        hidden: Width of the sum inside tanh.
        noise: Standard deviation of what is added to e in training.
        offset: r at the start; below 0 the walk begins by looking far.
        chunk: Looks at some entries before the one where it stopped, too.
        form: `"auto"`, `"expected"` or `"hard"`.

    Attributes:
        score: Parameters of e: `query_proj` (W, b), `memory_proj` (U), `vector` (v), `gain` (g), `offset` (r).
        chunk_score: Those of the score within chunks; None without.

    Raises:
        MultiheadError: Sizes that are no whole numbers of at least 1, noise below 0, an unknown form.

    Example:
        >>> aligner = Monotonic(32, 64, 16, offset=0.0).eval()
        >>> memory = aligner.remember(torch.randn(2, 10, 64))
        >>> aligned = aligner.step(torch.randn(2, 32), memory)
        >>> set(aligned.weights.flatten().tolist()) <= {0.0, 1.0}
        True
    """

    def __init__(
        self,
        query_dim: int,
        memory_dim: int,
        hidden: int,
        *,
        noise: float = 1.0,
        offset: float = -1.0,
        chunk: Chunk | None = None,
        form: Form = "auto",
    ) -> None:
        check_sizes({"query_dim": query_dim, "memory_dim": memory_dim, "hidden": hidden})
        check_number("noise", noise, least=0.0)
        check_number("offset", offset)
        check_kinds({"chunk": chunk}, (Chunk, type(None)), "Chunk(width) or None")
        if form not in get_args(Form):
            raise MultiheadError(
                asked=f"form: one of {', '.join(map(repr, get_args(Form)))}",
                arrived=f"form={form!r}"[:200],
                remedy='leave it at "auto": expected in training, hard in evaluation',
            )
        super().__init__(query_dim, memory_dim)
        self.noise, self.chunk, self.form = noise, chunk, form
        self.score = Additive(query_dim, memory_dim, hidden, normalised=True, offset=offset)
        self.chunk_score = None if chunk is None else Additive(query_dim, memory_dim, hidden, normalised=True)

    @property
    def support(self) -> AlignerSupport:
        """What it can be asked for."""
        return AlignerSupport(carries=True, monotone=True)

    @property
    def hard(self) -> bool:
        """Whether it stops at one entry now, or at each with a probability."""
        return self.form == "hard" or (self.form == "auto" and not self.training)

    def extra_repr(self) -> str:
        """Sizes for `print(model)`."""
        shown = f"{self.query_dim}, {self.memory_dim}, hidden={self.score.width}, noise={self.noise:g}"
        shown += f", chunk={self.chunk.width}" if self.chunk else ""
        return shown + (f", form={self.form!r}" if self.form != "auto" else "")

    def _scores(self) -> tuple[Additive, ...]:
        return (self.score,) if self.chunk_score is None else (self.score, self.chunk_score)

    def _check_state(self, state: Walk, memory: Memory) -> None:
        check_state(state, Walk, memory, {"standing": (memory.batch, memory.length)})
        if state.hard != self.hard:
            told = {True: "hard", False: "expected"}
            raise MultiheadError(
                asked=f"a {told[self.hard]} step",
                arrived=f"the state of a step that was {told[state.hard]}",
                remedy='begin anew with state=None, or fix form="expected" or "hard" for training and evaluation alike',
            )

    def _align(self, queries: Tensor, memory: Memory, state: Walk | None) -> Aligned:
        hard = self.hard
        energy = self.score(queries, memory.keys[0])
        energy = energy.to(torch.promote_types(energy.dtype, torch.float32))
        if self.training and self.noise and not hard:
            energy = energy + self.noise * torch.randn_like(energy)
        standing = _start(memory, energy.dtype) if state is None else state.standing
        walk = _hard(energy > 0, memory.keep, standing) if hard else _expected(energy, memory.keep, standing)
        weights = torch.stack(walk, 1) if walk else energy
        if self.chunk_score is not None and self.chunk is not None:
            weights = _in_chunks(weights, self.chunk_score(queries, memory.keys[1]), memory.keep, self.chunk.width)
        after = Walk(standing=walk[-1] if walk else standing, hard=hard)
        return Aligned(context=summed(weights, memory), weights=weights, state=after)


def _start(memory: Memory, dtype: torch.dtype) -> Tensor:
    """Before the first step the walk stands at entry 0, real or not: one that is not real it passes by."""
    first = torch.arange(memory.length, device=memory.values.device) == 0
    return first.to(dtype).expand(memory.batch, -1)


def _expected(energy: Tensor, keep: Tensor, standing: Tensor) -> list[Tensor]:
    """Probabilities of stopping, for one query after the other."""
    walk: list[Tensor] = []
    stops = energy.sigmoid().masked_fill(~keep[:, None], 0.0)
    # 1 - p, without the loss of digits near p = 1.
    goes = (-energy).sigmoid().masked_fill(~keep[:, None], 1.0)
    for i in range(energy.shape[1]):
        standing = stops[:, i] * _reached(goes[:, i], standing)
        walk.append(standing)
    return walk


def _reached(goes: Tensor, standing: Tensor) -> Tensor:
    """q_j = goes_j-1 q_j-1 + standing_j, by doubling: sums and products of what is not negative, no division.

    After n rounds q_j holds what began within the last 2^n entries, and `goes` the probability of passing them all.
    """
    length, span = goes.shape[-1], 1
    goes = functional.pad(goes, (1, 0))[..., :length]
    while span < length:
        standing = standing + goes * functional.pad(standing, (span, 0))[..., :length]
        goes = goes * functional.pad(goes, (span, 0))[..., :length]
        span *= 2
    return standing


def _hard(stops: Tensor, keep: Tensor, standing: Tensor) -> list[Tensor]:
    """1 where each query stops, 0 elsewhere."""
    walk: list[Tensor] = []
    stops = stops & keep[:, None]
    for i in range(stops.shape[1]):
        here = stops[:, i] & (standing.cumsum(-1) > 0)
        standing = (here & (here.cumsum(-1) == 1)).to(standing.dtype)
        walk.append(standing)
    return walk


def _in_chunks(standing: Tensor, scores: Tensor, keep: Tensor, width: int) -> Tensor:
    """The weight at each entry spread over the `width` entries that end there, by softmax."""
    length = scores.shape[-1]
    if not length:
        return standing
    before = (width - 1, 0)
    shares = weigh(
        functional.pad(scores, before).unfold(-1, width, 1), functional.pad(keep, before).unfold(-1, width, 1)[:, None]
    )
    parts = (shares * standing[..., None]).unbind(-1)
    # The part `back` entries before j lies at j - back.
    return sum(
        (
            functional.pad(part, (0, back))[..., back:]
            for part, back in zip(parts, range(width - 1, -1, -1), strict=True)
        ),
        start=standing.new_zeros(length),
    )
