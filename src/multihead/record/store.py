"""Save and load a checkup: JSON for people, a safetensors file for the sums, parquet for tables. No pickle."""

import dataclasses
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from multihead.error import RecordError, remedy_of
from multihead.record.heads import HeadStatistics
from multihead.record.pack import Tensors, from_parts, to_json, to_tensors
from multihead.record.run import CheckupRecord, ModelFacts

FORMAT = "multihead/checkup"
FORMAT_VERSION = 2
READABLE = (1, 2)
READS = ("text", "images", "audio")
_SHOWN = 80
RECORD, SUMS, TABLE = "record.json", "record.safetensors", "heads.parquet"


def save_checkup(record: CheckupRecord, folder: Path, *, beside: Mapping[str, bytes] = MappingProxyType({})) -> None:
    """Write `record.json`, `record.safetensors` and `heads.parquet`: all of them or none.

    Every file is first written whole under another name; only then they are moved into place, `record.json` last. It
    names the hash of the sums: a folder that holds both holds a whole record.

    Args:
        record: What to save.
        folder: Where to; it is made.
        beside: More files of the same run by name, e.g. its page.

    Raises:
        RecordError: The folder cannot be written; what it held before is untouched.
    """
    tensors: Tensors = {}
    for part, statistics in _parts(record).items():
        tensors |= to_tensors(part, statistics)
    sums = save_tensors(tensors)
    text = json.dumps(_to_json(record, _described(sums)), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    table = pa.BufferOutputStream()
    pq.write_table(_table(record), table, compression="zstd")
    files = {**beside, SUMS: sums, TABLE: table.getvalue().to_pybytes(), RECORD: text.encode()}
    _write_together({folder / name: content for name, content in files.items()})


def load_checkup(folder: Path) -> CheckupRecord:
    """Read what `save_checkup` wrote.

    Args:
        folder: The folder, or the `record.json` in it.

    Raises:
        RecordError: A file is missing, damaged, or of another format.
    """
    path = folder if folder.name == RECORD else folder / RECORD
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        packed = (path.parent / SUMS).read_bytes()
    except (OSError, ValueError, RecursionError) as problem:
        raise RecordError(
            asked=f"a checkup's {RECORD} and {SUMS} in {path.parent}",
            arrived=str(problem),
            remedy="give the folder that `multihead checkup --out` wrote",
        ) from problem
    data = _checked(raw, path)
    _check_kinds(data, path)
    if data["sums"] != _described(packed):
        raise RecordError(
            asked=f"{SUMS} as {RECORD} describes it in {path.parent}",
            arrived="a file with another SHA-256",
            remedy="copy both files from the same run, or run the checkup again",
        )
    try:
        return _from_json(data, load_tensors(packed))
    except (KeyError, IndexError, TypeError, ValueError, SafetensorError) as problem:
        raise RecordError(
            asked=f"every field of a checkup in {path}",
            arrived=f"{type(problem).__name__}: {problem}",
            remedy="the file was changed by hand or damaged: run the checkup again",
        ) from problem


def write_file(path: Path, content: bytes) -> None:
    """Write one file, whole or not at all; its folder is made.

    Raises:
        RecordError: It cannot be written; what it held before is untouched.
    """
    _write_together({path: content})


def _checked(raw: object, path: Path) -> dict[str, Any]:
    data = cast(dict[str, Any], raw) if isinstance(raw, dict) else {}
    if data.get("format") != FORMAT or data.get("format_version") not in READABLE or "sums" not in data:
        found = f"format {data.get('format')!r} version {data.get('format_version')!r}"
        raise RecordError(
            asked=f"a record of format {FORMAT!r} version {' or '.join(map(str, READABLE))} in {path}",
            arrived=found if data else f"a JSON {type(raw).__name__}",
            remedy="read it with the version of multihead that wrote it, or run the checkup again",
        )
    return data


def _described(packed: bytes) -> dict[str, str]:
    return {"file": SUMS, "sha256": hashlib.sha256(packed).hexdigest()}


def _write_together(files: Mapping[Path, bytes]) -> None:
    """Write several files: each whole under another name, then all moved into place in the order given.

    Raises:
        RecordError: A folder cannot be made or written, or a folder lies where a file should; no file was moved.
    """
    staged: dict[Path, Path] = {}
    try:
        for path, content in files.items():
            staged[_stage(path, content)] = path
        for temporary, path in staged.items():
            temporary.replace(path)
    finally:
        for temporary in staged:
            temporary.unlink(missing_ok=True)


def _stage(path: Path, content: bytes) -> Path:
    """Write to a new file beside `path`, and return it."""
    temporary: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise IsADirectoryError(f"{path} is a folder")
        handle, name = tempfile.mkstemp(prefix=".writing-", dir=path.parent)
        temporary = Path(name)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        temporary.chmod(0o644)
    except BaseException as problem:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        if not isinstance(problem, OSError):
            raise
        raise RecordError(
            asked=f"to write {path}",
            arrived=problem.strerror or str(problem),
            remedy=remedy_of(problem),
        ) from problem
    return temporary


def _parts(record: CheckupRecord) -> dict[str, HeadStatistics]:
    parts = {"texts": record.texts}
    if record.repeats is not None:
        parts["repeats"] = record.repeats
    return parts


def _to_json(record: CheckupRecord, sums: dict[str, str]) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "created": record.created,
        "complete": record.complete,
        "reads": record.reads,
        "versions": dict(record.versions),
        "settings": dict(record.settings),
        "model": dataclasses.asdict(record.model),
        "sums": sums,
    } | {part: to_json(statistics) for part, statistics in _parts(record).items()}


