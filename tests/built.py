"""Tests that need the compiled kernel; without it they are left out with the reason."""

import pytest

from multihead.native import load, why_none

needs_kernel = pytest.mark.skipif(load() is None, reason=str(why_none()))
NATIVE = pytest.param("native", marks=needs_kernel)
VARIANTS = [variant.name.lower() for variant in load().variants()] if load() else []
every_variant = pytest.mark.parametrize("variant", VARIANTS or [pytest.param("none", marks=needs_kernel)])
