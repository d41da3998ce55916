"""Random patterns with their meaning: each comes with a plain Python rule that shares no code with the library."""

from dataclasses import dataclass
from functools import cache

import hypothesis.strategies as st
import torch

from laws.closed import blocked, opaque, pictures, seeded, spaced
from laws.known import Known
from multihead import pattern as mp
from multihead.attend.selector import Chosen

# Ids are long enough for every position the tests ask about, behind every shift a tree can pile up.
ROOM = 96
LONGEST = 14
SHIFT = 2


@dataclass(frozen=True)
class World:
    """The sizes that all parts of one random pattern share."""

    batch: int | None
    heads: int | None


def worlds():
    return st.builds(World, batch=st.sampled_from([None, 1, 2]), heads=st.sampled_from([None, None, 1, 3]))


@st.composite
def lengths(draw):
    """(q_len, kv_len, q_offset)."""
    return draw(st.integers(1, LONGEST)), draw(st.integers(1, LONGEST)), draw(st.integers(0, LONGEST))


@cache
def closed():
    """Patterns without tensors: what can be asked at negative positions too."""
    return st.one_of(relative(), spaced(), blocked(), pictures(), seeded())


def relative():
    """Patterns of the distance and the prefix."""
    small = st.integers(0, 6)
    return st.one_of(
        st.just(Known(lambda: mp.everything(), lambda b, h, i, j: True)),
        st.just(Known(lambda: mp.nothing(), lambda b, h, i, j: False)),
        st.just(Known(lambda: mp.causal(), lambda b, h, i, j: j <= i)),
        st.integers(1, 9).map(lambda w: Known(lambda: mp.sliding_window(w), lambda b, h, i, j: i - w < j <= i)),
        st.tuples(small, small).map(
            lambda s: Known(lambda: mp.band(*s), lambda b, h, i, j: j in range(i - s[0], i + s[1] + 1))
        ),
        small.map(lambda n: Known(lambda: mp.prefix(n), lambda b, h, i, j: j < n or j <= i)),
        st.integers(-6, 6).map(lambda d: Known(lambda: mp.distance(d), lambda b, h, i, j: i - j == d)),
    )


def placed(world):
    """Patterns of listed positions."""
    spots = st.lists(st.integers(0, 2 * LONGEST), max_size=6)
    arcs = st.lists(st.tuples(st.integers(0, 2 * LONGEST), st.integers(0, LONGEST)), max_size=12)
    flat = arcs.map(lambda a: Known(lambda: mp.pairs(a), lambda b, h, i, j: (i, j) in a))
    each = [
        spots.map(lambda s: Known(lambda: mp.global_tokens(s), lambda b, h, i, j: i in s or j in s)),
        spots.map(lambda s: Known(lambda: mp.keys_at(s), lambda b, h, i, j: j in s)),
        flat,
    ]
    if world.batch is not None:
        rows = st.lists(arcs, min_size=world.batch, max_size=world.batch)
        each.append(rows.map(lambda r: Known(lambda: mp.pairs(r), lambda b, h, i, j: (i, j) in r[b])))
    return st.one_of(each)


