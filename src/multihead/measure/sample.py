"""Some query rows in place of all: both ends, and between them groups of which each is a picture of the call."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from jaxtyping import Float64, Int
from torch import Tensor

from multihead.attend import Problem
from multihead.error import MultiheadError
from multihead.measure.block import Block, Taken, cut_blocks, restrict
from multihead.measure.part import Whole
from multihead.measure.scene import Scene
from multihead.measure.statistic.contract import Contribution, Missing, OfWhole, Statistic
from multihead.measure.sweep import columns_of, combined, folds_of, sight_of, sweep_blocks
from multihead.measure.weigh import FLOOR, Rows
from multihead.pattern import Pattern
from multihead.record import GROUPS

LEAST_ROWS = 4 * GROUPS
"""Fewer rows would leave groups of fewer than 3."""

MOST_ENDS = 64
"""Rows at the ends that are always measured, at most: more of them would not tell more."""

LONG, NARROW = 4096, 16
"""From `LONG` keys on the drawn rows of a call that looks back are weighed `NARROW` at once. A group's rows lie all
over the call, so that one tile of them needs all keys; two need three quarters. At 8192 keys and 12 heads that took a
fifth off the time of sampling, at 2048 nothing."""

NEEDS_ALL = "only some rows were measured, and these do not tell it"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Draw:
    """Rows of one call that are measured.

    Args:
        length: All rows of the call.
        first: So many rows at its beginning are measured.
        last: So many at its end.
        groups: Rows between them, drawn by chance.
    """

    length: int
    first: int
    last: int
    groups: Int[Tensor, "groups each"]

    def rows(self) -> tuple[Int[Tensor, " rows"], list[slice]]:
        """All rows, and where among them lie the first, the last, and each group."""
        last = torch.arange(self.length - self.last, self.length)
        sizes = [self.first, self.last, *(len(group) for group in self.groups)]
        stops = np.cumsum(sizes).tolist()
        cuts = [slice(stop - size, stop) for size, stop in zip(sizes, stops, strict=True)]
        return torch.cat([torch.arange(self.first), last, self.groups.flatten()]), cuts


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampler:
    """Which rows are measured.

    Args:
        rows: Query rows of a call, rounded down to a multiple of `GROUPS`, at least `LEAST_ROWS`; a few more
            are measured where the length does not divide.
        seed: Another seed draws other rows.
    """

    rows: int
    seed: int = 0

    def __post_init__(self) -> None:
        if self.rows < LEAST_ROWS:
            raise MultiheadError(
                asked=f"to measure {LEAST_ROWS} or more query rows of every call",
                arrived=f"rows={self.rows}",
                remedy=f"pass rows={LEAST_ROWS} or more, or None for all of them",
            )

    @property
    def measured(self) -> int:
        """Rows that are measured of a longer call."""
        return self.rows // GROUPS * GROUPS

    def draw(self, length: int, key: str) -> Draw:
        """Rows of a call: those at its ends, and of those between them one of every stratum for each group.

        A quarter of the rows, up to `MOST_ENDS`, are those at the ends, three at the beginning for one at the end.
        There rows are unlike all others (the first ones see few keys, and marks of begin and end stand there), so that
        chance would bring much doubt. The strata are neighbouring rows, all of one size: what is left over joins the
        beginning.

        Args:
            length: Rows of the call, more than are measured.
            key: What tells the call from others of the run; the same key draws the same rows.
        """
        digest = hashlib.sha256(f"{self.seed}|{key}".encode()).digest()
        random = np.random.default_rng(int.from_bytes(digest[:8], "big"))
        strata = (self.measured - min(self.measured // 4, MOST_ENDS)) // GROUPS
        ends = self.measured - strata * GROUPS
        last = ends // 4
        size, over = divmod(length - ends, strata)
        # A longer stratum would count too little, in all groups alike, where they do not show it.
        first = ends - last + over
        drawn = [first + place * size + random.choice(size, GROUPS, replace=False) for place in range(strata)]
        return Draw(length=length, first=first, last=last, groups=torch.from_numpy(np.stack(drawn, axis=1)))


def is_worth_it(problem: Problem, rows: int) -> bool:
    """Whether some rows cost less than all: a narrow window makes many rows cheap.

    Args:
        problem: The call.
        rows: How many would be measured; each of them is held against all keys.
    """
    if problem.q_len <= rows:
        return False
    pairs = 0
    for cut in cut_blocks(problem.q_len):
        cols = columns_of(problem, cut)
        pairs += (cut.stop - cut.start) * (cols.stop - cols.start)
    return pairs > rows * problem.kv_len


def sample_block(scene: Scene, statistics: Sequence[Statistic], draw: Draw, *, backend: str = "auto") -> Block:
    """What a whole call brings, told from some of its rows.

    Sums and counts are those of the rows at the ends, and those of the drawn rows times N / n. With T_g the total of
    group g, G groups of n rows in all of the N between the ends, the variance of such a sum is (N / n)^2 G var(T)
    (1 - n / N). Statistics of outputs are taken of all rows.

    Args:
        scene: The call.
        statistics: What to take.
        draw: The rows.
        backend: See `sweep`.

    Raises:
        MultiheadError: See `sweep`.
    """
    rows, cuts = draw.rows()
    some = restrict(scene, rows.to(scene.problem.q.device))
    by_row = [s for s in statistics if not (isinstance(s, OfWhole) and s.outputs)]
    parts = list(sweep_blocks(some, by_row, cuts=cuts, rows=_rows_in_tile(scene.problem), backend=backend))
    between = scene.problem.q_len - draw.first - draw.last
    estimate = _Estimate(length=between, drawn=draw.groups.numel())
    folds = folds_of(by_row)
    known = combined(parts[0].taken, parts[1].taken, folds)
    whole_only = {name for s in by_row if isinstance(s, OfWhole) for name in s.of_all}
    taken: dict[str, Contribution | Missing] = {}
    spread: dict[str, Tensor] = {}
    for name, fold in folds.items():
        found = [known[name], *(part.taken[name] for part in parts[2:])]
        totals = [one for one in found if isinstance(one, Contribution)]
        if name in whole_only or len(totals) < len(found):
            taken[name] = next((one for one in found if isinstance(one, Missing)), Missing(NEEDS_ALL))
        elif fold == "max":
            taken[name], spread[name] = estimate.largest(totals, ceiling(scene.problem))
        else:
            taken[name], spread[name] = estimate.total(totals[0], totals[1:])
    wholes = tuple(whole for part in parts for whole in part.wholes)
    exact = _of_outputs(scene, statistics, wholes[0].rows)
    return Block(wholes=wholes, taken=taken | dict(exact), spread=spread, told=parts[0].told)


def _rows_in_tile(problem: Problem) -> int | None:
    """Rows of a group that are weighed at once: half of a usual group where it then needs fewer keys."""
    looks_back = isinstance(problem.mask, Pattern) and problem.mask.reach[1] is not None
    return NARROW if looks_back and problem.kv_len >= LONG else None


def ceiling(problem: Problem) -> Float64[Tensor, " heads"]:
    """What no score of a head can exceed: scale |q| |k|, capped, and the largest bias."""
    q, k = (torch.linalg.vector_norm(x, dim=-1, dtype=torch.float64).amax((0, 2)) for x in (problem.q, problem.k))
    k = k.repeat_interleave(problem.group)
    most = abs(problem.scale) * q * k
    if problem.softcap is not None:
        most = problem.softcap * torch.tanh(most / problem.softcap)
    if problem.bias is None:
        return most
    if isinstance(problem.bias, Tensor):
        bias = problem.bias.double()
        return most + bias.masked_fill(bias <= FLOOR, -torch.inf).amax((0, 2, 3)).clamp(min=0.0)
    return torch.full_like(most, torch.inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Estimate:
    """From groups of rows to all rows.

    Args:
        length: Rows of which some were drawn.
        drawn: Rows that were drawn.
    """

    length: int
    drawn: int

    def total(self, known: Contribution, parts: Sequence[Contribution]) -> tuple[Contribution, Tensor]:
        """Sums and counts over all rows, and how uncertain they are."""
        sums, counts = torch.stack([p.sum for p in parts]), torch.stack([_count(p) for p in parts])
        scale, left = self.length / self.drawn, 1 - self.drawn / self.length
        if known.fixed:
            fixed = torch.maximum(_count(known), counts.amax(0))
            part = Contribution(known.sum + scale * sums.sum(0), fixed, fixed=True)
            # Keys are counted, and rows were drawn: it is they that are worth something.
            counts, held, coins = torch.zeros_like(counts), torch.zeros_like(fixed), fixed**2 * left / self.drawn
        else:
            held, drawn = _count(known), counts.sum(0)
            part = Contribution(known.sum + scale * sums.sum(0), held + scale * drawn)
            coins = scale**2 * left * drawn
        off, off_count = sums - sums.mean(0), counts - counts.mean(0)
        factor = scale**2 * left * len(parts) / (len(parts) - 1)
        moments = [factor * (a * b).sum(0) for a, b in ((off, off), (off_count, off_count), (off, off_count))]
        value = torch.where(_count(part) > 0, part.sum / _count(part), 0.0)
        third = factor**1.5 * (off - value * off_count).pow(3).sum(0)
        return part, torch.stack([*moments, third, coins, known.sum, held], 1)

    def largest(self, parts: Sequence[Contribution], most: Float64[Tensor, " heads"]) -> tuple[Contribution, Tensor]:
        """The largest value of the rows that were drawn, and in the place of a variance what no row can exceed."""
        counts = torch.stack([_count(p) for p in parts])
        held = torch.where(counts > 0, torch.stack([p.sum for p in parts]), -torch.inf).amax(0)
        seen = counts.sum(0)
        largest = torch.where(seen > 0, held, 0.0)
        bound = torch.maximum(most.expand_as(largest).to(largest), largest)
        none = torch.zeros_like(largest)
        known = _count(parts[0])
        count = known + self.length / self.drawn * (seen - known)
        return Contribution(largest, count), torch.stack([bound, none, none, none, seen, none, known], 1)


def _count(part: Contribution) -> Tensor:
    assert part.count is not None, "the sweep fills in every count"
    return part.count


def _of_outputs(scene: Scene, statistics: Sequence[Statistic], like: Rows) -> Taken:
    """Statistics of outputs, of every row."""
    wanted = [s for s in statistics if isinstance(s, OfWhole) and s.outputs]
    if not wanted:
        return {}
    batch, heads, kv_len = scene.problem.batch, scene.problem.heads, scene.problem.kv_len
    columns = torch.full((batch, heads, kv_len), torch.nan, dtype=torch.float64, device=scene.problem.q.device)
    taken: Taken = {}
    folds = folds_of(wanted)
    for cut in cut_blocks(scene.problem.q_len):
        _, visible = sight_of(scene, cut, columns_of(scene.problem, cut))
        rows = _only_sees(like, visible.sum(-1).expand(batch, heads, cut.stop - cut.start))
        whole = Whole(scene=restrict(scene, cut), rows=rows, columns=columns, leaks=False)
        found: dict[str, Contribution | Missing] = {}
        for statistic in wanted:
            found |= dict(zip((q.name for q in statistic.quantities), statistic.take(whole), strict=True))
        taken = combined(taken, found, folds)
    return taken


def _only_sees(like: Rows, sees: Int[Tensor, "batch heads rows"]) -> Rows:
    """Rows of which nothing is known but how many keys they see: NaN stands for every number that is not."""

    def unknown(given: Tensor) -> Tensor:
        fill = torch.nan if given.is_floating_point() else given.dtype == torch.bool
        return torch.full(sees.shape, fill, dtype=given.dtype, device=given.device)

    return replace(Rows(**{f.name: unknown(getattr(like, f.name)) for f in fields(Rows)}), sees=sees)
