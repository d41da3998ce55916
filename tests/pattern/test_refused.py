"""What no pattern can be made of, of whatever kind: refused in words by the line that asks for it."""

import pytest
import torch

from multihead.error import MultiheadError
from multihead.pattern import (
    after_same_token,
    causal,
    document,
    from_callable,
    global_blocks,
    global_tokens,
    keys_at,
    lower,
    padding,
    pairs,
    parse_pattern,
    per_head,
    random_pairs,
    same_token,
)

pytestmark = pytest.mark.usefixtures("unhooked")
NAN = float("nan")
# Other kinds than were asked for, each of which somebody will pass.
ODD = [None, "a", 3, -1, 2**70, 1.5, NAN, True, b"a", object(), {1: 2}, range(3), causal, torch.tensor(2.5)]
LISTS = [[], [1, "a"], [None], [[1, 2], [3]], (0,), [2**70]]
TENSORS = [
    torch.tensor([0.0, NAN]),
    torch.tensor([1 + 2j]),
    torch.ones(1, 2, 2, dtype=torch.long),
    torch.ones(2, 2, dtype=torch.long).to_sparse(),
]


def arrived(make, *given, **named):
    """What the refusal says: what was asked, what arrived."""
    with pytest.raises(MultiheadError) as refused:
        make(*given, **named)
    assert refused.value.remedy
    return refused.value.asked, refused.value.arrived


def told(given):
    """How an error may name what it was given."""
    if isinstance(given, torch.Tensor):
        return ("tensor", str(given.dtype), str(given.layout))
    return (type(given).__name__, repr(given))


@pytest.mark.parametrize("given", [*ODD, *LISTS, *TENSORS], ids=lambda given: type(given).__name__)
@pytest.mark.parametrize("make", [document, same_token, after_same_token, padding])
def test_ids_of_another_kind(make, given):
    asked, found = arrived(make, given)
    assert asked.startswith(make.__name__)
    assert any(word in found for word in told(given))
    if make is not padding and given is not None:
        asked, found = arrived(make, torch.tensor([0, 1]), keys=given)
        assert asked.startswith(f"{make.__name__}(keys)")
        assert any(word in found for word in told(given))


@pytest.mark.parametrize("given", [value for value in ODD if not isinstance(value, range)])
@pytest.mark.parametrize("make", [global_tokens, keys_at, lambda listed: global_blocks(2, listed)])
def test_positions_of_another_kind(make, given):
    asked, _ = arrived(make, given)
    assert "counted from 0" in asked


@pytest.mark.parametrize("listed", [[-1], [1.5], [NAN], [None], [2**70], ["0"], [[0]], torch.tensor([0.5])])
def test_positions_that_are_none(listed):
    for make in (global_tokens, keys_at, lambda listed: global_blocks(2, listed)):
        asked, _ = arrived(make, listed)
        assert "counted from 0" in asked


@pytest.mark.parametrize("given", [value for value in ODD if not isinstance(value, range)])
def test_pairs_of_another_kind(given):
    asked, _ = arrived(pairs, given)
    assert asked.startswith("pairs(...)")


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ([(0, -1)], "-1"),
        ([(0, 1.5)], "1.5"),
        ([(0, NAN)], "nan"),
        ([(2**70, 0)], str(2**70)),
        ([(0, 1), (2, 3, 4)], "(2, 3, 4)"),
        ([[(0, 1)], 3], "3"),
        ([(0, 1), None], "None"),
        (torch.tensor([[0.0, NAN]]), "0.0"),
        (torch.tensor(1), "shape ()"),
        (torch.tensor([1, 2]), "shape (2,)"),
        (torch.ones(1, 2, 3, dtype=torch.long), "[1, 1, 1]"),
        (torch.ones(1, 2, device="meta", dtype=torch.long), "on meta"),
        (torch.ones(1, 2, dtype=torch.long).to_sparse(), "torch.sparse_coo"),
    ],
)
def test_pairs_that_are_none(given, found):
    assert found in arrived(pairs, given)[1]


