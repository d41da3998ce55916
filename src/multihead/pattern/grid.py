"""Patterns of a picture: its places are rows of positions, one after another, and a query sees those around its own."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int, Int8
from torch import Tensor

from multihead.error import MultiheadError
from multihead.pattern.algebra import Pattern
from multihead.pattern.blocked import blocks_between
from multihead.pattern.check import whole
from multihead.pattern.formed import Formed
from multihead.pattern.law import Facts, grade
from multihead.pattern.show import Spot


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Grid(Formed):
    """Places within a square around the query's; `whole_windows` moves the square of a place at the edge inwards."""

    height: int
    width: int
    kernel: int
    dilation: int
    whole_windows: bool

    def _facts(self) -> Facts:
        farthest = self._farthest * (self.width + 1)
        return Facts(reach=(farthest, farthest))

    @property
    def _farthest(self) -> int:
        """How far a key may be along one side."""
        return (self.kernel - 1 if self.whole_windows else self.kernel // 2) * self.dilation

    def _contains(self, q: Int[Tensor, "_ 1 rows 1"], k: Int[Tensor, "_ 1 1 cols"]) -> Bool[Tensor, "_ _ _ _"]:
        last = self.height * self.width - 1
        there = (q >= 0) & (q <= last) & (k >= 0) & (k <= last)
        rows = self._along(_down(q, self.width), _down(k, self.width), self.height)
        return there & rows & self._along(q % self.width, k % self.width, self.width)

    def _along(self, i: Tensor, j: Tensor, length: int) -> Tensor:
        """Whether key j is in the window of query i, along one side of the picture."""
        if not self.whole_windows:
            return ((i - j).abs() <= self._farthest) & ((i - j) % self.dilation == 0)
        # Of the places with the query's remainder, `kernel` neighbours: around it, or the first or last of them.
        lane = i % self.dilation
        most = _down(length - lane + self.dilation - 1, self.dilation) - self.kernel
        start = torch.minimum((_down(i, self.dilation) - self.kernel // 2).clamp(min=0), most)
        place = _down(j, self.dilation) - start
        return (j % self.dilation == lane) & (place >= 0) & (place < self.kernel)

    def _classify(self, rows: Int[Tensor, " rows"], cols: Int[Tensor, " cols"]) -> Int8[Tensor, "_ _ _ _"]:
        shape = (rows.numel() - 1, cols.numel() - 1)
        none = torch.zeros(shape, dtype=torch.bool, device=rows.device)
        every = torch.full(shape, self.dilation == 1, device=rows.device)
        for q, k, length in zip(self._spans(rows), self._spans(cols), (self.height, self.width), strict=True):
            (top, bottom), (first, last) = ((span.clamp(0, length - 1) for span in spans) for spans in (q, k))
            (low, _), (_, high) = self._window(top, length), self._window(bottom, length)
            none = none | (high[:, None] < first) | (low[:, None] > last)
            # Of one row or column each, with a remainder that no window of the other has.
            none = none | (top == bottom)[:, None] & (first == last) & ((top[:, None] - first) % self.dilation != 0)
            (low, _), (_, high) = self._window(bottom, length), self._window(top, length)
            every = every & (low[:, None] <= first) & (high[:, None] >= last)
        for edges, side in ((rows, 1), (cols, 0)):
            outside = (edges[1:] <= 0) | (edges[:-1] >= self.height * self.width)
            partly = (edges[:-1] < 0) | (edges[1:] > self.height * self.width)
            none, every = none | outside.unsqueeze(side), every & ~partly.unsqueeze(side)
        return grade(none, every & ~none)[None, None]

    def _spans(self, edges: Int[Tensor, " edges"]) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """First and last row of the picture that tiles touch, and first and last column."""
        top, bottom = blocks_between(edges, self.width)
        alone = top == bottom
        left = torch.where(alone, edges[:-1] - top * self.width, 0)
        return (top, bottom), (left, torch.where(alone, edges[1:] - 1 - top * self.width, self.width - 1))

    def _detail(self, spot: Spot) -> str:
        query, key = (
            f"place ({at // self.width}, {at % self.width})" if 0 <= at < self.height * self.width else "no place"
            for at in (spot.query, spot.key)
        )
        return f" ({query} at query {spot.query}, {key} at key {spot.key})"

    def _window(self, place: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Bounds of the window of a place along one side; exact without dilation. Both grow with the place."""
        half = self.kernel // 2 * self.dilation
        if not self.whole_windows:
            return (place - half).clamp(min=0), (place + half).clamp(max=length - 1)
        extent = self.kernel * self.dilation
        return (place - half).clamp(max=length - extent).clamp(min=0), (place + half).clamp(
            min=extent - 1, max=length - 1
        )


def neighbourhood(height: int, width: int, kernel: int, *, dilation: int = 1) -> Pattern:
    """The kernel x kernel places around the query's, in a picture whose place (y, x) has position y width + x.

    Neighbourhood attention (Hassani et al. 2023, arXiv 2204.07143; dilated: Hassani & Shi 2022, arXiv 2209.15001), as
    the NATTEN library has it: at an edge the window is moved inwards, so that every place sees kernel x kernel others,
    and a dilated window takes every `dilation`-th place. Along one side of `length` places, without dilation, the
    window of i begins at min(max(i - kernel // 2, 0), length - kernel). For windows that an edge cuts off instead, see
    `grid_window`. Positions outside of the picture see nothing and are not seen: a class token in front is
    `neighbourhood(...).at(q_offset=-1, k_offset=-1) | global_tokens([0])`. Tiles of rows too far away are skipped.

    Args:
        height: Rows of the picture.
        width: Places in a row.
        kernel: Side of the window, odd, and kernel * dilation at most height and width.
        dilation: Step between the places of a window.

    Raises:
        MultiheadError: A number is not whole or out of bounds, the kernel is even, or the window larger than the
            picture.

    Example:
        >>> for row in neighbourhood(3, 4, 3).mask(12, 12)[0, 0, 0].view(3, 4).int().tolist():
        ...     print(row)  # what place (0, 0) sees
        [1, 1, 1, 0]
        [1, 1, 1, 0]
        [1, 1, 1, 0]
    """
    form = "neighbourhood(height, width, kernel)"
    grid = _checked(form, (height, width, kernel, dilation))
    if min(grid[:2]) < grid[2] * grid[3]:
        raise MultiheadError(
            asked=f"{form}: a window of kernel * dilation = {grid[2] * grid[3]} places that fits in the picture",
            arrived=f"height={grid[0]}, width={grid[1]}",
            remedy=f"pass a kernel of at most {min(grid[:2]) // grid[3]}, or grid_window, which edges cut off",
        )
    return _grid("neighbourhood", grid, whole_windows=True)


def grid_window(height: int, width: int, kernel: int, *, dilation: int = 1) -> Pattern:
    """Places at most kernel // 2 steps up or down and left or right, in a picture whose place (y, x) is y width + x.

    The 2-D window of a convolution: where an edge cuts it off, a place sees fewer others. `neighbourhood` moves it
    inwards instead. Positions outside of the picture see nothing and are not seen.

    Args:
        height: Rows of the picture.
        width: Places in a row.
        kernel: Side of the window, odd.
        dilation: Step between the places of a window.

    Raises:
        MultiheadError: A number is not whole or out of bounds, or the kernel is even.

    Example:
        >>> for row in grid_window(3, 4, 3).mask(12, 12)[0, 0, 0].view(3, 4).int().tolist():
        ...     print(row)  # what place (0, 0) sees
        [1, 1, 0, 0]
        [1, 1, 0, 0]
        [0, 0, 0, 0]
    """
    grid = _checked("grid_window(height, width, kernel)", (height, width, kernel, dilation))
    return _grid("grid_window", grid, whole_windows=False)


def _checked(form: str, numbers: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    names = (
        "height: rows of the picture",
        "width: places in a row",
        "kernel: side of the window",
        "dilation: the step",
    )
    found = [
        whole(number, asked=f"{form}, {name}, at least 1", least=1) for name, number in zip(names, numbers, strict=True)
    ]
    height, width, kernel, dilation = found
    whole(height * width, asked=f"{form}: height * width places", least=1)
    whole(kernel * dilation * (width + 1), asked=f"{form}: kernel * dilation * (width + 1)", least=1)
    if kernel % 2 == 0:
        raise MultiheadError(
            asked=f"{form}: an odd kernel, as many places on one side of the query as on the other",
            arrived=f"kernel={kernel}",
            remedy=f"pass {kernel - 1} or {kernel + 1}",
        )
    return height, width, kernel, dilation


def _grid(name: str, grid: tuple[int, int, int, int], *, whole_windows: bool) -> Pattern:
    height, width, kernel, dilation = grid
    step = f", {dilation}" if dilation > 1 else ""
    return Grid(f"{name}({height}, {width}, {kernel}{step})", *grid, whole_windows)


def _down(a: Tensor, b: int) -> Tensor:
    return a.div(b, rounding_mode="floor")
