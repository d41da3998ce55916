"""The backend on PyTorch's kernels: which kernel really ran, what is refused and why, and the gradients it adds."""

import math
from functools import partial

import pytest
import torch

from attend.oracle import near, qkv
from multihead.attend import Entmax, Sigmoid, Softmax, attention, attention_lse, define, flash_cpu, make_problem, sdpa
from multihead.error import BackendRefused
from multihead.pattern import causal, distance, document, everything, padding, sliding_window
from multihead.position import ALiBi, RelativeTable, alibi_slopes

FLASH = "aten::_scaled_dot_product_flash_attention_for_cpu"
SLOW = "aten::_scaled_dot_product_attention_math"


def kernels(run):
    """Names of the operations that ran, with how often."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        run()
    return {event.key: event.count for event in profile.key_averages()}


ROUTES = {
    "plain": {},
    "causal": {"mask": causal()},
    "window": {"mask": sliding_window(3)},
    "documents": {"mask": document(torch.tensor([0, 0, 1, 1, 1, 2])) & causal()},
    "tensor": {"mask": torch.ones(2, 1, 6, 6, dtype=torch.bool)},
    "bias": {"bias": torch.zeros(1, 4, 6, 6)},
    "alibi": {"bias": ALiBi(alibi_slopes(4))},
    "table": {"bias": RelativeTable(torch.zeros(8, 4)), "mask": causal()},
    "sinks": {"normaliser": Softmax(sinks=torch.zeros(4))},
    "off by one": {"normaliser": Softmax(off_by_one=True)},
}


@pytest.mark.parametrize("name", ROUTES)
@pytest.mark.parametrize("larger", [0, 4], ids=["same sizes", "larger values"])
def test_the_flash_kernel_runs_both_ways_and_never_the_slow_path(name, larger):
    q, k, v = qkv(kv_len=6, v_head_dim=8 + larger, grad=True)

    def run():
        attended = attention_lse(q, k, v, **ROUTES[name])
        assert attended.backend == "sdpa"
        torch.autograd.grad(attended.out.sum() + attended.lse.sum(), (q, k, v))

    ran = kernels(run)
    assert ran[FLASH] == 1
    assert ran[f"{FLASH}_backward"] == 1
    assert SLOW not in ran


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_every_dtype_runs_on_the_flash_kernel(dtype):
    q, k, v = qkv(dtype=dtype)
    ran = kernels(lambda: attention(q, k, v, mask=padding(torch.rand(2, 7) < 0.5), backend="sdpa"))
    assert FLASH in ran
    assert SLOW not in ran


def test_causal_is_a_flag_where_it_means_the_same(monkeypatch):
    """Only with the first query at the first key; else the kernel gets a mask."""
    seen = []
    kernel = flash_cpu._KERNEL
    monkeypatch.setattr(flash_cpu, "_KERNEL", lambda *a, **o: seen.append((a[4], o["attn_mask"])) or kernel(*a, **o))
    for q_len, kv_len, offset in ((6, 6, None), (3, 7, 0), (7, 3, 0), (3, 7, 4), (6, 6, 1)):
        q, k, v = qkv(q_len=q_len, kv_len=kv_len)
        for mask in (causal(), everything() & causal()):
            attention(q, k, v, mask=mask, q_offset=offset, backend="sdpa")
            flag, added = seen.pop()
            assert flag == (not offset)
            assert (added is None) == (not offset)
    q, k, v = qkv(kv_len=6)
    attention(q, k, v, mask=causal(), bias=torch.zeros(6, 6), backend="sdpa")
    assert seen.pop()[0] is False


def test_equal_to_torch_bit_for_bit_where_torch_can():
    q, k, v = qkv(heads=4, kv_heads=4, q_len=50, kv_len=50)
    ours = partial(attention, backend="sdpa")
    assert torch.equal(ours(q, k, v), torch.nn.functional.scaled_dot_product_attention(q, k, v))
    assert torch.equal(
        ours(q, k, v, mask=causal()), torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    )
    mask = torch.rand(2, 1, 50, 50) < 0.5
    assert torch.equal(
        ours(q, k, v, mask=mask), torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    )


def test_gradients_are_torchs_bit_for_bit_where_torch_can():
    q, k, v = qkv(heads=4, kv_heads=4, q_len=50, kv_len=50, grad=True)
    grad = torch.randn_like(q)
    got = torch.autograd.grad(attention(q, k, v, mask=causal()), (q, k, v), grad)
    want = torch.autograd.grad(
        torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True), (q, k, v), grad
    )
    for mine, theirs in zip(got, want, strict=True):
        assert torch.equal(mine, theirs)


def test_one_query_of_a_group_is_folded_into_rows(monkeypatch):
    seen = []
    kernel = flash_cpu._KERNEL
    monkeypatch.setattr(flash_cpu, "_KERNEL", lambda *a, **o: seen.append(a[0].shape) or kernel(*a, **o))
    q, k, v = qkv(heads=6, kv_heads=2, q_len=1, dtype=torch.float64)
    for mask in (None, torch.rand(2, 6, 1, 7) < 0.6, torch.rand(2, 1, 1, 7) < 0.6):
        problem = make_problem(q, k, v, mask=mask, bias=torch.randn(1, 6, 1, 7))
        out, lse = sdpa.run(problem)
        assert seen.pop() == (2, 2, 3, 8)
        assert near(out, define(problem)[0], 1e-12)
        assert near(lse, define(problem)[1], 1e-12)


def test_a_pattern_is_cut_into_bands_that_skip_what_it_forbids(monkeypatch):
    seen = []
    kernel = flash_cpu._KERNEL
    monkeypatch.setattr(flash_cpu, "_KERNEL", lambda *a, **o: seen.append(a[1].shape[2]) or kernel(*a, **o))
    q, k, v = qkv(batch=1, heads=1, kv_heads=1, q_len=2048, kv_len=2048)
    attention(q, k, v, mask=sliding_window(64), backend="sdpa")
    assert len(seen) >= 8
    assert max(seen) <= 192 + 64 + 2 * 128


@pytest.mark.parametrize(("least", "most"), [(1, 1), (2, 2), (5, 5)])
@pytest.mark.parametrize("mask", [sliding_window(2), distance(0) | distance(3), "tensor"], ids=str)
def test_bands_of_any_height_give_the_same(least, most, mask, monkeypatch):
    monkeypatch.setattr(flash_cpu, "_LEAST", least)
    monkeypatch.setattr(flash_cpu, "_MOST", most)
    monkeypatch.setattr(flash_cpu, "_NUMBERS", 1)
    mask = torch.rand(2, 4, 6, 7) < 0.5 if mask == "tensor" else mask
    q, k, v = qkv(dtype=torch.float64, grad=True, v_head_dim=11)
    sinks = torch.randn(4, dtype=torch.float64, requires_grad=True)
    problem = make_problem(q, k, v, mask=mask, normaliser=Softmax(sinks=sinks), q_offset=1)
    (out, lse), law = sdpa.run(problem), define(problem)
    weights = torch.randn_like(out), torch.randn_like(lse)
    got = torch.autograd.grad((out, lse), (q, k, v, sinks), weights)
    want = torch.autograd.grad(law[:2], (q, k, v, sinks), weights)
    for mine, theirs in zip((out, lse, *got), (*law[:2], *want), strict=True):
        assert near(mine, theirs, 1e-12)


@pytest.mark.parametrize("options", [{}, {"mask": causal()}, {"mask": sliding_window(2)}], ids=str)
@pytest.mark.parametrize("head_dims", [(2, 2), (3, 2), (2, 3)])
def test_gradients_of_both_results(options, head_dims):
    head_dim, v_head_dim = head_dims
    sizes = {"batch": 1, "heads": 2, "kv_heads": 1, "q_len": 4, "kv_len": 4}
    leaves = qkv(**sizes, head_dim=head_dim, v_head_dim=v_head_dim, dtype=torch.float64, grad=True)
    sinks = torch.randn(2, dtype=torch.float64, requires_grad=True)

    def run(q, k, v, sinks):
        return sdpa.run(make_problem(q, k, v, normaliser=Softmax(sinks=sinks, off_by_one=True), **options))

    assert torch.autograd.gradcheck(run, (*leaves, sinks), fast_mode=True)


def test_reasons_are_all_there():
    q, k, v = qkv()
    bias = torch.zeros(6, 7, requires_grad=True)
    problem = make_problem(q, k, v, softcap=1.0, normaliser=Sigmoid(), dropout=0.5, bias=bias)
    assert sdpa.why_not(problem) == [
        "its kernels have softmax only, not Sigmoid(bias=0.0)",
        "its kernels have no softcap",
        "its kernels with dropout store every weight (CPU) or cannot be held against the reference (CUDA)",
        "its kernels give no gradient to a bias",
    ]
    with pytest.raises(
        BackendRefused, match=r"sdpa: its kernels have softmax only.*softcap.*dropout.*no gradient to a bias"
    ):
        attention(q, k, v, softcap=1.0, normaliser=Sigmoid(), dropout=0.5, bias=bias, backend="sdpa")


@pytest.mark.parametrize("name", ["batch", "q_len", "kv_len", "head_dim", "v_head_dim"])
def test_empty_sizes_are_refused_as_the_kernel_cannot_divide_by_them(name):
    reasons = sdpa.why_not(make_problem(*qkv(**{name: 0})))
    assert reasons == [f"{name} is 0, which its kernels do not take"]


def test_a_bias_is_refused_only_when_it_is_trained():
    q, k, v = qkv()
    table = RelativeTable(torch.zeros(8, 4, requires_grad=True))
    problem = make_problem(q, k, v, bias=table, q_offset=0)
    assert sdpa.why_not(problem) == ["its kernels give no gradient to a bias"]
    with torch.no_grad():
        assert sdpa.why_not(problem) == []


def test_a_row_of_lowest_numbers_is_refused_in_training_only():
    q, k, v = qkv()
    bias = torch.zeros(6, 7)
    bias[2] = torch.finfo(torch.float32).min
    told = ["a row of the bias is beyond +-1000 throughout, which its backward pass gets wrong (use a mask)"]
    assert sdpa.why_not(make_problem(q, k, v, bias=bias)) == []
    assert sdpa.why_not(make_problem(q.requires_grad_(), k, v, bias=bias)) == told
    bias[2, 3] = 0.0
    assert sdpa.why_not(make_problem(q, k, v, bias=bias)) == []
    hidden = torch.ones(6, 7, dtype=torch.bool)
    hidden[2, 3] = False
    assert sdpa.why_not(make_problem(q, k, v, bias=bias, mask=hidden)) == told
    hidden[2] = False
    assert sdpa.why_not(make_problem(q, k, v, bias=bias, mask=hidden)) == []


def test_other_devices_are_refused():
    q, k, v = (x.to("meta") for x in qkv())
    assert sdpa.why_not(make_problem(q, k, v)) == ["no kernel that gives a log-sum-exp is known on meta"]
    assert "softmax only, not Entmax(alpha=1.5)" in sdpa.why_not(make_problem(q, k, v, normaliser=Entmax()))[0]


def test_how_names_the_route():
    q, k, v = qkv(kv_len=6)
    assert sdpa.how(make_problem(q, k, v)) == "CPU flash kernel"
    assert sdpa.how(make_problem(q, k, v, mask=causal())) == "CPU flash kernel, causal as a flag"
    assert sdpa.how(make_problem(q, k, v[..., :3], mask=sliding_window(2))) == (
        "CPU flash kernel, mask in bands of 6 queries, padded to size 8"
    )
    decoding = make_problem(q[:, :, :1], k, v, normaliser=Softmax(off_by_one=True))
    assert sdpa.how(decoding) == "CPU flash kernel, groups folded into rows, sinks from the log-sum-exp"


def test_the_log_sum_exp_of_an_empty_row_is_not_the_kernels_zero():
    q, k, v = qkv()
    mask = torch.ones(6, 7, dtype=torch.bool)
    mask[3] = False
    attended = attention_lse(q, k, v, mask=mask, backend="sdpa")
    assert (attended.lse[:, :, 3] == -math.inf).all()
    assert attended.lse[:, :, :3].isfinite().all()
    assert not attended.out[:, :, 3].any()
