"""Calls met before: what they give, what tells them apart, and what is never taken for one of them."""

import jaxtyping
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad

from attend.oracle import near, qkv
from built import needs_kernel
from multihead.attend import Softmax, attention, attention_lse, functional, known, native
from multihead.error import MultiheadError
from multihead.pattern import causal, document, sliding_window
from multihead.position import ALiBi, alibi_slopes

pytestmark = needs_kernel
TORCH_WARNS = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")

OPTIONS = {
    "plain": {},
    "causal": {"mask": causal(), "q_offset": 1},
    "window": {"mask": sliding_window(3), "q_offset": 1},
    "scale": {"scale": 0.7},
    "softcap": {"softcap": 1.5},
    "offset of a cache": {"mask": causal(), "q_offset": 6},
}


def called(q, k, v, **options):
    return attention(q, k, v, backend="native", **options)


def anew(q, k, v, **options):
    return attention_lse(q, k, v, backend="native", **options).out


@pytest.fixture
def unchecked(monkeypatch):
    """From here on only calls that are known succeed."""

    def refuse():
        def fail(*given, **named):
            raise AssertionError("not known")

        monkeypatch.setattr(functional, "make_problem", fail)

    return refuse


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", OPTIONS)
def test_a_call_that_is_known_gives_what_it_gives_anew(name, dtype, unchecked):
    first, others = qkv(dtype=dtype), qkv(dtype=dtype)
    want = [anew(*first, **OPTIONS[name]), anew(*others, **OPTIONS[name])]
    assert torch.equal(called(*first, **OPTIONS[name]), want[0])
    unchecked()
    for inputs, due in zip((first, others), want, strict=True):
        out = called(*inputs, **OPTIONS[name])
        assert torch.equal(out, due)
        assert out.stride() == due.stride()
    with native.forced(threads=2), pytest.raises(AssertionError, match="not known"):
        called(*first, **OPTIONS[name])


def test_auto_is_known_as_well_and_patterns_by_what_they_are(unchecked, monkeypatch):
    monkeypatch.setattr(native, "prefers", lambda problem, variant, processor: None)
    q, k, v = qkv(kv_len=6)
    want = anew(q, k, v, mask=causal())
    attention(q, k, v, mask=causal())
    unchecked()
    assert torch.equal(attention(q, k, v, mask=causal()), want)
    with pytest.raises(AssertionError, match="not known"):
        attention(q, k, v, mask=sliding_window(2))


def test_every_fact_tells_calls_apart():
    """One after the other, each differing from one before it in a single fact, and each once more."""
    q, k, v = qkv()
    calls = [
        ((q, k, v), {}),
        ((q, k, v), {"mask": causal(), "q_offset": 0}),
        ((q, k, v), {"mask": causal(), "q_offset": 1}),
        ((q, k, v), {"mask": sliding_window(2), "q_offset": 1}),
        ((q, k, v), {"scale": 0.5}),
        ((q, k, v), {"scale": 0.6}),
        ((q, k, v), {"softcap": 0.5}),
        ((q[:, :, :5], k, v), {}),
        ((q, k[:, :, :5], v[:, :, :5]), {}),
        ((q, k, v[..., :5]), {}),
        ((q, k[:, :1], v[:, :1]), {}),
        ((q[:1], k[:1], v[:1]), {}),
        ((q.transpose(1, 2).contiguous().transpose(1, 2), k, v), {}),
        ((q, k, torch.randn(2, 2, 7, 16)[..., ::2]), {}),
        ((q.half(), k.half(), v.half()), {}),
        ((q.bfloat16(), k.bfloat16(), v.bfloat16()), {}),
        ((q[:, :, :0], k, v), {}),
        ((q, k[:, :, :0], v[:, :, :0]), {}),
    ]
    for _ in range(2):
        for inputs, options in calls:
            assert torch.equal(called(*inputs, **options), anew(*inputs, **options)), options


