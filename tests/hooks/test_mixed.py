"""Layers with heads of several kinds: each kind is a call, and heads are numbered through."""

import copy

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from hooks.mixed import GROUPS, HEADS, LAYERS, apart, columns, mixed, tokens
from multihead.error import MultiheadError
from multihead.hooks import addresses, gated, locate, watching
from multihead.layer import HeadGroup, MultiHeadAttention, OutputGate


def defined(problem):
    """Head outputs (batch, q_len, heads, v_head_dim); a row that sees nothing is 0."""
    weights = torch.softmax(problem.scores().double(), -1).nan_to_num(0.0)
    return (weights @ problem.v.double().repeat_interleave(problem.group, 1)).transpose(1, 2)


def test_a_mixed_layer_is_one_layer_with_all_its_heads():
    model = mixed()
    assert [(one.site.module, one.heads) for one in locate(model)] == [("layers.0.attn", 7), ("layers.1.attn", 7)]
    with torch.no_grad(), watching(model, lambda _: None) as watched:
        model(tokens())
    assert list(addresses(watched.sites).values()) == [("", 0), ("", 1)]


def test_each_kind_of_heads_is_a_complete_call():
    model, calls = mixed(), []
    x = tokens()
    keep = torch.ones_like(x)
    keep[1, :3] = 0
    with torch.no_grad():
        plain = model(x, keep)
        with watching(model, calls.append):
            assert torch.equal(model(x, keep), plain)
    assert [call.first_head for call in calls] == [0, 2, 3] * LAYERS
    for place, call in enumerate(calls):
        layer, group = divmod(place, len(GROUPS))
        weight = model.layers[layer].attn.out_proj.weight
        first = columns(call.first_head).start
        inner = call.output.shape[2] * call.output.shape[3]
        assert call.output.shape[2:] == (GROUPS[group].heads, GROUPS[group].v_head_dim or GROUPS[group].head_dim)
        assert torch.equal(call.projection.weight, weight[:, first : first + inner])
        torch.testing.assert_close(defined(call.problem), call.output.double(), atol=1e-5, rtol=1e-5)
        assert torch.equal(call.queries.ids, x)
        assert torch.equal(call.queries.keep, keep.bool())
        assert call.residual.shape == (2, 9, 24)


def test_calls_are_those_of_plain_layers():
    model, ours, theirs, x = mixed(), [], [], tokens()
    twin = apart(model)
    with torch.no_grad():
        with watching(model, ours.append):
            got = model(x)
        with watching(twin, theirs.append):
            want = twin(x)
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)
    for call, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(call.output, other.output, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(call.residual, other.residual, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("head", range(len(HEADS)))
def test_gates_reach_the_right_head_of_the_right_kind(head):
    model, x = mixed(), tokens()
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin.layers[1].attn.out_proj.weight[:, columns(head)] = 0
        with gated(model, {f"L1.H{head}": 0.0}):
            got = model(x)
        torch.testing.assert_close(got, twin(x), atol=1e-6, rtol=1e-5)
        assert not torch.equal(got, model(x))


def test_gates_on_heads_of_two_kinds_at_once_for_each_example():
    model, x = mixed(), tokens()
    with torch.no_grad():
        with gated(model, {"L0.H1": torch.tensor([0.0, 1.0]), "L0.H6": torch.tensor([1.0, 0.5])}):
            both = model(x)
        with gated(model, {"L0.H1": 0.0}):
            first = model(x)
        with gated(model, {"L0.H6": 0.5}):
            second = model(x)
    torch.testing.assert_close(both, torch.stack([first[0], second[1]]), atol=1e-6, rtol=1e-5)


def test_a_head_beyond_the_last_is_refused_before_the_model_runs():
    with (
        pytest.raises(MultiheadError, match=r"gates on head L1.H7 of Model\n.*heads 0 to 6"),
        gated(mixed(), {"L1.H7": 0.0}),
    ):
        pytest.fail("it was let in")


def test_gates_after_a_pass_that_failed_midway_reach_the_same_heads():
    model, x = mixed(), tokens()
    with torch.no_grad():
        with gated(model, {"L0.H2": 0.0, "L1.H3": 0.0}):
            want = model(x)
        with gated(model, {"L0.H2": 0.0, "L1.H3": 0.0}):
            backend, model.layers[1].attn.backend = model.layers[1].attn.backend, "none"
            with pytest.raises(MultiheadError):
                model(x)
            model.layers[1].attn.backend = backend
            assert torch.equal(model(x), want)


def test_gates_and_gradient_checkpoints():
    model, x = mixed(), tokens()
    hidden, gradients = model.embed(x).detach(), []
    for again in (False, True):
        gate = torch.tensor(0.3, requires_grad=True)
        with gated(model, {"L0.H4": gate, "L1.H1": gate}):
            y = hidden
            for layer in model.layers:
                y = checkpoint(layer, y, None, use_reentrant=False) if again else layer(y, None)
            gradients.append(torch.autograd.grad(y.square().sum(), [gate, *model.layers.parameters()]))
    for plain, other in zip(*gradients, strict=True):
        torch.testing.assert_close(other, plain)


def test_an_output_that_is_gated_by_the_layer_has_no_projection_of_its_own():
    layer, calls = MultiHeadAttention(8, [HeadGroup(1, 4), HeadGroup(1, 4, gate=OutputGate())]), []
    with torch.no_grad(), watching(layer, calls.append):
        layer(torch.randn(1, 3, 8))
    assert [call.projection.weight for call in calls] == [None, None]
    assert all("gated" in call.projection.reason for call in calls)


def test_a_cache_is_watched_kind_by_kind():
    layer, calls = mixed().layers[0].attn, []
    x, cache = torch.randn(2, 6, 24), layer.cache(batch=2)
    with torch.no_grad(), watching(layer, calls.append):
        for part in x.split(3, 1):
            layer(part, cache=cache)
    assert [call.first_head for call in calls] == [0, 2, 3] * 2
    # The narrow window keeps what it needs and no more.
    assert [call.problem.kv_len for call in calls] == [3, 3, 3, 6, 5, 6]
