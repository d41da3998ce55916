"""One sweep over the query rows of a call: scores of a few rows at a time, every statistic from them, then the next."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from multihead.attend import Problem
from multihead.error import MultiheadError
from multihead.measure.block import Block, Taken, cut_blocks, restrict
from multihead.measure.compiled import Kernel, why_not
from multihead.measure.part import LEAST, Part, Whole
from multihead.measure.scene import Scene
from multihead.measure.statistic.contract import Contribution, Missing, OfTile, OfWhole, Statistic
from multihead.measure.tile import Tile, bin_sums
from multihead.measure.weigh import FLOOR, Rows, find_sunk, join_rows, weigh
from multihead.position import AdaptiveSpan

BACKENDS = ("auto", "native", "torch")

ELEMENTS = 3 << 20
"""Weights in a tile, about: few enough for the cache, so many that the work outweighs the calls."""

LEAST_ROWS, MOST_ELEMENTS = 32, 1 << 23
"""Products with fewer rows are slow, so long calls have larger tiles, up to a bound on memory."""


def sweep(
    scene: Scene, statistics: Sequence[Statistic], *, rows: int | None = None, backend: str = "auto"
) -> tuple[tuple[Whole, ...], Mapping[str, Contribution | Missing]]:
    """Take every statistic of one call, exactly, in memory that grows with its length and not with the square of it.

    Args:
        scene: The call; it has at least one query and one key.
        statistics: What to take.
        rows: Query rows in a tile of the sweep in torch; None chooses. It changes the speed, and no result beyond
            rounding.
        backend: `"native"` for the compiled kernel, `"torch"`, or `"auto"`: the kernel where it can, or else torch.

    Returns:
        What was seen of each block of rows, and for each quantity its contribution, with sums and counts (batch, heads,
        *shape), or the reason why there is none.

    Raises:
        MultiheadError: There is no such backend, or the kernel cannot measure this call.
    """
    folds = folds_of(statistics)
    wholes: list[Whole] = []
    taken: Taken = {}
    for block in sweep_blocks(scene, statistics, rows=rows, backend=backend):
        wholes += block.wholes
        taken = combined(taken, block.taken, folds)
    return tuple(wholes), taken


def sweep_blocks(
    scene: Scene,
    statistics: Sequence[Statistic],
    *,
    cuts: Sequence[slice] | None = None,
    rows: int | None = None,
    backend: str = "auto",
) -> Iterator[Block]:
    """The same, block of rows by block of rows.

    Args:
        scene: The call; it has at least one query and one key.
        statistics: What to take.
        cuts: The blocks; None for those of `cut_blocks`.
        rows: Query rows in a tile of the sweep in torch; None chooses.
        backend: See `sweep`.

    Yields:
        What each block brings.

    Raises:
        MultiheadError: See `sweep`.
    """
    missing: dict[str, Missing] = {}
    able: list[tuple[OfTile[Any], Any]] = []
    for statistic in statistics:
        if isinstance(statistic, OfTile):
            facts = statistic.prepare(scene)
            if isinstance(facts, Missing):
                missing |= {quantity.name: facts for quantity in statistic.quantities}
            else:
                able.append((statistic, facts))
    kernel, told = _chosen(scene, able, backend)
    for cut in cut_blocks(scene.problem.q_len) if cuts is None else cuts:
        taken: dict[str, Contribution | Missing] = dict(missing)
        if kernel is None:
            whole = _look_through(scene, cut, able, taken, rows)
        else:
            sums, whole = kernel.look(cut)
            _take(sums, able, taken)
        for statistic in statistics:
            if isinstance(statistic, OfWhole):
                taken |= dict(zip((q.name for q in statistic.quantities), statistic.take(whole), strict=True))
        count = whole.counted().sum(-1, dtype=torch.float64)
        filled = {name: _counted(found, count) for name, found in taken.items()}
        yield Block(wholes=(whole,), taken=filled, told=told)


def _chosen(scene: Scene, able: Sequence[tuple[OfTile[Any], Any]], backend: str) -> tuple[Kernel | None, str]:
    """The kernel or None for torch, and what is told of it."""
    if backend not in BACKENDS:
        raise MultiheadError(
            asked="a backend that measures", arrived=f"backend={backend!r}", remedy=f"pass {' or '.join(BACKENDS)}"
        )
    if backend == "torch":
        return None, "weights were measured in torch, as was asked"
    reasons = why_not(scene, able)
    if not reasons:
        kernel = Kernel(scene, able)
        return kernel, f"weights were measured by the {kernel.words}"
    if backend == "native":
        raise MultiheadError(
            asked='backend="native", which measures by the compiled kernel',
            arrived="; ".join(reasons),
            remedy='pass backend="auto", which measures in torch what the kernel cannot',
        )
    return None, f"weights were measured in torch, for the compiled kernel cannot: {'; '.join(reasons)}"


def folds_of(statistics: Sequence[Statistic]) -> dict[str, str]:
    """How each quantity is added up."""
    return {quantity.name: quantity.fold for statistic in statistics for quantity in statistic.quantities}


def combined(before: Taken, new: Taken, folds: Mapping[str, str]) -> Taken:
    """What two blocks of one call bring together.

    Args:
        before: What the blocks before brought; nothing before the first.
        new: What the next one brings; every count is filled in.
        folds: How each quantity is added up.
    """
    return {name: _joined(before.get(name), part, folds[name]) for name, part in new.items()}


def _joined(have: Contribution | Missing | None, part: Contribution | Missing, fold: str) -> Contribution | Missing:
    if isinstance(part, Missing) or not isinstance(have, Contribution):
        return part if have is None or isinstance(part, Contribution) else have
    assert have.count is not None, "the sweep fills in every count"
    assert part.count is not None, "the sweep fills in every count"
    if part.fixed:
        return Contribution(have.sum + part.sum, torch.maximum(have.count, part.count), fixed=True)
    if fold == "max":
        held = torch.where(have.count > 0, have.sum, -torch.inf)
        largest = torch.where(part.count > 0, torch.maximum(held, part.sum), have.sum)
        return Contribution(largest, have.count + part.count)
    return Contribution(have.sum + part.sum, have.count + part.count)


def _look_through(
    scene: Scene,
    block: slice,
    able: Sequence[tuple[OfTile[Any], Any]],
    taken: dict[str, Contribution | Missing],
    rows: int | None,
) -> Whole:
    """Go through the tiles of a block; what statistics of tiles find goes into `taken`."""
    gathered = _Gathered(scene, block)
    for part in _cuts(scene.problem, block, rows):
        _take(gathered.look(part), able, taken)
    return gathered.whole()


def _take(part: Part, able: Sequence[tuple[OfTile[Any], Any]], taken: dict[str, Contribution | Missing]) -> None:
    """What statistics find in some rows goes into `taken`."""
    for statistic, facts in able:
        # Those of sums are given any part; those of weights are never asked of the kernel.
        for quantity, found in zip(statistic.quantities, statistic.take(cast(Tile, part), facts), strict=True):
            _add(taken, quantity.name, found)


def _add(taken: dict[str, Contribution | Missing], name: str, part: Contribution) -> None:
    have = taken.get(name)
    if not isinstance(have, Contribution):
        taken[name] = part
        return
    counts = None if have.count is None or part.count is None else have.count + part.count
    taken[name] = replace(part, sum=have.sum + part.sum, count=counts)


def _counted(part: Contribution | Missing, rows: Tensor) -> Contribution | Missing:
    """Fills in the number of rows that count where a statistic left it out."""
    if isinstance(part, Missing) or part.count is not None:
        return part
    return Contribution(part.sum, rows[(..., *(None,) * (part.sum.ndim - 2))].expand_as(part.sum))


def _cuts(problem: Problem, block: slice, rows: int | None) -> list[slice]:
    if rows is None:
        one = problem.batch * problem.heads * problem.kv_len
        rows = max(1, ELEMENTS // one, min(LEAST_ROWS, MOST_ELEMENTS // one))
    return [slice(start, min(start + rows, block.stop)) for start in range(block.start, block.stop, rows)]


class _Gathered:
    """What the tiles leave behind for the end of the block: nothing that grows with the square of its length."""

    def __init__(self, scene: Scene, block: slice) -> None:
        self.scene, self.block = scene, block
        self.rows: list[Rows] = []
        self.leaks = False
        problem = scene.problem
        self.columns = torch.zeros(
            (problem.batch, problem.heads, problem.kv_len), dtype=torch.float64, device=problem.q.device
        )

    def look(self, rows: slice) -> Tile:
        """Weights of some rows; keeps what is known of each row and key."""
        problem = self.scene.problem
        cols = columns_of(problem, rows)
        allowed, visible = sight_of(self.scene, rows, cols)
        self.leaks |= allowed is not visible
        scores = self.scene.unmasked.scores(rows, cols)
        sunk = find_sunk(self.scene.sunk[:, cols], problem.batch, scores)
        content, sunk, known = weigh(scores, allowed, visible, problem.normaliser, sunk)
        counted = self.scene.queries.kept[:, None, rows] & known.finite & (known.sees >= LEAST)
        nearest = self.scene.nearest(rows)
        bins, sums = bin_sums(self.scene, rows, content, sunk, counted, nearest[0])
        self.rows.append(known)
        self.columns[..., cols] += sums[..., :-1, :].sum(2, dtype=torch.float64)
        return Tile(
            scene=self.scene,
            rows=rows,
            cols=cols,
            content=content,
            sunk=sunk,
            bins=bins,
            sums=sums,
            visible=visible,
            counted=counted,
            all_count=bool(counted.all()),
            known=known,
            places=self.scene.k_places[cols],
            nearest=nearest,
            scratch=scores,
        )

    def whole(self) -> Whole:
        """The block once all its rows were seen."""
        every = slice(0, self.scene.problem.q_len)
        scene = self.scene if self.block == every else restrict(self.scene, self.block)
        return Whole(scene=scene, rows=join_rows(self.rows), columns=self.columns, leaks=self.leaks)


def sight_of(scene: Scene, rows: slice, cols: slice) -> tuple[Tensor, Tensor]:
    """What the model lets some rows see, and what of that counts: the same tensor where padding is masked anyway.

    Args:
        scene: The call.
        rows: The rows.
        cols: The keys.
    """
    problem, keys = scene.problem, scene.keys
    allowed = problem.allowed(rows, cols)
    if isinstance(problem.bias, Tensor | AdaptiveSpan):
        bias = problem.bias_rows(rows, cols)
        assert bias is not None
        allowed = (bias > FLOOR) if allowed is None else allowed & (bias > FLOOR)
    if allowed is None:
        size = (1, 1, rows.stop - rows.start, cols.stop - cols.start)
        allowed = torch.ones((), dtype=torch.bool, device=problem.q.device).expand(size)
    if not keys.padded:
        return allowed, allowed
    visible = allowed & keys.kept[:, None, None, cols]
    real = scene.queries.kept[:, None, rows, None]
    leaks = bool((real & (visible != allowed)).any())
    return (allowed, visible) if leaks else (allowed, allowed)


def columns_of(problem: Problem, rows: slice) -> slice:
    """The keys from the first to the last that any of the rows may see."""
    if problem.mask is None:
        return slice(0, problem.kv_len)
    if isinstance(problem.mask, Tensor):
        seen = problem.allowed(rows)
        assert seen is not None
        places = seen.flatten(0, 2).any(0).nonzero()
        return slice(int(places[0]), int(places[-1]) + 1) if len(places) else slice(0, 1)
    left, right = problem.mask.reach
    if problem.places is None:
        offset = problem.q_offset or 0
        first, last = rows.start + offset, rows.stop - 1 + offset
    else:
        first, last = int(problem.places[rows].min()), int(problem.places[rows].max())
    low = 0 if left is None else min(max(0, first - left), problem.kv_len - 1)
    high = problem.kv_len if right is None else min(problem.kv_len, last + 1 + right)
    return slice(low, max(high, low + 1))
