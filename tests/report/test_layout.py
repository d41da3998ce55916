import re

import numpy as np
import pytest

from multihead.record import HeadAddress
from multihead.report.layout import TIERS, arrange, is_deep, style_pictures, style_sizes


def model(layers, heads, group=1, stacks=("",)):
    addresses = [HeadAddress(s, layer, head) for s in stacks for layer in range(layers) for head in range(heads)]
    return addresses, [a.head // group for a in addresses]


def sizes(stacks, shape=(32, 32)):
    """(width of the tier, thumbnail, gap and columns of the first stack) for each tier."""
    css = style_sizes(stacks, shape)
    size = [int(m) for m in re.findall(r"--c:(\d+)px", css)]
    found = re.findall(r"\.g0\{--g:(\d+)px;--n:(\d+)\}", css)
    return [(tier[2], c, int(g), int(n)) for tier, c, (g, n) in zip(TIERS, size, found, strict=True)]


@pytest.mark.parametrize(("layers", "heads"), [(6, 12), (30, 9), (1, 1), (12, 12), (80, 64), (3, 200), (32, 32)])
def test_a_band_of_heads_fits_the_page_at_every_width(layers, heads):
    for width, size, gap, columns in sizes(arrange(*model(layers, heads), maps=None)):
        assert 64 + columns * size + (columns - 1) * gap <= width
        assert size % 32 == 0


def test_the_longer_axis_runs_along_the_page():
    assert is_deep(arrange(*model(30, 9), maps=None))
    assert not is_deep(arrange(*model(6, 12), maps=None))


def test_heads_that_share_keys_and_values_stand_together():
    (stack,) = arrange(*model(2, 6, group=3), maps=None)
    assert stack.shared
    assert [[p.address for p in group] for group in stack.layers[1].groups] == [
        ["L1.H0", "L1.H1", "L1.H2"],
        ["L1.H3", "L1.H4", "L1.H5"],
    ]
    (plain,) = arrange(*model(2, 6), maps=None)
    assert not plain.shared
    assert len(plain.layers[0].groups) == 1


def test_stacks_keep_their_order_and_interleaved_layers_are_sorted_out():
    heads = [HeadAddress(s, layer, 0) for layer in (1, 0) for s in ("decoder", "cross")]
    stacks = arrange(heads, [0, 0, 0, 0], None)
    assert [(s.name, [layer.number for layer in s.layers]) for s in stacks] == [("decoder", [0, 1]), ("cross", [0, 1])]
    assert [layer.places()[0].index for layer in stacks[0].layers] == [2, 0]


def test_only_a_stack_that_never_looks_ahead_is_causal():
    heads, kv = model(1, 2, stacks=("encoder", "decoder"))
    maps = np.full((4, 4, 4), 0.25)
    maps[2:] = np.tril(maps[2:])
    assert [s.causal for s in arrange(heads, kv, maps)] == [False, True]


def test_a_grid_that_almost_fits_is_not_broken():
    """30 layers of 9 heads in a window of 1280 pixels: a gap of 3 instead of 4 keeps them in one band."""
    told = {room: (size, gap, columns) for room, size, gap, columns in sizes(arrange(*model(30, 9), maps=None))}
    assert told[1128] == (32, 3, 30)
    assert told[1280][2] == 30
    assert told[889][2] == 15


def test_layers_that_break_into_lines_stand_farther_apart():
    css = style_sizes(arrange(*model(6, 12), maps=None), (32, 32))
    broken = [int(n) < 12 for n in re.findall(r"--n:(\d+)\}", css)]
    apart = ["--between" in tier for tier in css.splitlines()]
    assert apart == broken
    assert True in broken
    assert False in broken


def test_there_is_one_picture_a_layer_and_one_rule_a_place():
    stacks = arrange(*model(3, 5), maps=np.full((15, 8, 8), 0.1))
    css = style_pictures(stacks, np.full((15, 8, 8), 0.1))
    assert len(re.findall(r"\.p\d+ i::after", css)) == 3
    assert re.findall(r"\.k(\d+) i", css) == ["1", "2", "3", "4"]
    assert style_pictures(stacks, None) == ""


def test_two_grids_stand_beside_each_other():
    stacks = arrange(*model(6, 12), maps=None)
    css = style_sizes(stacks, (32, 32), beside=2)
    size = [int(m) for m in re.findall(r"--c:(\d+)px", css)]
    found = re.findall(r"\.g0\{--g:(\d+)px;--n:(\d+)\}", css)
    for tier, c, (gap, n) in zip(TIERS, size, found, strict=True):
        room = (tier[2] - 44) // 2 if tier[0] >= 1001 else tier[2]
        assert 64 + int(n) * c + (int(n) - 1) * int(gap) <= room


def test_pictures_can_be_kept_to_one_of_two_grids():
    css = style_pictures(arrange(*model(1, 2), maps=None), np.full((2, 8, 8), 0.1), scope="#b-heads ")
    assert "#b-heads .p0 i::after" in css


def test_a_long_map_makes_a_long_thumbnail():
    css = style_sizes(arrange(*model(2, 3), maps=None), (16, 32))
    assert "--c:96px;--r:48px" in css
