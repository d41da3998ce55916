"""The algebra of patterns, judged by rules in plain Python that the random patterns carry with them."""

import copy

import hypothesis.strategies as st
import torch
from hypothesis import given

from laws.strategies import closed_patterns, edges, known_patterns, lengths, slow_mask
from multihead.pattern import Tile, lower, parse_pattern, sliding_window


def expanded(mask, world):
    return mask.expand(world.batch or 1, world.heads or 1, *mask.shape[2:])


@given(known_patterns(), lengths())
def test_a_pattern_means_what_its_parts_mean(drawn, sizes):
    known, world = drawn
    q_len, kv_len, q_offset = sizes
    mask = known.pattern.mask(q_len, kv_len, q_offset=q_offset)
    assert known.pattern.batch in (None, world.batch)
    assert known.pattern.heads in (None, world.heads)
    assert mask.shape == (known.pattern.batch or 1, known.pattern.heads or 1, q_len, kv_len)
    assert expanded(mask, world).equal(slow_mask(known, world, q_len, kv_len, q_offset))


@given(closed_patterns(), st.integers(-9, 9))
def test_shifts_may_leave_the_sequence_where_nothing_is_looked_up(known, q_offset):
    mask = known.pattern.mask(5, 7, q_offset=q_offset)
    slow = [[known.rule(0, 0, i, j) for j in range(7)] for i in range(q_offset, q_offset + 5)]
    assert mask[0, 0].tolist() == slow


@given(known_patterns(), st.data(), lengths())
def test_de_morgan(drawn, data, sizes):
    (p, world), (q_len, kv_len, q_offset) = (drawn[0].pattern, drawn[1]), sizes
    q = data.draw(closed_patterns()).pattern
    at = {"q_len": q_len, "kv_len": kv_len, "q_offset": q_offset}
    assert (~(p & q)).mask(**at).equal((~p | ~q).mask(**at).expand_as((p & q).mask(**at)))
    assert expanded((~(p | q)).mask(**at), world).equal(expanded((~p & ~q).mask(**at), world))
    assert (~~p).mask(**at).equal(p.mask(**at))


@given(known_patterns())
def test_text_reads_back_as_the_same_pattern(drawn):
    pattern = drawn[0].pattern
    read = parse_pattern(str(pattern), pattern.data)
    assert read == pattern
    assert hash(read) == hash(pattern)
    assert str(read) == str(pattern)
    assert (read.batch, read.heads, read.positional) == (pattern.batch, pattern.heads, pattern.positional)


@given(known_patterns(), st.data())
def test_order_does_not_matter_to_equality(drawn, data):
    p, q = drawn[0].pattern, data.draw(closed_patterns()).pattern
    assert p & q == q & p
    assert hash(p & q) == hash(q & p)
    assert p | q == q | p
    assert hash(p | q) == hash(q | p)
    assert copy.deepcopy(p) == p


@given(known_patterns(), edges(), edges())
def test_tile_classes_are_sound(drawn, rows, cols):
    known, world = drawn
    classes = known.pattern.tiles(torch.tensor(rows), torch.tensor(cols))
    for s, t in torch.cartesian_prod(torch.arange(len(rows) - 1), torch.arange(len(cols) - 1)).tolist():
        tile = (range(rows[s], rows[s + 1]), range(cols[t], cols[t + 1]))
        one = known.pattern.tile(*tile)
        assert one.equal(classes[:, :, s, t])
        for b, h in torch.cartesian_prod(torch.arange(world.batch or 1), torch.arange(world.heads or 1)).tolist():
            found = [known.rule(b, h, i, j) for i in tile[0] for j in tile[1]]
            told = one[min(b, one.shape[0] - 1), min(h, one.shape[1] - 1)]
            assert told != Tile.SKIP or not any(found)
            assert told != Tile.FULL or all(found)


@given(known_patterns(), st.data(), lengths())
def test_joined_masks_are_masks_joined(drawn, data, sizes):
    (p, world), (q_len, kv_len, q_offset) = (drawn[0].pattern, drawn[1]), sizes
    q = data.draw(closed_patterns()).pattern
    at = {"q_len": q_len, "kv_len": kv_len, "q_offset": q_offset}
    one, two = expanded(p.mask(**at), world), expanded(q.mask(**at), world)
    assert expanded((p & q).mask(**at), world).equal(one & two)
    assert expanded((p | q).mask(**at), world).equal(one | two)
    assert expanded((~p).mask(**at), world).equal(~one)


@given(known_patterns(), lengths(), st.integers(1, 9))
def test_a_tile_map_is_the_mask_exactly(drawn, sizes, block):
    known, world = drawn
    q_len, kv_len, q_offset = sizes
    tiles = lower(known.pattern, q_len, kv_len, block=block, q_offset=q_offset)
    slow = slow_mask(known, world, q_len, kv_len, q_offset)
    assert expanded(tiles.mask(), world).equal(slow)
    for s, t in torch.cartesian_prod(*(torch.arange(size) for size in tiles.classes.shape[2:])).tolist():
        part = slow[..., s * block : (s + 1) * block, t * block : (t + 1) * block].flatten(2)
        exact = torch.where(part.all(-1), Tile.FULL, torch.where(part.any(-1), Tile.PARTIAL, Tile.SKIP))
        assert expanded(tiles.classes, world)[:, :, s, t].equal(exact.to(torch.int8))
    assert len(tiles.bits.unique(dim=0)) == len(tiles.bits) if len(tiles.bits) else (tiles.index == -1).all()
    assert (tiles.index >= 0).equal(tiles.classes == Tile.PARTIAL)


