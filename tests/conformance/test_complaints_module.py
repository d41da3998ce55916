"""Complaints of the survey that no other file has by number: derivatives, export, caches, bytes."""

import pytest
import torch
from torch import nn

from attend.oracle import near, qkv
from built import NATIVE
from multihead.attend import attention
from multihead.error import MultiheadError
from multihead.interop import export_onnx
from multihead.layer import Full, HeadGroup, Int8, MultiHeadAttention, Sliding, Static
from multihead.pattern import causal, padding, sliding_window
from multihead.position import Rotary

WIDE = torch.float64


def randomised(layer):
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn(parameter.shape) * (1.0 if parameter.ndim == 1 else 0.4))
    return layer


# torch.func.jvp makes its rules by torch's own deprecated compiler.
jvp = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")


@jvp
def test_33_derivatives_of_any_order_by_the_reference():
    q, k, v = (x[:1, :2, :3].clone() for x in qkv(heads=2, kv_heads=2, dtype=WIDE))

    def run(q, k, v):
        return attention(q, k, v, mask=causal(), q_offset=0, backend="reference")

    inputs = tuple(x.requires_grad_() for x in (q, k, v))
    assert torch.autograd.gradgradcheck(run, inputs, fast_mode=True)
    tangents = tuple(torch.randn_like(x) for x in inputs)
    _, along = torch.func.jvp(run, tuple(x.detach() for x in inputs), tangents)
    step = 1e-6
    moved = [run(*(x.detach() + s * step * t for x, t in zip(inputs, tangents, strict=True))) for s in (1, -1)]
    assert near(along, (moved[0] - moved[1]) / (2 * step), 1e-6)


@jvp
@pytest.mark.parametrize("backend", ["auto", "tiled", "sdpa"])
def test_33_other_backends_name_the_one_that_can(backend):
    inputs = qkv(grad=True)
    out = attention(*inputs, backend=backend)
    (grad,) = torch.autograd.grad(out.square().sum(), inputs[0], create_graph=True)
    with pytest.raises(MultiheadError, match=r'second derivatives[^"]*\n.*\n.*backend="reference"'):
        grad.sum().backward()
    with pytest.raises(MultiheadError, match=r'jvp[^"]*\n.*\n.*backend="reference"'):
        torch.func.jvp(lambda q: attention(q, *inputs[1:], backend=backend), (inputs[0],), (inputs[0],))


class Model(nn.Module):
    """Grouped heads, causal, with padding."""

    def __init__(self):
        super().__init__()
        self.attention = randomised(MultiHeadAttention(24, 4, kv_heads=2))

    def forward(self, x, keep):
        return self.attention(x, mask=causal() & padding(keep))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore:# 'dynamic_axes'")
