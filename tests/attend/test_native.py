"""The backend on our compiled kernel: held against the reference on every variant, what it refuses, what it says."""

import dataclasses
import math

import pytest
import torch
from torch.autograd import forward_ad
from torch.nn.functional import scaled_dot_product_attention

from attend.oracle import near, qkv
from built import every_variant, needs_kernel
from multihead.attend import Entmax, Sigmoid, Softmax, attention, attention_lse, define, lowering, make_problem, native
from multihead.native import NOT_BUILT, Library, Variant, load
from multihead.pattern import causal, global_tokens, padding, prefix, sliding_window
from multihead.position import ALiBi, RelativeTable, alibi_slopes
from multihead.testing import check_case, standard_cases

# What torch itself loads for forward-mode derivatives warns of being old.
TORCH_WARNS = pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")
CASES = {case.name: case for case in standard_cases()}


@every_variant
def test_check_backend_on_every_variant(variant, seed):
    """Every standard problem: what it can run it runs rightly, and the rest it refuses."""
    with native.forced(variant=Variant[variant.upper()]):
        for name, case in CASES.items():
            results = {result.mode: result for result in check_case(native, case, seed=seed % 2**31)}
            assert [str(result) for result in results.values() if result.outcome == "failed"] == []
            able = not any(kind in name for kind in ("float64", "dropout", "sigmoid", "sparsemax", "entmax"))
            assert {mode for mode, result in results.items() if result.outcome == "passed"} == (
                {"inference"} if able else set()
            )


@pytest.fixture
def built(monkeypatch):
    """A library that runs nothing, so that what is said does not depend on the machine."""

    class Fake(Library):
        def has_amx(self):
            return False

        def is_intel(self):
            return False

        def best_variant(self):
            return Variant.AVX512

        def threads(self, asked=0):
            return asked or 2

    fake = Fake.__new__(Fake)
    monkeypatch.setattr(native, "load", lambda: fake)
    return fake


def test_reasons_are_all_there(built):
    q, k, v = qkv(dtype=torch.float64, grad=True)
    problem = make_problem(q, k, v, dropout=0.5, normaliser=Sigmoid())
    assert native.why_not(problem) == [
        "it has float32, bfloat16 and float16, not float64",
        "it gives no gradients yet",
        "it has no dropout yet",
        "it has softmax only, not Sigmoid(bias=0.0)",
    ]
    assert native.why_not(make_problem(*qkv(), normaliser=Entmax())) == ["it has softmax only, not Entmax(alpha=1.5)"]
    assert native.why_not(make_problem(*qkv())) == []


def test_sizes_and_numbers_beyond_the_kernel(built):
    assert native.why_not(make_problem(*qkv(head_dim=513, v_head_dim=600))) == [
        "head_dim 513 is over 512",
        "v_head_dim 600 is over 512",
    ]
    for name, number in {"scale": 1e300, "softcap": 1e-300}.items():
        told = [f"{name} {number:g} is beyond the numbers of float32"]
        assert native.why_not(make_problem(*qkv(), **{name: number})) == told
    assert native.why_not(make_problem(*qkv(), scale=0.0)) == []
    far = dataclasses.replace(make_problem(*qkv(), mask=causal(), q_offset=0), q_offset=2**41)  # refused before as well
    assert native.why_not(far) == ["q_offset 2199023255552 is beyond +-2**40"]


@pytest.mark.parametrize("part", ["q", "k", "v", "bias", "slopes", "table", "sinks"])
def test_gradients_are_refused_whatever_they_are_of(built, part):
    leaf = {
        "bias": torch.zeros(6, 7),
        "slopes": alibi_slopes(4),
        "table": torch.randn(8, 4),
        "sinks": torch.zeros(4),
    } | dict(zip("qkv", qkv(), strict=True))
    leaf[part].requires_grad_()
    options = {
        "bias": {"bias": leaf["bias"]},
        "slopes": {"bias": ALiBi(leaf["slopes"])},
        "table": {"bias": RelativeTable(leaf["table"])},
        "sinks": {"normaliser": Softmax(sinks=leaf["sinks"])},
    }.get(part, {})
    problem = make_problem(leaf["q"], leaf["k"], leaf["v"], q_offset=1, **options)
    assert native.why_not(problem) == ["it gives no gradients yet"]
    with torch.no_grad():
        assert native.why_not(problem) == []


@TORCH_WARNS
def test_transforms_that_look_through_tensors_are_refused(built):
    q, k, v = qkv()
    told = []

    def ask(q):
        told.append(native.why_not(make_problem(q, k, v)))
        return q

    reason = "it has no forward-mode derivatives (jvp) and no vmap"
    torch.func.vmap(ask)(q[None])
    torch.func.jvp(ask, (q,), (q,))
    with forward_ad.dual_level():
        ask(forward_ad.make_dual(q, q))
    assert told == [[reason]] * 3
    assert native.why_not(make_problem(q, k, v)) == []


