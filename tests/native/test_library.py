"""The door to the compiled kernel: it is found, speaks the interface of the header, and its refusals are errors."""

import ctypes
import json
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from multihead.error import MultiheadError
from multihead.native import (
    CBias,
    CMask,
    CProblem,
    CTensor,
    DType,
    Status,
    Variant,
    abi,
    library,
    load,
    statistics,
    why_none,
)
from native.replaying import ROOT, missing

FORWARD = {"mh_tensor": CTensor, "mh_mask": CMask, "mh_bias": CBias, "mh_problem": CProblem}
STATISTICS = {"mh_pairs": statistics.CPairs, "mh_wanted": statistics.CWanted, "mh_found": statistics.CFound}
STRUCTS = FORWARD | STATISTICS
NUMBERS = {
    "MH_ABI": abi.ABI,
    "MH_STATISTICS_ABI": abi.STATISTICS_ABI,
    "MH_FARTHEST": statistics.FARTHEST,
    "MH_OFFSETS": 2 * statistics.FARTHEST + 1,
    "MH_OCTAVES": statistics.OCTAVES,
}
ENUMS = {"mh_dtype": DType, "mh_variant": Variant, "mh_status": Status}


def problem(q, k, v, /, **fields):
    sizes = dict(zip(("batch", "heads", "q_len", "head_dim"), q.shape, strict=True))
    sizes |= {"kv_heads": k.shape[1], "kv_len": k.shape[2], "v_head_dim": v.shape[3]}
    tensors = {"q": tensor(q), "k": tensor(k), "v": tensor(v)}
    return CProblem(**{"abi": abi.ABI, "threads": 1, "scale": q.shape[3] ** -0.5, **sizes, **tensors, **fields})


def tensor(x):
    return CTensor(x.data_ptr(), *x.stride()[:3])


@pytest.fixture
def kernel():
    found = load()
    assert found is not None, f"{why_none()}: make venv"
    return found


def test_the_kernel_is_built_and_attends(kernel):
    q, k, v = torch.randn(2, 4, 50, 16), torch.randn(2, 2, 70, 16), torch.randn(2, 2, 70, 9)
    out, lse = torch.empty(2, 4, 50, 9), torch.empty(2, 4, 50)
    kernel.forward(problem(q, k, v, threads=kernel.threads()), tensor(out), lse.data_ptr())
    k, v = (x.double().repeat_interleave(2, 1) for x in (k, v))
    scores = q.double() @ k.mT / 4
    torch.testing.assert_close(out.double(), scores.softmax(-1) @ v, atol=1e-5, rtol=0)
    torch.testing.assert_close(lse.double(), scores.logsumexp(-1), atol=1e-5, rtol=0)
    assert why_none() is None


def test_variants_are_those_that_run_here(kernel):
    q, k, v, out = (torch.randn(1, 1, 3, 8) for _ in range(4))
    assert kernel.variants()
    assert kernel.best_variant() in kernel.variants()
    about = Path("/proc/cpuinfo").read_text()
    assert kernel.has_amx() == ("amx_bf16" in about)
    assert kernel.is_intel() == ("GenuineIntel" in about)
    assert not (kernel.is_intel() and kernel.best_variant() == Variant.AVX512_BF16)  # slower than float32 there
    for variant in Variant:
        asked = problem(q, k, v, variant=variant)
        if variant == Variant.AUTO or variant in kernel.variants():
            kernel.forward(asked, tensor(out), None)
        else:
            with pytest.raises(MultiheadError, match="fix: leave the variant out"):
                kernel.forward(asked, tensor(out), None)


