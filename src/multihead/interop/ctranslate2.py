"""Weights of a CTranslate2 model.bin, read without the ctranslate2 package.

The format is that of `models/model.cc` of the CTranslate2 project, binary version 6: little-endian; the name of the
specification and its revision; then for each variable its name, shape, type and bytes; then names that stand for other
names. A name has its length before it and ends in a zero byte. Every length is checked against the file before it is
believed.
"""

import mmap
import struct
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from multihead.error import MultiheadError
from multihead.interop.files import mapped

_VERSION = 6
_DTYPES = (torch.float32, torch.int8, torch.int16, torch.int32, torch.float16, torch.bfloat16)
_MOST_DIMENSIONS = 8
_AGAIN = "the file is damaged or of another kind: get it again"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stored:
    """Where a variable lies."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    start: int
    end: int


class CTranslate2File:
    """The variables of a CTranslate2 model by name.

    Args:
        path: The file.
        buffer: Its bytes.

    Raises:
        MultiheadError: The file is no such model, of another binary version, or damaged.
    """

    def __init__(self, path: Path, buffer: mmap.mmap | bytes) -> None:
        self.path, self._buffer, self._at = path, buffer, 0
        (version,) = self._numbers("I")
        if version != _VERSION:
            raise self._damaged(
                f"binary version {version}, or another kind of file",
                f"convert the model with a current ctranslate2, which writes version {_VERSION}",
            )
        self.specification = self._name()
        _, count = self._numbers("II")
        self._variables: dict[str, _Stored] = {}
        # What the file claims to hold is believed one entry at a time, and each takes some of its bytes.
        for _ in range(count):
            name = self._name()
            self._variables[name] = self._variable(name)
        (aliases,) = self._numbers("I")
        for _ in range(aliases):
            name, meant = self._name(), self._name()
            if meant not in self._variables:
                raise self._damaged(f"{name} stands for {meant}, which is not there", _AGAIN)
            self._variables[name] = self._variables[meant]

    @property
    def names(self) -> frozenset[str]:
        """Names of the variables."""
        return frozenset(self._variables)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of one variable; () for one that is not there, and for single numbers."""
        return self._variables[name].shape if name in self._variables else ()

    def tensor(self, name: str) -> Tensor:
        """One variable, copied out of the file.

        Raises:
            MultiheadError: There is none of this name.
        """
        stored = self._variables.get(name)
        if stored is None:
            raise self._damaged(f"no variable {name}", "give a model of the kind the specification names, complete")
        if stored.start == stored.end:
            return torch.empty(stored.shape, dtype=stored.dtype)
        # The copy also moves the numbers to an address that suits them, which the file does not promise.
        numbers = torch.frombuffer(bytearray(self._buffer[stored.start : stored.end]), dtype=stored.dtype)
        return numbers.reshape(stored.shape)

    def _variable(self, name: str) -> _Stored:
        (rank,) = self._numbers("B")
        if rank > _MOST_DIMENSIONS:
            raise self._damaged(f"{name}: {rank} dimensions", _AGAIN)
        shape = self._numbers("I" * rank)
        kind, size = self._numbers("BI")
        if kind >= len(_DTYPES):
            raise self._damaged(f"{name}: numbers of the unknown type {kind}", _AGAIN)
        dtype = _DTYPES[kind]
        if size != prod(shape) * torch.empty(0, dtype=dtype).element_size():
            raise self._damaged(f"{name}: {size} bytes for the shape {shape} of {dtype}", _AGAIN)
        start = self._skip(size)
        return _Stored(shape=shape, dtype=dtype, start=start, end=start + size)

    def _name(self) -> str:
        (length,) = self._numbers("H")
        start = self._skip(length)
        return self._buffer[start : start + length].rstrip(b"\0").decode("utf-8", "backslashreplace")

    def _numbers(self, form: str) -> tuple[int, ...]:
        size = struct.calcsize(f"<{form}")
        return struct.unpack_from(f"<{form}", self._buffer, self._skip(size))

    def _skip(self, size: int) -> int:
        """Where the next bytes start; they are known to be there."""
        start = self._at
        if size > len(self._buffer) - start:
            raise self._damaged(f"it ends at byte {len(self._buffer)}; {size} bytes are due at byte {start}", _AGAIN)
        self._at += size
        return start

    def _damaged(self, arrived: str, remedy: str) -> MultiheadError:
        return MultiheadError(asked=f"the weights in {self.path}, a CTranslate2 model", arrived=arrived, remedy=remedy)


@contextmanager
def open_ctranslate2(path: Path) -> Generator[CTranslate2File]:
    """A CTranslate2 model, its bytes mapped and not copied, closed at the end of the block.

    Raises:
        MultiheadError: The file cannot be read, is no such model, or is damaged.

    Example:
        >>> with open_ctranslate2(Path("model.bin")) as file:  # doctest: +SKIP
        ...     weight = file.tensor("encoder/conv1/weight")
    """
    with mapped(
        path, kind="a CTranslate2 model", remedy="give the model.bin itself, complete, and the right to read it"
    ) as buffer:
        yield CTranslate2File(path, buffer)
