"""Patterns of published models, put together from the others: they print as what they are made of."""

from collections.abc import Sequence

from multihead.error import MultiheadError
from multihead.pattern.algebra import Pattern
from multihead.pattern.blocked import block_band, chunk, global_blocks
from multihead.pattern.check import whole
from multihead.pattern.drawn import random_blocks
from multihead.pattern.heads import per_head
from multihead.pattern.places import global_tokens
from multihead.pattern.relative import band, causal, sliding_window
from multihead.pattern.spaced import every, keys_every


def strided(stride: int, *, heads: int | None = None) -> Pattern:
    """Strided sparse attention: the last `stride` keys, and every `stride`-th one before (Child et al. 2019).

    A: 0 <= query - key < stride. B: key <= query and (query - key) mod stride == 0 (arXiv 1904.10509, section 4.2).
    Any key reaches any later query in two steps, one in B and then one in A; with stride near the square root of the
    length a row sees about twice as many keys. A alone skips most tiles. B skips hardly any on a machine that works in
    tiles: the promised cost needs the sequence in another order, in which heads of their own (but not the merged one)
    are put where gradients are asked for.

    Args:
        stride: The step, at least 1.
        heads: None gives each head A | B, the paper's merged head. A number gives heads of their own, A on heads 0, 2,
            ..., B on heads 1, 3, ...

    Raises:
        MultiheadError: `stride` is no whole number of at least 1, or there are fewer than 2 heads.

    Example:
        >>> print(strided(3).draw(7, 7))
        causal & every(3) | sliding_window(3): queries 0..6 down, keys 0..6 across
        █ inside  · outside
        0 █······
        1 ██·····
        2 ███····
        3 ████···
        4 ·████··
        5 ··████·
        6 █··████
    """
    step = whole(stride, asked="strided(stride): the step between keys, at least 1", least=1)
    near, far = sliding_window(step), causal() & every(step)
    if heads is None:
        return far | near
    return per_head([far if head % 2 else near for head in range(_two_kinds(heads, form="strided"))])


