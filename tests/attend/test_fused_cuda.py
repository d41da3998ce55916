"""The CUDA kernels: shapes, routes and refusals without a GPU (on the meta device), values where there is one."""

import pytest
import torch

from attend.oracle import qkv
from multihead.attend import Softmax, fused_cuda, make_problem
from multihead.error import MultiheadError
from multihead.pattern import causal, sliding_window
from multihead.testing import check_backend

FLASH, EFFICIENT = "CUDA flash kernel", "CUDA memory-efficient kernel"
ROUTES = [
    (torch.float32, {}, EFFICIENT),
    (torch.float16, {}, FLASH),
    (torch.bfloat16, {"mask": causal()}, FLASH),
    (torch.float32, {"mask": causal()}, EFFICIENT),
    (torch.float16, {"mask": sliding_window(3)}, EFFICIENT),
    (torch.float16, {"bias": torch.zeros(1, 4, 6, 6)}, EFFICIENT),
    (torch.float16, {"mask": torch.ones(2, 1, 6, 6, dtype=torch.bool)}, EFFICIENT),
    (torch.float16, {"normaliser": Softmax(off_by_one=True)}, FLASH),
]


def on_meta(*tensors):
    return tuple(x.to("meta") if isinstance(x, torch.Tensor) else x for x in tensors)


@pytest.fixture
def operations(monkeypatch):
    """Names of the kernels that were called."""
    called = []
    for name in ("_FLASH", "_EFFICIENT"):
        kernel = getattr(fused_cuda, name)
        monkeypatch.setattr(
            fused_cuda, name, lambda *a, name=name, kernel=kernel, **o: called.append(name) or kernel(*a, **o)
        )
    # What is looked up by value has none on the meta device: the mask is left as it is.
    monkeypatch.setattr(fused_cuda, "mask_numbers", lambda problem, band: torch.zeros(1, 1, 6, 6, device="meta"))
    return called


@pytest.mark.parametrize(("dtype", "options", "route"), ROUTES)
@pytest.mark.parametrize("larger", [0, 5])
def test_the_kernel_that_is_named_is_called_and_the_shapes_are_right(dtype, options, route, larger, operations):
    q, k, v = on_meta(*qkv(kv_len=6, v_head_dim=8 + larger, dtype=dtype, grad=True))
    options = {name: on_meta(value)[0] for name, value in options.items()}
    problem = make_problem(q, k, v, **options)
    assert fused_cuda.how(problem) == route
    out, lse = fused_cuda.run(problem)
    assert operations == ["_FLASH" if route == FLASH else "_EFFICIENT"]
    assert (out.shape, out.dtype) == ((2, 4, 6, 8 + larger), dtype)
    assert (lse.shape, lse.dtype) == ((2, 4, 6), torch.float32)
    assert out.requires_grad


def test_causal_over_other_lengths_is_not_given_to_flash_which_aligns_it_at_the_end():
    q, k, v = on_meta(*qkv(dtype=torch.float16))
    assert fused_cuda.how(make_problem(q, k, v, mask=causal(), q_offset=0)) == EFFICIENT
    assert fused_cuda.how(make_problem(q, k, v)) == FLASH
    wide = on_meta(*qkv(dtype=torch.float16, head_dim=264))
    assert fused_cuda.how(make_problem(*wide)) == EFFICIENT


def test_reasons():
    double = make_problem(*on_meta(*qkv(dtype=torch.float64)))
    assert fused_cuda.why_not(double) == ["its CUDA kernels do not take float64"]
    q, k, v = on_meta(*qkv(grad=True))
    sinks = make_problem(q, k, v, normaliser=Softmax(off_by_one=True))
    reason = "its CUDA kernels give no gradient to the log-sum-exp, which sinks need"
    assert fused_cuda.why_not(sinks) == [reason]
    with torch.no_grad():
        assert fused_cuda.why_not(sinks) == []
    assert fused_cuda.why_not(make_problem(q, k, v)) == []


def test_a_gradient_of_the_log_sum_exp_is_refused_not_lost():
    q, k, v = on_meta(*qkv(grad=True))
    _, lse = fused_cuda.run(make_problem(q, k, v))
    with pytest.raises(MultiheadError, match=r'gradient of the log-sum-exp(.|\n)*fix: call it with backend="tiled"$'):
        lse.sum().backward()


@pytest.mark.skipif(
    not torch.cuda.is_available(), reason="there is no CUDA device here; values are compared where one is"
)
@pytest.mark.parametrize("name", ["sdpa", "tiled"])
def test_backends_on_cuda(name):
    assert check_backend(name, device="cuda").of("passed")
