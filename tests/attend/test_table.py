"""The table of measured ratios: what it tells apart, which measurement is nearest, its file."""

import ctypes
import json
from pathlib import Path

import pytest
import torch

from attend.oracle import qkv
from multihead.attend import make_problem, table
from multihead.attend.table import (
    KINDS,
    Row,
    Table,
    kind_of,
    packaged,
    prefers,
    processor_of,
    read_table,
    write_table,
)
from multihead.error import MultiheadError
from multihead.native import Library, Variant
from multihead.pattern import band, causal, document, everything, nothing, padding, sliding_window
from multihead.position import ALiBi, alibi_slopes


def row(**changed):
    given = {"dtype": "float32", "kind": "full", "head_dim": 64, "heads": 8, "ratios": {512: 2.0}}
    return Row(**{"processor": "amd", "variant": "avx2"} | given | changed)


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({}, "full"),
        ({"mask": everything()}, "full"),
        ({"mask": causal()}, "causal"),
        ({"mask": ~causal()}, "causal"),
        ({"mask": sliding_window(3)}, "window"),
        ({"mask": band(2, 2) & causal()}, "window"),
        ({"mask": nothing()}, "mask"),
        ({"mask": causal() & document(torch.zeros(9).long())}, "mask"),
        ({"mask": padding(torch.ones(9).bool())}, "mask"),
        ({"mask": torch.ones(9, 9).bool()}, "mask"),
        ({"bias": torch.zeros(9, 9)}, "mask"),
        ({"bias": ALiBi(alibi_slopes(4)), "mask": causal()}, "mask"),
    ],
    ids=str,
)
def test_kinds_of_calls(options, kind):
    problem = make_problem(*qkv(q_len=9, kv_len=9), **options)
    assert kind_of(problem) == kind
    assert kind in KINDS


@pytest.mark.parametrize(
    ("q_len", "kv_heads", "kind"), [(1, 2, "decode"), (4, 2, "decode"), (5, 2, "full"), (8, 4, "decode")]
)
def test_few_queries_that_share_keys_are_decoding(q_len, kv_heads, kind):
    assert kind_of(make_problem(*qkv(q_len=q_len, kv_heads=kv_heads))) == kind


def test_the_nearest_measurement_by_ratios():
    rows = (
        row(head_dim=64, ratios={128: 0.5, 2048: 2.0}),
        row(head_dim=64, heads=384, ratios={128: 1.5}),
        row(head_dim=128, ratios={512: 3.0}),
        row(head_dim=128, dtype="bfloat16", ratios={512: 4.0}),
    )
    found = Table(measured={}, rows=rows)

    def nearest(**changed):
        near = found.nearest(row(**changed))
        return None if near is None else (near[0].head_dim, near[0].heads, near[1])

    assert nearest(ratios={300: 1.0}) == (64, 8, 128)
    assert nearest(ratios={900: 1.0}) == (64, 8, 2048)
    assert nearest(head_dim=80, ratios={64: 1.0}) == (64, 8, 128)
    assert nearest(head_dim=100) == (128, 8, 512)
    assert nearest(head_dim=1, heads=100) == (64, 384, 128)
    assert nearest(head_dim=64, ratios={0: 1.0}) == (64, 8, 128)
    assert nearest(dtype="bfloat16", head_dim=16) == (128, 8, 512)
    assert nearest(dtype="float16") is None
    assert nearest(variant="neon") is None
    assert nearest(kind="decode") is None


def test_a_processor_goes_by_its_own_kind_and_else_by_amds():
    rows = (
        row(ratios={1: 1.0}),
        row(dtype="bfloat16", ratios={2: 1.0}),
        row(processor="intel", ratios={3: 1.0}),
        row(processor="amx", dtype="bfloat16", kind="decode", ratios={4: 1.0}),
    )
    found = Table(measured={}, rows=rows)

    def nearest(**changed):
        near = found.nearest(row(**changed))
        return None if near is None else (near[0].processor, near[1])

    assert nearest() == ("amd", 1)
    assert nearest(processor="intel", head_dim=16) == ("intel", 3)
    assert nearest(processor="intel", dtype="bfloat16") == ("amd", 2)
    assert nearest(processor="arm") == ("amd", 1)
    assert nearest(processor="amx", dtype="bfloat16", kind="decode") == ("amx", 4)
    # What was measured without AMX says nothing of it.
    assert nearest(processor="amx", dtype="bfloat16") is None


@pytest.mark.parametrize(
    ("intel", "amx", "best", "kinds"),
    [
        (False, False, Variant.AVX512, ("amd", "amd")),
        (True, False, Variant.AVX2, ("intel", "intel")),
        (True, True, Variant.AVX512_BF16, ("intel", "amx")),
        (False, False, Variant.NEON, ("arm", "arm")),
    ],
)
def test_kinds_of_processors(intel, amx, best, kinds):
    library = Library(path=Path(), c=ctypes.CDLL(None), best=best, amx=amx, intel=intel, parallel=True)
    assert tuple(processor_of(library, dtype) for dtype in (torch.float32, torch.bfloat16)) == kinds
    assert processor_of(library, torch.float16) == kinds[0]


