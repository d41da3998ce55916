import json
import struct

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load, save, save_file

from multihead.error import MultiheadError
from multihead.interop.files import check_files

INDEX = "model.safetensors.index.json"


def refused(folder, match):
    with pytest.raises(MultiheadError, match=match) as caught:
        check_files(folder)
    return caught.value


def write(folder, name="model.safetensors"):
    save_file({"a": torch.randn(3, 4), "b": torch.zeros(0), "c": torch.arange(5)}, folder / name, metadata={"x": "y"})
    return folder / name


def test_whole_files_pass(tmp_path):
    check_files(tmp_path)
    write(tmp_path)
    (tmp_path / "adapter.safetensors").write_bytes(b"broken, but nobody reads it")
    check_files(tmp_path)


@pytest.mark.parametrize("left", [0, 5, 8, 20, -1])
def test_a_file_that_is_cut_off_is_told_with_its_size(tmp_path, left):
    file = write(tmp_path)
    whole = file.read_bytes()
    file.write_bytes(whole[:left])
    size = len(whole) - 1 if left < 0 else left
    assert "get the file again" in refused(tmp_path, rf"model\.safetensors\n  got: {size} bytes").remedy


def test_other_things_under_that_name(tmp_path):
    file = tmp_path / "model.safetensors"
    file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 81\n")
    assert "git lfs pull" in refused(tmp_path, "a pointer of Git LFS of 67 bytes").remedy
    for header in (b"[5]", b"{]", b'{"a": {}}', b'{"a": {"data_offsets": ["x", "y"]}}', b'{"a": 5}', b"[" * 9000):
        file.write_bytes(struct.pack("<Q", len(header)) + header)
        refused(tmp_path, "a header that is none")
    file.write_bytes(struct.pack("<Q", 2**63) + b"{}")
    refused(tmp_path, "10 bytes; its header alone has 9223372036854775808")


def test_parts_are_those_of_the_index(tmp_path):
    for name in ("one.safetensors", "two.safetensors"):
        write(tmp_path, name)
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}))
    check_files(tmp_path)
    (tmp_path / "one.safetensors").unlink()
    refused(tmp_path, r"2 files named by .*\n  got: 1 of them are not there: one\.safetensors\n")
    names = {str(n): f"{n}.safetensors" for n in range(5)}
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": names}))
    refused(tmp_path, r"5 of them are not there: 0\.safetensors, 1\.safetensors, 2\.safetensors and 2 more")


@pytest.mark.parametrize(
    "told", ["{", "[]", '{"weight_map": {}}', '{"weight_map": {"a": "../x"}}', '{"weight_map": [1]}']
)
def test_a_damaged_index_is_told(tmp_path, told):
    write(tmp_path)
    (tmp_path / INDEX).write_text(told)
    refused(tmp_path, "the list of weight files in")


@given(st.data())
def test_no_file_passes_that_is_too_short(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("f")
    count = data.draw(st.integers(0, 3))
    whole = save({str(n): torch.zeros(data.draw(st.integers(0, 9))) for n in range(count)})
    content = whole[: data.draw(st.integers(0, len(whole)))]
    (folder / "model.safetensors").write_bytes(content)
    if content == whole:
        check_files(folder)
        assert len(load(content)) == count
    else:
        refused(folder, "bytes")