def _from_json(data: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]) -> CheckupRecord:
    model = dict(data["model"])
    model["special_tokens"] = tuple(model["special_tokens"])
    return CheckupRecord(
        model=ModelFacts(**model),
        texts=from_parts("texts", data["texts"], tensors),
        repeats=from_parts("repeats", data["repeats"], tensors) if "repeats" in data else None,
        created=data["created"],
        versions=data["versions"],
        settings=data["settings"],
        complete=data["complete"],
        reads=data.get("reads", "text"),
    )


def _is(kind: type) -> Callable[[object], bool]:
    # True is an int, too: the kind must be the very one.
    return lambda value: type(value) is kind


def _is_words(value: object) -> bool:
    return isinstance(value, dict) and all(type(one) is str for one in cast(dict[str, object], value).values())


# Key, rule in words, rule. The page would stumble over another kind much later.
_FIELDS: tuple[tuple[str, str, Callable[[object], bool]], ...] = (
    ("created", "a string", _is(str)),
    ("complete", "true or false", _is(bool)),
    ("reads", f"one of {', '.join(READS)}", lambda value: isinstance(value, str) and value in READS),
    ("versions", "an object of strings", _is_words),
    ("settings", "an object of strings", _is_words),
    ("model", "an object", _is(dict)),
)
_MODEL_FIELDS: tuple[tuple[str, str, Callable[[object], bool]], ...] = (
    ("name", "a string", _is(str)),
    ("architecture", "a string", _is(str)),
    ("parameters", "a whole number", _is(int)),
)


def _check_kinds(data: Mapping[str, Any], path: Path) -> None:
    """Refuse a field that holds another kind of thing; one that is not there is found later."""
    for inside, fields in (("", _FIELDS), ("model", _MODEL_FIELDS)):
        # The fields of the record come first: by now the model is an object, or not there.
        held = cast(Mapping[str, Any], data.get(inside, {}) if inside else data)
        for key, rule, holds in fields:
            if key in held and not holds(held[key]):
                told = f"{key} is {held[key]!r}"
                raise RecordError(
                    asked=f"{rule} as {json.dumps(f'{inside}.{key}' if inside else key)} in {path}",
                    arrived=told if len(told) <= _SHOWN else f"{told[:_SHOWN]}...",
                    remedy="the file was changed by hand or damaged: put back what it held, or run the checkup again",
                )


def _table(record: CheckupRecord) -> Any:
    """One row a head and part ("texts", "repeats"): numbers as columns, arrays as flat fixed-size lists."""
    tables: list[pa.Table] = []
    for part, statistics in _parts(record).items():
        columns: dict[str, pa.Array] = {"part": pa.array([part] * len(statistics.heads))}
        rows = statistics.table()
        for key in rows[0] if rows else ():
            kind = (
                pa.string() if key in ("head", "stack") else pa.int64() if key in ("layer", "index") else pa.float64()
            )
            columns[key] = pa.array([row[key] for row in rows], type=kind)
        for q in statistics.quantities:
            if q.shape:
                flat = statistics.value(q.name).reshape(-1)
                columns[q.name] = pa.FixedSizeListArray.from_arrays(pa.array(flat), int(np.prod(q.shape)))
        tables.append(pa.table(columns))
    return pa.concat_tables(tables, promote_options="default")
