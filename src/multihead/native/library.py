"""Loads the compiled kernel, where it was built, and turns the codes it answers into errors."""

import ctypes
import json
import os
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from urllib.parse import urlparse
from urllib.request import url2pathname

# Before the kernel: it brings a libgomp of its own, which the kernel then shares, so that there is one pool of threads.
import torch

from multihead.error import MultiheadError
from multihead.native.abi import ABI, STATISTICS_ABI, CProblem, CTensor, Status, Variant

FILE = "libmultihead_cpu.so"
NOT_BUILT = "compiled kernel not built"

_REMEDIES = {
    Status.BAD_SIZE: "pass tensors whose sizes fit together",
    Status.BAD_DTYPE: "pass float32, bfloat16 or float16",
    Status.BAD_STRIDE: "pass a contiguous copy: `.contiguous()`",
    Status.BAD_POINTER: "pass a copy of the tensor: `.clone()`",
    Status.BAD_MASK: "build the tile map, the window or the ids for this many queries and keys",
    Status.BAD_NUMBER: "pass a finite scale, softcap and offset",
    Status.ALIASED: "pass an output of its own: `torch.empty_like`",
    Status.NO_VARIANT: "leave the variant out, or name one of `variants()`",
    Status.NO_MEMORY: "make memory free, or pass fewer queries or keys at a time",
}


@dataclass(slots=True)
class _Pool:
    """What is known of OpenMP's threads in this process: whether there are any, and whether a fork left them behind."""

    begun: bool = False
    lost: bool = False

    def forked(self) -> None:
        """This process is a fork of the one all that was known of."""
        self.lost = self.begun


_POOL = _Pool()
if hasattr(os, "register_at_fork"):  # where there are forks
    os.register_at_fork(after_in_child=_POOL.forked)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Library:
    """The compiled kernel.

    Args:
        path: Its file.
        c: Its functions, typed as in `csrc/multihead.h`.
        best: What `best_variant` answers; this and what follows never changes, and every call asks for it.
        amx: What `has_amx` answers.
        intel: What `is_intel` answers.
        parallel: What `has_threads` answers.
    """

    path: Path
    c: ctypes.CDLL
    best: Variant
    amx: bool
    intel: bool
    parallel: bool

    def variants(self) -> tuple[Variant, ...]:
        """The variants that were compiled in and that this processor can run, the plainest first."""
        bits = int(self.c.mh_variants())
        return tuple(variant for variant in Variant if variant and bits >> variant & 1)

    def best_variant(self) -> Variant:
        """The variant that AUTO stands for on this processor."""
        return self.best

    def has_amx(self) -> bool:
        """Whether the processor has tiles of bfloat16, which PyTorch's kernels use and this one does not."""
        return self.amx

    def is_intel(self) -> bool:
        """Whether the processor is Intel's, on which PyTorch's products use all instructions that it has."""
        return self.intel

    def has_threads(self) -> bool:
        """Whether the kernel was compiled for more than one thread."""
        return self.parallel

    def threads(self, asked: int = 0) -> int:
        """The number of threads to run: PyTorch's, where the kernel can have more than one.

        It is 1 in a process that was forked off after this one ran several. A fork has one thread, and OpenMP waits
        there for the others for ever; PyTorch's own kernels do. The result is the same for any number.

        Args:
            asked: At most so many; 0 is as many as PyTorch has.
        """
        if not self.parallel or _POOL.lost:
            return 1
        number = asked or torch.get_num_threads()
        _POOL.begun = _POOL.begun or number > 1
        return number

    def forward(self, problem: CProblem, out: CTensor, lse: int | None) -> None:
        """Attends: fills the output and, where asked for, the log-sum-exp of each row.

        Args:
            problem: What is asked. What it points to must be there until this returns.
            out: Where the output goes, (batch, heads, q_len, v_head_dim).
            lse: Address of (batch, heads, q_len) float32, contiguous, or None.

        Raises:
            MultiheadError: If the kernel refuses the problem; it has then written nothing.
        """
        self.check(self.c.mh_forward(ctypes.byref(problem), ctypes.byref(out), lse), "attention by the compiled kernel")

    def check(self, status: int, asked: str) -> None:
        """Raises what a code of the kernel says.

        Args:
            status: What an entry answered.
            asked: What was wanted of it.

        Raises:
            MultiheadError: Unless the code is OK.
        """
        if status != Status.OK:
            told = self.c.mh_status_text(status).decode()
            remedy = _REMEDIES.get(Status(status), "") if status in list(Status) else ""
            raise MultiheadError(
                asked=asked,
                arrived=f"{told} (status {status})",
                remedy=remedy or "install multihead again: its kernel and its Python files are of different versions",
            )


def load() -> Library | None:
    """The compiled kernel, or None where there is none that runs here; `why_none` then says why.

    Example:
        >>> library = load()
        >>> library is None or len(library.variants()) > 0
        True
    """
    loaded = _loaded()
    return loaded if isinstance(loaded, Library) else None


def why_none() -> str | None:
    """Why `load` gives None, in a few words, or None where it gives the kernel.

    Example:
        >>> (why_none() is None) == (load() is not None)
        True
    """
    loaded = _loaded()
    return loaded if isinstance(loaded, str) else None


_loaded = cache(lambda: find())


def find() -> Library | str:
    """The kernel that was installed with this package, opened afresh, or why there is none to use."""
    for folder in _folders(Path(__file__).parent):
        if (folder / FILE).is_file():
            return open_library(folder / FILE)
    return NOT_BUILT


def _folders(here: Path) -> list[Path]:
    """Where the library may lie: beside the sources, or, of an editable install of them, where packages are installed.

    Import hooks, such as those that check types, lose the second place, so the installer is asked for it.
    """
    try:
        installed = metadata.distribution("multihead")
    except metadata.PackageNotFoundError:
        return [here]
    link = json.loads(installed.read_text("direct_url.json") or "{}")
    source = Path(url2pathname(urlparse(link.get("url", "")).path)) / "src" / "multihead" / "native"
    place = Path(str(installed.locate_file("multihead/native")))
    return [place, here] if source == here else [here]


def open_library(path: Path) -> Library | str:
    """The kernel in a file, or why it cannot be used.

    Args:
        path: A shared library.
    """
    try:
        c = ctypes.CDLL(str(path))
        if fault := _other(int(c.mh_abi()), ABI, "interface"):
            return fault
        _declare(c)
        if fault := _other(int(c.mh_statistics_abi()), STATISTICS_ABI, "interface of statistics"):
            return fault
        if not int(c.mh_variants()):
            return "compiled kernel has no variant for this processor"
        return Library(
            path=path,
            c=c,
            best=Variant(c.mh_best_variant()),
            amx=bool(c.mh_has_amx()),
            intel=bool(c.mh_is_intel()),
            parallel=bool(c.mh_has_threads()),
        )
    except (OSError, AttributeError) as fault:  # no library, or one without a function that is needed
        return f"compiled kernel cannot be loaded: {fault}"


def _other(has: int, needs: int, name: str) -> str:
    return "" if has == needs else f"compiled kernel has {name} {has}, this package {needs}: install multihead again"


def _declare(c: ctypes.CDLL) -> None:
    c.mh_forward.argtypes = [ctypes.POINTER(CProblem), ctypes.POINTER(CTensor), ctypes.c_void_p]
    c.mh_packed_bytes.restype = ctypes.c_int64
    for text in (c.mh_status_text, c.mh_variant_name):
        text.argtypes = [ctypes.c_int]
        text.restype = ctypes.c_char_p