def test_threads_are_those_of_torch(kernel):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert kernel.threads() == (3 if kernel.has_threads() else 1)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("fields", "got", "fix"),
    [
        ({"head_dim": -1}, "size", "sizes fit together"),
        ({"kv_heads": 3}, "size", "sizes fit together"),
        ({"dtype": 9}, "dtype", "pass float32"),
        ({"scale": float("nan")}, "not finite", "finite scale"),
        ({"q": CTensor(None, 0, 0, 8)}, "pointer", "`.clone()`"),
        ({"q": CTensor(64, 0, 0, -8)}, "stride", "`.contiguous()`"),
    ],
)
def test_what_the_kernel_refuses_is_an_error_that_says_what_to_do(kernel, fields, got, fix):
    q, k, v, out = (torch.randn(1, 2, 3, 8) for _ in range(4))
    before = out.clone()
    with pytest.raises(MultiheadError) as caught:
        kernel.forward(problem(q, k, v, **fields), tensor(out), None)
    assert caught.value.asked == "attention by the compiled kernel"
    assert got in caught.value.arrived
    assert fix in caught.value.remedy
    assert torch.equal(out, before)


def test_every_status_has_a_remedy_and_an_unknown_one_too(kernel):
    for status in Status:
        if status != Status.OK:
            with pytest.raises(MultiheadError, match=rf"\(status {status:d}\)\n  fix: \w"):
                kernel.check(status, "anything")
    with pytest.raises(MultiheadError, match="install multihead again"):
        kernel.check(99, "anything")


@pytest.mark.skipif(bool(missing("c++")), reason=missing("c++") or "never")
def test_structs_and_numbers_are_those_of_the_header(tmp_path):
    lines, due = [], []
    for name, struct in STRUCTS.items():
        lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
        due.append(f"{name} {ctypes.sizeof(struct)}")
        for part, *_ in struct._fields_:
            at = getattr(struct, part)
            lines.append(f'printf("{part} %zu %zu\\n", offsetof({name}, {part}), sizeof((({name} *)0)->{part}));')
            due.append(f"{part} {at.offset} {at.size}")
    for name, enum in ENUMS.items():
        lines += [f'printf("{name} {member.name} %d\\n", MH_{member.name});' for member in enum]
        due += [f"{name} {member.name} {member:d}" for member in enum]
    for name, number in NUMBERS.items():
        lines.append(f'printf("{name} %d\\n", {name});')
        due.append(f"{name} {number}")
    source = tmp_path / "told.c"
    heads = "#include <stdio.h>\n#include <stddef.h>\n#include <multihead_statistics.h>\n"
    source.write_text(f"{heads}int main(void) {{ {' '.join(lines)} return 0; }}")
    command = ["c++", "-x", "c", "-w", f"-I{ROOT / 'csrc'}", str(source), "-o", str(tmp_path / "told")]
    subprocess.run(command, check=True)
    told = subprocess.run([tmp_path / "told"], capture_output=True, text=True, check=True).stdout
    assert told.splitlines() == due


@pytest.mark.parametrize(("file", "structs"), [("multihead.h", FORWARD), ("multihead_statistics.h", STATISTICS)])
def test_no_field_of_a_header_is_missing(file, structs):
    """A field at the end of a struct, or within padding, would not move the others: each is looked for by name."""
    header = re.sub(r"/\*.*?\*/", "", (ROOT / "csrc" / file).read_text(), flags=re.DOTALL)
    assert re.findall(r"typedef struct (\w+) {", header) == list(structs)
    for name, struct in structs.items():
        body = header.split(f"typedef struct {name} {{")[1].split("}")[0]
        parts = [part.strip() for part in body.replace(";", ",").split(",")]
        declared = [part.split()[-1].strip("*") for part in parts if part]
        assert declared == [part for part, *_ in struct._fields_]


def test_a_file_that_is_no_kernel_is_named(tmp_path):
    junk = tmp_path / "libmultihead_cpu.so"
    junk.write_bytes(b"not a library")
    assert "cannot be loaded: " in library.open_library(junk)


