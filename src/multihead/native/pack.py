"""A problem of the compiled kernel, written into the struct of `csrc/multihead.h` from tensors and checked."""

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from multihead.error import MultiheadError
from multihead.native.abi import ABI, CBias, CMask, CProblem, CTensor, DType

DTYPES = {torch.float32: DType.F32, torch.bfloat16: DType.BF16, torch.float16: DType.F16}
WIDEST = 512  # head_dim and v_head_dim
TILE = 64


def pack_problem(
    tensors: tuple[Tensor, Tensor, Tensor],
    mask: Sequence[Tensor | None],
    bias: Sequence[Tensor | None],
    sinks: Tensor | None,
    numbers: tuple[float, float, int, int],
    how: tuple[int, int],
) -> CProblem:
    """A problem as the kernel takes it. The tensors must outlive it.

    Args:
        tensors: q, k and v.
        mask: See `native_forward`, and so for what follows.
        bias: Parts of the bias.
        sinks: Logits.
        numbers: scale, softcap, q_offset, table_first.
        how: Variant and threads.

    Raises:
        MultiheadError: If the arguments do not fit together.
    """
    q, k, v = tensors
    scale, softcap, q_offset, table_first = numbers
    problem = CProblem.from_buffer_copy(
        _form(
            (q.dtype, k.dtype, v.dtype),
            (q.shape, k.shape, v.shape),
            (q.stride(), k.stride(), v.stride()),
            (scale, softcap, q_offset),
            how,
        )
    )
    problem.q.data, problem.k.data, problem.v.data = q.data_ptr(), k.data_ptr(), v.data_ptr()
    sizes = (problem.batch, problem.heads, problem.q_len, problem.kv_len)
    if mask:
        _fill_mask(problem.mask, mask, sizes)
    if bias:
        _fill_bias(problem.bias, bias, table_first, sizes)
    if 0 in sizes:  # a part may have no numbers, and so no address, and there is no pair for it to speak of
        problem.mask, problem.bias = CMask(), CBias()
    if sinks is not None:
        problem.sinks = _address("sinks", sinks, torch.float32, (sizes[1],))
    return problem


_Three = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


@lru_cache(maxsize=1024)
def _form(
    dtypes: tuple[torch.dtype, torch.dtype, torch.dtype],
    shapes: _Three,
    strides: _Three,
    numbers: tuple[float, float, int],
    how: tuple[int, int],
) -> bytes:
    """The struct of a problem without any address, checked.

    A model makes the same calls over and over, in every layer: to check and to write their sizes takes longer than a
    small kernel, and is done once.
    """
    _check_inputs(dtypes, shapes, strides)
    (batch, heads, q_len, head_dim), (_, kv_heads, kv_len, _), (*_, v_head_dim) = shapes
    sizes = (batch, heads, kv_heads, q_len, kv_len, head_dim, v_head_dim)
    places = (CTensor(None, *steps[:3]) for steps in strides)
    return bytes(CProblem(ABI, DTYPES[dtypes[0]], *how, *sizes, *places, *numbers))


def _check_inputs(dtypes: Sequence[torch.dtype], shapes: _Three, strides: _Three) -> None:
    q, k, v = shapes
    fits = len(q) == len(k) == len(v) == 4 and k[:3] == v[:3] and q[0] == k[0]
    fits = fits and q[3] == k[3] and q[1] % max(k[1], 1) == 0
    if not fits or (q[1] > 0 and k[1] == 0) or max(q[3], v[3]) > WIDEST:
        raise _refused(
            "q (batch, heads, q_len, head_dim), k (batch, kv_heads, kv_len, head_dim) and v (batch, kv_heads, kv_len, "
            f"v_head_dim), kv_heads a divisor of heads, head_dim and v_head_dim up to {WIDEST}",
            f"q {tuple(q)}, k {tuple(k)}, v {tuple(v)}",
        )
    if dtypes[0] not in DTYPES or len(set(dtypes)) > 1:
        told = ", ".join(f"{name} {dtype}" for name, dtype in zip("qkv", dtypes, strict=True))
        raise _refused("q, k and v of one dtype: float32, bfloat16 or float16", told)
    for name, shape, steps in zip("qkv", shapes, strides, strict=True):
        if steps[3] != 1 and shape[3] > 1 and 0 not in shape:
            raise _refused(f"{name} whose columns follow one another", f"a stride of {steps[3]} between them")


def _fill_mask(c: CMask, parts: Sequence[Tensor | None], sizes: tuple[int, int, int, int]) -> None:
    """Writes the parts of a mask, where there are any, as the kernel takes them."""
    if len(parts) != 8:
        raise _refused("the 8 parts of a mask, None for those that are not there", f"{len(parts)}")
    window, q_ids, k_ids, keep, dense, *tiles = parts
    batch, heads, q_len, kv_len = sizes
    if window is not None:
        c.window = _address("window", window, torch.int64, (batch, heads, 2), free=2)
        c.window_head = 0 if window.shape[1] == 1 else 1
        c.window_batch = 0 if window.shape[0] == 1 else window.shape[1]
    if q_ids is not None or k_ids is not None:
        c.q_ids, c.q_ids_batch = _line("q_ids", q_ids, torch.int32, (batch, q_len))
        c.k_ids, c.k_ids_batch = _line("k_ids", k_ids, torch.int32, (batch, kv_len))
    if keep is not None:
        c.keep, c.keep_batch = _line("keep", keep, torch.bool, (batch, kv_len))
    if dense is not None:
        _check("dense mask", dense, (torch.bool,), sizes, free=4)
        c.dense = dense.data_ptr()
        c.dense_batch, c.dense_head, c.dense_row, c.dense_col = _steps(dense)
    if tiles != [None, None, None]:
        _fill_map(c, tiles, sizes)


