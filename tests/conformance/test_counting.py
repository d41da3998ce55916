"""The table at the end of a run says what happened."""

import subprocess
import sys
from pathlib import Path

SUITE = """
import pytest

@pytest.mark.parametrize("n", range(3))
@pytest.mark.parametrize("backend", ["a", "b"])
def test_case(n, backend, tally):
    refused = ["it has no thirds"] if (n, backend) == (2, "b") else []
    tally("Suite", backend, refused)
    assert refused or (n, backend) != (1, "b")

def test_many(tally):
    for _ in range(5):
        tally("Another", "-")

@pytest.mark.xfail(strict=False)
def test_expected():
    raise AssertionError

@pytest.mark.skip
def test_skipped():
    pass

@pytest.mark.parametrize("backend", ["a", "b", "b2"])
def test_left_out(backend):
    pass
"""


def test_what_is_printed_of_what_a_worker_ran(tmp_path):
    folder = tmp_path / "conformance"
    folder.mkdir()
    (folder / "test_it.py").write_text(SUITE)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = ["-m", "pytest", "-q", "-n", "1", "-k", "not left_out"]
    command += [f"-p{name}" for name in ("conformance.counting", "no:cacheprovider", "xdist")]
    run = subprocess.run(
        [sys.executable, *command, "conformance"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={"PYTHONPATH": str(Path(__file__).parents[1]), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )
    told = run.stdout.split("passed/ran")[1].split("short test summary")[0].splitlines()[1:]
    assert told[:7] == [
        "Another  5/5",
        "Suite    a 3/3, b 1/2 (1 refused)",
        "  b refused 1: it has no thirds",
        "of the tests in tests/conformance: 1 xfailed, 0 xpassed, 1 skipped, 3 deselected",
        "  deselected 1 of a",
        "  deselected 1 of b",
        "  deselected 1 of b2",
    ]