SHIFTS = st.tuples(st.integers(0, 3), st.integers(0, 3))


@given(known_patterns(), SHIFTS, SHIFTS, lengths())
def test_shifts_add_up(drawn, first, second, sizes):
    pattern, (q_len, kv_len, q_offset) = drawn[0].pattern, sizes
    q, k = (sum(shift) for shift in zip(first, second, strict=True))
    twice = pattern.at(q_offset=first[0], k_offset=first[1]).at(q_offset=second[0], k_offset=second[1])
    assert twice == pattern.at(q_offset=q, k_offset=k)
    assert twice == pattern.at(k_offset=k).at(q_offset=q)
    assert twice.at(q_offset=-q, k_offset=-k) == pattern
    assert twice.mask(q_len, kv_len, q_offset=q_offset).equal(
        pattern.mask(q_len, kv_len + k, q_offset=q_offset + q)[..., k:]
    )
    if not pattern.positional:
        assert pattern.at(q_offset=q) is pattern


@given(known_patterns(), st.integers(0, 12), lengths())
def test_both_positions_shifted_see_the_rest_of_the_sequence(drawn, first, sizes):
    """What a cache that begins at `first` needs; of the distance alone nothing changes."""
    pattern, (q_len, kv_len, q_offset) = drawn[0].pattern, sizes
    moved = pattern.at(q_offset=first, k_offset=first)
    whole = pattern.mask(q_len, first + kv_len, q_offset=first + q_offset)
    assert moved.mask(q_len, kv_len, q_offset=q_offset).equal(whole[..., first:])
    assert (moved.batch, moved.heads, moved.positional) == (pattern.batch, pattern.heads, pattern.positional)
    assert (moved.reach, moved.window, moved.period) == (pattern.reach, pattern.window, pattern.period)
    if pattern.period is not None:
        steps = first * pattern.period
        assert pattern.at(q_offset=steps, k_offset=steps) == pattern


@given(known_patterns(), lengths())
def test_a_period_changes_nothing(drawn, sizes):
    pattern, (q_len, kv_len, q_offset) = drawn[0].pattern, sizes
    if pattern.period is not None:
        at = torch.arange(q_offset, q_offset + q_len), torch.arange(kv_len)
        assert pattern.allows(*at).equal(pattern.allows(*(side + pattern.period for side in at)))


@given(known_patterns(), lengths())
def test_a_pattern_without_positions_treats_all_queries_alike(drawn, sizes):
    pattern, (q_len, kv_len, q_offset) = drawn[0].pattern, sizes
    if not pattern.positional:
        mask = pattern.mask(q_len, kv_len, q_offset=q_offset)
        assert mask.equal(mask[:, :, :1].expand_as(mask))


@given(known_patterns(), lengths())
def test_reach_bounds_every_pair(drawn, sizes):
    known, world = drawn
    q_len, kv_len, q_offset = sizes
    left, right = known.pattern.reach
    inside = slow_mask(known, world, q_len, kv_len, q_offset).any(1).any(0)
    for i, j in inside.nonzero().tolist():
        assert left is None or i + q_offset - j <= left
        assert right is None or j - i - q_offset <= right


@given(closed_patterns(), st.integers(-9, 9))
def test_a_window_is_the_whole_truth(known, q_offset):
    window = known.pattern.window
    if window is None:
        return
    left, right = window
    for i in range(q_offset, q_offset + 9):
        for j in range(9):
            bounded = (left is None or i - j <= left) and (right is None or j - i <= right)
            assert known.rule(0, 0, i, j) is bounded


@given(known_patterns(), st.integers(0, 20), st.integers(0, 13), st.data())
def test_why_says_inside_exactly_where_it_is_inside(drawn, i, j, data):
    known, world = drawn
    b, h = (data.draw(st.integers(0, (size or 1) - 1)) for size in (world.batch, world.heads))
    told = known.pattern.why(i, j, batch=b, head=h)
    place, reason = told.split(": ", 1)
    assert place.endswith(f"query {i} -> key {j}")
    assert reason.split()[0] == ("inside" if known.rule(b, h, i, j) else "outside")


@given(known_patterns(), st.lists(st.lists(st.integers(0, 20), min_size=4, max_size=4), min_size=2, max_size=2))
def test_positions_may_differ_by_row(drawn, rows):
    known, world = drawn
    if world.batch == 1:
        return
    q_pos, k_pos = torch.tensor(rows), torch.arange(6)
    allowed = known.pattern.allows(q_pos, k_pos)
    assert allowed.shape == (2, known.pattern.heads or 1, 4, 6)
    for b, row in enumerate(rows):
        for h in range(world.heads or 1):
            slow = [[known.rule(b, h, i, j) for j in range(6)] for i in row]
            assert allowed[b, min(h, allowed.shape[1] - 1)].tolist() == slow


@given(st.integers(1, 12), st.integers(1, 12))
def test_a_sliding_window_shows_w_keys_once_there_are_so_many(w, length):
    seen = sliding_window(w).mask(length, length).sum(-1).flatten().tolist()
    assert seen == [min(i + 1, w) for i in range(length)]


@given(known_patterns())
def test_a_pattern_and_what_is_outside_it_leave_nothing(drawn):
    pattern = drawn[0].pattern
    none = pattern & ~pattern
    assert not none.mask(4, 5).any()
    assert (pattern | ~pattern).mask(4, 5).all()
    assert (none.batch, none.heads) == (pattern.batch, pattern.heads)
