"""A pattern spelled for a graph is read back as the same pattern."""

import pytest
import torch
from hypothesis import given

from laws.strategies import known_patterns
from multihead.attend.spelling import Spelling, read
from multihead.error import MultiheadError
from multihead.pattern import Pattern, causal, chunk, dilated, document, from_callable, padding, pairs, prefix
from multihead.pattern.law import Facts


@given(known_patterns(callables=False))
def test_what_is_spelled_is_read_back_as_the_same(drawn):
    pattern, spelling = drawn[0].pattern, Spelling([], [])
    text = spelling.spell(pattern)
    assert read(text, spelling.tensors, spelling.numbers) == pattern


def test_tensors_and_numbers_are_left_out_of_the_text():
    """So that another document, or another offset, is the same graph."""
    ids, keep = torch.tensor([0, 0, 1]), torch.tensor([True, False, True])
    spelling = Spelling([], [])
    pattern = (causal().at(q_offset=7) & document(ids)) | ~padding(keep) | prefix(3) | pairs([[(1, 0)], []])
    assert spelling.spell(pattern) == (
        "((causal.at({0}) & document(#d0)) | ~padding(#d1) | prefix({1}) | pairs(#d2, {2}))"
    )
    assert spelling.numbers == [7, 3, 2]
    assert [tensor.tolist() for tensor in spelling.tensors] == [[0, 0, 1], [True, False, True], [[0, 1, 0]]]


def test_message_a_pattern_of_ones_own():
    class Mine(Pattern):
        def _facts(self):
            return Facts()

        def _contains(self, q, k):
            return q == k

        def _classify(self, rows, cols):
            return torch.ones(1, 1, 1, 1, dtype=torch.int8)

        def _text(self):
            return "mine"

    with pytest.raises(
        MultiheadError, match=r"exported graph\n  got: Mine, which has no text form\n  fix: build it from"
    ):
        Spelling([], []).spell(Mine())


def test_message_a_function():
    pattern = causal() & ~from_callable(lambda q, k: q > k)
    with pytest.raises(MultiheadError, match=r"exported graph\n  got: a function of your own, which has no text form"):
        Spelling([], []).spell(pattern)


def test_shifts_of_keys_are_numbers_too():
    """So that a cache may begin anywhere: the graph stays the same."""
    spelling = Spelling([], [])
    pattern = prefix(3).at(q_offset=7, k_offset=7) | chunk(4).at(k_offset=2) | dilated(3, 2)
    assert spelling.spell(pattern) == "(prefix({0}).at({1}, {2}) | chunk(4).at({3}, {4}) | dilated(3, 2))"
    assert read("prefix({0}).at({1}, {2})", [], [3, 7, 7]) == prefix(3).at(q_offset=7, k_offset=7)
