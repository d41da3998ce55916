"""Linear attention chunk by chunk in place, where nothing follows: the same numbers, little memory, and who gets it."""

import pytest
import torch
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

from multihead.scan import EluPlusOne, Favor, delta_rule, law, linear_attention, linear_attention_full, running
from multihead.scan.followed import unfollowed

WIDE = torch.float64


def inputs(length=150):
    q, k = torch.rand(2, 2, 4, length, 6, dtype=WIDE).unbind()
    return q, k[:, :2], torch.randn(2, 2, length, 3, dtype=WIDE)


class Zeros(TorchDispatchMode):
    """Counts the numbers that are filled with zeros."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.numbers += out.numel() if "zero" in func.__name__ or "backward" in func.__name__ else 0
        return out


def as_layers_have_it(x):
    """(batch, heads, length, width) of a projection's (batch, length, heads * width)."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


@pytest.mark.parametrize("kind", [None, "head", "token"])
@pytest.mark.parametrize("normalise", [True, False])
def test_in_place_and_followed_by_a_gradient_are_the_law(kind, normalise):
    q, k, v = inputs()
    shape = {"head": (2,), "token": (2, 4, 150)}.get(kind)
    decay = None if shape is None else -torch.rand(shape, dtype=WIDE)
    flags = {"reset": torch.rand(2, 150) < 0.1, "valid": torch.rand(2, 150) < 0.8}
    before = linear_attention(q, k, v, log_decay=decay, normalise=normalise).state
    for told in ({}, flags, {"state": before}, flags | {"state": before}):
        given = {"log_decay": decay, "normalise": normalise} | told
        want = law.linear(q, k, v, **given)
        for one in (q.clone().requires_grad_(), as_layers_have_it(q)):
            got = linear_attention(one, k, v, **given)
            torch.testing.assert_close(got.out.detach(), want.out, rtol=1e-10, atol=1e-10)
            torch.testing.assert_close(got.state.memory, want.state.memory, rtol=1e-10, atol=1e-10)
            if normalise:
                torch.testing.assert_close(got.state.mass, want.state.mass, rtol=1e-10, atol=1e-10)
    assert torch.equal(before.memory, linear_attention(q, k, v, log_decay=decay, normalise=normalise).state.memory)


def test_outputs_lie_as_the_queries_do():
    q, k, v = inputs()
    assert linear_attention(q, k, v).out.is_contiguous()
    assert linear_attention(as_layers_have_it(q), k, v).out.transpose(1, 2).is_contiguous()


# Torch's own, at the first derivative forwards.
@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")
def test_nothing_is_written_into_what_is_followed(monkeypatch):
    q, k, v = inputs(3)

    def refuse(*_, **__):
        raise AssertionError

    assert unfollowed(q, None, k.detach().requires_grad_().detach())
    monkeypatch.setattr(running, "linear", refuse)
    with pytest.raises(AssertionError):
        linear_attention(q, k, v)
    every = torch.stack([q, 2 * q])
    got = torch.vmap(lambda x: linear_attention(EluPlusOne().queries(x), k, v).out)(every)
    assert torch.equal(got[1], linear_attention(EluPlusOne().queries(2 * q).requires_grad_(), k, v).out)
    with forward_ad.dual_level():
        moved = linear_attention(forward_ad.make_dual(q, torch.ones_like(q)), k, v).out
        assert forward_ad.unpack_dual(moved).tangent is not None
    for each in ("q", "k", "v", "log_decay"):
        given = {"q": q, "k": k, "v": v, "log_decay": -torch.rand(2, dtype=WIDE)}
        given[each] = given[each].clone().requires_grad_()
        assert linear_attention(**given).out.requires_grad
    channel = -torch.rand(2, 4, 3, 6, dtype=WIDE)
    assert linear_attention(q, k, v, log_decay=channel).out.isfinite().all()


@pytest.mark.parametrize("features", [EluPlusOne(), Favor(features=9).draw(6)])
def test_features_in_stretches_are_those_at_once(features, monkeypatch):
    monkeypatch.setattr("multihead.scan.feature._STRETCH", 40)
    for x in (torch.randn(2, 3, 31, 6), as_layers_have_it(torch.randn(2, 3, 31, 6)), torch.randn(0, 6)):
        for phi in (features.queries, features.keys):
            got, want = phi(x), phi(x.clone().requires_grad_())
            torch.testing.assert_close(got, want.detach(), rtol=1e-6, atol=1e-7)
            assert (want.requires_grad, got.requires_grad) == (True, False)


def test_a_long_text_has_gradients_in_linear_memory():
    """Each stretch's gradient is as long as the stretch: none is filled up to the length of the whole."""
    sizes = []
    for length in (2048, 4096):
        q, k, v = (torch.rand(1, 32, length, 2).requires_grad_() for _ in range(3))
        out = linear_attention(q, k, v).out.sum()
        with Zeros() as zeros:
            out.backward()
        sizes.append(zeros.numbers)
    assert 0 < sizes[1] < 2.2 * sizes[0]


@pytest.mark.parametrize("grad", [False, True])
def test_under_autocast_sums_and_states_are_wide(grad):
    q, k, v = (x.float() for x in inputs())
    unit, beta = torch.nn.functional.normalize(k, dim=-1), torch.rand(2, 4, 150)
    with torch.set_grad_enabled(grad):
        q.requires_grad_(grad)
        want = linear_attention(q, k, v), delta_rule(q, unit, v, beta), linear_attention_full(q, k, v)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            got = linear_attention(q, k, v), delta_rule(q, unit, v, beta), linear_attention_full(q, k, v)
    assert torch.equal(got[2], want[2])
    for one, other in zip(got[:2], want[:2], strict=True):
        assert torch.equal(one.out, other.out)
        assert torch.equal(one.state.memory, other.state.memory)
