"""Writers of ONNX and CTranslate2 files, written from the formats' own descriptions and not from our readers."""

import struct

import numpy as np

ONNX_TYPES = {"float32": 1, "int32": 6, "int64": 7, "float16": 10, "float64": 11}
CT2_TYPES = {"float32": 0, "int8": 1, "int16": 2, "int32": 3, "float16": 4}


def varint(number):
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def field(number, content):
    """A field of bytes, or of a number."""
    if isinstance(content, int):
        return varint(number << 3) + varint(content)
    content = content.encode() if isinstance(content, str) else content
    return varint(number << 3 | 2) + varint(len(content)) + content


def onnx_tensor(name, array, *, packed=False, floats=False):
    dims = b"".join(varint(n) for n in array.shape)
    out = field(1, dims) if packed else b"".join(field(1, n) for n in array.shape)
    out += field(2, ONNX_TYPES[str(array.dtype)]) + field(8, name)
    return out + field(4 if floats else 9, array.tobytes())


def onnx_node(kind, name, inputs):
    attribute = field(1, "axis") + field(3, 1)
    return b"".join(field(1, i) for i in inputs) + field(3, name) + field(4, kind) + field(5, attribute)


def onnx_model(tensors, nodes=()):
    """An ONNX file with tensors, as (name, array) pairs or encoded, and nodes, as (kind, name, inputs)."""
    encoded = [t if isinstance(t, bytes) else onnx_tensor(*t) for t in tensors]
    graph = b"".join(field(1, onnx_node(*node)) for node in nodes) + field(2, "main")
    graph += b"".join(field(5, tensor) for tensor in encoded)
    return field(1, 8) + field(2, "a test") + field(7, graph) + field(8, field(2, 17))


def ct2_name(name):
    raw = name.encode() + b"\0"
    return struct.pack("<H", len(raw)) + raw


def ct2_variable(name, array):
    out = ct2_name(name) + struct.pack("<B", array.ndim) + struct.pack(f"<{array.ndim}I", *array.shape)
    return out + struct.pack("<BI", CT2_TYPES[str(array.dtype)], array.nbytes) + array.tobytes()


def ct2_model(variables, aliases=(), *, specification="WhisperSpec", version=6):
    """A CTranslate2 file with variables, as (name, array) pairs, and aliases, as (name, meant) pairs."""
    out = struct.pack("<I", version) + ct2_name(specification) + struct.pack("<II", 3, len(variables))
    out += b"".join(ct2_variable(name, np.asarray(array)) for name, array in variables)
    out += struct.pack("<I", len(aliases))
    return out + b"".join(ct2_name(name) + ct2_name(meant) for name, meant in aliases)
