"""One sweep over the query rows of a call: scores of a few rows at a time, every statistic from them, then the next."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from multihead.attend import Problem
from multihead.measure.scene import Scene
from multihead.measure.statistic.contract import Contribution, Missing, OfTile, OfWhole, Statistic
from multihead.measure.tile import LEAST, Tile, Whole, bin_sums
from multihead.measure.weigh import FLOOR, Rows, find_sunk, join_rows, weigh

ELEMENTS = 3 << 19
"""Weights in a tile, about: few enough for the cache, so many that the work outweighs the calls."""

LEAST_ROWS, MOST_ELEMENTS = 32, 1 << 23
"""Products with fewer rows are slow, so long calls have larger tiles, up to a bound on memory."""

Taken = dict[str, Contribution | Missing]


def sweep(
    scene: Scene, statistics: Sequence[Statistic], *, rows: int | None = None
) -> tuple[Whole, Mapping[str, Contribution | Missing]]:
    """Take every statistic of one call, exactly, in memory that grows with its length and not with the square of it.

    Args:
        scene: The call; it has at least one query and one key.
        statistics: What to take.
        rows: Query rows in a tile; None chooses. It changes the speed, and no result beyond rounding.

    Returns:
        What was seen, and for each quantity its contribution, with sums and counts (batch, heads, *shape), or the
        reason why there is none.
    """
    taken: Taken = {}
    prepared = [(s, s.prepare(scene)) for s in statistics if isinstance(s, OfTile)]
    for statistic, facts in prepared:
        if isinstance(facts, Missing):
            taken |= {quantity.name: facts for quantity in statistic.quantities}
    able = [(statistic, facts) for statistic, facts in prepared if not isinstance(facts, Missing)]
    gathered = _Gathered(scene)
    for part in _cuts(scene.problem, rows):
        tile = gathered.look(part)
        for statistic, facts in able:
            for quantity, found in zip(statistic.quantities, statistic.take(tile, facts), strict=True):
                _add(taken, quantity.name, found)
    whole = gathered.whole()
    for statistic in statistics:
        if isinstance(statistic, OfWhole):
            taken |= {q.name: found for q, found in zip(statistic.quantities, statistic.take(whole), strict=True)}
    count = whole.counted().sum(-1, dtype=torch.float64)
    return whole, {name: _counted(found, count) for name, found in taken.items()}


def _add(taken: Taken, name: str, part: Contribution) -> None:
    have = taken.get(name)
    if not isinstance(have, Contribution):
        taken[name] = part
        return
    counts = None if have.count is None or part.count is None else have.count + part.count
    taken[name] = Contribution(have.sum + part.sum, counts)


def _counted(part: Contribution | Missing, rows: Tensor) -> Contribution | Missing:
    """Fills in the number of rows that count where a statistic left it out."""
    if isinstance(part, Missing) or part.count is not None:
        return part
    return Contribution(part.sum, rows[(..., *(None,) * (part.sum.ndim - 2))].expand_as(part.sum))


def _cuts(problem: Problem, rows: int | None) -> list[slice]:
    if rows is None:
        one = problem.batch * problem.heads * problem.kv_len
        rows = max(1, ELEMENTS // one, min(LEAST_ROWS, MOST_ELEMENTS // one))
    return [slice(start, min(start + rows, problem.q_len)) for start in range(0, problem.q_len, rows)]


class _Gathered:
    """What the tiles leave behind for the end of the call: nothing that grows with the square of its length."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.rows: list[Rows] = []
        self.leaks = False
        problem = scene.problem
        self.columns = torch.zeros(
            (problem.batch, problem.heads, problem.kv_len), dtype=torch.float64, device=problem.q.device
        )

    def look(self, rows: slice) -> Tile:
        """Weights of some rows; keeps what is known of each row and key."""
        problem = self.scene.problem
        cols = _columns(problem, rows)
        allowed, visible = self._sight(rows, cols)
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
        """The call once all rows were seen."""
        return Whole(scene=self.scene, rows=join_rows(self.rows), columns=self.columns, leaks=self.leaks)

    def _sight(self, rows: slice, cols: slice) -> tuple[Tensor, Tensor]:
        """What the model lets the rows see, and what of that counts: the same tensor where padding is masked anyway."""
        problem, keys = self.scene.problem, self.scene.keys
        allowed = problem.allowed(rows, cols)
        if isinstance(problem.bias, Tensor):
            bias = problem.bias_rows(rows, cols)
            assert bias is not None
            allowed = (bias > FLOOR) if allowed is None else allowed & (bias > FLOOR)
        if allowed is None:
            size = (1, 1, rows.stop - rows.start, cols.stop - cols.start)
            allowed = torch.ones((), dtype=torch.bool, device=problem.q.device).expand(size)
        if not keys.padded:
            return allowed, allowed
        visible = allowed & keys.kept[:, None, None, cols]
        real = self.scene.queries.kept[:, None, rows, None]
        if not (real & (visible != allowed)).any():
            return allowed, allowed
        self.leaks = True
        return allowed, visible


def _columns(problem: Problem, rows: slice) -> slice:
    """The keys from the first to the last that any of the rows may see."""
    if problem.mask is None:
        return slice(0, problem.kv_len)
    if isinstance(problem.mask, Tensor):
        seen = problem.allowed(rows)
        assert seen is not None
        places = seen.flatten(0, 2).any(0).nonzero()
        return slice(int(places[0]), int(places[-1]) + 1) if len(places) else slice(0, 1)
    left, right = problem.mask.reach
    offset = problem.q_offset or 0
    low = 0 if left is None else min(max(0, rows.start + offset - left), problem.kv_len - 1)
    high = problem.kv_len if right is None else min(problem.kv_len, rows.stop + offset + right)
    return slice(low, max(high, low + 1))
