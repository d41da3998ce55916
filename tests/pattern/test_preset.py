import pytest
import torch

from multihead.error import MultiheadError
from multihead.pattern import bigbird, fixed, global_tokens, longformer, parse_pattern, strided
from pattern.slow import picked_blocks


def causal_mask(inside, length):
    return [[inside(i, j) and j <= i for j in range(length)] for i in range(length)]


def last(i, j, stride):
    return i - j < stride


def multiple(i, j, stride):
    return (i - j) % stride == 0


def own_block(i, j, block):
    return i // block == j // block


def summed(j, block, columns):
    return j % block in columns


@pytest.mark.parametrize("stride", [1, 3, 4, 50])
def test_strided_is_the_double_loop(stride):
    merged = strided(stride)
    assert merged.heads is None
    assert merged.mask(17, 17)[0, 0].tolist() == causal_mask(
        lambda i, j: last(i, j, stride) or multiple(i, j, stride), 17
    )
    apart = strided(stride, heads=3).mask(17, 17)[0]
    for head, kind in enumerate([last, multiple, last]):
        assert apart[head].tolist() == causal_mask(lambda i, j, kind=kind: kind(i, j, stride), 17)


def columns(block, summary, subset):
    """OpenAI's own rule: run h of the summary columns begins 1 + h mod (block / summary) runs before the block ends."""
    start = block - (1 + subset % (block // summary)) * summary
    return range(start, start + summary)


@pytest.mark.parametrize(("block", "summary"), [(1, 1), (3, 1), (6, 2), (5, 2), (4, 4)])
def test_fixed_is_the_double_loop(block, summary):
    for subset in (0, 1, 5):
        listed = columns(block, summary, subset)
        slow = causal_mask(lambda i, j, listed=listed: own_block(i, j, block) or summed(j, block, listed), 17)
        assert fixed(block, summary, subset=subset).mask(17, 17)[0, 0].tolist() == slow
    apart = fixed(block, summary, heads=5).mask(17, 17)[0]
    for head in range(5):
        listed = columns(block, summary, head // 2)
        if head % 2:
            slow = causal_mask(lambda i, j, listed=listed: summed(j, block, listed), 17)
        else:
            slow = causal_mask(lambda i, j: own_block(i, j, block), 17)
        assert apart[head].tolist() == slow


@pytest.mark.parametrize(
    "pattern", [strided(4), strided(7), strided(3, heads=2), fixed(4, 1), fixed(5, 2), fixed(6, 1, heads=2)], ids=str
)
def test_every_earlier_key_is_reached_in_two_steps(pattern):
    """The property the two parts were chosen for: a path through one position, over any of the heads."""
    length = 40
    steps = pattern.mask(length, length)[0].float()
    reached = torch.zeros(length, length)
    for first in steps:
        for second in steps:
            reached += first @ second
    assert (reached > 0).equal(torch.ones(length, length).tril().bool())


def test_one_part_alone_does_not_reach_every_key():
    for head in range(2):
        one = strided(4, heads=2).mask(40, 40)[0, head].float()
        assert not (one @ one > 0).equal(torch.ones(40, 40).tril().bool())


def test_a_row_sees_about_twice_the_root():
    seen = strided(16).mask(256, 256).sum(-1).flatten()
    assert seen[-1] == 16 + 15
    assert seen.max() == 31


@pytest.mark.parametrize("window", [0, 2, 6])
def test_longformer_is_the_double_loop(window):
    places = [0, 5]
    slow = [[abs(i - j) <= window / 2 or i in places or j in places for j in range(13)] for i in range(13)]
    assert longformer(window, places).mask(13, 13)[0, 0].tolist() == slow
    local = [[abs(i - j) <= window / 2 for j in range(13)] for i in range(13)]
    assert longformer(window).mask(13, 13)[0, 0].tolist() == local


@pytest.mark.parametrize(("size", "random", "length"), [(2, 2, 24), (3, 1, 25), (1, 3, 20), (4, 2, 7), (4, 1, 4)])
def test_bigbird_is_the_double_loop(size, random, length):
    seed, blocks = int(torch.randint(2**39, ())), (length + size - 1) // size
    mask = bigbird(size, random, length=length, seed=seed, heads=3).mask(length, length)[0]
    for head in range(3):
        rows = [picked_blocks(row, size, random, seed + head, length, 1, 1) for row in range(blocks)]
        slow = [
            [
                abs(i // size - j // size) <= 1
                or {i // size, j // size} & {0, blocks - 1} != set()
                or j // size in rows[i // size]
                for j in range(length)
            ]
            for i in range(length)
        ]
        assert mask[head].tolist() == slow
    assert bigbird(size, random, length=length, seed=seed).mask(length, length)[0, 0].equal(mask[0])


def test_a_row_of_bigbird_counts_no_block_twice():
    """In the middle: 3 around it, 2 at the ends, and as many random ones as were asked for, all different."""
    size, random, length = 4, 3, 160
    mask = bigbird(size, random, length=length, seed=11, heads=2).mask(length, length)
    seen = mask.view(2, 40, 4, 40, 4)[:, :, 0, :, 0].sum(-1)
    assert seen[:, 2:-2].unique().tolist() == [5 + random]
    assert seen[:, [0, -1]].unique().tolist() == [40]
    assert mask[0, 0].ne(mask[0, 1]).any()


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("strided(4)", strided(4)),
        ("fixed(4, 1)", fixed(4, 1)),
        ("longformer(4)", longformer(4)),
        ("longformer(4, [0, 2])", longformer(4, [0, 2])),
        ("bigbird(2, 1, 20, 7)", bigbird(2, 1, length=20, seed=7)),
    ],
)
def test_they_are_read_by_name_and_printed_as_what_they_are(text, pattern):
    assert parse_pattern(text) == pattern
    assert parse_pattern(str(pattern)) == pattern
    assert text.split("(")[0] not in str(pattern)


def test_global_tokens_have_rows_and_columns():
    mask = global_tokens([2]).mask(4, 4)[0, 0]
    assert mask[2].all()
    assert mask[:, 2].all()
    assert mask.sum() == 7


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: strided(0), ("strided(stride): the step", "got: 0")),
        (lambda: strided(4, heads=1), ("strided(..., heads=...): heads of two kinds", "got: 1", "from 2")),
        (lambda: fixed(0, 1), ("fixed(block, summary): positions in a block", "got: 0")),
        (lambda: fixed(4, 0), ("columns that sum up a block", "got: 0")),
        (lambda: fixed(4, 5), ("at most block=4 columns", "got: summary=5", "from 1 to 4")),
        (lambda: fixed(4, 1, subset=-1), ("which run of columns, from 0", "got: -1")),
        (lambda: fixed(4, 1, heads=0), ("fixed(..., heads=...)", "got: 0", "from 2")),
        (lambda: longformer(-2), ("longformer(window, positions)", "got: -2")),
        (lambda: longformer(5), ("an even window", "got: window=5", "pass 4 or 6")),
        (lambda: longformer(4, [-1]), ("global_tokens(positions)", "got: -1")),
        (lambda: bigbird(0, 1, length=4, seed=0), ("positions in a block", "got: 0")),
        (lambda: bigbird(2, 1, length=0, seed=0), ("length=...): positions", "got: 0")),
        (lambda: bigbird(2, 1, length=4, seed=-1), ("seed=...): a whole number from 0", "got: -1")),
        (lambda: bigbird(2, 1, length=4, seed=0, heads=0), ("heads=...): the number of heads", "got: 0")),
        (lambda: bigbird(2, -1, length=4, seed=0), ("blocks a row of blocks sees", "got: -1")),
    ],
)
def test_numbers_out_of_bounds_say_so(make, told):
    with pytest.raises(MultiheadError) as error:
        make()
    for words in told:
        assert words in str(error.value)
