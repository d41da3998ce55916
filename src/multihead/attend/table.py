"""Where the compiled kernel was measured to be faster than PyTorch's: the table "auto" goes by.

The table is a file of this room, `winners.json`, written by a benchmark and never by hand. It holds, for each kind of
processor, variant of the kernel, dtype, kind of mask, head_dim and number of heads, the measured ratios by length. A
call goes by the measurement that is nearest to it; what was never measured is left to PyTorch's kernels.

The same variant meets another PyTorch on another processor: its products use AVX-512 and AMX on Intel's processors
alone. So a processor goes by the measurements of its own kind, and by those of AMD's where there are none; but nothing
that was measured elsewhere says how bfloat16 compares with AMX.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from multihead.attend.problem import Problem
from multihead.error import MultiheadError
from multihead.native import Library, Variant

FILE = "winners.json"
FORM = 2
PROCESSORS = {  # the kinds, in words
    "amd": "an AMD processor",
    "intel": "an Intel processor",
    "amx": "an Intel processor with AMX",
    "arm": "an Arm processor",
}
KINDS = ("full", "causal", "window", "mask", "decode")
RIVAL = "sdpa"
_MOST = 2**40  # sizes beyond are a mistake
FEW_ROWS = 8  # queries that share keys, heads times positions, up to which the kernel reads keys where they lie


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What was measured on one variant for one dtype, kind of mask, head_dim and number of heads.

    Args:
        processor: One of `PROCESSORS`: where it was measured. "amx" is of bfloat16 alone; of the other dtypes such a
            processor is "intel".
        variant: Of the compiled kernel: "avx512_bf16".
        dtype: Of q, k and v: "float32".
        kind: "full" (no mask), "causal" (one bound of the distance), "window" (two), "mask" (anything else: tensors,
            biases, documents, maps), or "decode" (so few queries that keys and values are read where they lie).
        head_dim: The larger of head_dim and v_head_dim.
        heads: Heads of all batch rows together.
        ratios: For each number of keys the time of PyTorch's kernel over that of ours: above 1 ours is faster.
    """

    processor: str
    variant: str
    dtype: str
    kind: str
    head_dim: int
    heads: int
    ratios: Mapping[int, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The measurements.

    Args:
        measured: Where and with what they were made, in words, for each processor and variant: "amd avx2".
        rows: All of them.
    """

    measured: Mapping[str, str]
    rows: tuple[Row, ...]

    def nearest(self, wanted: Row) -> tuple[Row, int] | None:
        """The measurement nearest to a row with one length, and its length; None where its kind was never measured.

        Near is judged by ratios, first of head_dim, then of heads, then of lengths. A processor on which this variant,
        dtype and kind of mask were never measured goes by AMD's rows; bfloat16 with AMX has none but its own.
        """
        same = self._same(wanted)
        if not same and wanted.processor != "amx":
            same = self._same(replace(wanted, processor="amd"))
        (keys,) = wanted.ratios
        found = [
            (_far(row.head_dim, wanted.head_dim), _far(row.heads, wanted.heads), _far(length, keys), place, length)
            for place, row in enumerate(same)
            for length in row.ratios
        ]
        if not found:
            return None
        *_, place, length = min(found)
        return same[place], length

    def _same(self, wanted: Row) -> list[Row]:
        return [row for row in self.rows if _group(row) == _group(wanted)]


def _group(row: Row) -> tuple[str, str, str, str]:
    return row.processor, row.variant, row.dtype, row.kind


def _far(measured: int, wanted: int) -> float:
    return abs(math.log(max(measured, 1) / max(wanted, 1)))


def kind_of(problem: Problem) -> str:
    """One of `KINDS`: what the table tells apart."""
    mask = problem.mask
    _, heads, q_len, _ = problem.q.shape
    if heads // max(problem.k.shape[1], 1) * q_len <= FEW_ROWS:
        return "decode"
    if problem.bias is not None or isinstance(mask, Tensor):
        return "mask"
    window = (None, None) if mask is None else mask.window
    if window is None:
        return "mask"
    return ("full", "causal", "window")[sum(bound is not None for bound in window)]


def processor_of(library: Library, dtype: torch.dtype) -> str:
    """One of `PROCESSORS`: whose measurements say how fast the two kernels are here for a dtype.

    Args:
        library: The kernel, which knows the processor.
        dtype: Of q, k and v.
    """
    if library.is_intel():
        return "amx" if dtype == torch.bfloat16 and library.has_amx() else "intel"
    return "arm" if library.best_variant() == Variant.NEON else "amd"


def prefers(problem: Problem, variant: str, processor: str) -> str | None:
    """Why PyTorch's kernel is taken before a variant of ours, in words; None where ours was measured to be faster.

    Args:
        problem: What is asked.
        variant: The variant of our kernel that would run.
        processor: What `processor_of` gives.
    """
    (batch, heads, _, head_dim), (*_, keys, v_head_dim) = problem.q.shape, problem.v.shape
    size = max(head_dim, v_head_dim)
    return _prefers(processor, variant, problem.q.dtype, kind_of(problem), size, batch * heads, keys)


@lru_cache(maxsize=4096)
def _prefers(
    processor: str, variant: str, kept: torch.dtype, kind: str, head_dim: int, heads: int, keys: int
) -> str | None:
    dtype = str(kept).removeprefix("torch.")
    wanted = Row(
        processor=processor,
        variant=variant,
        dtype=dtype,
        kind=kind,
        head_dim=head_dim,
        heads=heads,
        ratios={keys: 1.0},
    )
    found = packaged().nearest(wanted)
    if found is None:
        here = f"{variant} of {PROCESSORS[processor]}"
        return f"the measured table prefers {RIVAL} where nothing was measured: {kind}, {dtype}, on {here}"
    row, length = found
    ratio = row.ratios[length]
    if ratio >= 1:
        return None
    return (
        f"the measured table prefers {RIVAL} for {kind}, {dtype}, on {variant}: at head_dim {row.head_dim}, "
        f"{row.heads} heads and {length} keys ours has {ratio:.2f} of its speed on {PROCESSORS[row.processor]}"
    )


@cache
def packaged() -> Table:
    """The table that comes with this package."""
    return read_table(resources.files("multihead.attend").joinpath(FILE).read_text(encoding="utf-8"))


def read_table(text: str) -> Table:
    """A table from the text of its file.

    Raises:
        MultiheadError: It is not a table of this form.
    """
    try:
        told: dict[str, Any] = json.loads(text)
        if told["form"] != FORM:
            raise ValueError(f"form {told['form']}")
        return Table(measured=dict(told["measured"]), rows=tuple(_row(entry) for entry in told["rows"]))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as fault:
        raise MultiheadError(
            asked=f"a table of measured ratios, form {FORM}",
            arrived=f"{type(fault).__name__}: {fault}",
            remedy="write it with multihead.attend.table.write_table",
        ) from fault


def _row(entry: Mapping[str, Any]) -> Row:
    ratios = {int(length): float(ratio) for length, ratio in entry["ratios"].items()}
    named = entry["kind"] in KINDS and entry["processor"] in PROCESSORS
    if not named or not ratios or not all(0 < ratio < math.inf for ratio in ratios.values()):
        raise ValueError(f"the row {entry}")
    names, sizes = (entry["variant"], entry["dtype"]), (entry["head_dim"], entry["heads"], *ratios)
    if not all(type(name) is str for name in names) or not all(type(n) is int and 0 < n < _MOST for n in sizes):
        raise ValueError(f"the row {entry}")
    return Row(
        processor=entry["processor"],
        variant=names[0],
        dtype=names[1],
        kind=entry["kind"],
        head_dim=sizes[0],
        heads=sizes[1],
        ratios=ratios,
    )


def write_table(path: Path, *, measured: Mapping[str, str], rows: Iterable[Row]) -> None:
    """Writes the file of a table, one line a row, so that a change shows which measurements moved.

    Args:
        path: Where to.
        measured: Where and with what it was measured, in words, for each processor and variant.
        rows: The measurements; they are sorted.
    """
    entries = [
        json.dumps(
            {
                "processor": row.processor,
                "variant": row.variant,
                "dtype": row.dtype,
                "kind": row.kind,
                "head_dim": row.head_dim,
                "heads": row.heads,
                "ratios": {str(length): round(row.ratios[length], 3) for length in sorted(row.ratios)},
            }
        )
        for row in sorted(rows, key=lambda row: (*_group(row), row.head_dim, row.heads))
    ]
    lines = ",\n    ".join(entries)
    head = f'{{\n  "form": {FORM},\n  "measured": {json.dumps(dict(measured), indent=4)[:-1]}  }},\n'
    path.write_text(f'{head}  "rows": [\n    {lines}\n  ]\n}}\n', encoding="utf-8")
