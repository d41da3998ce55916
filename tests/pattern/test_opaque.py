import copy

import pytest
import torch

from multihead.error import MultiheadError
from multihead.pattern import Tile, causal, from_callable, lower, parse_pattern, per_head


def knight(q, k):
    return ((q - k).abs() == 2) | (q == k)


def test_the_function_is_asked_about_every_pair():
    mask = from_callable(knight).mask(5, 7, q_offset=-1)
    assert mask[0, 0].tolist() == [[abs(i - j) == 2 or i == j for j in range(7)] for i in range(-1, 4)]


def test_what_it_gets_broadcasts():
    seen = []

    def asked(q, k):
        seen.append((tuple(q.shape), tuple(k.shape), q.dtype, k.dtype))
        return q >= k

    from_callable(asked).allows(torch.tensor([[3, 1], [0, 5]], dtype=torch.int32), torch.arange(4))
    assert seen == [((2, 1, 2, 1), (1, 1, 1, 4), torch.int64, torch.int64)]


def test_rows_and_heads_may_differ_where_they_are_stated():
    widths, starts = torch.tensor([1, 3]).view(1, 2, 1, 1), torch.tensor([0, 2, 4]).view(3, 1, 1, 1)
    pattern = from_callable(lambda q, k: (q - k < widths) & (k >= starts), name="both", batch=3, heads=2)
    assert (pattern.batch, pattern.heads) == (3, 2)
    mask = pattern.mask(6, 6)
    assert mask.shape == (3, 2, 6, 6)
    for b, h, i, j in torch.cartesian_prod(*map(torch.arange, mask.shape)).tolist():
        assert bool(mask[b, h, i, j]) == (i - j < (1, 3)[h] and j >= (0, 2, 4)[b])
    assert lower(pattern, 6, 6, block=4).mask().equal(mask)
    assert str(pattern) == "callable(#both, 3, 2)"
    assert str(from_callable(knight, heads=2)) == "callable(#knight, 0, 2)"
    assert parse_pattern(str(pattern), pattern.data) == pattern


def test_a_function_may_ask_only_one_side():
    assert from_callable(lambda q, k: k < 2).mask(3, 4)[0, 0].tolist() == [[True, True, False, False]] * 3
    assert from_callable(lambda q, k: torch.tensor(True)).mask(2, 2).all()


def test_nothing_is_known_before_it_is_asked():
    pattern = from_callable(knight)
    assert pattern.tile(range(4), range(40, 44)) == Tile.PARTIAL
    assert pattern.reach == (None, None)
    assert pattern.window is pattern.period is None
    assert pattern.positional
    assert lower(pattern, 40, 40, block=8).counts[Tile.SKIP] > 0


def test_it_joins_as_others_do():
    mask = (causal() & ~from_callable(knight)).at(q_offset=1, k_offset=2).mask(6, 6)[0, 0]
    assert mask.tolist() == [
        [j + 2 <= i + 1 and not (abs(i - j - 1) == 2 or i - j == 1) for j in range(6)] for i in range(6)
    ]
    assert per_head([causal(), from_callable(knight)]).heads == 2


def test_equal_where_the_function_is_the_same_object():
    assert from_callable(knight) == from_callable(knight)
    assert hash(from_callable(knight)) == hash(from_callable(knight))
    assert from_callable(knight) != from_callable(lambda q, k: knight(q, k), name="knight")
    assert from_callable(knight) != from_callable(knight, name="horse")
    assert from_callable(knight) != from_callable(knight, heads=1)

    class Jump:
        def __call__(self, q, k):
            return q != k

    pattern = causal() & from_callable(Jump())
    assert copy.deepcopy(pattern) == pattern
    assert str(pattern).endswith("Jump)")


def test_printed_under_its_name_and_read_with_the_function():
    pattern = causal() & from_callable(knight)
    assert str(pattern) == "causal & callable(#knight)"
    assert pattern.data == {"knight": knight}
    assert parse_pattern(str(pattern), pattern.data) == pattern
    assert str(from_callable(lambda q, k: q > k)) == (
        "callable(#test_printed_under_its_name_and_read_with_the_function_locals_lambda)"
    )


def test_what_a_function_does_is_in_no_text():
    for data in (None, {"other": knight}):
        with pytest.raises(MultiheadError) as error:
            parse_pattern("causal & callable(#knight)", data)
        assert error.value.arrived.startswith("#knight at character 19 of ")
        assert error.value.remedy.startswith("pass data={'knight': function}; there is ")


def test_a_tensor_is_no_function_and_a_function_no_tensor():
    with pytest.raises(
        MultiheadError, match=r"callable with #data.*\n  fix: it takes #function, \[number\], \[number\]"
    ):
        parse_pattern("callable(#x)", {"x": torch.tensor([1])})
    with pytest.raises(MultiheadError, match=r"document with #function.*\n  fix: it takes #data"):
        parse_pattern("document(#x)", {"x": knight})


def test_two_functions_of_one_name_cannot_be_told_apart_in_text():
    both = from_callable(lambda q, k: q > k, name="mine") | from_callable(lambda q, k: q < k, name="mine")
    with pytest.raises(MultiheadError) as error:
        both.data  # noqa: B018
    assert error.value.arrived == "two functions called #mine"
    assert "name=" in error.value.remedy


@pytest.mark.parametrize("name", ["", "two words", "a.b", "é", "3f2a8c01"])
def test_what_is_no_name_says_so(name):
    with pytest.raises(MultiheadError, match="letters, digits and _") as error:
        from_callable(knight, name=name)
    assert error.value.arrived == repr(name)


def test_sizes_out_of_bounds_say_so():
    with pytest.raises(MultiheadError, match=r"batch=\.\.\.\): at least 1"):
        from_callable(knight, batch=0)
    with pytest.raises(MultiheadError, match=r"heads=\.\.\.\): at least 1"):
        from_callable(knight, heads=0)


@pytest.mark.usefixtures("unhooked")
@pytest.mark.parametrize(
    ("rule", "arrived"),
    [
        (lambda q, k: q - k, "torch.int64 of shape (1, 1, 4, 5)"),
        (lambda q, k: (q > k)[None], "torch.bool of shape (1, 1, 1, 4, 5)"),
        (lambda q, k: (q > k)[..., :3], "torch.bool of shape (1, 1, 4, 3)"),
        (lambda q, k: (q > k).expand(1, 2, 4, 5), "torch.bool of shape (1, 2, 4, 5)"),
        (lambda q, k: True, "True for"),
    ],
)
def test_what_it_returns_is_checked(rule, arrived):
    with pytest.raises(MultiheadError) as error:
        from_callable(rule, name="mine").mask(4, 5)
    assert "callable(#mine): truth values that broadcast to (1, 1, 4, 5)" in str(error.value)
    assert error.value.arrived.startswith(arrived)
    assert "for q_pos (1, 1, 4, 1) and k_pos (1, 1, 1, 5)" in error.value.arrived
    assert "batch= and heads=" in error.value.remedy
