"""Angles that are remembered are those that would be made."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from multihead.layer import HeadGroup, MultiHeadAttention, angles
from multihead.layer.angles import rotation_from
from multihead.pattern import causal
from multihead.position import DynamicNTK, Linear, Rotary

TORCH_WARNS = pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")  # at the first transform


@pytest.fixture(autouse=True)
def forgotten():
    angles.forget()
    yield
    angles.forget()


@pytest.fixture
def made(monkeypatch):
    """How often angles were made."""
    calls, rotation = [], Rotary.rotation
    monkeypatch.setattr(Rotary, "rotation", lambda *a, **kw: calls.append(a) or rotation(*a, **kw))
    return calls


def layer(**options):
    return MultiHeadAttention(32, HeadGroup(4, kv_heads=2, position=Rotary(**options)))


def heads(length=6, dtype=torch.float32):
    return torch.randn(2, 4, length, 8, dtype=dtype)


def test_layers_that_turn_alike_share_them(made):
    x, mask = torch.randn(2, 6, 32), causal()
    first, second = layer(), layer()
    wanted = first(x, mask=mask)
    second(x, mask=mask)
    assert len(made) == 1
    torch.testing.assert_close(first(x, mask=mask, positions=torch.arange(6)), wanted, rtol=0, atol=0)
    assert len(made) == 2
    layer(base=500.0)(x, mask=mask)
    assert len(made) == 3


@pytest.mark.parametrize("changed", ["first", "length", "dtype", "rotary", "inference"])
def test_whatever_makes_a_difference_makes_them_anew(changed, made):
    rotation_from(Rotary(), 3, heads())
    rotary = Rotary(scaling=Linear(2.0)) if changed == "rotary" else Rotary()
    like = heads(7 if changed == "length" else 6, torch.float64 if changed == "dtype" else torch.float32)
    first = 4 if changed == "first" else 3
    with torch.inference_mode(changed == "inference"):
        found = rotation_from(rotary, first, like)
    assert len(made) == 2
    fresh = rotary.rotation(torch.arange(first, first + like.shape[2]), 8, dtype=like.dtype)
    assert torch.equal(found.cos, fresh.cos)
    assert torch.equal(found.sin, fresh.sin)
    assert found.cos.is_inference() == (changed == "inference")


def test_training_after_inference_mode():
    module, x = layer(), torch.randn(2, 6, 32)
    with torch.inference_mode():
        wanted = module(x, mask=causal())
    out = module(x, mask=causal())
    out.sum().backward()
    torch.testing.assert_close(out, wanted.clone(), rtol=1e-5, atol=1e-5)  # kernels differ: one has gradients


@TORCH_WARNS
def test_transforms_and_fake_tensors_leave_nothing_behind():
    module, x = layer(), torch.randn(2, 6, 32)

    def loss(given):
        return module(given, mask=causal()).square().sum()

    pulled = torch.func.grad(loss)(x)
    assert not angles._KNOWN
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        module(mode.from_tensor(x), mask=causal())
    assert not angles._KNOWN
    given = x.clone().requires_grad_()
    loss(given).backward()
    torch.testing.assert_close(given.grad, pulled)
    assert len(angles._KNOWN) == 1


def test_few_and_small_ones_are_kept(monkeypatch):
    for first in range(9):
        rotation_from(Rotary(), first, heads())
        assert 1 <= len(angles._KNOWN) <= angles._MOST
    angles.forget()
    monkeypatch.setattr(angles, "_LARGEST", 2 * 6 * 8 - 1)
    rotation_from(Rotary(), 0, heads())
    assert not angles._KNOWN


def test_angles_that_depend_on_the_length_are_made_for_it():
    module = layer(scaling=DynamicNTK(2.0, 4))
    x = torch.randn(1, 12, 32)
    cache = module.cache(batch=1)
    parts = [module(part, mask=causal(), cache=cache) for part in x.split(3, 1)]
    torch.testing.assert_close(parts[-1], module(x, mask=causal())[:, 9:], rtol=1e-5, atol=1e-5)


def test_decoding_counts_on():
    module, x = layer(), torch.randn(2, 9, 32)
    cache = module.cache(batch=2)
    parts = [module(part, mask=causal(), cache=cache) for part in x.split(1, 1)]
    torch.testing.assert_close(torch.cat(parts, 1), module(x, mask=causal()), rtol=1e-5, atol=1e-5)


def test_a_query_that_begins_elsewhere():
    """Queries from position 4 on another sequence: keys are counted from 0."""
    module, x, memory = layer(), torch.randn(2, 3, 32), torch.randn(2, 7, 32)
    found = module(x, memory, mask=causal(), q_offset=4)
    q = module.q_proj(x).view(2, 3, 4, 8).transpose(1, 2)
    k, v = (p(memory).view(2, 7, 2, 8).transpose(1, 2).repeat_interleave(2, 1) for p in (module.k_proj, module.v_proj))
    q, k = Rotary().rotate(q, torch.arange(4, 7)), Rotary().rotate(k, torch.arange(7))
    scores = (q @ k.mT / 8**0.5).masked_fill(torch.arange(7) > torch.arange(4, 7)[:, None], -torch.inf)
    wanted = module.out_proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
