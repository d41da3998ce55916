"""Calls of PyTorch's flash kernel that were met before, in training above all: values, gradients, refusals."""

import gc
import weakref

import pytest
import torch

from attend.oracle import qkv
from multihead.attend import Softmax, attention, attention_lse, functional, known
from multihead.error import MultiheadError
from multihead.pattern import causal, padding, sliding_window

OPTIONS = {
    "plain": {},
    "causal": {"mask": causal()},
    "scale": {"scale": 0.7},
    "a normaliser that is the plain one": {"normaliser": Softmax()},
}
SIZES = {
    "alike": {"heads": 4, "kv_heads": 4, "kv_len": 6},
    "groups": {"heads": 4, "kv_heads": 2, "kv_len": 6},
    "blocks": {"heads": 2, "kv_heads": 2, "q_len": 200, "kv_len": 200},
}


def by_token(x):
    """As a projection leaves heads: those of a token lie together."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def leaves(tensors, order):
    return [(by_token(x) if order == "by token" else x).detach().requires_grad_() for x in tensors]


@pytest.fixture
def unchecked(monkeypatch):
    """From here on only calls that are known succeed."""

    def refuse():
        def fail(*given, **named):
            raise AssertionError("not known")

        monkeypatch.setattr(functional, "make_problem", fail)

    return refuse


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("order", ["by token", "by head"])
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("name", OPTIONS)
def test_a_training_call_that_is_known_gives_what_it_gives_anew(name, sizes, order, dtype, unchecked):
    """Bit for bit, and gradients lie in memory as they do anew: what is summed up from them is the same."""
    options = OPTIONS[name] | {"backend": "sdpa"}
    rounds = [leaves(qkv(**SIZES[sizes], dtype=dtype), order) for _ in range(2)]
    anew = [attention_lse(*inputs, **options).out for inputs in rounds]
    pulls = [torch.randn_like(out) for out in anew]
    due = [torch.autograd.grad(out, inputs, pull) for out, inputs, pull in zip(anew, rounds, pulls, strict=True)]
    attention(*rounds[0], **options)
    unchecked()
    for inputs, pull, out, grads in zip(rounds, pulls, anew, due, strict=True):
        got = attention(*inputs, **options)
        assert torch.equal(got, out)
        assert got.stride() == out.stride()
        for mine, want in zip(torch.autograd.grad(got, inputs, pull), grads, strict=True):
            assert torch.equal(mine, want)
            assert mine.stride() == want.stride()
        with torch.no_grad(), pytest.raises(AssertionError, match="not known"):
            attention(*inputs, **options)


def test_without_gradients_the_kernels_call_is_known_as_well(unchecked):
    q, k, v = qkv(kv_len=6)
    want = attention(q, k, v, mask=causal(), backend="sdpa")
    unchecked()
    got = attention(q, k, v, mask=causal(), backend="sdpa")
    assert torch.equal(got, want)
    assert got.stride() == want.stride()
    assert not got.requires_grad


@pytest.mark.parametrize("trained", [[0], [1], [2], [0, 2], [1, 2]], ids=str)
@pytest.mark.parametrize("order", ["by token", "by head"])
def test_only_what_is_trained_gets_a_gradient(trained, order):
    inputs = [x.detach() for x in leaves(qkv(kv_len=6), order)]
    chosen = [inputs[place].requires_grad_() for place in trained]
    pull = torch.randn(2, 4, 6, 8)
    due = torch.autograd.grad(attention_lse(*inputs).out, chosen, pull)
    attention(*inputs)
    assert len(known._KNOWN) == 1
    attention(*inputs).backward(pull)
    for place, x in enumerate(inputs):
        assert (x.grad is None) == (place not in trained)
    for x, want in zip(chosen, due, strict=True):
        assert torch.equal(x.grad, want)


@pytest.mark.parametrize("order", ["by token", "by head"])
def test_second_derivatives_are_refused_by_a_call_that_is_known(order):
    inputs = leaves(qkv(kv_len=6, dtype=torch.float64), order)
    plain = torch.autograd.grad(attention(*inputs).square().sum(), inputs)
    assert len(known._KNOWN) == 1
    grads = torch.autograd.grad(attention(*inputs).square().sum(), inputs, create_graph=True)
    for mine, want in zip(grads, plain, strict=True):
        assert torch.equal(mine, want)
    for grad in grads:
        message = r'second derivatives of an attention call\n.*\n  fix: call it with backend="reference"'
        with pytest.raises(MultiheadError, match=message):
            torch.autograd.grad(grad.sum(), inputs[0], retain_graph=True)


def test_batches_of_gradients_are_those_of_one_after_the_other():
    inputs = leaves(qkv(kv_len=6, dtype=torch.float64), "by head")
    pulls = torch.randn(3, 2, 4, 6, 8, dtype=torch.float64)
    for _ in range(2):
        out = attention(*inputs, mask=causal())
        many = torch.autograd.grad(out, inputs, pulls, is_grads_batched=True, retain_graph=True)
        for place, pull in enumerate(pulls):
            single = torch.autograd.grad(out, inputs, pull, retain_graph=True)
            for mine, want in zip(many, single, strict=True):
                torch.testing.assert_close(mine[place], want, rtol=1e-12, atol=1e-12)


def test_transforms_of_functions_are_refused_after_a_call_that_is_known():
    q, k, v = leaves(qkv(kv_len=6), "by head")
    attention(q, k, v)
    assert len(known._KNOWN) == 1
    with pytest.raises(MultiheadError, match=r'torch\.func\.vmap of .*\n.*\n  fix: call it with backend="reference"'):
        torch.func.vmap(lambda q: attention(q, k, v))(q[None])


def test_what_needs_more_than_one_call_of_the_kernel_is_not_kept():
    q, k, v = qkv(kv_len=6, grad=True)
    for options in (
        {"mask": sliding_window(2)},
        {"mask": padding(torch.rand(2, 6) < 0.5)},
        {"bias": torch.randn(6, 6)},
    ):
        attention(q, k, v, **options)
    attention(q, k, v, mask=causal(), q_offset=1)
    attention(q, k, v, normaliser=Softmax(off_by_one=True))
    attention(q, k, v, softcap=2.0)
    attention(q, k, v, dropout=0.5)
    attention(q, k, v[..., :5])
    attention(q[:, :, :1], k, v)
    attention(torch.randn(2, 4, 6, 16, requires_grad=True)[..., ::2], k, v)
    attention(torch.nn.Parameter(q.detach()), k, v)
    assert not known._KNOWN


def test_a_call_that_is_known_holds_no_tensor_once_its_backward_pass_is_done():
    q, k, v = leaves(qkv(kv_len=6), "by token")
    for _ in range(2):
        inputs = [x * 2 for x in (q, k, v)]
        seen = [weakref.ref(x) for x in inputs]
        out = attention(*inputs)
        del inputs
        out.sum().backward()
        gc.collect()
        assert [ref() for ref in seen] == [None] * 3
    assert len(known._KNOWN) == 1
