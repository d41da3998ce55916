"""The backends every suite runs on, and one of them for calls that name none, as drop-ins do."""

import sys
from contextlib import contextmanager
from unittest import mock

import pytest

from built import NATIVE
from multihead.attend import find, known
from multihead.error import BackendRefused

# FlexAttention traces every call anew on the CPU, for a quarter of a second.
BACKENDS = ["auto", NATIVE, "sdpa", "tiled", "reference", pytest.param("flex", marks=pytest.mark.slow)]
every_backend = pytest.mark.parametrize("backend", BACKENDS)

_CHOOSE = sys.modules["multihead.attend.choose"]  # the room has a function of that name


@contextmanager
def only(backend):
    """Within it "auto" is this backend's `run` or nothing, whatever was measured to be faster or is remembered."""
    if backend == "auto":
        yield None
        return
    chosen = find(backend)
    with (
        mock.patch.object(_CHOOSE, "AUTOMATIC", (chosen,)),
        mock.patch.object(_CHOOSE, "_behind", _no_other),
        mock.patch.dict(known._KNOWN, clear=True),
        mock.patch.dict(known._PREPARES, clear=True),
        mock.patch.object(chosen, "run", wraps=chosen.run) as ran,
    ):
        yield ran


def _no_other(candidate, problem):
    return None


def attempt(backend, call, *args, **kwargs):
    """What the call gives on this backend, and no reasons; or None and its reasons."""
    try:
        with only(backend) as ran:
            told = call(*args, **kwargs)
        assert ran is None or ran.called
        return told, ()
    except BackendRefused as refused:
        return None, refused.reasons[backend]
