import doctest
import importlib
import pkgutil

import pytest

import multihead.pattern

MODULES = [module.name for module in pkgutil.iter_modules(multihead.pattern.__path__)]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_in_the_docstrings_hold(name):
    failed, _ = doctest.testmod(importlib.import_module(f"multihead.pattern.{name}"))
    assert failed == 0


def test_public_functions_have_an_example():
    public = {name: getattr(multihead.pattern, name) for name in multihead.pattern.__all__}
    without = [name for name, thing in public.items() if ">>>" not in (thing.__doc__ or "")]
    assert without == ["Tile", "TileMap"]
