"""The structs and numbers of `csrc/multihead.h` in ctypes; a test compares them with what a compiler says.

The structs of `csrc/multihead_statistics.h` are in `multihead.native.statistics`.
"""

import ctypes
from enum import IntEnum

ABI, STATISTICS_ABI = 1, 2
UNBOUNDED = (-(2**63), 2**63 - 1)


class DType(IntEnum):
    """`enum mh_dtype`."""

    F32 = 0
    BF16 = 1
    F16 = 2


class Variant(IntEnum):
    """`enum mh_variant`: the machine code to run; AUTO is the best one."""

    AUTO = 0
    AVX2 = 1
    AVX512 = 2
    AVX512_BF16 = 3
    NEON = 4


class Status(IntEnum):
    """`enum mh_status`: what an entry of the kernel answers."""

    OK = 0
    BAD_SIZE = 1
    BAD_DTYPE = 2
    BAD_STRIDE = 3
    BAD_POINTER = 4
    BAD_MASK = 5
    BAD_NUMBER = 6
    ALIASED = 7
    NO_VARIANT = 8
    NO_MEMORY = 9


def _strides(prefix: str, *names: str) -> list[tuple[str, type[ctypes.c_int64]]]:
    return [(f"{prefix}_{name}", ctypes.c_int64) for name in names]


class CTensor(ctypes.Structure):
    """`mh_tensor`: four dimensions, strides in elements; columns follow one another."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("batch", ctypes.c_int64),
        ("head", ctypes.c_int64),
        ("row", ctypes.c_int64),
    ]


class CMask(ctypes.Structure):
    """`mh_mask`: which pairs take part, namely those that every part that is given allows."""

    _fields_ = [
        ("window", ctypes.c_void_p),
        *_strides("window", "batch", "head"),
        ("q_ids", ctypes.c_void_p),
        ("k_ids", ctypes.c_void_p),
        *_strides("q_ids", "batch"),
        *_strides("k_ids", "batch"),
        ("keep", ctypes.c_void_p),
        *_strides("keep", "batch"),
        ("dense", ctypes.c_void_p),
        *_strides("dense", "batch", "head", "row", "col"),
        ("tile_class", ctypes.c_void_p),
        ("tile_index", ctypes.c_void_p),
        ("tile_bits", ctypes.c_void_p),
        *_strides("tile", "batch", "head"),
        ("q_tiles", ctypes.c_int64),
        ("k_tiles", ctypes.c_int64),
        ("tile_count", ctypes.c_int64),
    ]


class CBias(ctypes.Structure):
    """`mh_bias`: what is added to the scores, the sum of the parts that are given."""

    _fields_ = [
        ("slopes", ctypes.c_void_p),
        ("table", ctypes.c_void_p),
        ("table_first", ctypes.c_int64),
        ("table_len", ctypes.c_int64),
        ("dense", ctypes.c_void_p),
        ("dense_dtype", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        *_strides("dense", "batch", "head", "row", "col"),
    ]


class CProblem(ctypes.Structure):
    """`mh_problem`: one attention call. The tensors it points to must outlive the call."""

    _fields_ = [
        ("abi", ctypes.c_int32),
        ("dtype", ctypes.c_int32),
        ("variant", ctypes.c_int32),
        ("threads", ctypes.c_int32),
        ("batch", ctypes.c_int64),
        ("heads", ctypes.c_int64),
        ("kv_heads", ctypes.c_int64),
        ("q_len", ctypes.c_int64),
        ("kv_len", ctypes.c_int64),
        ("head_dim", ctypes.c_int64),
        ("v_head_dim", ctypes.c_int64),
        ("q", CTensor),
        ("k", CTensor),
        ("v", CTensor),
        ("scale", ctypes.c_float),
        ("softcap", ctypes.c_float),
        ("q_offset", ctypes.c_int64),
        ("mask", CMask),
        ("bias", CBias),
        ("sinks", ctypes.c_void_p),
    ]
