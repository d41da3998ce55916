"""Statistics as tensors and JSON: every field of a record, in as little room as holds it without loss."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multihead.record.address import HeadAddress
from multihead.record.example import Example
from multihead.record.heads import Array, HeadStatistics
from multihead.record.quantity import Document, Note, Quantity
from multihead.record.sampling import Sampling

Tensors = dict[str, NDArray[Any]]

_SAMPLING = tuple(field.name for field in dataclasses.fields(Sampling))
_EXAMPLE = ("places", "weights", "sink", "elsewhere")
_NARROW = (np.uint8, np.uint16, np.float32)


def to_tensors(part: str, statistics: HeadStatistics) -> Tensors:
    """Every array of some statistics by its path below `part`."""
    tensors: Tensors = {}
    for kind, arrays in _kinds(statistics).items():
        for name, array in arrays.items():
            tensors[f"{part}/{kind}/{name}"] = shrunk(array)
    if statistics.units:
        tensors[f"{part}/units"] = np.array(statistics.units, dtype=np.int32)
    for place, example in enumerate(statistics.examples):
        for name in _EXAMPLE:
            tensors[f"{part}/examples/{place}/{name}"] = np.ascontiguousarray(getattr(example, name))
        if example.picture is not None:
            tensors[f"{part}/examples/{place}/picture"] = np.frombuffer(example.picture, dtype=np.uint8)
    return tensors


def to_json(statistics: HeadStatistics) -> dict[str, object]:
    """Everything else, for people to read."""
    return {
        "model": statistics.model,
        "documents": [dataclasses.asdict(d) for d in statistics.documents],
        "quantities": [dataclasses.asdict(q) for q in statistics.quantities],
        "notes": [dataclasses.asdict(n) for n in statistics.notes],
        "kv_heads": list(statistics.kv_heads),
        "examples": [
            {f.name: getattr(e, f.name) for f in dataclasses.fields(e) if f.name not in (*_EXAMPLE, "picture")}
            for e in statistics.examples
        ],
        "heads": statistics.table(),
    }


def from_parts(part: str, data: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]) -> HeadStatistics:
    """Statistics from the JSON and the tensors; what the first version of the format had not is empty."""
    quantities = tuple(
        Quantity(**(q | {"shape": tuple(q["shape"]), "labels": tuple(q["labels"])})) for q in data["quantities"]
    )
    heads = tuple(HeadAddress.parse(row["head"]) for row in data["heads"])
    documents = tuple(Document(**d) for d in data["documents"])
    units = tuple(int(unit) for unit in tensors.get(f"{part}/units", ()))

    def arrays(kind: str, rows: int, *, every: bool = False) -> dict[str, Array]:
        return {
            q.name: _widened(tensors[f"{part}/{kind}/{q.name}"], (rows, len(heads), *q.shape))
            for q in quantities
            if every or f"{part}/{kind}/{q.name}" in tensors
        }

    sampling = {field: arrays(f"sampling/{field}", len(documents)) for field in _SAMPLING}
    return HeadStatistics(
        model=data["model"],
        heads=heads,
        kv_heads=_numbers(data["kv_heads"], len(data["heads"])),
        documents=documents,
        quantities=quantities,
        sums=arrays("sums", len(documents), every=True),
        counts=arrays("counts", len(documents), every=True),
        notes=tuple(Note(**n) for n in data["notes"]),
        units=units,
        unit_sums=arrays("unit_sums", len(units)),
        unit_counts=arrays("unit_counts", len(units)),
        sampling={name: Sampling(**{field: sampling[field][name] for field in _SAMPLING}) for name in sampling["sums"]},
        examples=tuple(
            _example(f"{part}/examples/{place}", told, tensors) for place, told in enumerate(data.get("examples", ()))
        ),
    )


def shrunk(array: Array) -> NDArray[Any]:
    """The same numbers in less room: counts mostly do not differ by head or in an array, and are whole.

    One entry stands for an axis along which all are equal, and numbers that a narrower type holds exactly get it.
    """
    for axis in range(1, array.ndim):
        first = array.take([0], axis=axis) if array.shape[axis] else array
        if np.array_equal(np.broadcast_to(first, array.shape), array, equal_nan=True):
            array = first
    for narrow in _NARROW:
        # What does not fit is found by looking, not by a warning.
        with np.errstate(all="ignore"):
            other = array.astype(narrow)
        if np.array_equal(other.astype(np.float64), array, equal_nan=True) and not np.signbit(array[array == 0]).any():
            return np.ascontiguousarray(other)
    return np.ascontiguousarray(array)


def _kinds(statistics: HeadStatistics) -> dict[str, Mapping[str, Array]]:
    kinds: dict[str, Mapping[str, Array]] = {
        kind: getattr(statistics, kind) for kind in ("sums", "counts", "unit_sums", "unit_counts")
    }
    for field in _SAMPLING:
        kinds[f"sampling/{field}"] = {name: getattr(one, field) for name, one in statistics.sampling.items()}
    return kinds


def _widened(array: NDArray[Any], shape: Sequence[int]) -> Array:
    """The inverse of `shrunk`; an array of another shape is left for the record to refuse."""
    fits = array.ndim == len(shape) and all(
        have == want or (have == 1 and axis > 0)
        for axis, (have, want) in enumerate(zip(array.shape, shape, strict=True))
    )
    return (np.broadcast_to(array, tuple(shape)) if fits else array).astype(np.float64)


def _example(path: str, told: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]) -> Example:
    picture = tensors.get(f"{path}/picture")
    given: dict[str, Any] = dict(told) | {name: tuple(told[name]) for name in ("heads", "queries", "keys")}
    given |= {name: tensors[f"{path}/{name}"] for name in _EXAMPLE}
    given |= {"grid": None if told.get("grid") is None else tuple(told["grid"])}
    return Example(**given, picture=None if picture is None else picture.tobytes())


def _numbers(given: Any, count: int) -> tuple[int, ...]:
    """As many whole numbers as there are heads.

    Raises:
        TypeError: They are something else.
    """
    if not isinstance(given, list) or [type(n) for n in given] != [int] * count:
        raise TypeError(f"kv_heads is no list of {count} whole numbers")
    return tuple(given)