def test_another_device_and_the_machines_own_tiles(built, monkeypatch):
    assert native.why_not(make_problem(*(x.to("meta") for x in qkv()))) == ["it runs on the CPU, not on meta"]
    told = []
    monkeypatch.setattr(native, "prefers", lambda *given: told.append(given[1:]))
    monkeypatch.setattr(type(built), "has_amx", lambda self: True)
    monkeypatch.setattr(type(built), "is_intel", lambda self: True)
    for dtype in (torch.float32, torch.bfloat16):
        problem = make_problem(*qkv(dtype=dtype))
        assert native.why_not(problem) == []  # AMX or not: how fast it is beside PyTorch's is for the table to say
        native.behind(problem)
    assert told == [("avx512", "intel"), ("avx512", "amx")]


def test_without_the_kernel_it_says_how_to_build_it(monkeypatch):
    monkeypatch.setattr(native, "load", lambda: None)
    monkeypatch.setattr(native, "why_none", lambda: NOT_BUILT)
    assert native.why_not(make_problem(*qkv())) == [
        "compiled kernel not built: install a C++ compiler (g++ or clang++), then multihead again from its sources"
    ]
    monkeypatch.setattr(native, "why_none", lambda: "compiled kernel cannot be loaded: no libgomp")
    assert native.why_not(make_problem(*qkv())) == ["compiled kernel cannot be loaded: no libgomp"]
    assert native.behind(make_problem(*qkv())) is None
    assert native.how(make_problem(*qkv())) == NOT_BUILT


def test_how_tells_what_runs(built):
    q, k, v = qkv(heads=2, kv_len=6, q_len=6)
    assert native.how(make_problem(q, k, v)) == "compiled kernel, avx512, 2 threads, keys read where they lie"
    q, k, v = qkv(q_len=70, kv_len=70)
    assert native.how(make_problem(q, k, v)) == "compiled kernel, avx512, 2 threads"
    assert native.how(make_problem(q, k, v, mask=causal() & padding(torch.ones(70).bool()))) == (
        "compiled kernel, avx512, 2 threads, mask in closed form (bounds of distance, list of keys)"
    )
    assert native.how(make_problem(q, k, v, mask=causal() & (sliding_window(9) | global_tokens([0])))) == (
        "compiled kernel, avx512, 2 threads, tile map of 1.5 KiB, 3 bit tiles"
    )
    mask = torch.ones(70, 70).bool()
    several = make_problem(
        q, k.mT.contiguous().mT, v, mask=mask, bias=ALiBi(alibi_slopes(4)), normaliser=Softmax(off_by_one=True)
    )
    assert native.how(several) == (
        "compiled kernel, avx512, 2 threads, boolean mask as it is, slopes of distance, sinks, copies of k without gaps"
    )
    with native.forced(variant=Variant.AVX2, threads=1):
        table = make_problem(q, k, v, bias=RelativeTable(torch.zeros(8, 4), max_distance=9))
        assert native.how(table) == "compiled kernel, avx2, 1 thread, table of 19 distances"
        assert native.how(make_problem(q, k, v, bias=mask.float())) == "compiled kernel, avx2, 1 thread, bias as it is"


@needs_kernel
def test_a_forced_variant_is_the_one_that_runs(monkeypatch):
    """Seen in what reaches the kernel, and undone afterwards."""
    seen, forward = [], Library.forward
    monkeypatch.setattr(Library, "forward", lambda self, *given: seen.append(given[0]) or forward(self, *given))
    problem = make_problem(*qkv())
    for variant in load().variants():
        with native.forced(variant=variant, threads=3):
            native.run(problem)
        assert (seen[-1].variant, seen[-1].threads) == (variant, 3)


@needs_kernel
@pytest.mark.parametrize("cut", [lambda x: x.mT.contiguous().mT, lambda x: torch.stack([x, x], -1)[..., 0]])
def test_inputs_with_gaps_are_copied_and_give_the_same(cut):
    q, k, v = qkv(head_dim=9, v_head_dim=11)
    plain = attention_lse(q, k, v, backend="native")
    gaps = attention_lse(cut(q), cut(k), cut(v), backend="native")
    assert torch.equal(plain.out, gaps.out)
    assert torch.equal(plain.lse, gaps.lse)
    assert plain.out.transpose(1, 2).is_contiguous()