WRONG = {
    "q_offset": {"q_offset": True},
    "scale": {"scale": True},
    "softcap": {"softcap": True},
    "dropout": {"dropout": False},
    "backend": {"backend": "nativ"},
    "a list of backends": {"backend": ["native"]},
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_refused_is_refused_after_a_call_that_is_equal(name, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    q, k, v = qkv()
    called(q, k, v, scale=1.0, softcap=1.0, q_offset=1)
    options = {"scale": 1.0, "softcap": 1.0, "q_offset": 1, "backend": "native"} | WRONG[name]
    with pytest.raises(MultiheadError):
        attention(q, k, v, **options)


def test_tensors_that_do_not_belong_together_are_refused_after_some_that_do(monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    q, k, v = qkv()
    called(q, k, v)
    for wrong in ((q, k.half(), v), (q, k, v[:, :, :6]), (q, k, v.half()), (q[0], k, v), (q.tolist(), k, v)):
        with pytest.raises(MultiheadError):
            called(*wrong)


def test_what_more_than_the_facts_decides_is_not_known(monkeypatch):
    """Gradients, numbers that are not what lies in memory, and what else of torch has to see the call."""
    q, k, v = qkv()
    want = called(q, k, v)
    leaf = q.clone().requires_grad_()
    with pytest.raises(MultiheadError, match="it gives no gradients yet"):
        called(leaf, k, v)
    with torch.no_grad():
        assert torch.equal(called(leaf, k, v), want)
    assert torch.equal(called(torch._neg_view(q), k, v), anew(-q, k, v))
    own = torch.nn.Parameter(q, requires_grad=False)
    assert torch.equal(called(own, k, v), want)
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert type(called(q, k, v)) is not torch.Tensor
    assert len(known._KNOWN) == 1


@TORCH_WARNS
def test_transforms_of_functions_are_not_known():
    q, k, v = qkv()
    called(q, k, v)
    for transform in (
        lambda: torch.func.vmap(lambda q: called(q, k, v))(q[None]),
        lambda: torch.func.jvp(lambda q: called(q, k, v), (q,), (q,)),
    ):
        with pytest.raises(MultiheadError, match="it has no forward-mode derivatives"):
            transform()
    with forward_ad.dual_level(), pytest.raises(MultiheadError, match="it has no forward-mode derivatives"):
        called(forward_ad.make_dual(q, q), k, v)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_a_trace_keeps_the_call_and_not_its_result(monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    q, k, v = qkv()
    attention(q, k, v)
    with torch.no_grad():
        traced = torch.jit.trace(lambda *inputs: attention(*inputs), (q, k, v), check_trace=False)
        others = qkv()
        assert near(traced(*others), anew(*others))
        with pytest.raises(MultiheadError, match=r"native: torch\.jit\.trace would keep what it gives as a constant"):
            torch.jit.trace(called, (q, k, v), check_trace=False)


def test_calls_with_other_tensors_and_of_backends_that_prepare_nothing_are_not_kept():
    q, k, v = qkv()
    for options in (
        {"bias": torch.randn(6, 7)},
        {"bias": ALiBi(alibi_slopes(4)), "q_offset": 1},
        {"normaliser": Softmax(sinks=torch.randn(4))},
        {"mask": torch.rand(6, 7) < 0.5},
        {"mask": document(torch.arange(9) // 4), "q_offset": 1},
        {"scale": torch.tensor(0.5)},
    ):
        called(q, k, v, **options)
    attention(q, k, v, backend="tiled")
    attention(q, k, v, backend="reference")
    called(torch.randn(2, 4, 6, 16)[..., ::2], k, v)
    assert not known._KNOWN


def test_so_many_are_kept_and_no_more(monkeypatch):
    monkeypatch.setattr(known, "_MOST", 3)
    for length in range(1, 12):
        inputs = qkv(kv_len=length)
        assert torch.equal(called(*inputs), anew(*inputs))
        assert 1 <= len(known._KNOWN) <= 3
