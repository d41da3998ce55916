from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from interop.binaries import field, onnx_model, onnx_tensor, varint
from multihead.error import MultiheadError
from multihead.interop.onnx import OnnxFile, open_onnx

FILE = Path("m.onnx")


def arrays(seed):
    rng = np.random.default_rng(seed)
    return {
        "a.weight": rng.standard_normal((3, 4)).astype(np.float32),
        "b": rng.standard_normal(5).astype(np.float16),
        "c": rng.integers(-9, 9, (2, 1, 3)),
        "one": np.array(2.5, dtype=np.float64),
        "none": np.zeros((0, 4), np.float32),
    }


@pytest.mark.parametrize("packed", [False, True])
def test_what_was_written_is_read(tmp_path, seed, packed):
    written = arrays(seed)
    nodes = [("MatMul", "/layer/MatMul", ("x", "a.weight")), ("Add", "", ())]
    file = tmp_path / "m.onnx"
    file.write_bytes(onnx_model([onnx_tensor(n, a, packed=packed) for n, a in written.items()], nodes))
    with open_onnx(file) as opened:
        assert opened.names == written.keys()
        for name, array in written.items():
            read = opened.tensor(name)
            assert opened.shape(name) == array.shape
            assert read.dtype == torch.from_numpy(np.atleast_1d(array)).dtype
            assert np.array_equal(read.numpy(), array)
        assert [(n.kind, n.name, n.inputs) for n in opened.nodes] == nodes
        assert opened.shape("absent") == ()
        kept = opened.tensor("a.weight")
    assert np.array_equal(kept.numpy(), written["a.weight"])  # it outlives the file


def test_numbers_in_a_field_of_floats_and_a_graph_in_two_parts(seed):
    written = arrays(seed)
    first, second = (onnx_model([onnx_tensor(n, written[n], floats=f)]) for n, f in (("a.weight", True), ("b", False)))
    opened = OnnxFile(FILE, first + second)
    assert np.array_equal(opened.tensor("a.weight").numpy(), written["a.weight"])
    assert np.array_equal(opened.tensor("b").numpy(), written["b"])


def refused(content, match, ask=None):
    def read():
        opened = OnnxFile(FILE, content)
        return opened.tensor(ask or next(iter(opened.names)))

    with pytest.raises(MultiheadError, match=match):
        read()


def test_every_complaint_names_what_is_wrong():
    good = np.ones((2, 3), np.float32)
    refused(onnx_model([]), "without weights")
    refused(onnx_model([("w", good)]), "other: no such weight", ask="other")
    refused(
        onnx_model([field(1, 2) + field(1, 4) + field(2, 1) + field(8, "w") + field(9, good.tobytes())]), "24 bytes for"
    )
    refused(onnx_model([field(2, 9) + field(8, "w") + field(9, b"1")]), r"w: the weight in a form .*type 9")
    refused(onnx_model([onnx_tensor("w", good) + field(14, 1)]), "w: the weight in a form")
    refused(onnx_model([field(1, 1) * 9 + field(2, 1) + field(8, "w") + field(9, b"1234")]), "9 dimensions")
    refused(field(7, b"\x80" * 11), "more than 10 bytes")
    refused(field(7, b"\x80"), "ends within a number")
    refused(varint(7 << 3 | 2) + varint(10**6), "goes past its end")
    refused(b"\x03", "a field that is none")
    refused(b"\x02\x01x", "a field that is none")


def test_a_shape_beyond_all_memory_is_not_believed():
    refused(
        onnx_model([field(1, 2**62) * 3 + field(2, 1) + field(8, "w") + field(9, b"1234")]), "4 bytes for the shape"
    )


@given(st.data())
def test_damage_is_told_and_never_crashes(data):
    whole = bytearray(onnx_model(list(arrays(1).items()), [("MatMul", "/m", ("x", "b"))]))
    for _ in range(data.draw(st.integers(0, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    content = bytes(whole[: data.draw(st.integers(0, len(whole)))])
    try:
        opened = OnnxFile(FILE, content)
        for name in opened.names:
            assert tuple(opened.tensor(name).shape) == opened.shape(name)
    except MultiheadError:
        return  # any other exception fails the test


def test_files_that_cannot_be_opened(tmp_path):
    for name in ("absent.onnx", "empty.onnx"):
        (tmp_path / "empty.onnx").touch()
        with pytest.raises(MultiheadError, match=f"(?s){name}, an ONNX file.*complete"), open_onnx(tmp_path / name):
            pytest.fail("it opened")
    with pytest.raises(KeyError), open_onnx_of(tmp_path):
        raise KeyError("of the block")


def open_onnx_of(folder):
    (folder / "m.onnx").write_bytes(onnx_model(list(arrays(1).items())))
    return open_onnx(folder / "m.onnx")
