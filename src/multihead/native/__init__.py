"""The door to the compiled kernel: finds it, loads it, and speaks its plain C interface."""

from multihead.native.abi import CBias, CMask, CProblem, CTensor, DType, Status, Variant
from multihead.native.library import NOT_BUILT, Library, load, open_library, why_none

__all__ = [
    "NOT_BUILT",
    "CBias",
    "CMask",
    "CProblem",
    "CTensor",
    "DType",
    "Library",
    "Status",
    "Variant",
    "load",
    "open_library",
    "why_none",
]