def test_what_is_preferred_and_why(monkeypatch):
    slow = Table(measured={}, rows=(row(ratios={8: 0.8}), row(kind="causal", ratios={8: 1.0})))
    monkeypatch.setattr(table, "packaged", lambda: slow)
    table._prefers.cache_clear()
    problem = make_problem(*qkv(heads=8, kv_heads=8, q_len=9, kv_len=9))
    for processor in ("amd", "intel"):
        assert prefers(problem, "avx2", processor) == (
            "the measured table prefers sdpa for full, float32, on avx2: at head_dim 64, 8 heads and 8 keys ours has "
            "0.80 of its speed on an AMD processor"
        )
    assert prefers(make_problem(*qkv(q_len=9, kv_len=9), mask=causal()), "avx2", "amd") is None
    assert prefers(problem, "neon", "arm") == (
        "the measured table prefers sdpa where nothing was measured: full, float32, on neon of an Arm processor"
    )
    table._prefers.cache_clear()


def test_the_file_is_read_as_it_was_written(tmp_path):
    rows = (row(ratios={2048: 1.25, 128: 0.5}), row(kind="causal"), row(variant="avx512", ratios={1: 3.0}))
    path = tmp_path / "winners.json"
    write_table(path, measured={"avx2": "here, today"}, rows=rows)
    found = read_table(path.read_text())
    assert found.measured == {"avx2": "here, today"}
    assert sorted(found.rows, key=str) == sorted(rows, key=str)
    assert len(path.read_text().splitlines()) == 3 + 2 + 3 + 3
    write_table(tmp_path / "again.json", measured=found.measured, rows=reversed(found.rows))
    assert (tmp_path / "again.json").read_text() == path.read_text()


def worded(**changed):
    """The file of a table of one row, with some entries changed."""
    entry = {"processor": "amd", "variant": "avx2", "dtype": "float32", "kind": "full", "head_dim": 64, "heads": 8}
    return json.dumps({"form": 2, "measured": {}, "rows": [entry | {"ratios": {"512": 2.0}} | changed]})


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("not json", "JSONDecodeError"),
        ('{"form": 9}', "ValueError: form 9"),
        ('{"form": 2, "rows": []}', "KeyError: 'measured'"),
        ("[]", "TypeError"),
        (
            '{"form": 2, "measured": {}, "rows": [{"processor": "amd", "kind": "full", "ratios": {}}]}',
            "ValueError: the row",
        ),
        (
            '{"form": 2, "measured": {}, "rows": [{"processor": "amd", "kind": "diagonal", "ratios": {"1": 1}}]}',
            "ValueError: the row",
        ),
        (
            '{"form": 2, "measured": {}, "rows": [{"processor": "amd", "kind": "full", "ratios": {"1": -1}}]}',
            "ValueError: the row",
        ),
        (
            '{"form": 2, "measured": {}, "rows": [{"processor": "vax", "kind": "full", "ratios": {"1": 1}}]}',
            "ValueError: the row",
        ),
        (
            '{"form": 2, "measured": {}, "rows": [{"processor": "amd", "kind": "full", "ratios": {"1": 1}}]}',
            "KeyError: 'variant'",
        ),
        ("[" * 100_000, "RecursionError"),
        (worded(ratios={"1": 10**400}), "OverflowError"),
        (worded(ratios={"-5": 1.5}), "ValueError: the row"),
        (worded(ratios={"9" * 400: 1.5}), "ValueError: the row"),
        (worded(head_dim=float("inf")), "ValueError: the row"),
        (worded(head_dim=64.9), "ValueError: the row"),
        (worded(head_dim="64"), "ValueError: the row"),
        (worded(heads=0), "ValueError: the row"),
        (worded(heads=True), "ValueError: the row"),
        (worded(variant=None), "ValueError: the row"),
        (worded(dtype=["float32"]), "ValueError: the row"),
    ],
    ids=lambda given: given[:60],
)
def test_message_no_table(text, told):
    with pytest.raises(MultiheadError, match=f"measured ratios, form 2\n  got: {told}.*\n  fix: write it with"):
        read_table(text)


def test_the_packaged_table_has_every_kind_for_what_it_was_measured_on():
    found = packaged()
    groups = {(row.processor, row.variant, row.dtype) for row in found.rows}
    assert {f"{processor} {variant}" for processor, variant, _ in groups} == set(found.measured)
    for group in groups:
        kinds = {row.kind for row in found.rows if (row.processor, row.variant, row.dtype) == group}
        assert kinds == set(KINDS)
    assert all((row.processor == "amx") <= (row.dtype == "bfloat16") for row in found.rows)


def test_few_rows_are_as_many_as_the_kernel_says():
    source = (Path(__file__).parents[2] / "csrc" / "decode.h").read_text()
    assert f"FEW_ROWS = {table.FEW_ROWS};" in source