@pytest.mark.parametrize("given", [value for value in ODD if not isinstance(value, range)])
def test_heads_of_another_kind(given):
    asked, found = arrived(per_head, given)
    assert asked.startswith("per_head(patterns)")
    assert any(word in found for word in (*told(given), "Tensor"))


@pytest.mark.parametrize("part", [None, "causal", 3, causal, torch.ones(2, 2, dtype=torch.bool)])
def test_one_head_of_another_kind(part):
    asked, found = arrived(per_head, [causal(), part])
    assert asked == "pattern of head 1 as a pattern"
    assert type(part).__name__ in found


@pytest.mark.parametrize("rule", [value for value in ODD if not callable(value)])
def test_a_rule_that_is_no_function(rule):
    asked, found = arrived(from_callable, rule)
    assert asked == "from_callable(rule): a function of query positions and key positions"
    assert type(rule).__name__ in found


@pytest.mark.parametrize("name", [3, 1.5, b"a", True, [], object()])
def test_a_rule_by_another_name(name):
    assert "name=..." in arrived(from_callable, lambda q, k: q >= k, name=name)[0]


@pytest.mark.parametrize("size", ["2", 1.5, NAN, True, [2], 0, 2**70])
def test_sizes_of_a_rule(size):
    for name in ("batch", "heads"):
        assert f"{name}=..." in arrived(from_callable, lambda q, k: q >= k, **{name: size})[0]


@pytest.mark.parametrize("text", [value for value in ODD if not isinstance(value, str)])
def test_a_text_of_another_kind(text):
    asked, found = arrived(parse_pattern, text)
    assert asked.startswith("text as the text form of a pattern")
    assert type(text).__name__ in found


@pytest.mark.parametrize("data", ["a", 3, NAN, [1], torch.tensor([0, 1]), object()])
def test_data_of_another_kind(data):
    asked, found = arrived(parse_pattern, "document(#a)", data)
    assert asked == "data as a mapping from the names in the text to tensors or functions"
    assert type(data).__name__ in found


@pytest.mark.parametrize("given", [None, "x", 3, [0, 1], {1: 2}])
def test_data_that_holds_another_kind(given):
    for text in ("document(#a)", "padding(#a)", "pairs(#a)", "callable(#a)"):
        assert "#a" in arrived(parse_pattern, text, {"a": given, 1: given})[1]


@pytest.mark.parametrize("share", [None, "0.5", NAN, -0.1, 1.5, 2**70, True, [0.5], torch.tensor([0.5]), 1j])
def test_a_share_that_is_none(share):
    asked, found = arrived(random_pairs, share, seed=0)
    assert asked.startswith("random_pairs(share)")
    assert found == repr(share)


@pytest.mark.parametrize("seed", [None, "0", NAN, -1, 0.0, 2**70, True])
def test_a_seed_that_is_none(seed):
    assert "seed" in arrived(random_pairs, 0.5, seed=seed)[0]


@pytest.mark.parametrize("given", [None, "x", 3, [0], range(3), causal()])
def test_positions_asked_about_that_are_no_tensor(given):
    assert arrived(causal().allows, given, torch.arange(3))[0].startswith("q_pos: absolute positions")
    assert arrived(causal().allows, torch.arange(3), given)[0].startswith("k_pos: absolute positions")


@pytest.mark.parametrize("given", [None, "x", 3, [0, 1], torch.tensor([0, 1]), slice(0, 2)])
def test_a_tile_of_another_kind(given):
    assert arrived(causal().tile, given, range(2))[0] == "rows as range(first, last + 1)"
    assert arrived(causal().tile, range(2), given)[0] == "cols as range(first, last + 1)"


@pytest.mark.parametrize("given", [None, "causal", 3, causal, torch.ones(3, 3, dtype=torch.bool)])
def test_lowering_what_is_no_pattern(given):
    assert arrived(lower, given, 3, 3)[0] == "pattern as a pattern, such as causal()"


def test_ids_that_have_no_values():
    p = document(torch.zeros(2, 3, dtype=torch.long, device="meta"))
    for ask in (lambda: str(p), lambda: p.mask(3, 3, device="cpu"), lambda: lower(p, 3, 3)):
        assert arrived(ask)[1] == "a tensor (2, 3) on meta, which holds none"
