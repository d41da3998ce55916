import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from interop.binaries import ct2_model, ct2_name
from multihead.error import MultiheadError
from multihead.interop.ctranslate2 import CTranslate2File, open_ctranslate2

FILE = Path("model.bin")


def arrays(seed):
    rng = np.random.default_rng(seed)
    return {
        "encoder/w": rng.standard_normal((3, 4)).astype(np.float32),
        "encoder/b": rng.standard_normal(5).astype(np.float16),
        "encoder/heads": np.int16(6),
        "encoder/flag": np.int8(-1),
        "none": np.zeros((0, 4), np.float32),
    }


def test_what_was_written_is_read(tmp_path, seed):
    written = arrays(seed)
    file = tmp_path / "model.bin"
    file.write_bytes(ct2_model(list(written.items()), [("other", "encoder/w")], specification="Some"))
    with open_ctranslate2(file) as opened:
        assert opened.specification == "Some"
        assert opened.names == {*written, "other"}
        for name, array in (written | {"other": written["encoder/w"]}).items():
            read = opened.tensor(name)
            assert opened.shape(name) == array.shape
            assert str(read.dtype).removeprefix("torch.") == str(array.dtype)
            assert np.array_equal(read.numpy(), array)


def refused(content, match, ask="w"):
    with pytest.raises(MultiheadError, match=match):
        CTranslate2File(FILE, content).tensor(ask)


def test_every_complaint_names_what_is_wrong():
    start = struct.pack("<I", 6) + ct2_name("X") + struct.pack("<II", 1, 1) + ct2_name("w")
    refused(ct2_model([], version=5), "binary version 5")
    refused(b"PK\x03\x04" + bytes(90), "another kind of file")
    refused(ct2_model([]), "no variable w")
    refused(start + b"\x09", "w: 9 dimensions")
    refused(start + struct.pack("<BIBI", 1, 2, 9, 8) + bytes(8), "unknown type 9")
    refused(start + struct.pack("<BIBI", 1, 3, 0, 8) + bytes(8), "8 bytes for the shape")
    refused(start + struct.pack("<BIBI", 1, 2, 0, 8) + bytes(7), "8 bytes are due")
    refused(start + struct.pack("<BIII", 3, *[2**32 - 1] * 3) + struct.pack("<BI", 0, 4) + bytes(4), "4 bytes for the")
    refused(ct2_model([("w", np.ones(2, np.float32))], [("v", "u")]), "v stands for u, which is not there")


@given(st.data())
def test_damage_is_told_and_never_crashes(data):
    whole = bytearray(ct2_model(list(arrays(1).items()), [("other", "encoder/w")]))
    for _ in range(data.draw(st.integers(0, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    content = bytes(whole[: data.draw(st.integers(0, len(whole)))])
    try:
        opened = CTranslate2File(FILE, content)
        for name in opened.names:
            assert tuple(opened.tensor(name).shape) == opened.shape(name)
    except MultiheadError:
        return  # any other exception fails the test


def test_files_that_cannot_be_opened(tmp_path):
    (tmp_path / "empty.bin").touch()
    for name in ("absent.bin", "empty.bin"):
        with pytest.raises(MultiheadError, match=f"(?s){name}, a CTranslate2.*complete"):
            open_ctranslate2(tmp_path / name).__enter__()
