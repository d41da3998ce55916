"""Real packaged models, loaded once a worker."""

import pytest

from multihead.corpus import find_packaged


@pytest.fixture(scope="session")
def minilm_folder():
    return find_packaged("minilm").path