def token_rows(world, kinds):
    """Ids per row, of few kinds and often in runs, with the tensor the factories take."""

    def make(drawn, run):
        rows = [drawn[b * ROOM : (b + 1) * ROOM] for b in range(world.batch or 1)]
        return [[row[place // run] % kinds for place in range(ROOM)] for row in rows]

    size = ROOM * (world.batch or 1)
    return st.builds(make, st.binary(min_size=size, max_size=size), st.sampled_from([1, 1, 3, 5]))


def tensor(world, rows):
    return torch.tensor(rows if world.batch is not None else rows[0])


def tokened(world):
    """Patterns of what stands at a position."""

    def row(rows, b):
        return rows[b if world.batch is not None else 0]

    def document(t):
        return Known(lambda: mp.document(tensor(world, t)), lambda b, h, i, j: row(t, b)[i] == row(t, b)[j])

    def crossed(t, u):
        return Known(
            lambda: mp.document(tensor(world, t), keys=tensor(world, u)),
            lambda b, h, i, j: row(t, b)[i] == row(u, b)[j],
        )

    def same(t):
        return Known(
            lambda: mp.same_token(tensor(world, t)), lambda b, h, i, j: i != j and row(t, b)[i] == row(t, b)[j]
        )

    def after(t):
        return Known(
            lambda: mp.after_same_token(tensor(world, t)),
            lambda b, h, i, j: j > 0 and j - 1 != i and row(t, b)[j - 1] == row(t, b)[i],
        )

    def padding(t):
        return Known(lambda: mp.padding(tensor(world, t).bool()), lambda b, h, i, j: row(t, b)[j] != 0)

    some = token_rows(world, 4)
    return st.one_of(
        some.map(document), st.builds(crossed, some, some), some.map(same), some.map(after), some.map(padding)
    )


def picked(batch, heads):
    """Choices of blocks, or of single keys, for every position the tests ask about."""

    def known(bits, block, span):
        sizes = (batch or 1, heads or 1, -(-ROOM // span), -(-ROOM // block))

        def taken(b, h, row, column):
            place = 31 * (b if batch is not None else 0) + 17 * (h if heads is not None else 0) + 7 * row + column
            return bits[place % len(bits)]

        def make():
            b, h, row, column = torch.meshgrid(*map(torch.arange, sizes), indexing="ij")
            table = torch.tensor(bits)[(31 * b + 17 * h + 7 * row + column) % len(bits)]
            return Chosen.from_blocks(table, block=block, kv_len=ROOM, span=span, q_len=ROOM)

        return Known(make, lambda b, h, i, j: taken(b, h, i // span, j // block))

    bits = st.lists(st.booleans(), min_size=29, max_size=29)
    return st.builds(known, bits, st.sampled_from([1, 3, 8, 64]), st.sampled_from([1, 1, 5]))


def grown(leaves, shifts):
    """Trees over leaves: &, |, ~ and shifts of the queries, of the keys, and of both alike."""

    def joined(a, b, both):
        if both:
            return Known(lambda: a.pattern & b.pattern, lambda *p: a.rule(*p) and b.rule(*p))
        return Known(lambda: a.pattern | b.pattern, lambda *p: a.rule(*p) or b.rule(*p))

    def turned(a):
        return Known(lambda: ~a.pattern, lambda *p: not a.rule(*p))

    def moved(a, shift):
        s, t = shift
        return Known(lambda: a.pattern.at(q_offset=s, k_offset=t), lambda b, h, i, j: a.rule(b, h, i + s, j + t))

    both = st.one_of(shifts.map(lambda s: (s, 0)), shifts.map(lambda s: (s, s)), st.tuples(shifts, shifts))

    def larger(part):
        return st.one_of(st.builds(joined, part, part, st.booleans()), part.map(turned), st.builds(moved, part, both))

    return st.recursive(leaves, larger, max_leaves=6)


@st.composite
def known_patterns(draw, *, callables=True):
    """(Known, World): any pattern the factories and the algebra can make.

    Args:
        draw: From hypothesis.
        callables: Functions too, which have no text.
    """
    world = draw(worlds())
    return draw(trees(world, callables)), world


@cache
def trees(world, callables):
    """Patterns for these sizes; made once, since making a strategy takes longer than drawing from it."""
    shifts = st.integers(0, SHIFT)

    def leaves(heads):
        functions = opaque(world.batch, heads)
        return st.one_of(
            closed(), closed(), placed(world), tokened(world), picked(world.batch, heads), *([functions] * callables)
        )

    if world.heads is None:
        return grown(leaves(None), shifts)
    each = st.lists(grown(leaves(None), shifts), min_size=world.heads, max_size=world.heads)
    return grown(st.one_of(leaves(world.heads), each.map(by_head)), shifts)


def by_head(parts):
    return Known(lambda: mp.per_head([part.pattern for part in parts]), lambda b, h, i, j: parts[h].rule(b, h, i, j))


@cache
def closed_patterns():
    """Trees of patterns without tensors, shifted either way."""
    return grown(closed(), st.integers(-4, 4))


@st.composite
def edges(draw, start=0):
    """Increasing positions: the edges of some tiles."""
    steps = draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    found = [start + draw(st.integers(0, 4))]
    for step in steps:
        found.append(found[-1] + step)
    return found


def slow_mask(known, world, q_len, kv_len, q_offset):
    """The mask by three loops, at the sizes the world states."""
    return torch.tensor(
        [
            [
                [[known.rule(b, h, i, j) for j in range(kv_len)] for i in range(q_offset, q_offset + q_len)]
                for h in range(world.heads or 1)
            ]
            for b in range(world.batch or 1)
        ]
    )