def _fill_map(c: CMask, tiles: Sequence[Tensor | None], sizes: tuple[int, int, int, int]) -> None:
    classes, index, bits = tiles
    grid = (*sizes[:2], -(-sizes[2] // TILE), -(-sizes[3] // TILE))
    c.tile_class = _address("tile_class", classes, torch.int8, grid, free=2)
    c.tile_index = _address("tile_index", index, torch.int32, grid, free=2)
    if classes is None or index is None or bits is None or classes.shape != index.shape:
        raise _refused(
            "a tile map: tile_class and tile_index of one shape, and tile_bits",
            ", ".join(_told(part) for part in tiles),
        )
    c.tile_bits = _address("tile_bits", bits, torch.int64, (bits.shape[0], TILE))
    c.q_tiles, c.k_tiles, c.tile_count = grid[2], grid[3], bits.shape[0]
    area = grid[2] * grid[3]
    c.tile_head = 0 if classes.shape[1] == 1 else area
    c.tile_batch = 0 if classes.shape[0] == 1 else area * classes.shape[1]


def _fill_bias(c: CBias, parts: Sequence[Tensor | None], first: int, sizes: tuple[int, int, int, int]) -> None:
    """Writes the parts of a bias, where there are any, as the kernel takes them."""
    if len(parts) != 3:
        raise _refused("the 3 parts of a bias, None for those that are not there", f"{len(parts)}")
    slopes, table, dense = parts
    heads = sizes[1]
    c.slopes = _address("slopes", slopes, torch.float32, (heads,))
    if table is not None:
        c.table = _address("table", table, torch.float32, (heads, max(table.shape[-1], 1) if table.ndim else 1))
        c.table_first, c.table_len = first, table.shape[1]
    if dense is not None:
        _check("dense bias", dense, tuple(DTYPES), sizes, free=4)
        c.dense, c.dense_dtype = dense.data_ptr(), DTYPES[dense.dtype]
        c.dense_batch, c.dense_head, c.dense_row, c.dense_col = _steps(dense)


def _address(
    name: str, part: Tensor | None, dtype: torch.dtype, shape: tuple[int, ...], *, free: int = 0
) -> int | None:
    """Where a tensor without gaps begins."""
    if part is None:
        return None
    _check(name, part, (dtype,), shape, free=free)
    if not part.is_contiguous():
        raise _refused(f"{name} without gaps between its numbers", f"strides {part.stride()}")
    return part.data_ptr()


def _line(name: str, part: Tensor | None, dtype: torch.dtype, shape: tuple[int, int]) -> tuple[int, int]:
    """Where a row of numbers for each batch row begins, and how far apart they are."""
    if part is None:
        raise _refused("ids of queries and of keys together", f"no {name}")
    _check(name, part, (dtype,), shape, free=1)
    if part.stride(1) != 1 and part.shape[1] > 1 and part.numel() > 0:
        raise _refused(f"{name} whose numbers follow one another", f"a stride of {part.stride(1)} between them")
    return part.data_ptr(), 0 if part.shape[0] == 1 else part.stride(0)


def _check(name: str, part: Tensor, dtypes: tuple[torch.dtype, ...], shape: tuple[int, ...], *, free: int) -> None:
    """Refuses a tensor of another dtype or shape; the first `free` sizes may be 1 instead, one for all.

    What a row, a map or a list of keys is made of is not broadcast: only a batch, heads and dense numbers are.
    """
    have = part.shape
    fits = have == shape or (
        len(have) == len(shape)
        and have[free:] == shape[free:]
        and all(size in (1, want) for size, want in zip(have[:free], shape, strict=False))
    )
    if not fits or part.dtype not in dtypes or not part.is_cpu:
        wanted = ", ".join(f"{size}" if place >= free else f"{size} or 1" for place, size in enumerate(shape))
        kinds = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        raise _refused(f"{name} of shape ({wanted}), {kinds}, on the CPU", _told(part))


def _steps(x: Tensor) -> tuple[int, ...]:
    """Strides, 0 where there is one for all."""
    return tuple(0 if size == 1 else step for size, step in zip(x.shape, x.stride(), strict=True))


def _told(part: Tensor | None) -> str:
    return "None" if part is None else f"{tuple(part.shape)} {part.dtype} on {part.device}".replace("torch.", "")


def _refused(asked: str, arrived: str) -> MultiheadError:
    return MultiheadError(
        asked=f"torch.ops.multihead.native_forward with {asked}",
        arrived=arrived,
        remedy="call multihead.attention, which puts a problem into this form",
    )
