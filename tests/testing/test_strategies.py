"""The hypothesis strategies: what they draw, and the backends held against the reference on it."""

import sys

import hypothesis
import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from built import NATIVE
from multihead.attend import find
from multihead.error import MultiheadError
from multihead.pattern import Pattern
from multihead.testing import Case, check_case, patterns, problems


@given(problem=st.one_of(problems(), problems(dtype=torch.float32)))
@pytest.mark.parametrize("backend", ["tiled", "sdpa", NATIVE])
def test_random_problems(backend, problem):
    results = check_case(find(backend), Case(name="random", build=lambda draw: problem))
    assert [str(result) for result in results if result.outcome == "failed"] == []


@given(problem=problems(dtype=torch.float32, longest=4))
def test_the_dtype_and_the_longest_are_kept(problem):
    assert problem.q.dtype == problem.k.dtype == problem.v.dtype == torch.float32
    assert max(problem.q_len, problem.kv_len) <= 4


@given(pattern=patterns(batch=2, length=9))
def test_patterns_hold_what_they_are_asked_about(pattern):
    assert isinstance(pattern, Pattern)
    assert pattern.batch in (None, 2)
    assert pattern.mask(9, 9).shape[2:] == (9, 9)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("an empty row", lambda p: p.allowed() is not None and p.kv_len > 0 and not bool(p.allowed().any(-1).all())),
        ("no keys", lambda p: p.kv_len == 0 and p.q_len > 0),
        ("a pattern", lambda p: isinstance(p.mask, Pattern)),
        ("a trained position bias", lambda p: p.bias is not None and not isinstance(p.bias, torch.Tensor)),
        ("a group", lambda p: p.group > 1),
        ("a threshold", lambda p: not p.normaliser.has_lse),
    ],
)
def test_what_matters_is_drawn(name, wanted):
    # The first that is found will do: making it small takes longer than all other tests of the room.
    once = hypothesis.settings(phases=[hypothesis.Phase.generate], max_examples=200)
    assert wanted(hypothesis.find(problems(), wanted, settings=once))


def test_without_hypothesis_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "hypothesis.strategies", None)
    with pytest.raises(
        MultiheadError, match=r"property tests\n  got: hypothesis cannot be imported.*\n  fix: install it"
    ):
        problems()
    with pytest.raises(MultiheadError, match="pip install hypothesis"):
        patterns(batch=1, length=3)