@needs_kernel
def test_what_is_remembered_of_a_pattern_is_used(monkeypatch):
    """A map once lowered serves every layer; the answer stays that of the mask."""
    monkeypatch.setattr(lowering, "_MEMORY", type(lowering._MEMORY)())
    for _ in range(3):
        q, k, v = qkv(q_len=70, kv_len=70)
        attended = attention_lse(q, k, v, mask=prefix(9), backend="native")
        assert near(attended.out, define(make_problem(q, k, v, mask=prefix(9)))[0])
    assert len(lowering._MEMORY) == 1


@needs_kernel
def test_empty_rows():
    q, k, v = qkv(q_len=9, kv_len=70)
    mask = torch.rand(9, 70) < 0.5
    mask[3] = False
    attended = attention_lse(q, k, v, mask=mask, backend="native")
    assert (attended.lse[:, :, 3] == -math.inf).all()
    assert not attended.out[:, :, 3].any()
    assert attended.lse[:, :, :3].isfinite().all()


@needs_kernel
@pytest.mark.parametrize("q_len", [1, 70])
def test_a_value_behind_a_bias_of_minus_infinity_touches_nothing(q_len):
    q, k, v = qkv(q_len=q_len, kv_len=70)
    bias = torch.zeros(q_len, 70)
    bias[:, 5] = -math.inf
    v[:, :, 5] = math.nan
    assert native.run(make_problem(q, k, v, bias=bias))[0].isfinite().all()


@needs_kernel
@pytest.mark.parametrize("strange", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("q_len", [1, 70])
def test_what_no_query_sees_touches_nothing(q_len, strange):
    q, k, v = qkv(q_len=q_len, kv_len=70)
    mask = torch.rand(q_len, 70) < 0.9
    mask[:, 5] = False
    want = native.run(make_problem(q, k, v, mask=mask))
    k[:, :, 5], v[:, :, 5] = strange, strange
    assert all(
        torch.equal(mine, clean) for mine, clean in zip(native.run(make_problem(q, k, v, mask=mask)), want, strict=True)
    )


@needs_kernel
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("keys", "spread"), [(300, 1.0), (300, 3.0), (64, 5.0), (1000, 1.0)])
def test_short_dtypes_are_as_near_to_the_exact_result_as_torchs_kernel(dtype, keys, spread):
    # The root mean square over many draws: a largest error is chance, one draw of the output's rounding.
    ours, torchs = 0.0, 0.0
    for _ in range(6):
        q, k, v = torch.randn(1, 4, 200, 64) * spread, torch.randn(1, 4, keys, 64), torch.randn(1, 4, keys, 64)
        q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
        exact = torch.softmax(q.double() @ k.double().mT * 64**-0.5, -1) @ v.double()
        ours += float((attention(q, k, v, backend="native").double() - exact).square().sum())
        torchs += float((scaled_dot_product_attention(q, k, v).double() - exact).square().sum())
    assert ours**0.5 <= 1.01 * torchs**0.5


@needs_kernel
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [1e6, 1e10, 1e15])
@pytest.mark.parametrize("q_len", [1, 20])
def test_of_huge_scores_the_largest_takes_all_weight(size, dtype, q_len):
    q, k, v = (
        x.to(dtype) for x in (torch.randn(1, 2, q_len, 8) * size, torch.randn(1, 2, 20, 8), torch.randn(1, 2, 20, 8))
    )
    top = (q.double() @ k.double().mT).argmax(-1)
    attended = attention_lse(q, k, v, backend="native")
    chosen = v.gather(2, top[..., None].expand(-1, -1, -1, 8))
    # Two keys whose scores differ by less than they are rounded share the weight: rare, and then between both.
    assert float((attended.out == chosen).all(-1).float().mean()) > 0.9
    assert bool(attended.lse.isfinite().all())


@needs_kernel
def test_numbers_that_torch_only_thinks_negative_are_read_as_they_are():
    q, k, v = qkv()
    half = torch.complex(torch.randn(q.shape[2], k.shape[2]), torch.randn(q.shape[2], k.shape[2])).conj()
    bias, sinks = half.imag, torch.complex(torch.randn(q.shape[1]), torch.randn(q.shape[1])).conj().imag
    assert bias.is_neg()
    for options in ({"bias": bias}, {"normaliser": Softmax(sinks=sinks)}):
        both = [attention(q, k, v, backend=backend, **options) for backend in ("native", "tiled")]
        assert near(*both, 1e-5)


@needs_kernel
def test_an_infinite_sink_takes_all_weight():
    attended = attention_lse(
        *qkv(), normaliser=Softmax(sinks=torch.full((qkv()[0].shape[1],), torch.inf)), backend="native"
    )
    assert not attended.out.any()
    assert bool((attended.lse == torch.inf).all())


def test_a_softcap_that_caps_nothing_is_refused(built):
    (reason,) = native.why_not(make_problem(*qkv(), softcap=1e31))
    assert reason == "softcap 1e+31 is over 1e+30, where it caps nothing"
