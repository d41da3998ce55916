"""The examples in the docstrings of the aligners do what they say."""

import doctest

import pytest
import torch

from multihead import align
from multihead.align import aligned, bahdanau, luong, monotonic


@pytest.mark.parametrize("module", [aligned, bahdanau, luong, monotonic], ids=lambda module: module.__name__)
def test_examples(module):
    names = vars(align) | vars(module) | {"torch": torch}
    told = doctest.testmod(module, extraglobs=names)
    assert told.attempted > 0
    assert told.failed == 0
