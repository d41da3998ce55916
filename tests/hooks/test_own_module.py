"""Our own module is watched and gated like any other."""

import copy

import pytest
import torch
from torch import nn

from hooks.oracle import output_of
from multihead.hooks import addresses, gated, locate, watching
from multihead.layer import Attends, MultiHeadAttention
from multihead.pattern import causal, padding


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn, self.other = MultiHeadAttention(16, 4, kv_heads=2), MultiHeadAttention(16, 2)

    def forward(self, hidden_states, memory, mask):
        hidden_states = hidden_states + self.attn(hidden_states, mask=mask)
        return hidden_states + self.other(hidden_states, memory)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.layers = nn.Embedding(20, 16), nn.ModuleList(Block() for _ in range(2))

    def forward(self, input_ids, memory, mask=None):
        hidden = self.embed(input_ids)
        for layer in self.layers:
            hidden = layer(hidden, memory, mask)
        return hidden


@pytest.fixture
def inputs():
    return {"input_ids": torch.randint(20, (2, 6)), "memory": torch.randn(2, 4, 16)}


def test_calls_are_complete(inputs):
    model, calls = Model(), []
    with torch.no_grad():
        plain = model(**inputs, mask=causal())
        with watching(model, calls.append) as watched:
            assert torch.equal(model(**inputs, mask=causal()), plain)
    assert list(addresses(watched.sites).values()) == [("", 0), ("cross", 0), ("", 1), ("cross", 1)]
    for call in calls:
        linear = model.get_submodule(call.site.module).out_proj
        assert call.projection.weight is linear.weight
        assert call.kernel == "multihead"
        assert call.residual.shape == (2, 6, 16)
        torch.testing.assert_close(output_of(call.problem), call.output.double(), atol=1e-5, rtol=0)
        assert torch.equal(call.queries.ids, inputs["input_ids"])
        assert (call.keys.ids is None) == call.site.cross
    assert not any("attend" in vars(module) for module in model.modules())


def test_padding_patterns_are_read(inputs):
    model, calls = Model(), []
    keep = torch.ones(2, 6, dtype=torch.bool)
    keep[1, :2] = False
    with torch.no_grad(), watching(model, calls.append):
        model(**inputs, mask=causal() & padding(keep))
    for call in (calls[0], calls[2]):
        assert torch.equal(call.keys.keep, keep)
        assert torch.equal(call.queries.keep, keep)


def test_gates_equal_zeroed_columns(inputs):
    model = Model()
    with torch.no_grad(), gated(model, {"L1.H3": 0.0, "cross.L0.H1": 0.0}):
        got = model(**inputs)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin.layers[1].attn.out_proj.weight[:, 12:16] = 0
        twin.layers[0].other.out_proj.weight[:, 8:] = 0
        assert torch.equal(got, twin(**inputs))


def test_a_module_alone_is_a_model():
    module, calls = MultiHeadAttention(16, 4), []
    x = torch.randn(2, 5, 16)
    with torch.no_grad(), watching(module, calls.append), watching(module, calls.append):
        module(x)
    assert len(calls) == 2
    assert calls[0].residual is None
    assert calls[0].site.module == ""
    assert "attend" not in vars(module)
    assert [entry.heads for entry in locate(module)] == [4]


def test_copies_made_under_watch_run_by_themselves():
    module, calls = MultiHeadAttention(16, 4), []
    x = torch.randn(2, 5, 16)
    with torch.no_grad(), watching(module, calls.append):
        twin = copy.deepcopy(module)
        with torch.no_grad():
            twin.v_proj.weight.zero_(), twin.v_proj.bias.zero_(), twin.out_proj.bias.zero_()
        assert not twin(x).any()
        assert calls == []
    assert not twin(x).any()


def test_an_overridden_attend_is_the_one_that_runs():
    class Doubled(MultiHeadAttention):
        def attend(self, problem):
            return 2 * super().attend(problem)

    module, calls = Doubled(16, 4), []
    x = torch.randn(2, 5, 16)
    with torch.no_grad():
        plain = module(x)
        with watching(module, calls.append):
            assert torch.equal(module(x), plain)
    torch.testing.assert_close(2 * output_of(calls[0].problem), calls[0].output.double(), atol=1e-5, rtol=0)


class Pair(Attends):
    """Attention of another shape, built on the same base: two heads that read each other's keys."""

    def __init__(self):
        super().__init__(dropout=0.0, backend="auto")
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x):
        q, k, v = (part.unflatten(2, (2, 4)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        return self.out(self.attended((q, k.flip(1), v), {"mask": causal()}).transpose(1, 2).flatten(2))


def test_every_module_that_attends_is_seen_and_gated():
    module, calls, x = Pair(), [], torch.randn(2, 5, 8)
    with torch.no_grad():
        plain = module(x)
        with watching(module, calls.append):
            assert torch.equal(module(x), plain)
        assert calls[0].projection.weight is module.out.weight
        with gated(module, {"L0.H1": 0.0}):
            got = module(x)
        module.out.weight[:, 4:] = 0
        assert torch.equal(got, module(x))
    assert [one.how for one in locate(module)] == ["seen"]


def test_a_remembered_sequence_is_another_sequence():
    module, calls = MultiHeadAttention(16, 4), []
    x, memory = torch.randn(2, 5, 16), torch.randn(2, 7, 16)
    with torch.no_grad():
        cache = module.remember(memory)
        want = module(x, memory)
        with watching(module, calls.append) as watched:
            torch.testing.assert_close(module(x, cache=cache), want)
    assert list(addresses(watched.sites).values()) == [("cross", 0)]
    assert calls[0].keys.ids is None
