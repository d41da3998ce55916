"""torch's own samples for its attention, through the drop-ins, against torch in float64.

Samples with dropout are compared without it, as what is dropped is chance; its share has a test of its own.
"""

import pytest
import torch
from torch import nn
from torch.nn import functional

from conformance.forcing import attempt, every_backend, only
from conformance.torch_samples import module_inputs, operator_inputs
from multihead.interop import compat

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
MODES = pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
# Shares of the largest number. The last bit of a score of 100 in float32 is 8e-6.
NEAR = {torch.float32: 2e-5, torch.float64: 1e-12}


def near(got, want, told):
    """Whether results are near, as a share of the largest of them."""
    assert len(got) == len(want), told
    assert [x is None for x in got] == [x is None for x in want], told
    pairs = [(mine, theirs) for mine, theirs in zip(got, want, strict=True) if mine is not None]
    size = max([1.0] + [float(theirs.detach().abs().max()) for _, theirs in pairs if theirs.numel()])
    for mine, theirs in pairs:
        assert mine.shape == theirs.shape, told
        torch.testing.assert_close(
            mine.double(), theirs, rtol=0, atol=size * NEAR[mine.dtype], msg=lambda why: f"{told}: {why}"
        )


def wide(given):
    """The same in float64, apart from what is given."""
    if isinstance(given, torch.Tensor):
        return given.detach().double().requires_grad_(given.requires_grad) if given.is_floating_point() else given
    return given


def run(module, args, kwargs, *, training):
    """(Output and weights), and in training (the gradients of inputs and parameters from both)."""
    with torch.set_grad_enabled(training):
        told = module(*args, **kwargs)
    loss = sum((x * torch.linspace(-1, 1, x.numel(), dtype=x.dtype).view_as(x)).sum() for x in told)
    return told, torch.autograd.grad(loss, [*args, *module.parameters()]) if training else ()


@every_backend
@DTYPES
@MODES
def test_module_inputs(backend, dtype, training, tally):
    samples = module_inputs(dtype, training=training)
    assert len(samples) == 64
    for n, sample in enumerate(samples):
        theirs = nn.MultiheadAttention(*sample.constructor_input.args, **sample.constructor_input.kwargs)
        for parameter in theirs.parameters():
            nn.init.normal_(parameter, std=0.3)  # inputs go up to 9, scores then to some tens
        ours = compat.MultiheadAttention(*sample.constructor_input.args, **sample.constructor_input.kwargs)
        ours.load_state_dict(theirs.state_dict())
        args, kwargs = sample.forward_input.args, sample.forward_input.kwargs
        ours, theirs = ours.to(dtype).train(training), theirs.double().train(training)
        got, refused = attempt(backend, run, ours, args, kwargs, training=training)
        tally(f"torch nn.MultiheadAttention, {'training' if training else 'inference'}", backend, refused)
        if not refused:
            want = run(theirs, [wide(x) for x in args], kwargs, training=training)
            for mine, expected in zip(got, want, strict=True):
                near(mine, expected, (n, sample.constructor_input.kwargs))


@every_backend
@DTYPES
@MODES
def test_scaled_dot_product_attention(backend, dtype, training, tally):
    samples = operator_inputs("scaled_dot_product_attention", dtype)
    assert len(samples) == 25
    for n, sample in enumerate(samples):
        kwargs = sample.kwargs | {"dropout_p": 0.0}
        inputs = [x.clone().requires_grad_(training) for x in (sample.input, *sample.args)]
        got, refused = attempt(backend, graded, compat.scaled_dot_product_attention, inputs, kwargs)
        tally(f"torch scaled_dot_product_attention, {'training' if training else 'inference'}", backend, refused)
        if not refused:
            kwargs = {name: wide(value) for name, value in kwargs.items()}
            want = graded(functional.scaled_dot_product_attention, [wide(x) for x in inputs], kwargs)
            for mine, expected in zip(got, want, strict=True):
                near(mine, expected, (n, kwargs))


def graded(function, inputs, kwargs):
    out = function(*inputs, **kwargs)
    if not out.requires_grad:
        return (out,), ()
    return (out,), torch.autograd.grad((out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum(), inputs)


@pytest.mark.parametrize("backend", ["auto", "tiled", "reference"])
def test_scaled_dot_product_attention_drops_the_share_it_is_told(backend):
    samples = [s for s in operator_inputs("scaled_dot_product_attention", torch.float32) if s.kwargs["dropout_p"]]
    assert len(samples) == 12
    for sample in samples:
        inputs = [x.expand(400, *([1] * (4 - x.ndim)), *x.shape) for x in (sample.input, *sample.args)]
        with only(backend):
            many = compat.scaled_dot_product_attention(*inputs, **sample.kwargs)
        exact = functional.scaled_dot_product_attention(
            sample.input, *sample.args, **(sample.kwargs | {"dropout_p": 0.0})
        )
        apart = (many.mean(0) - exact).abs()
        assert not torch.equal(many[0], many[1])
        assert (apart <= 6 * many.std(0) / 400**0.5 + 1e-4).all()


@every_backend
@DTYPES
@pytest.mark.filterwarnings("ignore:Support for mismatched")
def test_multi_head_attention_forward(backend, dtype, tally):
    samples = operator_inputs("multi_head_attention_forward", dtype)
    assert len(samples) == 192
    for n, sample in enumerate(samples):
        args, kwargs = (sample.input, *sample.args), sample.kwargs | {"training": False}
        with torch.no_grad():
            got, refused = attempt(backend, compat.multi_head_attention_forward, *args, **kwargs)
        tally("torch multi_head_attention_forward", backend, refused)
        if not refused:
            kwargs = {name: wide(value) for name, value in kwargs.items()}
            near(got, functional.multi_head_attention_forward(*[wide(x) for x in args], **kwargs), (n, kwargs))
