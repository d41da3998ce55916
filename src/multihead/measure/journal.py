"""What every batch of a run brought, in files, so that a run that was ended by force can go on where it was."""

import hashlib
import json
import os
import platform
import struct
import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors
from torch import Tensor, nn

from multihead.error import MultiheadError, remedy_of
from multihead.hooks import Site
from multihead.measure.batch import Batch
from multihead.measure.example import Seen
from multihead.measure.header import Facts, check_same
from multihead.measure.lock import LOCK, held
from multihead.measure.page import Book, Page, Sheet, Sums, Unit
from multihead.measure.remark import Lost, Remark
from multihead.record import Document, shrunk

HEADER = "run.json"
_TEMPORARY = ".writing-"
_KEPT = (f"{_TEMPORARY}*", "[0-9]*.*.safetensors", HEADER)
_OF_SEEN = ("places", "weights", "sink", "elsewhere")
_VERSIONS = ("multihead", "torch", "transformers", "numpy")


class Journal:
    """The journal of one run: a header that says which run it is of, and a file for every batch that is done.

    A file is written whole under another name, brought to the disk and then moved into place; its name holds the hash
    of what it holds. A file that is torn all the same, and all after it, are as if they were not there.

    Args:
        folder: Where it is kept; it is made.
        about: What tells the run from others.

    Raises:
        MultiheadError: The folder cannot be written, or holds the journal of another run.
    """

    def __init__(self, folder: Path, about: Facts) -> None:
        self._folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for left in folder.glob(f"{_TEMPORARY}*"):
                left.unlink()
            if (folder / HEADER).exists():
                check_same(folder / HEADER, about)
            else:
                _write(folder / HEADER, json.dumps(dict(about), indent=1).encode() + b"\n")
        except OSError as problem:
            raise _unwritable(folder, problem) from problem

    def sheets(self, batches: int) -> Iterator[Sheet]:
        """What the batches brought that are done, from the first on.

        Args:
            batches: How many the run has.
        """
        for place in range(batches):
            found = sorted(self._folder.glob(f"{place:06}.*.safetensors"))
            whole = [content for path in found if (content := path.read_bytes()) and path.name == _name(place, content)]
            if not whole:
                return
            yield _unpack(whole[0])

    def write(self, place: int, sheet: Sheet) -> None:
        """Keep what a batch brought.

        Args:
            place: Its place among the batches.
            sheet: What it brought.

        Raises:
            MultiheadError: The folder cannot be written.
        """
        content = _pack(sheet)
        try:
            for old in self._folder.glob(f"{place:06}.*.safetensors"):
                old.unlink()  # it was torn
            _write(self._folder / _name(place, content), content)
        except OSError as problem:
            raise _unwritable(self._folder, problem) from problem


@contextmanager
def keeping(folder: str | Path | None, about: Facts) -> Generator[Journal | None]:
    """The journal in a folder, held for this run alone; None where none is wanted.

    Args:
        folder: Where it is kept.
        about: What tells the run from others.

    Raises:
        MultiheadError: Another run goes on there; or see `Journal`.
    """
    if folder is None:
        yield None
        return
    with held(Path(folder)):
        yield Journal(Path(folder), about)


def has_journal(folder: Path) -> bool:
    """Whether a folder, or one within it, keeps a journal that could be gone on with."""
    return (folder / HEADER).exists() or any(folder.glob(f"*/{HEADER}"))


def discard_journal(folder: str | Path) -> None:
    """Delete a journal, once the record it led to is saved; other files in its folder stay.

    Args:
        folder: Where it is kept, or the folder around the journals of a checkup; nothing happens where there is none.

    Raises:
        MultiheadError: A run that goes on keeps it.
    """
    if not isinstance(folder, str | Path):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise MultiheadError(
            asked="the folder of a journal to delete", arrived=repr(folder)[:60], remedy="pass the folder's name"
        )
    folder = Path(folder)
    if not folder.is_dir():
        return
    for inner in {path.parent for name in (HEADER, LOCK) for path in folder.glob(f"*/{name}")}:
        discard_journal(inner)
    if kept := [path for pattern in _KEPT for path in folder.glob(pattern)]:
        with held(folder):
            for path in kept:
                path.unlink(missing_ok=True)
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def describe_run(model: nn.Module, batches: Sequence[Batch], documents: Sequence[Document]) -> dict[str, str]:
    """All that the numbers of a run depend on besides what is measured; tensors as their hash.

    Args:
        model: The model: its weights, its configuration.
        batches: What it gets.
        documents: What the batches are of.
    """
    parameter = next(iter((*model.parameters(), *model.buffers())), torch.zeros(0))
    told = {
        "model": f"{type(model).__module__}.{type(model).__qualname__}",
        "configuration": _digest([str(getattr(model, "config", "")).encode()]),
        "attention": str(getattr(getattr(model, "config", None), "_attn_implementation", "")),
        "weights": _digest(_weights(model)),
        "batches": _digest(part for batch in batches for part in _inputs(batch)),
        # As they are and not as a hash, so that it can be said which of them was changed.
        "documents": json.dumps([(d.name, d.digest, d.tokens) for d in documents]),
        "device": str(parameter.device),
        "dtype": str(parameter.dtype),
        "threads": str(torch.get_num_threads()),
        "machine": platform.machine(),
    }
    return told | {f"version of {package}": _version(package) for package in _VERSIONS}


def digest_of(tensors: Sequence[Tensor]) -> str:
    """Hash of some tensors."""
    return _digest(part for tensor in tensors for part in _bytes(tensor))


