"""Layers that a model does not have are refused before it runs, where its code tells that each runs once."""

import pytest
import torch
from torch import nn

from hooks.families import FAMILIES
from multihead.error import MultiheadError
from multihead.hooks import HeadGate, gated, locate, prune_heads, replaced, watching
from multihead.hooks.once import runs_once
from multihead.layer import Block, MultiHeadAttention
from multihead.measure import Batch, ablated, mean_outputs
from multihead.record import HeadAddress


def _blocks(count):
    return nn.ModuleList(Block(16, heads=2) for _ in range(count))


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = _blocks(2)

    def forward(self, x):
        for place, block in enumerate(self.blocks):
            x = block(x) if place else block.attention(x)
        return x


class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = _blocks(2)

    def forward(self, x):
        return self.second(self.first(x))


class Looped(Stack):
    def forward(self, x):
        for _ in range(3):
            x = self.blocks[0](self.blocks[1](x))
        return x


class Nested(Stack):
    def forward(self, x):
        for _ in self.blocks:
            for block in self.blocks:
                x = block(x)
        return x


class Twice(Stack):
    def forward(self, x):
        for block in self.blocks:
            x = block(block(x))
        return x


class Called(Named):
    def forward(self, x):
        return self.second(self.first(self.first(x)))


class Waiting(Stack):
    def forward(self, x):
        count = 0
        while count < 4:
            x, count = self.blocks[count % 2](x), count + 1
        return x


class Tied(Stack):
    def __init__(self):
        super().__init__()
        self.blocks.append(self.blocks[0])


class Patched(Stack):
    def __init__(self):
        super().__init__()
        once = self.forward
        self.forward = lambda x: once(once(x))


@pytest.mark.parametrize("kind", [Stack, Named])
def test_a_model_whose_layers_run_once_says_so(kind):
    model = kind().eval()
    assert runs_once(model, [one.site.module for one in locate(model)])
    with torch.no_grad(), watching(model, lambda _: None) as watched:
        model(torch.randn(1, 3, 16))
    assert [site.repeat for site in watched.sites] == [0, 0]


@pytest.mark.parametrize(
    ("kind", "stack"),
    [(Looped, ""), (Nested, ""), (Twice, ""), (Called, "first."), (Waiting, ""), (Tied, ""), (Patched, "")],
)
def test_a_model_whose_layers_may_run_again_is_let_in(kind, stack):
    model = kind().eval()
    assert not runs_once(model, [one.site.module for one in locate(model)])
    x = torch.randn(1, 3, 16)
    with torch.no_grad():
        plain = model(x)
        with gated(model, {f"{stack}L{1 if stack else 2}.H0": 0.0}):
            assert not torch.equal(model(x), plain)
        with pytest.raises(MultiheadError, match="ran in this stack"), gated(model, {f"{stack}L40.H0": 0.0}):
            model(x)


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "t5", "bart", "whisper", "vit", "albert"])
def test_models_of_transformers_that_say_so_run_each_layer_once(name):
    model = FAMILIES[name].build()
    if not runs_once(model, [one.site.module for one in locate(model)]):
        return
    with torch.no_grad(), watching(model, lambda _: None) as watched:
        model(**FAMILIES[name].inputs())
    assert all(site.repeat == 0 for site in watched.sites)
    assert len(watched.sites) <= len(locate(model))


class Silent(Stack):
    """It must not run."""

    def forward(self, x):
        for block in self.blocks:
            pytest.fail(f"it ran: {block(x)}")
        return x


ASKED = {
    "gated": lambda model, head: gated(model, {head: 0.0}).__enter__(),
    "replaced": lambda model, head: replaced(model, {head: None}).__enter__(),
    "ablated": lambda model, head: ablated(model, [head]).__enter__(),
    "mean_outputs": lambda model, head: mean_outputs(
        model, [Batch(inputs={"x": torch.ones(1, 3, 16)}, document=(0,))], [head]
    ),
    "prune_heads": lambda model, head: prune_heads(model, [head]),
    "head gate": lambda model, head: HeadGate(model)[head],
}


@pytest.mark.parametrize("ask", ASKED.values(), ids=ASKED)
@pytest.mark.parametrize(
    ("head", "names"),
    [("L9.H0", ("L0", "L1")), ("L2.H0", ("L0", "L1")), ("L0.H2", ("0 to 1",)), ("cross.L2.H0", ("L0", "L1"))],
)
def test_heads_that_are_not_there_are_refused_before_the_model_runs(ask, head, names):
    model = Silent()
    before = [parameter.clone() for parameter in model.parameters()]
    with pytest.raises(MultiheadError) as refused:
        ask(model, head)
    assert head.rpartition(".")[0] in refused.value.asked or "each once" in refused.value.asked
    assert all(name in refused.value.arrived + refused.value.asked for name in names)
    assert all(map(torch.equal, before, model.parameters()))


@pytest.mark.parametrize("head", [HeadAddress("", 1, 1), "L1.H1"])
def test_heads_may_be_named_as_text_everywhere(head):
    model, x = Stack().eval(), torch.randn(2, 3, 16)
    with torch.no_grad(), replaced(model, {head: None}):
        told = model(x)
    with torch.no_grad(), gated(model, {head: 0.0}):
        assert torch.equal(model(x), told)


@pytest.mark.parametrize("kind", ["mixture_of_heads", "switch_head", "mixture_of_attention", "linear", "latent"])
@pytest.mark.parametrize("heads", [[0], ["L0.H0"], {"": [0]}])
def test_why_heads_of_another_kind_are_not_pruned_is_said(kind, heads):
    layer = Block(32, kind, heads=4).attention
    with pytest.raises(MultiheadError) as refused:
        prune_heads(layer, heads)
    assert refused.value.arrived.startswith(type(layer).__name__)
    assert "whose" in refused.value.arrived
    assert "fewer heads" in refused.value.remedy
    if kind == "mixture_of_heads":
        assert "its tokens would take others" in refused.value.arrived


def test_numbers_of_heads_are_those_of_one_module():
    with pytest.raises(MultiheadError, match="numbers of heads without their layer") as refused:
        prune_heads(Stack(), [0, 1])
    assert 'like ["L0.H3"]' in refused.value.remedy
    assert prune_heads(MultiHeadAttention(16, 4), [0]).heads == {"": (0,)}