def test_36_one_attention_node_for_any_batch_and_length(tmp_path, monkeypatch):
    monkeypatch.setattr("jaxtyping.config.jaxtyping_disable", True)
    runtime = pytest.importorskip("onnxruntime")
    model, sizes = Model().eval(), {0: "batch", 1: "length"}
    given = torch.randn(2, 7, 24), torch.ones(2, 7).bool()
    program = export_onnx(model, given, tmp_path / "model.onnx", dynamic={"x": sizes, "keep": sizes})
    assert [node.op_type for node in program.model.graph].count("Attention") == 1
    session = runtime.InferenceSession(tmp_path / "model.onnx")
    for batch, length in ((2, 7), (3, 12)):
        x, keep = torch.randn(batch, length, 24), torch.rand(batch, length) < 0.5
        keep[0] = False  # empty rows
        (got,) = session.run(None, {"x": x.numpy(), "keep": keep.numpy()})
        with torch.no_grad():
            torch.testing.assert_close(torch.from_numpy(got), model(x, keep), rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("backend", ["auto", "reference", "tiled", "sdpa"])
@pytest.mark.parametrize("cache", [Full(), Static(12), Sliding(4)])
def test_37_token_by_token_is_one_pass(cache, backend):
    window = isinstance(cache, Sliding)
    group = HeadGroup(4, 6, kv_heads=2, position=Rotary(50.0), mask=sliding_window(4) if window else None)
    layer = randomised(MultiHeadAttention(12, group, backend=backend)).double()
    x, keep = torch.randn(2, 12, 12, dtype=WIDE), torch.arange(12) >= torch.tensor([[0], [5]])
    places = (keep.cumsum(1) - 1).clamp(min=0)
    kept, parts = layer.cache(batch=2, kind=cache), []
    for t in range(12):  # the padding is given in full length also where the cache keeps 4
        mask = causal() & padding(keep[:, : t + 1])
        parts.append(layer(x[:, t : t + 1], mask=mask, positions=places[:, t : t + 1], cache=kept))
    got = torch.cat(parts, 1)
    assert near(got[:1], layer(x[:1], mask=causal()), 1e-10)
    assert near(got[1:, 5:], layer(x[1:, 5:], mask=causal()), 1e-10)
    assert kept.groups[0].rows.parts[0].shape[1] == 2  # heads of keys, not of queries


def test_37_in_bfloat16_a_cache_is_as_near_as_one_pass():
    layer = randomised(MultiHeadAttention(32, HeadGroup(4, 8, position=Rotary(50.0)))).bfloat16().eval()
    x, cache = torch.randn(2, 20, 32).bfloat16(), layer.cache(batch=2)
    with torch.no_grad():
        exact = layer.float()(x.float(), mask=causal())
        layer.bfloat16()
        steps = torch.cat([layer(token, mask=causal(), cache=cache) for token in x.split(1, 1)], 1)
        whole = layer(x, mask=causal())

    def off(got):
        return float((got.float() - exact).square().mean().sqrt() / exact.square().mean().sqrt())

    assert off(whole) < 0.02
    assert off(steps) < 0.02


@pytest.mark.parametrize("length", [1, 2, 7, 31, 63, 300])
@pytest.mark.parametrize("values", ["random", "constant", "outliers", "zero"])
def test_38_bytes_are_finite_and_within_their_bound(values, length):
    layer = randomised(MultiHeadAttention(32, HeadGroup(4, 8, kv_heads=2)))
    k, v = torch.randn(2, 2, length, 8), torch.randn(2, 2, length, 8)
    if values == "outliers":  # one channel far above the others
        k[..., 3], v[..., 5] = 300 * k[..., 3], 1e4
    if values in ("constant", "zero"):
        k[:], v[:] = (1.5, -2.0) if values == "constant" else (0.0, 0.0)
    group = layer.cache(batch=2, kind=Int8()).groups[0]
    for part in zip(k.split(64, 2), v.split(64, 2), strict=True):
        kept_k, kept_v, first = group.append(*part)
    assert first == 0
    for kept, exact in ((kept_k, k), (kept_v, v)):
        bound = exact.abs().amax(-1, keepdim=True) / 254 * (1 + 1e-5)
        assert bool(((kept - exact).abs() <= bound).all())
    q = torch.randn(2, 4, length, 8)
    got, want = attention(q, kept_k, kept_v, mask=causal()), attention(q, k, v, mask=causal())
    assert got.isfinite().all()
    if values == "constant":  # also when scores are off: a mean of equal values is that value
        assert near(got, torch.full_like(got, -2.0))
    if values == "random":
        # A score is off by at most scale * |q|_1 * s_k / 2, weights by a factor of at most e to twice that.
        moved = 8**-0.5 * float(q.abs().sum(-1).max()) * float(k.abs().max()) / 254
        size = float(v.abs().max())
        assert float((got - want).abs().max()) <= size / 254 + size * (float(torch.tensor(2 * moved).exp()) - 1)


@pytest.mark.parametrize("backend", ["auto", NATIVE, "tiled", "reference"])
def test_37_a_step_of_one_token_is_of_the_same_backend(backend):
    layer = randomised(MultiHeadAttention(12, 2, backend=backend)).eval()
    x, cache = torch.randn(1, 5, 12), layer.cache(batch=1)
    with torch.no_grad():
        steps = torch.cat([layer(token, mask=causal(), cache=cache) for token in x.split(1, 1)], 1)
        assert near(steps, layer(x, mask=causal()))
