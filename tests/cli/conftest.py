import json

import pytest

from cli.tiny import PROSE, changed, one_looks_back, save_tiny
from multihead.cli import run


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """Folder of a tiny BERT."""
    return save_tiny(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def prose(tmp_path_factory):
    """Folder with two texts."""
    folder = tmp_path_factory.mktemp("texts")
    (folder / "one.txt").write_text(PROSE * 3)
    (folder / "two.txt").write_text("A hen sat on the mat. " + PROSE)
    return folder


@pytest.fixture(scope="session")
def looking_back(tiny, tmp_path_factory):
    """The tiny BERT with a head of layer 0 that looks at the token before."""
    return changed(tiny, tmp_path_factory.mktemp("models") / "back", lambda w: one_looks_back(w, layer=0, head=1))


@pytest.fixture(scope="session")
def checked(tiny, looking_back, prose, tmp_path_factory):
    """Folders of the checkups of both."""
    folder = tmp_path_factory.mktemp("checked")
    for name, model in (("tiny", tiny), ("back", looking_back)):
        assert run(["checkup", str(model), "--text", str(prose), "--repeats", "2", "--out", str(folder / name)]) == 0
    return {"tiny": folder / "tiny", "back": folder / "back"}


@pytest.fixture
def told(capfd):
    """Run a command with --json: its exit code, its one document, and what it told people meanwhile."""

    def tell(*arguments):
        capfd.readouterr()
        code = run([*map(str, arguments), "--json"])
        out, err = capfd.readouterr()
        return code, json.loads(out), err

    return tell
