"""Random patterns in closed form, with their rules: whatever is asked of them, positions before the first one too."""

import itertools

import hypothesis.strategies as st
import torch

from laws.known import Known
from multihead import pattern as mp
from pattern.slow import in_grid_window, neighbour, random_block, random_pair

_NAMES = itertools.count()


def spaced():
    """What comes back at equal steps."""
    step, few = st.integers(1, 6), st.integers(1, 4)

    def dilated(w, r):
        return Known(lambda: mp.dilated(w, r), lambda b, h, i, j: i - j in range(0, w * r, r))

    def columns(period, first, count):
        runs = [place % period for place in range(first, first + count)]
        return Known(lambda: mp.keys_every(period, first, count), lambda b, h, i, j: j % period in runs)

    return st.one_of(
        step.map(lambda s: Known(lambda: mp.every(s), lambda b, h, i, j: (i - j) % s == 0)),
        st.builds(dilated, few, step),
        st.tuples(st.integers(4, 9), st.integers(-5, 20), few).map(lambda drawn: columns(*drawn)),
    )


def blocked():
    """Blocks of neighbours."""
    size, few = st.integers(1, 6), st.integers(0, 2)

    def banded(s, before, after):
        return Known(lambda: mp.block_band(s, before, after), lambda b, h, i, j: -after <= i // s - j // s <= before)

    def listed(s, blocks):
        return Known(lambda: mp.global_blocks(s, blocks), lambda b, h, i, j: i // s in blocks or j // s in blocks)

    return st.one_of(
        size.map(lambda s: Known(lambda: mp.chunk(s), lambda b, h, i, j: i // s == j // s)),
        st.builds(banded, size, few, few),
        st.builds(listed, size, st.lists(st.integers(0, 5), max_size=3)),
    )


def pictures():
    """Places of a picture."""

    def around(factory, rule, sides, kernel, dilation):
        height, width = (side + kernel * dilation - 1 for side in sides)
        sizes = (height, width, kernel)
        return Known(
            lambda: factory(*sizes, dilation=dilation), lambda b, h, i, j: rule(i, j, height, width, kernel, dilation)
        )

    kinds = st.sampled_from([(mp.neighbourhood, neighbour), (mp.grid_window, in_grid_window)])
    sides, kernel = st.tuples(st.integers(1, 3), st.integers(1, 3)), st.sampled_from([1, 3])
    return st.builds(lambda kind, s, k, d: around(*kind, s, k, d), kinds, sides, kernel, st.integers(1, 2))


def seeded():
    """What is drawn by a seed."""
    seeds, few = st.integers(0, 2**40), st.integers(0, 2)

    def blocks(size, per_row, seed, length, near, ends):
        asked = (size, per_row, seed, length, near, ends)
        return Known(
            lambda: mp.random_blocks(size, per_row, seed=seed, length=length, near=near, ends=ends),
            lambda b, h, i, j: random_block(i, j, *asked),
        )

    return st.one_of(
        st.builds(
            lambda share, seed: Known(
                lambda: mp.random_pairs(share, seed=seed), lambda b, h, i, j: random_pair(share, seed, i, j)
            ),
            st.floats(0, 1),
            seeds,
        ),
        st.builds(blocks, st.integers(1, 4), few, seeds, st.none() | st.integers(1, 30), few, few),
    )


def opaque(rows, heads):
    """Functions, some of them another one for each row and head."""

    def rowless(most):
        name = f"rule{next(_NAMES)}"
        return Known(
            lambda: mp.from_callable(lambda q, k: (q * 7 + k * 5) % 11 < most, name=name),
            lambda b, h, i, j: (i * 7 + j * 5) % 11 < most,
        )

    def by_place(most):
        name = f"rule{next(_NAMES)}"

        def make():
            each = 3 * torch.arange(rows or 1).view(-1, 1, 1, 1) + torch.arange(heads or 1).view(-1, 1, 1)
            return mp.from_callable(lambda q, k: (q + 2 * k + each) % 7 < most, name=name, batch=rows, heads=heads)

        def rule(b, h, i, j):
            place = (3 * b if rows is not None else 0) + (h if heads is not None else 0)
            return (i + 2 * j + place) % 7 < most

        return Known(make, rule)

    return st.one_of(st.integers(0, 11).map(rowless), st.integers(0, 7).map(by_place))