@pytest.mark.skipif(bool(missing("c++")), reason=missing("c++") or "never")
@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("int mh_abi(void) { return 77; }", "compiled kernel has interface 77, this package"),
        ("int other(void) { return 0; }", "compiled kernel cannot be loaded: "),
        (f"int mh_abi(void) {{ return {abi.ABI}; }}", "undefined symbol: mh_forward"),
        (
            f"int mh_abi(void) {{ return {abi.ABI}; }} int mh_statistics_abi(void) {{ return 77; }}"
            "int mh_forward, mh_status_text, mh_variant_name, mh_packed_bytes;",
            "compiled kernel has interface of statistics 77, this package",
        ),
        (
            f"int mh_abi(void) {{ return {abi.ABI}; }} int mh_variants(void) {{ return 0; }}"
            f"int mh_statistics_abi(void) {{ return {abi.STATISTICS_ABI}; }}"
            "int mh_forward, mh_status_text, mh_variant_name, mh_packed_bytes;",
            "compiled kernel has no variant for this processor",
        ),
    ],
)
def test_a_kernel_that_does_not_fit_says_why(tmp_path, code, told):
    file = tmp_path / "lib.so"
    subprocess.run(["c++", "-x", "c", "-shared", "-fPIC", "-", "-o", str(file)], input=code, text=True, check=True)
    assert told in library.open_library(file)


def editable(monkeypatch, folder, url):
    """An installation, in a folder, of sources that lie elsewhere."""

    class Installed:
        def read_text(self, name):
            return None if url is None else json.dumps({"url": url, "dir_info": {"editable": True}})

        def locate_file(self, name):
            return folder / name

    monkeypatch.setattr(library.metadata, "distribution", lambda name: Installed())


def test_without_its_file_the_kernel_is_not_built(tmp_path, monkeypatch):
    here = tmp_path / "src" / "multihead" / "native"
    monkeypatch.setattr(library, "__file__", str(here / "library.py"))
    for url in (None, tmp_path.as_uri()):
        editable(monkeypatch, tmp_path / "packages", url)
        assert library.find() == "compiled kernel not built"


@pytest.mark.parametrize("name", ["plain", "with a space, ünd more"])
def test_an_editable_install_has_its_kernel_where_packages_are(tmp_path, monkeypatch, name):
    checkout = tmp_path / name
    here, packages = checkout / "src" / "multihead" / "native", tmp_path / "packages"
    monkeypatch.setattr(library, "__file__", str(here / "library.py"))
    monkeypatch.setattr(library, "open_library", str)
    for folder in (here, packages / "multihead" / "native"):
        folder.mkdir(parents=True)
        (folder / library.FILE).touch()
    editable(monkeypatch, packages, checkout.as_uri())
    assert library.find() == str(packages / "multihead" / "native" / library.FILE)
    editable(monkeypatch, packages, (tmp_path / "another").as_uri())  # of another checkout: not ours
    assert library.find() == str(here / library.FILE)
    editable(monkeypatch, packages, None)  # a wheel, of which these are not the sources
    assert library.find() == str(here / library.FILE)


def test_sources_that_nothing_installed_have_their_kernel_beside_them(tmp_path, monkeypatch):
    def none(name):
        raise library.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(library.metadata, "distribution", none)
    monkeypatch.setattr(library, "__file__", str(tmp_path / "library.py"))
    monkeypatch.setattr(library, "open_library", str)
    (tmp_path / library.FILE).touch()
    assert library.find() == str(tmp_path / library.FILE)


@pytest.mark.skipif(shutil.which("c++") is None, reason="no compiler")
def test_one_pool_of_threads_serves_torch_and_the_kernel():
    """In a process of its own: one libgomp is mapped, the one that PyTorch brought."""
    code = """
        import re
        from multihead.native import load
        assert load() is not None
        maps = open("/proc/self/maps").read()
        print(*sorted(set(re.findall(r"/\\S*lib(?:gomp|omp|iomp5)\\S*", maps))), sep="\\n")
    """
    told = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    assert len(told.stdout.split()) <= 1, told.stdout
