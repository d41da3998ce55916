"""Weights and node names of an ONNX file, read without the onnx package.

An ONNX file is a protocol buffer (onnx.proto3 of the ONNX project, IR version 3 to 10; the wire format is that of
Protocol Buffers, "Encoding"). Only what weights need is read: the names and inputs of the nodes, and the initialisers
that are asked for. Nothing in the file is run; every length is checked against the file before it is believed.
"""

import mmap
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from multihead.error import MultiheadError
from multihead.interop.files import mapped

_DTYPES = {1: torch.float32, 6: torch.int32, 7: torch.int64, 10: torch.float16, 11: torch.float64, 16: torch.bfloat16}
_EXTERNAL = 1
_LONGEST_NUMBER = 10
_MOST_DIMENSIONS = 8

# Numbers of the fields that are read, by message.
_MODEL_GRAPH = 7
_GRAPH_NODE, _GRAPH_INITIALISER = 1, 5
_NODE_INPUT, _NODE_NAME, _NODE_KIND = 1, 3, 4
_DIMS, _DTYPE, _FLOATS, _NAME, _RAW, _LOCATION = 1, 2, 4, 8, 9, 14

_VARINT, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5

Field = tuple[int, int, int, int]
"""Number and wire type of a field, and where its content starts and ends (for a varint: its value, twice)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One operation of a graph.

    Args:
        kind: What it does, e.g. `"MatMul"`.
        name: Its name, often the path of the module it was exported from.
        inputs: Names of what it reads.
    """

    kind: str
    name: str
    inputs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stored:
    """Where an initialiser lies: its shape, its dtype, and the place of its bytes in the file."""

    shape: tuple[int, ...]
    dtype: int
    place: tuple[int, int] | None


class OnnxFile:
    """The nodes of an ONNX graph, and its weights by name.

    Args:
        path: The file.
        buffer: Its bytes.

    Raises:
        MultiheadError: The file is no ONNX model, or is damaged.
    """

    def __init__(self, path: Path, buffer: mmap.mmap | bytes) -> None:
        self.path, self._buffer = path, buffer
        self._weights: dict[str, _Stored] = {}
        nodes: list[Node] = []
        graphs = [field for field in self._fields(0, len(buffer)) if field[0] == _MODEL_GRAPH and field[1] == _BYTES]
        for _, _, start, end in graphs:
            for number, _, low, high in self._fields(start, end):
                if number == _GRAPH_NODE:
                    nodes.append(self._node(low, high))
                elif number == _GRAPH_INITIALISER:
                    name, stored = self._stored(low, high)
                    self._weights[name] = stored
        if not self._weights:
            raise self._damaged("a file without weights", "give the .onnx file itself, not a folder or a pointer to it")
        self.nodes = tuple(nodes)

    @property
    def names(self) -> frozenset[str]:
        """Names of the weights."""
        return frozenset(self._weights)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of one weight; () for one that is not there."""
        return self._weights[name].shape if name in self._weights else ()

    def tensor(self, name: str) -> Tensor:
        """One weight, copied out of the file.

        Raises:
            MultiheadError: There is none of this name; it lies in another file or in a form that is not read; or its
                bytes are not as many as its shape asks for.
        """
        stored = self._weights.get(name)
        dtype = None if stored is None else _DTYPES.get(stored.dtype)
        if stored is None or stored.place is None or dtype is None:
            told = "no such weight" if stored is None else f"the weight in a form not read here (type {stored.dtype})"
            raise self._damaged(
                f"{name}: {told}", "export the model with its weights in the file, as float32 or float16"
            )
        start, end = stored.place
        size = torch.empty(0, dtype=dtype).element_size()
        if end - start != prod(stored.shape) * size:
            raise self._damaged(f"{name}: {end - start} bytes for the shape {stored.shape}", _AGAIN)
        if start == end:
            return torch.empty(stored.shape, dtype=dtype)
        # The copy also moves the numbers to an address that suits them, which the file does not promise.
        return torch.frombuffer(bytearray(self._buffer[start:end]), dtype=dtype).reshape(stored.shape)

    def _node(self, start: int, end: int) -> Node:
        told: dict[int, list[str]] = {_NODE_INPUT: [], _NODE_NAME: [""], _NODE_KIND: [""]}
        for number, wire, low, high in self._fields(start, end):
            if number in told and wire == _BYTES:
                told[number].append(self._text(low, high))
        return Node(kind=told[_NODE_KIND][-1], name=told[_NODE_NAME][-1], inputs=tuple(told[_NODE_INPUT]))

    def _stored(self, start: int, end: int) -> tuple[str, _Stored]:
        name, shape, dtype, place, elsewhere = "", list[int](), 0, None, False
        for number, wire, low, high in self._fields(start, end):
            if number == _DIMS:
                shape += [low] if wire == _VARINT else list(self._packed(low, high))
            elif number == _DTYPE:
                dtype = low
            elif number in (_RAW, _FLOATS) and wire == _BYTES:
                place = (low, high)
            elif number == _NAME:
                name = self._text(low, high)
            elif number == _LOCATION:
                elsewhere = low == _EXTERNAL
        if len(shape) > _MOST_DIMENSIONS:
            raise self._damaged(f"{name}: a shape of {len(shape)} dimensions", _AGAIN)
        return name, _Stored(shape=tuple(shape), dtype=dtype, place=None if elsewhere else place)

    def _packed(self, start: int, end: int) -> Iterator[int]:
        while start < end:
            value, start = self._varint(start, end)
            yield value

    def _text(self, start: int, end: int) -> str:
        return self._buffer[start:end].decode("utf-8", "backslashreplace")

    def _fields(self, start: int, end: int) -> Iterator[Field]:
        """The fields of a message, none of them beyond its end."""
        while start < end:
            key, start = self._varint(start, end)
            number, wire = key >> 3, key & 7
            if wire == _VARINT:
                value, start = self._varint(start, end)
                yield number, wire, value, value
                continue
            if wire == _BYTES:
                length, start = self._varint(start, end)
            else:
                length = {_EIGHT: 8, _FOUR: 4}.get(wire, -1)
            if number == 0 or length < 0 or length > end - start:
                raise self._damaged(f"a field that is none or goes past its end, at byte {start} of {end}", _AGAIN)
            yield number, wire, start, start + length
            start += length

    def _varint(self, start: int, end: int) -> tuple[int, int]:
        value = 0
        for place in range(_LONGEST_NUMBER):
            if start + place >= end:
                raise self._damaged(f"the file ends within a number, at byte {end}", _AGAIN)
            byte = self._buffer[start + place]
            value |= (byte & 0x7F) << (7 * place)
            if byte < 0x80:
                return value, start + place + 1
        raise self._damaged(f"a number of more than {_LONGEST_NUMBER} bytes, at byte {start}", _AGAIN)

    def _damaged(self, arrived: str, remedy: str) -> MultiheadError:
        return MultiheadError(asked=f"the weights in {self.path}, an ONNX file", arrived=arrived, remedy=remedy)


_AGAIN = "the file is damaged or of another kind: get it again"


@contextmanager
def open_onnx(path: Path) -> Generator[OnnxFile]:
    """An ONNX file, its bytes mapped and not copied, closed at the end of the block.

    Raises:
        MultiheadError: The file cannot be read, is no ONNX model, or is damaged.

    Example:
        >>> with open_onnx(Path("model.onnx")) as file:  # doctest: +SKIP
        ...     weight = file.tensor("layer.weight")
    """
    with mapped(
        path, kind="an ONNX file", remedy="give the .onnx file itself, complete, and the right to read it"
    ) as buffer:
        yield OnnxFile(path, buffer)