def _weights(model: nn.Module) -> Iterator[bytes]:
    for name, tensor in sorted(model.state_dict(keep_vars=True).items(), key=lambda item: item[0]):
        if isinstance(tensor, Tensor):
            yield name.encode()
            yield from _bytes(tensor)


def _inputs(batch: Batch) -> Iterator[bytes]:
    for name, tensor in (*batch.inputs.items(), *(batch.classes or {}).items()):
        yield name.encode()
        # Switches of the model (`output_attentions=False`) are inputs too.
        yield from _bytes(tensor) if isinstance(cast(object, tensor), Tensor) else [repr(tensor).encode()]
    yield repr((batch.document, sorted(batch.classes or {}), batch.spans)).encode()


def _bytes(tensor: Tensor) -> Iterator[bytes]:
    yield f"{tuple(tensor.shape)}{tensor.dtype}".encode()
    yield tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def _digest(parts: Any) -> str:
    found = hashlib.sha256()
    for part in parts:
        found.update(struct.pack("<q", len(part)))
        found.update(part)
    return found.hexdigest()[:32]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _name(place: int, content: bytes) -> str:
    return f"{place:06}.{hashlib.sha256(content).hexdigest()[:16]}.safetensors"


def _write(path: Path, content: bytes) -> None:
    """Write a file: it is there whole, on the disk, or not at all."""
    temporary = path.with_name(f"{_TEMPORARY}{path.name}")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    if sys.platform == "win32":  # there no folder can be opened
        return
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _unwritable(folder: Path, problem: OSError) -> MultiheadError:
    return MultiheadError(
        asked=f"to keep the journal of a run in {folder}",
        arrived=problem.strerror or str(problem),
        remedy=f"{remedy_of(problem)}; what is kept there is not lost",
    )


def _pack(sheet: Sheet) -> bytes:
    tensors: dict[str, NDArray[Any]] = {}
    books: list[dict[str, Any]] = []
    for number, ((site, first), book) in enumerate(sheet.items()):
        pages: list[dict[str, Any]] = []
        for document, page in book.pages.items():
            path = f"{number}/{document}"
            _keep(tensors, path, page)
            tensors |= {f"{path}/spread/{name}": array for name, array in page.spread.items()}
            for place, unit in enumerate(page.units):
                _keep(tensors, f"{path}/units/{place}", unit)
            for kind, lost in page.lost.items():
                tensors |= {f"{path}/lost/{kind}": np.stack([np.asarray(lost.rows), np.asarray(lost.of)])}
            remarks = [asdict(remark) for remark in page.remarks]
            units = [(unit.rows, list(unit.sums)) for unit in page.units]
            names = {"names": list(page.sums), "spread": list(page.spread), "lost": list(page.lost)}
            pages.append({"document": document, "remarks": remarks, "units": units, **names})
        seen = [(one.batch, one.queries, one.keys) for one in book.seen]
        for place, one in enumerate(book.seen):
            tensors |= {f"{number}/seen/{place}/{kind}": np.ascontiguousarray(getattr(one, kind)) for kind in _OF_SEEN}
        told = {"site": asdict(site), "first_head": first, "heads": book.heads, "group": book.group}
        books.append({**told, "pages": pages, "seen": seen})
    return save_tensors(tensors, metadata={"books": json.dumps(books)})


def _keep(tensors: dict[str, NDArray[Any]], path: str, sums: Sums) -> None:
    for name, array in sums.sums.items():
        tensors[f"{path}/sums/{name}"] = np.ascontiguousarray(array)
        tensors[f"{path}/counts/{name}"] = shrunk(sums.counts[name][None])


def _unpack(content: bytes) -> Sheet:
    tensors = load_tensors(content)
    (length,) = struct.unpack("<Q", content[:8])
    books = json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["books"])
    return {
        (Site(**told["site"]), told.get("first_head", 0)): _book(told, str(number), tensors)
        for number, told in enumerate(books)
    }


def _book(told: Mapping[str, Any], path: str, tensors: Mapping[str, NDArray[Any]]) -> Book:
    pages = {page["document"]: _page(page, f"{path}/{page['document']}", tensors) for page in told["pages"]}
    seen = [
        Seen(batch=batch, queries=queries, keys=keys, **{k: tensors[f"{path}/seen/{place}/{k}"] for k in _OF_SEEN})
        for place, (batch, queries, keys) in enumerate(told["seen"])
    ]
    return Book(told["heads"], told["group"], pages, seen)


def _page(told: Mapping[str, Any], path: str, tensors: Mapping[str, NDArray[Any]]) -> Page:
    page = Page()
    _restore(page, path, tensors, told["names"])
    page.spread = {name: tensors[f"{path}/spread/{name}"] for name in told["spread"]}
    for place, (rows, names) in enumerate(told["units"]):
        unit = Unit(rows=rows)
        _restore(unit, f"{path}/units/{place}", tensors, names)
        page.units.append(unit)
    page.remarks = dict.fromkeys(Remark(**remark) for remark in told["remarks"])
    page.lost = {kind: Lost(*tensors[f"{path}/lost/{kind}"]) for kind in told["lost"]}
    return page


def _restore(sums: Sums, path: str, tensors: Mapping[str, NDArray[Any]], names: Sequence[str]) -> None:
    for name in names:
        array = tensors[f"{path}/sums/{name}"]
        sums.sums[name] = array
        counts = tensors[f"{path}/counts/{name}"]
        sums.counts[name] = np.broadcast_to(counts, (1, *array.shape))[0].astype(np.float64)
