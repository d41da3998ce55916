import pytest
import torch

from multihead.error import MultiheadError
from multihead.pattern import Tile, global_tokens, grid_window, neighbourhood
from pattern.slow import in_grid_window, neighbour

PICTURES = [(3, 3, 3, 1), (4, 6, 3, 1), (7, 5, 5, 1), (1, 1, 1, 1), (5, 8, 1, 2), (6, 7, 3, 2), (9, 11, 3, 3)]
KINDS = [(neighbourhood, neighbour), (grid_window, in_grid_window)]


@pytest.mark.parametrize(("factory", "inside"), KINDS)
@pytest.mark.parametrize("picture", PICTURES)
def test_mask_is_the_double_loop(factory, inside, picture):
    height, width, kernel, dilation = picture
    size = height * width
    mask = factory(height, width, kernel, dilation=dilation).mask(size + 4, size + 2, q_offset=-2)
    slow = [[inside(i, j, *picture) for j in range(size + 2)] for i in range(-2, size + 2)]
    assert mask[0, 0].tolist() == slow


@pytest.mark.parametrize("picture", PICTURES)
def test_every_place_of_a_neighbourhood_sees_as_many(picture):
    height, width, kernel, dilation = picture
    seen = neighbourhood(height, width, kernel, dilation=dilation).mask(height * width, height * width).sum(-1)
    assert seen.unique().tolist() == [kernel * kernel]


def test_a_window_is_that_of_a_convolution():
    """Where it is 0 in a convolution with ones, padded with zeros, no pair is inside."""
    height, width, kernel, dilation = 6, 7, 3, 2
    places = torch.eye(height * width).view(-1, 1, height, width)
    seen = torch.conv2d(places, torch.ones(1, 1, kernel, kernel), padding="same", dilation=dilation)
    mask = grid_window(height, width, kernel, dilation=dilation).mask(height * width, height * width)
    assert mask[0, 0].equal(seen.flatten(1) > 0.5)


@pytest.mark.parametrize("factory", [neighbourhood, grid_window])
@pytest.mark.parametrize("picture", [(5, 6, 3, 1), (6, 7, 3, 2)])
@pytest.mark.parametrize("length", [1, 2, 3, 7])
def test_tile_classes_are_sound(factory, picture, length):
    height, width, kernel, dilation = picture
    pattern, size = factory(height, width, kernel, dilation=dilation), height * width
    for top, left in [(0, 0), (-2, 1), (3, -1)]:
        rows, cols = (torch.arange(start, size + 9, length) for start in (top, left))
        q, k = torch.arange(int(rows[0]), int(rows[-1])), torch.arange(int(cols[0]), int(cols[-1]))
        tiles = pattern.allows(q, k)[0, 0].unflatten(1, (-1, length)).unflatten(0, (-1, length))
        some, whole = tiles.any(3).any(1), tiles.all(3).all(1)
        classes = pattern.tiles(rows, cols)[0, 0]
        assert not (some & (classes == Tile.SKIP)).any()
        assert not (~whole & (classes == Tile.FULL)).any()
        # Within one row of the picture the class is exact where there are no gaps.
        alone_q, alone_k = (
            (edges[:-1] // width == (edges[1:] - 1) // width) & (edges[:-1] >= 0) & (edges[1:] <= size)
            for edges in (rows, cols)
        )
        alone = alone_q[:, None] & alone_k
        if dilation == 1:
            assert ((classes == Tile.SKIP) == ~some)[alone].all()
            assert ((classes == Tile.FULL) == whole)[alone].all()


@pytest.mark.parametrize("factory", [neighbourhood, grid_window])
@pytest.mark.parametrize("picture", [(5, 6, 3, 1), (9, 9, 3, 2), (8, 7, 1, 3)])
def test_rows_too_far_away_are_skipped(factory, picture):
    height, width, kernel, dilation = picture
    pattern = factory(height, width, kernel, dilation=dilation)
    rows = torch.arange(0, height * width + 1, width)
    seen = pattern.mask(height * width, height * width)[0, 0].view(height, width, height, width).any(3).any(1)
    assert (pattern.tiles(rows, rows)[0, 0] == Tile.SKIP).equal(~seen)
    assert not seen.all()


@pytest.mark.parametrize("pattern", [neighbourhood(3, 3, 3), grid_window(3, 3, 5)], ids=str)
def test_tiles_that_stick_out_of_the_picture_are_not_full(pattern):
    assert pattern.tile(range(3, 6), range(3, 6)) == Tile.FULL
    for rows, cols in [((8, 10), (4, 5)), ((4, 5), (8, 10)), ((-1, 1), (0, 1)), ((0, 1), (-1, 1))]:
        assert pattern.tile(range(*rows), range(*cols)) != Tile.FULL
    assert pattern.tile(range(9, 12), range(4, 5)) == Tile.SKIP
    assert pattern.tile(range(4, 5), range(-3, 0)) == Tile.SKIP


def test_a_class_token_in_front():
    pattern = neighbourhood(3, 3, 3).at(q_offset=-1, k_offset=-1) | global_tokens([0])
    mask = pattern.mask(10, 10)[0, 0]
    assert mask[0].all()
    assert mask[:, 0].all()
    assert mask[1:, 1:].equal(neighbourhood(3, 3, 3).mask(9, 9)[0, 0])


@pytest.mark.parametrize("factory", [neighbourhood, grid_window])
def test_reach_holds(factory):
    left, right = factory(5, 6, 3, dilation=1).reach
    i, j = factory(5, 6, 3).mask(30, 30)[0, 0].nonzero().T
    assert (i - j).max() == left
    assert (j - i).max() == right


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: neighbourhood(0, 4, 1), ("height: rows of the picture", "got: 0")),
        (lambda: neighbourhood(4, -4, 1), ("width: places in a row", "got: -4")),
        (lambda: grid_window(4, 4, 0), ("kernel: side of the window", "got: 0")),
        (lambda: grid_window(4, 4, 3, dilation=0), ("dilation: the step", "got: 0")),
        (lambda: grid_window(4, 4, 2), ("an odd kernel", "got: kernel=2", "pass 1 or 3")),
        (lambda: neighbourhood(9, 4, 5), ("= 5 places that fits", "height=9, width=4", "at most 4", "grid_window")),
        (lambda: neighbourhood(9, 5, 3, dilation=2), ("= 6 places that fits", "at most 2")),
        (lambda: grid_window(2**30, 2**30, 1), ("height * width places", "2**40")),
        (lambda: grid_window(1, 2**20, 2**21 + 1), ("kernel * dilation * (width + 1)", "2**40")),
    ],
)
def test_numbers_out_of_bounds_say_so(make, told):
    with pytest.raises(MultiheadError) as error:
        make()
    for words in told:
        assert words in str(error.value)
