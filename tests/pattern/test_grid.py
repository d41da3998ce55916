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
def test_tile_classes_are_sound_and_skip_far_rows(factory, picture):
    height, width, kernel, dilation = picture
    pattern = factory(height, width, kernel, dilation=dilation)
    size = height * width
    mask = pattern.mask(size + 3, size + 3)[0, 0]
    for length in (1, 2, width + 1):
        for top in range(0, size + 3 - length, 3):
            for left in range(0, size + 3 - length, 2):
                part = mask[top : top + length, left : left + length]
                told = pattern.tile(range(top, top + length), range(left, left + length)).item()
                assert told != Tile.FULL or part.all()
                assert told != Tile.SKIP or not part.any()
                # Within one row of the picture the class is exact where there are no gaps.
                ends = [(start // width, (start + length - 1) // width) for start in (top, left)]
                if dilation == 1 and all(first == last < height for first, last in ends):
                    assert (told == Tile.SKIP) == (not part.any())
                    assert (told == Tile.FULL) == bool(part.all())
    rows = torch.arange(0, size + 1, width)
    skipped = pattern.tiles(rows, rows)[0, 0] == Tile.SKIP
    seen = torch.stack([torch.stack([mask[a : a + width, b : b + width].any() for b in rows[:-1]]) for a in rows[:-1]])
    assert skipped.equal(~seen)
    assert skipped.any()


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
