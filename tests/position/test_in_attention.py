"""Positions within `multihead.attention`: what they add is what the definitions say, on every backend that takes it."""

import pytest
import torch

from multihead.attend import attention, attention_lse
from multihead.pattern import causal, sliding_window
from multihead.position import AdaptiveSpan, Rotary, ShawRelative, TransformerXLRelative

BACKENDS = ["reference", "tiled", "sdpa"]


def drawn(q_len=6, kv_len=8):
    return torch.randn(2, 4, q_len, 6).double(), *torch.randn(2, 2, 2, kv_len, 6).double()


@pytest.mark.parametrize("backend", BACKENDS)
def test_shaw_with_keys_and_values(backend):
    q, k, v = drawn()
    relative = ShawRelative(keys=torch.randn(5, 6).double(), values=torch.randn(5, 6).double())
    bias = relative.bias(q, kv_len=8, q_offset=2, scale=0.4)
    attended = attention_lse(q, k, v, mask=causal(), bias=bias, scale=0.4, q_offset=2, backend=backend)
    ours = attended.out + relative.output(attended.weights().double(), q_offset=2)
    # Equation 3 and 4 of the paper: every pair has its own key and its own value.
    rows = (torch.arange(2, 8)[:, None] - torch.arange(8)).clamp(-2, 2) + 2
    keys = k.repeat_interleave(2, 1)[:, :, None] + relative.keys[rows]
    values = v.repeat_interleave(2, 1)[:, :, None] + relative.values[rows]
    scores = 0.4 * (q[:, :, :, None] * keys).sum(-1)
    visible = torch.arange(8) <= torch.arange(2, 8)[:, None]
    weights = torch.softmax(scores.masked_fill(~visible, -torch.inf), -1)
    assert torch.allclose(ours, (weights[..., None] * values).sum(3), rtol=0, atol=1e-10)


@pytest.mark.parametrize("backend", BACKENDS)
def test_transformer_xl(backend):
    q, k, v = drawn(8, 8)
    u, place, w = torch.randn(4, 6).double(), torch.randn(4, 6).double(), torch.randn(24, 10).double()
    relative = TransformerXLRelative(content=u, position=place, projection=w)
    ours = attention(relative.queries(q), k, v, bias=relative.bias(q), backend=backend)
    distance = (torch.arange(8)[:, None] - torch.arange(8)).double()
    angles = distance[..., None] / 10000 ** (torch.arange(0, 10, 2).double() / 10)
    waves = torch.stack([angles.sin(), angles.cos()], -1).flatten(-2)
    rows = (waves @ w.T).unflatten(-1, (4, 6)).permute(2, 0, 1, 3)
    content = ((q + u[:, None])[:, :, :, None] * k.repeat_interleave(2, 1)[:, :, None]).sum(-1)
    places = ((q + place[:, None])[:, :, :, None] * rows).sum(-1)
    weights = torch.softmax((content + places) / 6**0.5, -1)
    assert torch.allclose(ours, weights @ v.repeat_interleave(2, 1), rtol=0, atol=1e-10)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_window_as_wide_as_the_spans_reach_loses_nothing(backend):
    q, k, v = drawn(30, 30)
    span = AdaptiveSpan(torch.tensor([0.0, 2.0, 3.3, 9.5]).double(), ramp=4)
    bias = span.scores(torch.arange(30), torch.arange(30))
    whole = attention(q, k, v, mask=causal(), bias=bias, backend=backend)
    within = attention(q, k, v, mask=sliding_window(span.reach()), bias=bias, backend=backend)
    assert torch.allclose(whole, within, rtol=0, atol=1e-12)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_rotated_keys_in_a_cache_go_on_where_they_were(layout):
    q, k, v = drawn(8, 8)
    rotary, positions = Rotary(dim=4, layout=layout), torch.arange(8)
    whole = attention(rotary.rotate(q, positions), rotary.rotate(k, positions), v, mask=causal())
    kept = []
    for at in range(8):
        here = slice(at, at + 1)
        kept.append(rotary.rotate(k[:, :, here], positions[here]))
        turned = rotary.rotate(q[:, :, here], positions[here])
        step = attention(turned, torch.cat(kept, 2), v[:, :, : at + 1], mask=causal(), q_offset=at)
        assert torch.allclose(step, whole[:, :, here], rtol=0, atol=1e-12)
