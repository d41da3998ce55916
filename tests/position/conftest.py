"""Without the checks of shapes: users have none, so messages and compiled graphs are tested without them."""

import jaxtyping
import pytest


@pytest.fixture
def unchecked(monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
