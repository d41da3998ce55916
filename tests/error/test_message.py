import pickle

import pytest

from multihead.error import BackendRefused, MultiheadError, RecordError


def test_message_says_what_was_asked_what_arrived_and_what_to_do():
    error = MultiheadError(asked="two heads", arrived="heads=3", remedy="pass heads=2")
    assert str(error) == "two heads\n  got: heads=3\n  fix: pass heads=2"
    assert isinstance(error, ValueError)


def test_refused_backend_names_every_backend_with_its_reasons():
    error = BackendRefused(asked="a window", reasons={"sdpa": ["no softcap", "no sinks"], "tiled": []}, remedy="wait")
    assert "sdpa: no softcap, no sinks" in str(error)
    assert "tiled: can run it" in str(error)
    assert error.reasons == {"sdpa": ("no softcap", "no sinks"), "tiled": ()}


@pytest.mark.parametrize(
    "error",
    [
        MultiheadError(asked="a", arrived="b", remedy="c"),
        RecordError(asked="a", arrived="b", remedy="c"),
        BackendRefused(asked="a", reasons={"x": ["y"]}, remedy="c"),
    ],
)
def test_errors_cross_process_borders(error):
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
