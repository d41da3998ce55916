"""The package as others install it: a wheel with the kernel, a wheel where nothing can compile it, and its sources."""

import importlib.util
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile

import pytest

from native.replaying import ROOT, missing

BACKEND = "scikit_build_core"
LOST = "" if importlib.util.find_spec(BACKEND) else f"not installed: {BACKEND}"
LOST = LOST or missing("c++")
pytestmark = pytest.mark.skipif(bool(LOST), reason=LOST or "never")

LIBRARY = "multihead/native/libmultihead_cpu.so"
DATA = ["corpus/texts/01-prose.txt", "hooks/families.txt", "report/page/words.en.json", "py.typed"]
TELL = """
import torch
from multihead.native import load, why_none
from multihead.attend import attention, explain_backend
q = torch.randn(1, 2, 70, 16)
attention(q, q, q)
print("library:", load() and load().path)
print("why none:", why_none())
print("explained:", explain_backend(q, q, q))
"""


def wheel(folder, *options, compiler=True, require=False):
    """Builds a wheel with what is installed here, and gives the finished process and the wheel, if there is one."""
    told = {"PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "MULTIHEAD_REQUIRE_NATIVE": str(int(require))}
    if not compiler:
        told |= {"PATH": str(folder), "CC": "/no/compiler", "CXX": "/no/compiler"}
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", str(folder), *options]
    done = subprocess.run([*command, str(ROOT)], env=clean() | told, capture_output=True, text=True, check=False)
    return done, next(iter(folder.glob("*.whl")), None)


def clean():
    """The environment without what would show the sources of this checkout."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def installed(folder, made):
    """A new virtual environment with nothing but a wheel, beside the libraries of this one; gives its Python."""
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", "--quiet"]
    subprocess.run([*install, "--no-compile", str(made)], env=clean(), check=True)
    # A folder named in a .pth file is searched, but the .pth files in it, such as those of this package, are not read.
    shown = {
        sysconfig.get_path("purelib"),
        *(str(path) for path in map(os.path.realpath, sys.path) if "-packages" in path),
    }
    (folder / "lib" / version / "site-packages" / "shared.pth").write_text("\n".join(sorted(shown)))
    return python


def tell(python, folder):
    """What the package says of its kernel where there is no compiler."""
    env = clean() | {"PATH": str(folder)}
    done = subprocess.run([python, "-c", TELL], env=env, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def assert_whole(made, *, native):
    """Every module and data file is in the wheel, the kernel where it should be, and nothing else."""
    names = zipfile.ZipFile(made).namelist()
    sources = (path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src").rglob("*") if path.is_file())
    due = {name for name in sources if "__pycache__" not in name and not name.endswith(".so")}
    assert {f"multihead/{name}" for name in DATA} <= due
    assert {name for name in names if ".dist-info/" not in name} == due | ({LIBRARY} if native else set())
    entry = next(name for name in names if name.endswith("entry_points.txt"))
    assert "multihead = multihead.cli:main" in zipfile.ZipFile(made).read(entry).decode()


def test_without_a_compiler_the_install_succeeds_and_says_what_is_missing(tmp_path):
    done, made = wheel(tmp_path, f"-Cbuild-dir={tmp_path / 'build'}", compiler=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.fullmatch(r"multihead-.*-py3-none-any\.whl", made.name)
    assert_whole(made, native=False)
    told = tell(installed(tmp_path / "venv", made), tmp_path)
    assert "library: None" in told
    assert "why none: compiled kernel not built" in told
    assert "compiled kernel not built" in told.split("explained:")[1]


def test_where_the_kernel_is_required_a_missing_compiler_is_a_failure(tmp_path):
    done, made = wheel(tmp_path, f"-Cbuild-dir={tmp_path / 'build'}", compiler=False, require=True)
    assert done.returncode != 0
    assert made is None


def test_a_wheel_brings_the_kernel_to_where_there_is_no_compiler(tmp_path):
    """From what was compiled when this package was installed, so that it takes no minute."""
    done, made = wheel(tmp_path, require=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.fullmatch(r"multihead-.*-py3-none-(?!any).*\.whl", made.name)
    assert_whole(made, native=True)
    told = tell(installed(tmp_path / "venv", made), tmp_path)
    assert f"library: {tmp_path / 'venv'}" in told
    assert "why none: None" in told


def test_the_sources_that_are_handed_out_are_enough_to_build_from(tmp_path):
    code = f"from {BACKEND}.build import build_sdist; print(build_sdist({str(tmp_path)!r}))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=clean(), capture_output=True, text=True, check=True
    )
    with tarfile.open(tmp_path / done.stdout.split()[-1]) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames()}
    due = {path.relative_to(ROOT).as_posix() for path in (ROOT / "csrc").iterdir() if path.is_file()}
    assert due | {"CMakeLists.txt", "pyproject.toml", "LICENSE", "README.md", "src/multihead/__init__.py"} <= names
    assert not {name for name in names if name.endswith(".so") or name.startswith(("tests", "docs", "build"))}


def test_no_code_of_a_variant_can_be_taken_for_another(tmp_path):
    """The linker keeps one of two equal functions: a wider variant's would be an illegal instruction elsewhere."""
    wheel(tmp_path, require=True)
    objects = sorted((ROOT / "build").glob("py3-none-*/CMakeFiles/mh_*.dir/**/variant*.cpp.o"))
    assert objects
    for file in objects:
        name = file.relative_to(ROOT / "build").parts[2].removeprefix("mh_").removesuffix(".dir")
        told = subprocess.run(["nm", "-C", "--defined-only", file], capture_output=True, text=True, check=True).stdout
        shared = [line.split(" ", 2)[2] for line in told.splitlines() if line.split(" ", 2)[1] in "WVuT"]
        assert shared
        assert [symbol for symbol in shared if f"mh::{name}::" not in symbol] == []


@pytest.mark.slow
def test_a_wheel_is_built_in_a_clean_environment_with_what_it_asks_for(tmp_path):
    """With build isolation: nothing but what pyproject.toml names, downloaded, and never torch."""
    venv.create(tmp_path / "builder", with_pip=True, symlinks=True)
    command = [tmp_path / "builder" / "bin" / "python", "-m", "pip", "wheel", "--no-deps", "-w", str(tmp_path), "-v"]
    told = {"MULTIHEAD_REQUIRE_NATIVE": "1"}
    options = [f"-Cbuild-dir={tmp_path / 'build'}", str(ROOT)]
    done = subprocess.run([*command, *options], env=clean() | told, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "torch" not in re.sub(r"multihead\S*", "", done.stdout.split("Building wheel")[0])
    made = next(tmp_path.glob("*.whl"))
    assert_whole(made, native=True)
    assert f"library: {tmp_path / 'venv'}" in tell(installed(tmp_path / "venv", made), tmp_path)
