"""Turning pairs: the same numbers however it is asked, and every kind of derivative."""

import pytest
import torch

from multihead.position.turn import turn

TORCH_WARNS = pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")  # at the first forward mode


@pytest.fixture(autouse=True, params=["plain", "in place", "a few tokens at once"])
def way(request, monkeypatch):
    """Every way, whatever the size."""
    monkeypatch.setattr("multihead.position.turn._SMALL", 2**40 if request.param == "plain" else -1)
    monkeypatch.setattr("multihead.position.turn._LEAST", 100 if request.param == "a few tokens at once" else 2**40)
    monkeypatch.setattr("multihead.position.turn._AT_ONCE", 100 if request.param == "a few tokens at once" else 2**40)
    return request.param


def angles(length, width, halves, dtype=torch.float64):
    """cos and sin of random angles as `turn` takes them."""
    angle = torch.randn(1, 1, length, width // 2, dtype=dtype)
    cos, sin = angle.cos(), angle.sin()
    if halves:
        return torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)
    return cos.repeat_interleave(2, -1), torch.stack([-sin, sin], -1).flatten(-2)


def slow(x, cos, sin, halves):
    """Pair by pair, out of place."""
    out = torch.empty_like(x)
    width = x.shape[-1]
    for k in range(width // 2):
        i, j = (k, k + width // 2) if halves else (2 * k, 2 * k + 1)
        out[..., i] = x[..., i] * cos[..., i] + x[..., j] * sin[..., i]
        out[..., j] = x[..., j] * cos[..., j] + x[..., i] * sin[..., j]
    return out


@pytest.mark.parametrize("halves", [True, False])
@pytest.mark.parametrize("length", [0, 1, 5, 250])
def test_pair_by_pair(halves, length):
    x = torch.randn(2, length, 3, 8, dtype=torch.float64).transpose(1, 2)
    cos, sin = angles(length, 8, halves)
    before = x.clone()
    torch.testing.assert_close(turn(x, cos, sin, halves=halves), slow(x, cos, sin, halves))
    assert torch.equal(x, before)


@pytest.mark.parametrize("halves", [True, False])
@pytest.mark.parametrize("length", [7, 2500])
def test_low_precision_is_rounded_once(halves, length):
    x = torch.randn(2, 3, length, 8).bfloat16()
    cos, sin = angles(length, 8, halves, torch.float32)
    wanted = slow(x.float(), cos, sin, halves).bfloat16()
    for given in (x, x.clone().requires_grad_()):
        turned = turn(given, cos, sin, halves=halves)
        assert turned.dtype == torch.bfloat16
        # A fused sum rounds once less than a plain one; a bfloat16 step apart at most, and seldom.
        torch.testing.assert_close(turned.float(), wanted.float(), rtol=2**-7, atol=1e-6)
        assert (turned == wanted).double().mean() > 0.99


@TORCH_WARNS
@pytest.mark.parametrize("halves", [True, False])
def test_every_derivative(halves):
    x = torch.randn(2, 3, 4, 6, dtype=torch.float64, requires_grad=True)
    cos, sin = angles(4, 6, halves)

    def turned(given):
        return turn(given, cos, sin, halves=halves)

    assert torch.autograd.gradcheck(turned, x, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(turned, x)
    tangent = torch.randn_like(x)
    out, pushed = torch.func.jvp(turned, (x.detach(),), (tangent,))
    torch.testing.assert_close(out, slow(x.detach(), cos, sin, halves))
    torch.testing.assert_close(pushed, slow(tangent, cos, sin, halves))
    many = torch.randn(5, *x.shape, dtype=torch.float64)
    torch.testing.assert_close(torch.vmap(turned)(many), torch.stack([slow(each, cos, sin, halves) for each in many]))


def test_learned_angles_have_gradients():
    cos, sin = (table.requires_grad_() for table in angles(4, 6, halves=True))
    x = torch.randn(1, 2, 4, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda *given: turn(*given, halves=True), (x, cos, sin))


def test_the_backward_pass_keeps_no_copy_of_the_input(way):
    x = torch.randn(1, 2, 64, 16, requires_grad=True)
    cos, sin = angles(64, 16, halves=True, dtype=torch.float32)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor.shape), lambda held: held):
        turn(x, cos, sin, halves=True)
    # The plain formula keeps the input in no dtype either, only what it is multiplied by.
    assert kept == ([sin.shape, cos.shape] if way == "plain" else [cos.shape, sin.shape])
