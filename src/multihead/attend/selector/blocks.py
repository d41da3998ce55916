"""Selectors of blocks: by the mean of their keys (MoBA), or by a bound of their scores (Quest)."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Int8
from torch import Tensor

from multihead.attend.problem import Problem, products
from multihead.attend.selector.asked import asked, best, check_budget, check_no_graph, height
from multihead.attend.selector.base import Chosen, Kept, Selector
from multihead.pattern import Pattern, Tile, everything

Parts = tuple[Tensor, ...]
_AT_ONCE = 2**22  # pairs of blocks that a mask cuts, looked at at once


class Summary(NamedTuple):
    """What is kept of the blocks of earlier keys.

    Args:
        parts: Tensors (batch, kv_heads, blocks, head_dim).
        length: How many keys they are made of.
    """

    parts: Parts
    length: int


@dataclass(frozen=True, slots=True)
class _Blocks(Selector):
    """Blocks are ranked by a score; that of the query is always in."""

    def select(
        self,
        q: Float[Tensor, "batch heads q_len head_dim"],
        k: Float[Tensor, "batch kv_heads kv_len head_dim"],
        *,
        mask: Pattern | Bool[Tensor, "..."] | None = None,
        q_offset: int | None = None,
    ) -> Pattern:
        """The blocks to attend to; `Selector.select` says what is asked."""
        return self.select_on(q, k, None, mask=mask, q_offset=q_offset)[0]

    @torch.no_grad()
    def select_on(
        self, q: Tensor, k: Tensor, kept: Kept, *, mask: Pattern | Tensor | None, q_offset: int | None
    ) -> tuple[Pattern, Kept]:
        """The same; only blocks of keys that came since are looked at anew. `Selector.select_on` says what is kept."""
        check_no_graph(str(self))
        problem = asked(q, k, mask=mask, q_offset=q_offset, placed=self)
        size = self._size
        summary = self._extended(problem.k, kept if isinstance(kept, Summary) else None)
        columns = -(-problem.kv_len // size)
        together = height(problem, columns)
        bands = [slice(start, min(start + together, problem.q_len)) for start in range(0, problem.q_len, together)]
        rows = [self._picked(problem, summary, band) for band in bands]
        inside = torch.cat(rows, 2) if rows else torch.ones(1, 1, 0, columns, dtype=torch.bool, device=q.device)
        chosen = Chosen.from_blocks(inside, block=size, kv_len=problem.kv_len, q_offset=problem.q_offset or 0)
        return chosen, summary

    @property
    @abstractmethod
    def _size(self) -> int:
        """Keys in a block."""

    @property
    @abstractmethod
    def _budget(self) -> int:
        """Blocks that a query attends to."""

    @abstractmethod
    def _summed_up(self, keys: Float[Tensor, "batch kv_heads blocks size head_dim"]) -> Parts:
        """What is kept of blocks of keys."""

    @abstractmethod
    def _scores(self, q: Tensor, parts: Parts) -> Float[Tensor, "batch heads rows blocks"]:
        """Scores of blocks that are seen whole."""

    @abstractmethod
    def _partly(self, problem: Problem, band: slice, cols: Tensor) -> Float[Tensor, "batch heads rows blocks"]:
        """Scores of blocks of which a query sees some keys, by those; `cols` are keys (blocks, size), kv_len = none."""

    def _extended(self, k: Tensor, kept: Summary | None) -> Summary:
        """The summary of all keys; blocks that were full are as they were."""
        size, length = self._size, k.shape[2]
        whole = 0 if kept is None or kept.length > length else kept.length // size
        full = length // size * size
        pieces = [tuple(part[:, :, :whole] for part in kept.parts)] if kept is not None and whole else []
        pieces.append(self._summed_up(k[:, :, whole * size : full].unflatten(2, (-1, size))))
        if full < length:
            pieces.append(self._summed_up(k[:, :, None, full:]))
        return Summary(tuple(torch.cat(parts, 2) for parts in zip(*pieces, strict=True)), length)

    def _picked(self, problem: Problem, summary: Summary, band: slice) -> Bool[Tensor, "batch heads rows blocks"]:
        """Which blocks some queries chose."""
        size, columns = self._size, -(-problem.kv_len // self._size)
        scores = self._scores(problem.q[:, :, band], summary.parts)
        seen = seen_blocks(problem, band, size, columns)
        own = problem.q_positions()[band, None].div(size, rounding_mode="floor") == torch.arange(
            columns, device=scores.device
        )
        partial = ((seen == Tile.PARTIAL) & ~own).flatten(0, 2).any(0).nonzero()[:, 0]
        pairs = max(problem.batch * problem.heads * (band.stop - band.start) * size, 1)
        for some in partial.split(max(1, _AT_ONCE // pairs)) if partial.numel() else ():
            told = self._partly(problem, band, _places(problem, some, size))
            scores[..., some] = torch.where(seen[..., some] == Tile.PARTIAL, told, scores[..., some])
        scores = scores.masked_fill(seen == Tile.SKIP, -torch.inf).masked_fill(own, torch.inf)
        return best(scores, self._budget)


@dataclass(frozen=True, slots=True)
class TopBlocks(_Blocks):
    """Each query attends to the blocks of keys whose mean it fits best (MoBA: Lu et al. 2025, arXiv 2502.13189).

    `score(block) = q . mean of its keys`; the block the query stands in is always among the `budget`. Under a causal
    mask blocks that lie ahead are out, and within the own block a query sees what is before it: one block is
    `causal() & chunk(block)`, as many as there are is dense attention. A block that a mask cuts (a text's padding, the
    edge of a document) is scored by the keys that the query may see, so that nothing hidden has a part in the choice.

    Every head and query chooses for itself. Our kernel leaves out the tiles that none of their queries chose: most
    is saved where neighbouring queries choose alike. Where they do not, and in training, each block is multiplied
    with the queries that chose it (the backend `blockwise`, for blocks of 16 keys or more). Scores cost
    `n * n / block` products; the means of earlier blocks are kept with a module's cache. Blocks are counted from key 0:
    in texts padded on the left they begin elsewhere than without padding, unless the padding is a multiple of `block`.

    Args:
        block: Keys in a block; multiples of 64 are the fastest.
        budget: Blocks that a query attends to, its own included.

    Raises:
        MultiheadError: A number that is no whole one of at least 1.

    Example:
        >>> q, k, v = torch.randn(3, 1, 4, 512, 32)
        >>> chosen = TopBlocks(64, 3).select(q, k, mask=causal())
        >>> attention(q, k, v, mask=causal() & chosen).shape
        torch.Size([1, 4, 512, 32])
    """

    block: int
    budget: int

    def __post_init__(self) -> None:
        check_budget("TopBlocks(block, budget)", self.block, "keys of a block, of those")
        check_budget("TopBlocks(block, budget)", self.budget, "blocks")

    @property
    def _size(self) -> int:
        return self.block

    @property
    def _budget(self) -> int:
        return self.budget

    def _summed_up(self, keys: Tensor) -> Parts:
        return (keys.mean(3),)

    def _scores(self, q: Tensor, parts: Parts) -> Tensor:
        return products(q, parts[0], 1.0)

    def _partly(self, problem: Problem, band: slice, cols: Tensor) -> Tensor:
        keys, seen = _cut(problem, band, cols)
        scores = products(problem.q[:, :, band], keys, 1.0).masked_fill(~seen, 0.0)
        count = seen.unflatten(3, cols.shape).sum(-1)
        means = scores.unflatten(3, cols.shape).sum(-1) / count.clamp(min=1)
        return means.masked_fill(count == 0, -torch.inf)


@dataclass(frozen=True, slots=True)
class Pages(_Blocks):
    """One query at a time attends to the pages of keys that could score highest (Quest: Tang et al. 2024, 2406.10774).

    `score(page) = sum over c of max(q_c * min_c, q_c * max_c)`, with the least and greatest number that the page's keys
    have in each channel: no score in the page is greater. The page the query stands in is always among the `budget`.
    Of hidden keys nothing is taken in.

    It is made for decoding, where a step costs the bytes of keys it reads: more than one query at once, as in a prompt,
    attend to everything. The bounds of earlier pages are kept with a module's cache.

    Args:
        page: Keys in a page.
        budget: Pages that a query attends to, its own included.

    Raises:
        MultiheadError: A number that is no whole one of at least 1.

    Example:
        >>> layer = MultiHeadAttention(64, HeadGroup(4, mask=Pages(16, 8)))
        >>> cache = layer.cache(batch=1)
        >>> prompt, token = torch.randn(1, 300, 64), torch.randn(1, 1, 64)
        >>> _, out = layer(prompt, mask=causal(), cache=cache), layer(token, mask=causal(), cache=cache)
    """

    page: int
    budget: int

    def __post_init__(self) -> None:
        check_budget("Pages(page, budget)", self.page, "keys of a page, of those")
        check_budget("Pages(page, budget)", self.budget, "pages")

    @torch.no_grad()
    def select_on(
        self, q: Tensor, k: Tensor, kept: Kept, *, mask: Pattern | Tensor | None, q_offset: int | None
    ) -> tuple[Pattern, Kept]:
        """The pages to attend to, for one query; everything for more."""
        if q.ndim == 4 and q.shape[2] != 1:
            asked(q, k, mask=mask, q_offset=q_offset, placed=self)
            return everything(), kept
        return _Blocks.select_on(self, q, k, kept, mask=mask, q_offset=q_offset)

    @property
    def _size(self) -> int:
        return self.page

    @property
    def _budget(self) -> int:
        return self.budget

    def _summed_up(self, keys: Tensor) -> Parts:
        return keys.amin(3), keys.amax(3)

    def _scores(self, q: Tensor, parts: Parts) -> Tensor:
        low, high = parts
        return products(q.clamp(max=0), low, 1.0) + products(q.clamp(min=0), high, 1.0)

    def _partly(self, problem: Problem, band: slice, cols: Tensor) -> Tensor:
        keys, seen = _cut(problem, band, cols)
        q = problem.q[:, :, band]
        # One query, so that its mask is one of keys: (batch, heads, blocks, size, 1).
        pages = keys.repeat_interleave(problem.group, 1).unflatten(2, cols.shape)
        hidden = ~seen[:, :, 0].unflatten(2, cols.shape)[..., None]
        low, high = pages.masked_fill(hidden, torch.inf).amin(3), pages.masked_fill(hidden, -torch.inf).amax(3)
        none = hidden.all(3)
        told = self._scores(q, (low.masked_fill(none, 0.0), high.masked_fill(none, 0.0)))
        return told.masked_fill(none[..., 0][:, :, None], -torch.inf)


def _places(problem: Problem, some: Tensor, size: int) -> Int[Tensor, "blocks size"]:
    """The keys of some blocks; those beyond the last one are kv_len."""
    return (some[:, None] * size + torch.arange(size, device=problem.q.device)).clamp(max=problem.kv_len)


def without_hidden(
    problem: Problem,
    band: slice,
    size: int,
    classes: Int8[Tensor, "_ _ rows blocks"],
    where: Bool[Tensor, "rows blocks"],
) -> Int8[Tensor, "_ _ rows blocks"]:
    """The classes, with `Tile.SKIP` for those of the blocks asked for that hold nothing that a query sees.

    Args:
        problem: What is asked.
        band: Indices of queries.
        size: Keys in a block.
        classes: What `seen_blocks` says: it may take a block for a partial one of which nothing is seen.
        where: Which blocks are asked for.
    """
    some = ((classes == Tile.PARTIAL) & where).flatten(0, 2).any(0).nonzero()[:, 0]
    if not some.numel():
        return classes
    classes = classes.clone()
    for few in some.split(max(1, _AT_ONCE // ((band.stop - band.start) * size))):
        cols = _places(problem, few, size)
        seen = _cut(problem, band, cols)[1].unflatten(3, cols.shape).any(-1)
        classes[..., few] = torch.where(seen, classes[..., few], int(Tile.SKIP)).to(torch.int8)
    return classes


def _cut(problem: Problem, band: slice, cols: Tensor) -> tuple[Tensor, Tensor]:
    """Keys (batch, kv_heads, cols, head_dim), and which of them some queries see (batch | 1, heads | 1, rows, cols)."""
    flat = cols.flatten()
    there = flat < problem.kv_len
    places = torch.where(there, flat, 0)
    allowed = problem.allowed(band, places)
    seen = there.expand(1, 1, band.stop - band.start, -1) if allowed is None else allowed & there
    return problem.k[:, :, places], seen


def seen_blocks(problem: Problem, band: slice, size: int, columns: int) -> Int8[Tensor, "_ _ rows blocks"]:
    """How much of each block some queries see: `Tile` classes, sound as those of a pattern are.

    Args:
        problem: What is asked.
        band: Indices of queries.
        size: Keys in a block.
        columns: Number of blocks.
    """
    device = problem.q.device
    if isinstance(problem.mask, Pattern):
        first = (problem.q_offset or 0) + band.start
        edges = torch.arange(first, first + band.stop - band.start + 1)
        cols = torch.tensor([*range(0, problem.kv_len, size), problem.kv_len])
        return problem.mask.tiles(edges, cols).to(device)
    allowed = problem.allowed(band)
    if allowed is None:
        return torch.full((1, 1, 1, columns), int(Tile.FULL), dtype=torch.int8, device=device)
    # Filled up with the truth value that decides nothing.
    spare = (0, -problem.kv_len % size)
    some = torch.nn.functional.pad(allowed, spare, value=False).unflatten(3, (columns, size)).any(-1)
    full = torch.nn.functional.pad(allowed, spare, value=True).unflatten(3, (columns, size)).all(-1)
    return some.to(torch.int8) + full.to(torch.int8)
