"""Statistics of attention weights by the compiled kernel: `csrc/multihead_statistics.h` on tensors."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from jaxtyping import Bool, Float, Float64, Int32, Int64, UInt8
from torch import Tensor

from multihead.native.abi import STATISTICS_ABI, CProblem
from multihead.native.library import Library

FARTHEST, OCTAVES = 16, 11
"""Distances told one by one, either way; bins beyond: 16 to 31, 32 to 63, ..., and all from 2^14 on."""

MOST_PAIRS = 64
"""Sets of pairs in one call."""

MOST_LINKS = 64
"""Strongest links of a row."""

NONE, OPEN = -(2**63), 2**63 - 1


class CPairs(ctypes.Structure):
    """`mh_pairs`: a set of pairs."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("low", "high", "without")),
        ("q_ids", ctypes.c_void_p),
        ("k_ids", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("q_ids_batch", "k_ids_batch")),
        ("dense", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("dense_batch", "dense_head", "dense_row", "dense_first", "dense_keys")),
    ]


class CWanted(ctypes.Structure):
    """`mh_wanted`: which rows, and what is known of queries and keys."""

    _fields_ = [
        ("abi", ctypes.c_int32),
        ("bins", ctypes.c_int32),
        ("row_first", ctypes.c_int64),
        ("row_count", ctypes.c_int64),
        ("rows", ctypes.c_void_p),
        *(
            field
            for name in ("centers", "q_kept", "k_kept", "sunk")
            for field in ((name, ctypes.c_void_p), (f"{name}_batch", ctypes.c_int64))
        ),
        ("sunk_keys", ctypes.c_int64),
        *(
            field
            for name in ("q_bins", "k_bins")
            for field in ((name, ctypes.c_void_p), (f"{name}_batch", ctypes.c_int64))
        ),
        ("pairs", ctypes.c_void_p),
        ("pair_sets", ctypes.c_int64),
        ("least", ctypes.c_int64),
        ("link_rows", ctypes.c_void_p),
        ("link_count", ctypes.c_int64),
        ("links", ctypes.c_int64),
        ("packed", ctypes.c_void_p),
        ("packed_size", ctypes.c_int64),
        ("packed_ready", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
    ]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pairs:
    """A set of pairs: those that every part that is given allows.

    Args:
        low: Least center - key.
        high: Greatest center - key.
        without: A value of center - key that is left out; `NONE` for none.
        ids: Ids of the rows and of the keys, (batch | 1, length) each, that must be equal.
        dense: Which pairs of the rows looked at and some keys.
        dense_first: The first of these keys.
    """

    low: int = NONE
    high: int = OPEN
    without: int = NONE
    ids: tuple[Int32[Tensor, "_ rows"], Int32[Tensor, "_ kv_len"]] | None = None
    dense: Bool[Tensor, "_ _ rows keys"] | None = None
    dense_first: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Wanted:
    """What is asked of a call.

    Args:
        rows: The queries to look at.
        centers: For each row the key at its own position; it may lie outside.
        q_kept: Rows that count, or None for all.
        k_kept: Keys that count, or None for all.
        sunk: Keys of the sink.
        q_bins: Bin of each row.
        k_bins: Bin of each key, never falling, or -1.
        bins: Number of bins.
        pairs: Sets of pairs.
        least: Rows that see fewer keys count in no sum over rows.
        links: How many of the strongest links of a row are told, up to `MOST_LINKS`.
        link_rows: Of which rows: places among those looked at, rising. None for all.
    """

    rows: slice | Int64[Tensor, " rows"]
    centers: Int64[Tensor, "_ rows"]
    q_kept: Bool[Tensor, "_ rows"] | None
    k_kept: Bool[Tensor, "_ kv_len"] | None
    sunk: Bool[Tensor, "_ kv_len"]
    q_bins: Int32[Tensor, "_ rows"]
    k_bins: Int32[Tensor, "_ kv_len"]
    bins: int
    pairs: Sequence[Pairs] = ()
    least: int = 2
    links: int = 0
    link_rows: Int64[Tensor, " link_rows"] | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Found:
    """What the kernel found: the fields of `mh_found`, see there."""

    sees: Int32[Tensor, "batch heads rows"]
    sees_sunk: Int32[Tensor, "batch heads rows"]
    top_key: Int32[Tensor, "batch heads rows"]
    peak: Float[Tensor, "batch heads rows"]
    top: Float[Tensor, "batch heads rows"]
    entropy: Float[Tensor, "batch heads rows"]
    sink: Float[Tensor, "batch heads rows"]
    sunk: Float[Tensor, "batch heads rows"]
    left: Float[Tensor, "batch heads rows"]
    left_entropy: Float[Tensor, "batch heads rows"]
    squares: Float[Tensor, "batch heads rows"]
    distance: Float[Tensor, "batch heads rows"]
    distance_absolute: Float[Tensor, "batch heads rows"]
    lse: Float[Tensor, "batch heads rows"]
    offsets: Float[Tensor, "batch heads rows offsets"]
    octaves: Float[Tensor, "batch heads rows octaves"]
    sunk_weights: Float[Tensor, "keys heads rows"]
    sunk_seen: UInt8[Tensor, "keys heads rows"]
    columns: Float64[Tensor, "batch heads kv_len"]
    pooled: Float64[Tensor, "batch heads bins bins"]
    pooled_content: Float64[Tensor, "batch heads bins bins"]
    gram: Float64[Tensor, "batch heads heads"] | None
    pair_weight: Float[Tensor, "sets batch heads rows"]
    pair_sunk: Float[Tensor, "sets batch heads rows"]
    pair_seen: Int32[Tensor, "sets batch heads rows"]
    pair_seen_sunk: Int32[Tensor, "sets batch heads rows"]
    pair_top: UInt8[Tensor, "sets batch heads rows"]
    link_keys: Int32[Tensor, "batch heads link_rows links"]
    link_weights: Float[Tensor, "batch heads link_rows links"]
    leaks: UInt8[Tensor, " batch"]


class CFound(ctypes.Structure):
    """`mh_found`: where each is written, or nothing."""

    _fields_ = [(field.name, ctypes.c_void_p) for field in fields(Found)]


class Packed:
    """Keys as the kernel reads them, kept from one call to the next for other rows.

    Args:
        library: The kernel.
        problem: The call.
    """

    def __init__(self, library: Library, problem: CProblem) -> None:
        self.memory = torch.empty(max(0, library.c.mh_packed_bytes(ctypes.byref(problem))), dtype=torch.uint8)
        self.ready = False


def find(library: Library, problem: CProblem, wanted: Wanted, *, gram: bool, packed: Packed | None = None) -> Found:
    """Take the statistics of some rows of a call.

    Args:
        library: The kernel.
        problem: The call. What it points to must be there until this returns.
        wanted: What is asked.
        gram: Whether products of all pairs of heads are asked too.
        packed: Where keys are kept for the next call with the same ones.

    Raises:
        MultiheadError: If the kernel refuses what it is given.
    """
    batch, heads, kv_len = problem.batch, problem.heads, problem.kv_len
    given, held = _wanted(wanted, batch)
    shape, sets = (batch, heads, given.row_count), len(wanted.pairs)
    links = (batch, heads, given.link_count, max(0, given.links))
    ints = {name: torch.zeros(shape, dtype=torch.int32) for name in ("sees", "sees_sunk", "top_key")}
    floats = [field.name for field in fields(Found)]
    floats = floats[floats.index("peak") : floats.index("offsets")]
    found = Found(
        **ints,
        **{name: torch.zeros(shape) for name in floats},
        offsets=torch.zeros(*shape, 2 * FARTHEST + 1),
        octaves=torch.zeros(*shape, 2 * OCTAVES),
        sunk_weights=torch.zeros(given.sunk_keys, *shape[1:]),
        sunk_seen=torch.zeros(given.sunk_keys, *shape[1:], dtype=torch.uint8),
        columns=torch.zeros(batch, heads, kv_len, dtype=torch.float64),
        pooled=torch.zeros(batch, heads, wanted.bins, wanted.bins, dtype=torch.float64),
        pooled_content=torch.zeros(batch, heads, wanted.bins, wanted.bins, dtype=torch.float64),
        gram=torch.zeros(batch, heads, heads, dtype=torch.float64) if gram else None,
        pair_weight=torch.zeros(sets, *shape),
        pair_sunk=torch.zeros(sets, *shape),
        pair_seen=torch.zeros(sets, *shape, dtype=torch.int32),
        pair_seen_sunk=torch.zeros(sets, *shape, dtype=torch.int32),
        pair_top=torch.zeros(sets, *shape, dtype=torch.uint8),
        link_keys=torch.full(links, -1, dtype=torch.int32),
        link_weights=torch.zeros(links),
        leaks=torch.zeros(batch, dtype=torch.uint8),
    )
    each = (getattr(found, field.name) for field in fields(Found))
    # A tensor without elements has no address, and the kernel takes none for one that is not asked for.
    to = CFound(*(None if tensor is None else tensor.data_ptr() or None for tensor in each))
    if packed is not None:
        given.packed, given.packed_size = packed.memory.data_ptr() or None, len(packed.memory)
        given.packed_ready = packed.ready and len(packed.memory) > 0
    status = library.c.mh_statistics(ctypes.byref(problem), ctypes.byref(given), ctypes.byref(to))
    del held
    library.check(status, "statistics of attention by the compiled kernel")
    if packed is not None:
        packed.ready = True
    return found


def _wanted(wanted: Wanted, batch: int) -> tuple[CWanted, list[object]]:
    """The struct, and what it points to."""
    held: list[object] = []
    given = CWanted(abi=STATISTICS_ABI, bins=wanted.bins, least=wanted.least, pair_sets=len(wanted.pairs))
    if isinstance(wanted.rows, slice):
        given.row_first, given.row_count = wanted.rows.start, wanted.rows.stop - wanted.rows.start
    else:
        given.row_count, given.rows = len(wanted.rows), _address(wanted.rows, torch.int64, held)
    for name, dtype in (
        ("centers", torch.int64),
        ("q_kept", torch.bool),
        ("k_kept", torch.bool),
        ("sunk", torch.bool),
        ("q_bins", torch.int32),
        ("k_bins", torch.int32),
    ):
        tensor: Tensor | None = getattr(wanted, name)
        if tensor is not None:
            setattr(given, name, _address(tensor, dtype, held))
            setattr(given, f"{name}_batch", tensor.shape[1] if tensor.shape[0] > 1 else 0)
    alone = wanted.sunk if wanted.k_kept is None else wanted.sunk & wanted.k_kept
    given.sunk_keys = int(alone.sum()) * (batch if alone.shape[0] == 1 else 1)
    given.sunk = given.sunk if given.sunk_keys else None
    _ask_links(given, wanted, held)
    pairs = (CPairs * len(wanted.pairs))(*(_pairs(one, held) for one in wanted.pairs))
    held.append(pairs)
    given.pairs = ctypes.addressof(pairs) if wanted.pairs else None
    return given, held


def _ask_links(given: CWanted, wanted: Wanted, held: list[object]) -> None:
    given.links = wanted.links
    given.link_count = given.row_count if wanted.links else 0
    if wanted.links and wanted.link_rows is not None:
        given.link_count, given.link_rows = len(wanted.link_rows), _address(wanted.link_rows, torch.int64, held)


def _pairs(pairs: Pairs, held: list[object]) -> CPairs:
    made = CPairs(low=pairs.low, high=pairs.high, without=pairs.without)
    if pairs.ids is not None:
        for side, ids in zip(("q", "k"), pairs.ids, strict=True):
            setattr(made, f"{side}_ids", _address(ids, torch.int32, held))
            setattr(made, f"{side}_ids_batch", ids.shape[1] if ids.shape[0] > 1 else 0)
    if pairs.dense is not None:
        dense = pairs.dense.contiguous()
        made.dense = _address(dense, torch.bool, held)
        batch, heads, rows, keys = dense.shape
        made.dense_batch = heads * rows * keys if batch > 1 else 0
        made.dense_head = rows * keys if heads > 1 else 0
        made.dense_row, made.dense_first, made.dense_keys = keys, pairs.dense_first, keys
    return made


def _address(tensor: Tensor, dtype: torch.dtype, held: list[object]) -> int | None:
    kept = tensor.to(dtype).contiguous()
    held.append(kept)
    return kept.data_ptr() or None
