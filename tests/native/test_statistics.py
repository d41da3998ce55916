"""What one pass of the kernel finds is what the whole matrix of weights says."""

import ctypes
import dataclasses

import pytest
import torch

from built import needs_kernel
from multihead.error import MultiheadError
from multihead.native import load
from multihead.native.abi import STATISTICS_ABI, CProblem, CTensor, Status
from multihead.native.statistics import CFound, CWanted, Pairs, find
from native.oracle_statistics import case, expect, problem_of

LIBRARY = load()
VARIANTS = () if LIBRARY is None else LIBRARY.variants()
pytestmark = needs_kernel


def ids(batch, length):
    return torch.randint(0, 4, (batch, length)).int()


def sets():
    return (
        Pairs(low=1, high=1),
        Pairs(low=-3, high=90),
        Pairs(high=-2),
        Pairs(ids=(ids(2, 37), ids(2, 150)), without=0),
        Pairs(ids=(ids(1, 37), ids(1, 150)), without=-1, low=-20),
        Pairs(dense=torch.rand(2, 4, 37, 30) < 0.5, dense_first=50),
        Pairs(dense=torch.rand(1, 1, 37, 150) < 0.02),
        Pairs(low=400, high=500),
    )


CASES = {
    "plain": {},
    "sets of pairs": {"pairs": sets, "offset": 60},
    "causal": {"window": (0, 2**62), "offset": 113, "pairs": sets},
    "window": {"window": (-9, 40), "offset": 50, "pairs": sets},
    "window that ends": {"window": (5, 20), "offset": 0},
    "dense mask": {"dense": True, "pairs": sets},
    "keys shut": {"keep": True, "pairs": sets},
    "padding that gets weight": {"pads": True, "pairs": sets},
    "padding within a mask": {"pads": True, "dense": True, "keep": True, "window": (0, 99), "offset": 90},
    "sinks": {"sinks": True, "pairs": sets},
    "sinks and padding": {"sinks": True, "pads": True, "softcap": 3.0},
    "softcap": {"softcap": 2.0},
    "bias": {"bias": True, "sinks": True},
    "scale below nothing": {"scale": -0.4},
    "scale of nothing": {"scale": 0.0},
    "a tiny scale": {"scale": 1e-9},
    "large scores": {"scale": 20.0},
    "some rows": {"rows": [30, 2, 3, 36, 11, 7, 5, 0], "window": (0, 70), "offset": 80},
    "some rows with bias": {"rows": [30, 2, 3, 36, 11, 7, 5, 0], "bias": True, "dense": True},
    "a range of rows": {"rows": slice(7, 29), "window": (-20, 60), "offset": 40, "dense": True},
    "one row": {"q_len": 1, "offset": 140, "window": (0, 2**62)},
    "one key": {"kv_len": 1, "sunk_keys": 1},
    "many heads": {"heads": 9, "kv_heads": 3, "batch": 1},
    "one head, one dim": {"heads": 1, "kv_heads": 1, "dim": 1},
    "wide heads": {"dim": 300, "scale": 0.05},
    "no sink": {"sunk_keys": 0},
    "many keys of the sink": {"sunk_keys": 80},
    "far": {"kv_len": 1500, "offset": 700, "q_len": 20, "heads": 2},
    "rows of several blocks": {"q_len": 150, "kv_len": 200, "offset": 30, "batch": 1},
}


def made(name, **more):
    given = dict(CASES[name])
    if "pairs" in given:
        given["pairs"] = given["pairs"]()
    return case(**given | more)


def assert_found(found, c):
    want = expect(c)
    scale = max(1.0, float(want["peak"].abs().masked_fill(want["peak"] < -1e29, 0.0).max()) / 10)
    top = found.top_key.long()
    for field in dataclasses.fields(found):
        name = field.name
        if not getattr(found, name).numel() or name == "link_keys":
            continue
        got, wanted = getattr(found, name).double(), want[name].double()
        if name in {"top_key", "pair_top"}:
            # Where two weights are equal but for rounding either may be the largest.
            same = (want["top_key"] == top).expand(got.shape)
            assert float((~same).double().mean()) < 0.05
            got, wanted = got[same], wanted[same]
        if name.startswith("distance"):
            got, wanted = got / 1000, wanted / 1000
        if name in {"columns", "pooled", "pooled_content", "gram"}:
            most = wanted.abs().max().clamp(min=1.0)
            got, wanted = got / most, wanted / most
        torch.testing.assert_close(
            got, wanted, rtol=4e-6 * scale, atol=2e-6 * scale, msg=lambda told, name=name: f"{name}: {told}"
        )


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
@pytest.mark.parametrize("name", CASES)
def test_all_is_found_as_it_is_defined(name, variant):
    c = made(name, variant=int(variant))
    problem, held = problem_of(c)
    found = find(LIBRARY, problem, c.wanted, gram=True)
    del held
    assert_found(found, c)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_short_dtypes(dtype, variant):
    c = made("causal", dtype=dtype, variant=int(variant), dim=33, sinks=True)
    problem, held = problem_of(c)
    found = find(LIBRARY, problem, c.wanted, gram=True)
    del held
    assert_found(found, c)


