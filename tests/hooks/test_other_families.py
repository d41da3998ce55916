"""Models of other kinds of attention under watch: unchanged outputs, the right heads, or a word on what is not told."""

import pytest
import torch
from torch import nn

from hooks.mixed import randomise
from multihead.error import MultiheadError
from multihead.hooks import gated, locate, watching
from multihead.layer import (
    Block,
    GatedDeltaNet,
    HeadGroup,
    LinearAttention,
    LinearScoring,
    MultiHeadAttention,
    build_attention,
)
from multihead.pattern import causal

WIDTH = 16
SOFTMAX, LINEAR = HeadGroup(2, 4), HeadGroup(2, 4, v_head_dim=3, scoring=LinearScoring())


class Model(nn.Module):
    def __init__(self, attention):
        super().__init__()
        self.layers = nn.ModuleList(Block(WIDTH, attention()) for _ in range(2))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x, mask=causal())
        return x


def column(layer, head, *groups):
    """The columns of the output projection that belong to a head."""
    widths = [group.v_head_dim or group.head_dim for group in groups for _ in range(group.heads)]
    return layer.out_proj.weight[:, sum(widths[:head]) : sum(widths[: head + 1])]


@pytest.mark.parametrize("groups", [(LINEAR, SOFTMAX), (SOFTMAX, LINEAR), (LINEAR, SOFTMAX, LINEAR, SOFTMAX)])
def test_softmax_heads_beside_linear_ones_are_told_with_their_numbers_and_columns(groups):
    model, calls, x = randomise(Model(lambda: MultiHeadAttention(WIDTH, list(groups)))), [], torch.randn(2, 6, WIDTH)
    with torch.no_grad():
        want = model(x)
        with watching(model, calls.append) as watched:
            assert torch.equal(model(x), want)
    firsts = [2 * place for place, group in enumerate(groups) if group is SOFTMAX]
    assert [call.first_head for call in calls] == firsts * 2
    for call in calls:
        layer = model.get_submodule(call.site.module)
        own = [column(layer, call.first_head + head, *groups) for head in range(2)]
        assert torch.equal(call.projection.weight, torch.cat(own, 1))
    assert set(watched.unseen) == {"layers.0.attention", "layers.1.attention"}
    assert all("linear heads" in reason for reason in watched.unseen.values())
    assert [one.heads for one in locate(model)] == [2 * len(groups)] * 2


@pytest.mark.parametrize("head", range(4))
def test_linear_heads_are_gated_as_others_are(head):
    groups = (LINEAR, SOFTMAX)
    model, x = randomise(Model(lambda: MultiHeadAttention(WIDTH, list(groups)))), torch.randn(2, 6, WIDTH)
    with torch.no_grad():
        plain = model(x)
        with gated(model, {f"L1.H{head}": 0.0}):
            got = model(x)
        column(model.layers[1].attention, head, *groups).zero_()
        torch.testing.assert_close(got, model(x), atol=1e-6, rtol=1e-5)
        assert not torch.equal(got, plain)


@pytest.mark.parametrize("kind", [LinearAttention, GatedDeltaNet])
def test_without_any_softmax_head_there_is_nothing_to_be_told(kind):
    model = randomise(Model(lambda: kind(WIDTH, 4)))
    with pytest.raises(MultiheadError, match="found none"):
        locate(model)
    with pytest.raises(MultiheadError, match="no attention call"), watching(model, lambda _: None):
        model(torch.randn(1, 3, WIDTH))


@pytest.mark.parametrize(
    "name", ["native_sparse", "indexed", "lsh", "mixture_of_heads", "switch_head", "mixture_of_attention"]
)
def test_outputs_under_watch_stay_and_gates_reach_a_head(name):
    model, calls, x = randomise(Model(lambda: build_attention(name, WIDTH, 4))), [], torch.randn(1, 6, WIDTH)

    def run():
        with torch.random.fork_rng():
            torch.manual_seed(1)  # hashing draws at random
            return model(x)

    with torch.no_grad():
        want = run()
        with watching(model, calls.append):
            got = run()
        with gated(model, {"L1.H0": 0.0}):
            other = run()
    # LSH computes the same answer from all pairs then, as it says.
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5 if name == "lsh" else 0.0)
    assert {call.site.module for call in calls} == {"layers.0.attention", "layers.1.attention"}
    assert {call.first_head for call in calls} == {0}
    assert all(call.output.shape[2] == one.heads for call in calls for one in locate(model)[:1])
    assert not torch.allclose(other, want, atol=1e-5)
