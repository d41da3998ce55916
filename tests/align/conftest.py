import jaxtyping
import pytest


@pytest.fixture
def unhooked():
    """Outside of tests nothing checks the types of arguments: what a caller then gets to read is tested like this."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
