"""What users of other libraries complain of about single heads, by the numbers of the survey of libraries."""

import copy

import pytest
import torch

from built import NATIVE
from multihead.error import MultiheadError
from multihead.hooks import gated, prune_heads
from multihead.layer import MultiHeadAttention
from multihead.pattern import causal

WIDTH = 4


def random(layer):
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(
                torch.randn(parameter.shape) * (1.0 if parameter.ndim == 1 else parameter.shape[-1] ** -0.5)
            )
    return layer.eval()


@pytest.mark.parametrize("backend", [NATIVE, "sdpa", "tiled", "reference"])
@pytest.mark.parametrize("fused", [False, True])
def test_22_pruned_heads_are_heads_masked_to_zero(backend, fused):
    layer = random(MultiHeadAttention(32, 8, backend=backend))
    layer = layer.fuse() if fused else layer
    before, x = copy.deepcopy(layer.state_dict()), torch.randn(2, 6, 32)
    with torch.no_grad():
        whole = layer(x, mask=causal())
        with gated(layer, {"L0.H0": 0.0, "L0.H3": 0.0}):
            masked = layer(x, mask=causal())
        pruned = prune_heads(layer, [0, 3])
        torch.testing.assert_close(layer(x, mask=causal()), masked, rtol=1e-6, atol=1e-6)
        assert not torch.allclose(masked, whole)
        # Exactly those slices: rows of three projections, columns of the fourth.
        kept = [row for head in (1, 2, 4, 5, 6, 7) for row in range(head * WIDTH, (head + 1) * WIDTH)]
        state = layer.state_dict()
        for name, weight in before.items():
            cut = weight if name == "out_proj.bias" else weight[:, kept] if name == "out_proj.weight" else weight[kept]
            assert torch.equal(state[name], cut), name
        twin = MultiHeadAttention(32, list(layer.groups), backend=backend)
        twin.load_state_dict(state)
        assert torch.equal(twin.eval()(x), layer(x))
        pruned.restore()
        assert list(layer.state_dict()) == list(before)
        assert all(torch.equal(weight, before[name]) for name, weight in layer.state_dict().items())
        assert torch.equal(layer(x, mask=causal()), whole)


def test_22_heads_that_share_keys_are_not_torn_apart_in_silence():
    layer = random(MultiHeadAttention(32, 8, kv_heads=4))
    before, x = copy.deepcopy(layer.state_dict()), torch.randn(2, 6, 32)
    with pytest.raises(MultiheadError, match=r"2 of which share each key/value head\n  got: of heads 0-1 keep 1"):
        prune_heads(layer, [0])
    assert all(torch.equal(weight, before[name]) for name, weight in layer.state_dict().items())
    for heads, kv_heads in (([0, 1], 3), ([0, 3, 5, 6], 4)):
        with torch.no_grad():
            with gated(layer, {f"L0.H{head}": 0.0 for head in heads}):
                masked = layer(x, mask=causal())
            pruned = prune_heads(layer, heads)
            torch.testing.assert_close(layer(x, mask=causal()), masked, rtol=1e-6, atol=1e-6)
            assert (layer.heads, layer.kv_heads) == (8 - len(heads), kv_heads)
            assert layer.k_proj.out_features == kv_heads * WIDTH
            pruned.restore()


def test_22_a_pruned_module_is_exported():
    layer, x = random(MultiHeadAttention(32, 8)), torch.randn(2, 6, 32)
    prune_heads(layer, [0, 3])
    with torch.no_grad():
        exported = torch.export.export(layer, (x,), strict=False)
        torch.testing.assert_close(exported.module()(x), layer(x), rtol=1e-6, atol=1e-6)
