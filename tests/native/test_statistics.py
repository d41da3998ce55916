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
from native.oracle_statistics import bounds_of, expect, problem_of
from native.statistics_cases import CASES, made

LIBRARY = load()
VARIANTS = () if LIBRARY is None else LIBRARY.variants()
pytestmark = needs_kernel


def assert_found(found, c):
    want = expect(c)
    bounds, top = bounds_of(c, want), found.top_key.long()
    for field in dataclasses.fields(found):
        name = field.name
        if getattr(found, name) is None or not getattr(found, name).numel() or name == "link_keys":
            continue
        got, wanted, bound = getattr(found, name).double(), want[name].double(), bounds[name]
        if name in {"top_key", "pair_top"}:
            # Where two weights are equal but for rounding either may be the largest.
            same = (want["top_key"] == top).expand(got.shape)
            assert float((~same).double().mean()) < 0.05
            got, wanted, bound = got[same], wanted[same], bound[same]
        wrong = ~((got - wanted).abs() <= bound) & (got != wanted)
        assert not bool(wrong.any()), f"{name}: {got[wrong][0]} and not {wanted[wrong][0]} within {bound[wrong][0]}"


@pytest.mark.parametrize("gram", [True, False], ids=["heads compared", "heads apart"])
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
@pytest.mark.parametrize("name", CASES)
def test_all_is_found_as_it_is_defined(name, variant, gram):
    c = made(name, variant=int(variant))
    problem, held = problem_of(c)
    found = find(LIBRARY, problem, c.wanted, gram=gram)
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


def call_with(outputs, **given):
    """The code of the C entry for small tensors, and whether q and a buffer, in which outputs lie, are as before."""
    q, k, buffer = torch.randn(1, 2, 5, 8), torch.randn(1, 2, 7, 8), torch.zeros(4096)
    centers = torch.arange(5)
    problem = CProblem(abi=1, threads=1, batch=1, heads=2, kv_heads=2, q_len=5, kv_len=7, head_dim=8, scale=0.3)
    problem.q, problem.k = (CTensor(x.data_ptr(), *x.stride()[:3]) for x in (q, k))
    wanted = CWanted(abi=STATISTICS_ABI, bins=1, row_count=5, centers=centers.data_ptr(), least=2)
    sunk = torch.tensor([1, 0, 0, 1, 0, 0, 0], dtype=torch.uint8)
    if "sunk_keys" in given:
        wanted.sunk = sunk.data_ptr()
    if "packed_size" in given:
        wanted.packed = -(-buffer.data_ptr() // 64) * 64 + 4096
    for name, number in given.items():
        setattr(wanted, name, number)
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


def test_memory_is_as_large_as_is_said():
    """How many keys of the sink there are decides how much is written; keys are packed into what is given."""
    weights = {"sunk_weights": ("buffer", 0)}
    assert call_with(weights, sunk_keys=2) == (Status.OK, False)
    for keys in (-1, 0, 1, 3):
        assert call_with(weights, sunk_keys=keys) == (Status.BAD_SIZE, True)
    assert call_with({}, packed_size=2 * 64 * 8 * 4) == (Status.OK, False)
    for size in (-1, 0, 2 * 64 * 8 * 4 - 1):
        assert call_with({}, packed_size=size) == (Status.BAD_SIZE, True)
    assert call_with({"peak": ("buffer", 4160)}, packed_size=2 * 64 * 8 * 4) == (Status.ALIASED, True)


@pytest.mark.parametrize("gram", [True, False])
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_what_may_not_be_seen_has_no_weight_at_all(variant, gram):
    """Not even a number too small to matter: an octave without a key is 0, and so is a column that no row sees."""
    c = made("window", variant=int(variant), pairs=(), kv_len=400)
    problem, held = problem_of(c)
    found = find(LIBRARY, problem, c.wanted, gram=gram)
    del held
    want = expect(c)
    for name in ("octaves", "offsets", "columns", "pooled", "sunk_weights"):
        assert bool((getattr(found, name)[want[name] == 0] == 0).all()), name
