"""The examples in the docstrings of selectors and of what is built on them."""

import doctest
import importlib

import pytest
import torch

from multihead import attend, layer, pattern
from multihead.attend import selector

KNOWN = {name: getattr(room, name) for room in (pattern, layer, attend, selector) for name in room.__all__}
MODULES = ("pattern.chosen", "attend.selector.blocks", "attend.selector.keys", "layer.native_sparse", "layer.resampler")


@pytest.mark.parametrize("name", MODULES)
def test_examples_say_what_happens(name):
    module = importlib.import_module(f"multihead.{name}")
    failed, tried = doctest.testmod(module, extraglobs=KNOWN | {"torch": torch})
    assert tried
    assert not failed