def fixed(block: int, summary: int, *, subset: int = 0, heads: int | None = None) -> Pattern:
    """Fixed sparse attention: the block of the query, and the last columns of all blocks before it (Child et al. 2019).

    A: floor(query / block) == floor(key / block). B: key mod block >= block - summary. Both: key <= query (arXiv
    1904.10509, section 4.2). The last `summary` positions of a block sum it up for all later ones: any key reaches any
    later query in two steps, one in A and then one in B. A row sees up to block + n summary / block keys. A alone skips
    most tiles; B skips those between its columns, where a block is larger than a tile.

    Args:
        block: Positions in a block, at least 1.
        summary: Columns that sum up a block, 1 to `block`.
        subset: Which run of `summary` columns, counted from the end of the block and round again: the paper gives heads
            different ones. Only those of 0 sum up their whole block.
        heads: None gives each head A | B, the paper's merged head; for a subset each write `per_head([fixed(block,
            summary, subset=h) for h in range(heads)])`. A number gives heads of their own, A on heads 0, 2, ..., B on
            heads 1, 3, ..., with the subsets subset, subset + 1, ...

    Raises:
        MultiheadError: A number is not whole or out of bounds, or there are fewer than 2 heads.

    Example:
        >>> print(fixed(3, 1).draw(7, 7))
        causal & (chunk(3) | keys_every(3, 2, 1)): queries 0..6 down, keys 0..6 across
        █ inside  · outside
        0 █······
        1 ██·····
        2 ███····
        3 ··██···
        4 ··███··
        5 ··████·
        6 ··█··██
    """
    size = whole(block, asked="fixed(block, summary): positions in a block, at least 1", least=1)
    columns = whole(summary, asked="fixed(block, summary): columns that sum up a block, at least 1", least=1)
    run = whole(subset, asked="fixed(block, summary, subset=...): which run of columns, from 0", least=0)
    if columns > size:
        raise MultiheadError(
            asked=f"fixed(block, summary): at most block={size} columns that sum up a block",
            arrived=f"summary={columns}",
            remedy=f"pass a summary from 1 to {size}",
        )

    def sums(which: int) -> Pattern:
        return keys_every(size, size - (1 + which % (size // columns)) * columns, columns)

    if heads is None:
        return causal() & (chunk(size) | sums(run))
    count = _two_kinds(heads, form="fixed")
    return causal() & per_head([sums(run + head // 2) if head % 2 else chunk(size) for head in range(count)])


def longformer(window: int, positions: Sequence[int] = ()) -> Pattern:
    """The mask of Longformer: a window on both sides, and global tokens (Beltagy et al. 2020, arXiv 2004.05150).

    |query - key| <= window / 2, or the query or the key is global: `band(window // 2, window // 2) |
    global_tokens(positions)`. Longformer projects its global queries, and what they look at, by weights of their own:
    that is the layer's part, the pattern says who sees whom. A row sees window + 1 keys and the global ones; tiles
    outside of the band are skipped but for the global rows and columns.

    Args:
        window: Keys on both sides together, the query's own besides; even: `attention_window` of transformers.
        positions: Global tokens, from 0.

    Raises:
        MultiheadError: The window is odd, or a number is negative or not whole.

    Example:
        >>> print(longformer(2, [0]).draw(5, 5))
        band(1, 1) | global_tokens([0]): queries 0..4 down, keys 0..4 across
        █ inside  · outside
        0 █████
        1 ███··
        2 ████·
        3 █·███
        4 █··██
    """
    width = whole(
        window,
        asked="longformer(window, positions): keys on both sides together, the query's own besides, at least 0",
        least=0,
    )
    if width % 2:
        raise MultiheadError(
            asked="longformer(window, positions): an even window, half of it on each side",
            arrived=f"window={width}",
            remedy=f"pass {width - 1} or {width + 1}, or write band(before, after) | global_tokens(positions)",
        )
    return band(width // 2, width // 2) | global_tokens(positions)


def bigbird(size: int, random: int, *, length: int, seed: int, heads: int | None = None) -> Pattern:
    """The mask of Big Bird, in blocks: three around the query, the first and last for everyone, and some at random.

    `block_band(size, 1, 1) | global_blocks(size, [0, last]) | random_blocks(size, random, ...)` (Zaheer et al. 2020,
    arXiv 2007.14062, appendix D). The random blocks are others than the three and the two, so that a row in the middle
    sees (5 + random) size keys, and no key twice; the first and the last block see everything. Tiles of other blocks
    are skipped.

    Args:
        size: Positions in a block, at least 1.
        random: Random blocks of a row of blocks.
        length: Positions of the whole sequence: it says which block is the last.
        seed: Of the random blocks (see `random_blocks`); the same on every machine.
        heads: None gives all heads the same random blocks. A number gives head h those of seed + h.

    Raises:
        MultiheadError: A number is not whole or out of bounds.

    Example:
        >>> p = bigbird(1, 1, length=8, seed=3)
        >>> print(p)
        block_band(1, 1, 1) | global_blocks(1, [0, 7]) | random_blocks(1, 1, 3, 1, 1, 8)
        >>> for row in p.mask(8, 8)[0, 0].int().tolist():
        ...     print(*row)
        1 1 1 1 1 1 1 1
        1 1 1 1 0 0 0 1
        1 1 1 1 0 0 1 1
        1 0 1 1 1 1 0 1
        1 1 0 1 1 1 0 1
        1 1 0 0 1 1 1 1
        1 0 0 0 1 1 1 1
        1 1 1 1 1 1 1 1
    """
    positions = whole(size, asked="bigbird(size, random): positions in a block, at least 1", least=1)
    end = whole(length, asked="bigbird(size, random, length=...): positions of the sequence, at least 1", least=1)
    key = whole(seed, asked="bigbird(size, random, seed=...): a whole number from 0", least=0)

    def picks(head: int) -> Pattern:
        return random_blocks(positions, random, seed=key + head, length=end, near=1, ends=1)

    seen = block_band(positions, 1, 1) | global_blocks(positions, [0, (end - 1) // positions])
    if heads is None:
        return seen | picks(0)
    count = whole(heads, asked="bigbird(size, random, heads=...): the number of heads, at least 1", least=1)
    return seen | per_head([picks(head) for head in range(count)])


def _two_kinds(heads: int, *, form: str) -> int:
    """The number of heads, of which some have one part and some the other."""
    return whole(heads, asked=f"{form}(..., heads=...): heads of two kinds, at least 2 of them", least=2)
