import copy

import pytest
import torch

from multihead.error import MultiheadError
from multihead.pattern import (
    Pattern,
    band,
    causal,
    distance,
    document,
    everything,
    global_tokens,
    nothing,
    padding,
    per_head,
    same_token,
    sliding_window,
)

P, Q, R = causal(), band(2, 2), global_tokens([0])


def ids(*shape):
    return torch.randint(3, shape)


@pytest.mark.parametrize(
    ("written", "simple"),
    [
        (~~P, P),
        (~everything(), nothing()),
        (~nothing(), everything()),
        (P & everything(), P),
        (everything() & P, P),
        (P | nothing(), P),
        (P & nothing(), nothing()),
        (P | everything(), everything()),
        (P & P, P),
        (P | P, P),
        (P & ~P, nothing()),
        (~P | P, everything()),
        (P & (Q & R), P & Q & R),
        (P | (Q | R), P | Q | R),
        ((P & Q) & (Q & R), P & Q & R),
        (everything() & everything(), everything()),
        (nothing() | nothing(), nothing()),
    ],
)
def test_simplified_where_it_is_exact(written, simple):
    assert written == simple
    assert str(written) == str(simple)


def test_what_states_a_size_keeps_its_checks_in_a_constant_set():
    rows = document(ids(2, 4))
    for constant in (rows & nothing(), rows & ~rows, P & rows & nothing(), P & (rows & ~rows), ~(rows | ~rows)):
        assert constant.batch == 2
        assert not constant.mask(4, 4).any()
        with pytest.raises(MultiheadError, match="needs length 5"):
            constant.mask(5, 4)
    heads = per_head([P, Q])
    assert (heads | everything()).heads == 2
    assert (heads | everything()).mask(2, 2).all()


def test_equal_by_content():
    one, two = ids(2, 5), ids(2, 5)
    two[0, 0] = one[0, 0] + 1
    assert document(one) == document(one.clone())
    assert hash(document(one)) == hash(document(one.clone()))
    assert document(one) != document(two)
    assert document(one) != same_token(one)
    assert document(one) != document(one[0])
    assert document(one, keys=two) != document(one)
    assert document(one) != document(one, keys=one)
    assert padding(one.bool()) != document(one)
    assert P & Q == Q & P
    assert hash(P & Q) == hash(Q & P)
    assert P & Q != P | Q
    assert P.at(q_offset=1) != P
    assert per_head([P, Q]) != per_head([Q, P])
    assert P != "causal"
    assert len({P, causal(), ~P, P & Q, Q & P}) == 3


def test_a_pattern_cannot_be_changed():
    for pattern in (P, Q, P & Q, ~P, P.at(q_offset=1), document(ids(3)), per_head([P])):
        with pytest.raises((AttributeError, TypeError)):
            pattern.part = everything()
        assert copy.deepcopy(pattern) == pattern


@pytest.mark.parametrize("join", [lambda a, b: a & b, lambda a, b: a | b])
def test_other_sizes_do_not_mix(join):
    with pytest.raises(MultiheadError) as error:
        join(document(ids(2, 4)), padding(ids(3, 4).bool()))
    assert "one batch size in every pattern and position" in str(error.value)
    assert "got: batch=2 and batch=3" in str(error.value)
    assert "1-D ids" in str(error.value)
    with pytest.raises(MultiheadError) as error:
        join(per_head([P, Q]), per_head([P, Q, R]))
    assert "got: heads=2 and heads=3" in str(error.value)
    assert "the same number of patterns" in str(error.value)
    with pytest.raises(MultiheadError, match="batch=2 and batch=3"):
        join(join(document(ids(2, 4)), P), join(Q, document(ids(3, 4))))
    assert join(document(ids(2, 4)), document(ids(4))).batch == 2
    assert join(per_head([P, Q]), padding(ids(3, 4).bool())).mask(4, 4).shape == (3, 2, 4, 4)


@pytest.mark.usefixtures("unhooked")
@pytest.mark.parametrize("join", [lambda a, b: a & b, lambda a, b: a | b])
def test_a_tensor_is_no_pattern(join):
    with pytest.raises(MultiheadError) as error:
        join(P, torch.ones(3, 3).bool())
    assert "a pattern on both sides of" in str(error.value)
    assert "got: causal " in str(error.value)
    assert "Tensor" in str(error.value)
    assert "padding(keep)" in str(error.value)


def test_a_pattern_has_no_truth_value():
    with pytest.raises(MultiheadError) as error:
        P and Q  # noqa: B018
    assert "the truth value of a pattern" in str(error.value)
    assert "on causal" in str(error.value)
    assert "&, | and ~" in str(error.value)


def test_at_moves_every_part_that_has_positions():
    keep = padding(torch.tensor([True, True, False, True]))
    moved = ((P | distance(-1)) & keep).at(q_offset=2)
    slow = [[(j <= i + 2 or i + 2 - j == -1) and j != 2 for j in range(4)] for i in range(3)]
    assert moved.mask(3, 4)[0, 0].tolist() == slow
    assert moved.at(q_offset=-2) == (P | distance(-1)) & keep
    assert P.at(q_offset=0) is P


def test_the_content_hash_is_made_only_when_asked(monkeypatch):
    # It copies ids off their device, which must not happen each time a mask is written down.
    def refuse(*_):
        raise AssertionError

    monkeypatch.setattr("multihead.pattern.held.hashlib", refuse)
    pattern = causal() & document(ids(2, 6)) & padding(torch.ones(2, 6).bool())
    assert (pattern | ~global_tokens([0])).at(q_offset=0).mask(6, 6).shape == (2, 1, 6, 6)


def test_every_pattern_is_a_pattern():
    for pattern in (P, P & Q, P | Q, ~P, P.at(q_offset=2), document(ids(3)), per_head([P]), sliding_window(3)):
        assert isinstance(pattern, Pattern)
        assert repr(pattern) == f"<pattern {pattern}>"