def test_any_number_of_threads_finds_the_same():
    c = made("causal", q_len=400, kv_len=420, pairs=(), offset=20)
    found = []
    for threads in (1, 2, 3, 8):
        c.threads = threads
        problem, held = problem_of(c)
        found.append(find(LIBRARY, problem, c.wanted, gram=True))
        del held
    for other in found[1:]:
        for field in dataclasses.fields(other):
            assert torch.equal(getattr(other, field.name), getattr(found[0], field.name)), field.name


def test_a_row_is_the_same_whichever_rows_it_stands_among():
    c = made("causal", pairs=())
    problem, held = problem_of(c)
    whole = find(LIBRARY, problem, c.wanted, gram=False)
    for rows in (slice(5, 18), torch.tensor([17, 3, 9])):
        of_rows = {name: getattr(c.wanted, name)[:, rows] for name in ("centers", "q_kept", "q_bins")}
        some = find(LIBRARY, problem, dataclasses.replace(c.wanted, rows=rows, **of_rows), gram=False)
        for name in ("entropy", "left_entropy", "top", "distance", "octaves", "offsets", "squares", "sunk_weights"):
            assert torch.equal(getattr(some, name), getattr(whole, name)[:, :, rows]), name
    del held


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rows": torch.arange(1, 38)}, "a size is negative"),
        ({"rows": slice(1, 38)}, "a size is negative"),
        ({"bins": 2}, "not finite or out of range"),
        ({"k_bins": torch.full((2, 150), 5).int()}, "not finite or out of range"),
        ({"pairs": tuple(Pairs() for _ in range(65))}, "a size is negative"),
        (
            {"pairs": (Pairs(dense=torch.ones(1, 1, 37, 9, dtype=torch.bool), dense_first=145),)},
            "a mask that contradicts",
        ),
    ],
    ids=["row beyond", "range beyond", "bin beyond", "bin of keys beyond", "too many sets", "keys beyond"],
)
def test_what_contradicts_itself_is_refused(change, words):
    c = made("plain")
    problem, held = problem_of(c)
    with pytest.raises(MultiheadError, match=words):
        find(LIBRARY, problem, dataclasses.replace(c.wanted, **change), gram=False)
    del held


def call_with(outputs):
    """The code of the C entry for small tensors, and whether q and a buffer, in which outputs lie, are as before."""
    q, k, buffer = torch.randn(1, 2, 5, 8), torch.randn(1, 2, 7, 8), torch.zeros(4096)
    centers = torch.arange(5)
    problem = CProblem(abi=1, threads=1, batch=1, heads=2, kv_heads=2, q_len=5, kv_len=7, head_dim=8, scale=0.3)
    problem.q, problem.k = (CTensor(x.data_ptr(), *x.stride()[:3]) for x in (q, k))
    wanted = CWanted(abi=STATISTICS_ABI, bins=1, row_count=5, centers=centers.data_ptr(), least=2)
    found = CFound()
    for name, (where, at) in outputs.items():
        setattr(found, name, {"q": q, "buffer": buffer}[where].data_ptr() + at)
    before = q.clone(), buffer.clone()
    status = Status(load().c.mh_statistics(*(ctypes.byref(part) for part in (problem, wanted, found))))
    untouched = torch.equal(q, before[0]) and torch.equal(buffer, before[1])
    return status, untouched


def test_outputs_over_inputs_or_each_other_are_refused():
    assert call_with({"peak": ("buffer", 0), "lse": ("buffer", 40), "columns": ("buffer", 80)}) == (Status.OK, False)
    for lie in (
        {"peak": ("q", 0)},
        {"columns": ("q", 64)},
        {"peak": ("buffer", 0), "lse": ("buffer", 0)},
        {"peak": ("buffer", 0), "lse": ("buffer", 36)},
        {"offsets": ("buffer", 0), "leaks": ("buffer", 1319)},
    ):
        assert call_with(lie) == (Status.ALIASED, True), lie
