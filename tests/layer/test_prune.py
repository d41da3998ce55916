import copy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from hooks.families import FAMILIES
from multihead.attend import Softmax
from multihead.error import MultiheadError
from multihead.hooks import gated, prune_heads
from multihead.layer import HeadGroup, MultiHeadAttention, OutputGate, QKNorm, Scoring
from multihead.pattern import causal, distance, per_head, sliding_window
from multihead.position import AdaptiveSpan, ALiBi, RelativeTable, Rotary, alibi_slopes


def learned_table(heads):
    return RelativeTable(nn.Parameter(torch.randn(8, heads)))


def rich():
    """Everything that belongs to a head, in five kinds of heads."""
    return [
        HeadGroup(4, 6, scoring=Scoring(norm=QKNorm(over="each"), sinks=True), gate=OutputGate(bias=True)),
        HeadGroup(4, 4, kv_heads=2, v_head_dim=3, position=learned_table(4), gate=OutputGate(per="channel")),
        HeadGroup(2, 8, position=Rotary(), mask=sliding_window(3), scoring=Scoring(norm=QKNorm())),
        HeadGroup(3, 2, position=ALiBi(alibi_slopes(3)), mask=per_head([causal(), distance(0), causal()]) & causal()),
        HeadGroup(
            2,
            4,
            position=AdaptiveSpan(torch.tensor([2.0, 3.0])),
            scoring=Scoring(normaliser=Softmax(sinks=torch.randn(2))),
        ),
    ]


CASES = {
    "plain": (lambda: MultiHeadAttention(16, 8), [0, 3]),
    "no biases": (lambda: MultiHeadAttention(16, 8, bias=False), [7, 1, 2]),
    "other widths": (lambda: MultiHeadAttention(16, 4, kv_embed_dim=(16, 16)), [2]),
    "whole key/value heads": (lambda: MultiHeadAttention(16, 8, kv_heads=4, head_dim=3), [2, 3, 6, 7]),
    "one of every key/value head": (lambda: MultiHeadAttention(16, 8, kv_heads=2), [1, 6]),
    "both": (lambda: MultiHeadAttention(16, 9, kv_heads=3, head_dim=4), [0, 3, 4, 5, 8]),
    "all that belongs to a head": (lambda: MultiHeadAttention(12, rich()), [1, 4, 7, 8, 11, 13]),
    "kinds that vanish": (lambda: MultiHeadAttention(12, rich()), [0, 1, 2, 3, 8, 9, 10, 13, 14]),
    "a norm over all that vanishes": (
        lambda: MultiHeadAttention(12, [HeadGroup(2, 4, scoring=Scoring(norm=QKNorm(over="all"))), HeadGroup(2, 4)]),
        [0, 1],
    ),
}  # fmt: skip


@pytest.fixture(params=CASES)
def case(request, randomise):
    make, heads = CASES[request.param]
    return randomise(make()).double(), heads


def closed(layer, heads, *given, **named):
    """What a layer gives with some of its heads at 0."""
    stack = "cross." if len(given) > 1 else ""
    with gated(layer, {f"{stack}L0.H{head}": 0.0 for head in heads}):
        return layer(*given, **named)


@pytest.mark.parametrize("fused", [False, True])
def test_a_pruned_module_is_one_with_closed_gates_and_restores_bit_for_bit(case, fused):
    layer, heads = case
    layer = layer.fuse() if fused else layer
    before, count = copy.deepcopy(layer.state_dict()), sum(p.numel() for p in layer.parameters())
    groups, printed, x = layer.groups, repr(layer), torch.randn(2, 7, layer.embed_dim, dtype=torch.float64)
    whole = layer(x, mask=causal())
    want = closed(layer, heads, x, mask=causal())
    pruned = prune_heads(layer, heads)
    got = layer(x, mask=causal())
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)
    assert not torch.allclose(got, whole)
    assert layer.heads == sum(group.heads for group in groups) - len(heads)
    assert pruned.parameters == count - sum(p.numel() for p in layer.parameters()) > 0
    assert [parameter.requires_grad for parameter in layer.parameters()] == [True] * len(list(layer.parameters()))
    pruned.restore()
    after = layer.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert layer.groups is groups
    assert repr(layer) == printed
    assert torch.equal(layer(x, mask=causal()), whole)


def test_the_state_of_a_pruned_module_loads_into_one_of_its_groups(case):
    layer, heads = case
    prune_heads(layer, heads)
    bias = "q_proj.bias" in layer.state_dict()
    twin = MultiHeadAttention(layer.embed_dim, list(layer.groups), bias=bias).double()
    twin.load_state_dict(layer.state_dict())
    x = torch.randn(2, 5, layer.embed_dim, dtype=torch.float64)
    assert torch.equal(twin(x, mask=causal()), layer(x, mask=causal()))


def test_the_bias_of_the_output_stays(randomise):
    layer = randomise(MultiHeadAttention(8, 4))
    bias = layer.out_proj.bias
    prune_heads(layer, [1])
    assert layer.out_proj.bias is bias
    assert layer.out_proj.weight.shape == (8, 6)


def test_heads_that_stay_keep_what_they_learned_meanwhile(case):
    layer, heads = case
    x = torch.randn(2, 5, layer.embed_dim, dtype=torch.float64)
    pruned = prune_heads(layer, heads)
    optimiser = torch.optim.SGD(layer.parameters(), lr=0.1)
    layer(x, mask=causal()).square().mean().backward()
    assert all(p.grad is not None for p in layer.parameters())
    optimiser.step()
    trained = layer(x, mask=causal())
    pruned.restore()
    torch.testing.assert_close(closed(layer, heads, x, mask=causal()), trained, rtol=1e-10, atol=1e-10)


def test_other_inputs_and_caches_of_a_pruned_module(randomise):
    layer = randomise(MultiHeadAttention(12, rich())).double()
    x, memory = torch.randn(2, 6, 12, dtype=torch.float64), torch.randn(2, 6, 12, dtype=torch.float64)
    old = layer.cache(batch=2)
    heads = [0, 4, 7, 8, 9]
    want = closed(layer, heads, x, memory)
    prune_heads(layer, heads)
    torch.testing.assert_close(layer(x, memory), want, rtol=1e-10, atol=1e-10)
    cache = layer.cache(batch=2)
    parts = torch.cat([layer(part, mask=causal(), cache=cache) for part in x.split(2, 1)], 1)
    torch.testing.assert_close(parts, layer(x, mask=causal()), rtol=1e-10, atol=1e-10)
    with pytest.raises(MultiheadError, match="a cache of this module"):
        layer(x, cache=old)


def test_prunings_are_restored_the_last_one_first(randomise):
    layer = randomise(MultiHeadAttention(16, 8))
    before = copy.deepcopy(layer.state_dict())
    first = prune_heads(layer, [0, 3])
    second = prune_heads(layer, [0])
    with pytest.raises(MultiheadError, match=r"the heads of the module as.*\n  got: it was pruned once more"):
        first.restore()
    second.restore()
    first.restore()
    assert all(torch.equal(weight, before[name]) for name, weight in layer.state_dict().items())
    with pytest.raises(MultiheadError, match="got: it was restored already"):
        first.restore()


@pytest.mark.parametrize("fused", [False, True])
def test_a_module_that_was_fused_or_split_meanwhile_is_restored(randomise, fused):
    layer = randomise(MultiHeadAttention(16, 4, kv_heads=2))
    layer = layer.fuse() if fused else layer
    before = copy.deepcopy(layer.state_dict())
    pruned = prune_heads(layer, [2, 3])
    layer = layer.unfuse() if fused else layer.fuse()
    pruned.restore()
    assert hasattr(layer, "qkv_proj") is not fused
    assert all(torch.equal(weight, before[name]) for name, weight in layer.state_dict().items())
    assert layer.unfuse().q_proj.out_features == 16


def test_a_module_that_was_moved_meanwhile_is_restored(randomise):
    layer = randomise(MultiHeadAttention(12, rich()))
    pruned = prune_heads(layer, [0, 1, 2, 3])
    layer.double().eval()
    pruned.restore()
    assert {parameter.dtype for parameter in layer.parameters()} == {torch.float64}
    assert not any(module.training for module in layer.modules())
    assert layer(torch.randn(1, 3, 12, dtype=torch.float64)).isfinite().all()


def test_a_learned_table_that_modules_share_is_shared_again():
    table = nn.Parameter(torch.randn(8, 2))
    first, second = (MultiHeadAttention(8, HeadGroup(2, 4, position=RelativeTable(table))) for _ in range(2))
    pruned = prune_heads(first, [0])
    assert first.parts[0].bias.shape == (8, 1)
    assert second.parts[0].bias is table
    version = table._version
    pruned.restore()
    assert first.parts[0].bias is table
    assert table._version == version
    pruned = prune_heads(first, [0])
    with torch.no_grad():
        first.parts[0].bias.add_(1.0)
    want = torch.stack([table[:, 0], table[:, 1] + 1], 1).detach().clone()
    pruned.restore()
    assert torch.equal(second.parts[0].bias, want)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(MultiHeadAttention(16, 4, kv_heads=2) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x, mask=causal())
        return x


def test_heads_of_a_model_are_named_by_address_or_module(randomise):
    model, x = randomise(Model()), torch.randn(2, 5, 16)
    gates = dict.fromkeys(["L0.H0", "L0.H1", "L2.H1", "L2.H3"], 0.0)
    with gated(model, gates):
        want = model(x)
    pruned = prune_heads(model, list(gates))
    torch.testing.assert_close(model(x), want, rtol=1e-5, atol=1e-5)
    assert pruned.heads == {"layers.0": (0, 1), "layers.2": (1, 3)}
    assert str(pruned) == f"pruned heads of layers.0: 0, 1; layers.2: 1, 3 ({pruned.parameters:,} parameters less)"
    pruned.restore()
    again = prune_heads(model, {"layers.2": [3, 1], "layers.0": [0, 1]})
    torch.testing.assert_close(model(x), want, rtol=1e-5, atol=1e-5)
    again.restore()
    assert [layer.heads for layer in model.layers] == [4, 4, 4]


def test_a_model_is_pruned_as_a_whole_or_not_at_all(randomise):
    model = randomise(Model())
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(MultiheadError, match=r"layers\.2"):
        prune_heads(model, ["L0.H0", "L0.H1", "L2.H1"])
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())


def test_compiled_modules_are_pruned_and_restored():
    # In a process of its own: what compiling changes is not undone, and no graph is made of code that checks types.
    script = Path(__file__).with_name("pruning.py")
    ran = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]


def adapted():
    layer = MultiHeadAttention(8, 2)
    layer.adapter = nn.Linear(2, 2)
    return layer


class Other(nn.Linear):
    pass


def replaced():
    layer = MultiHeadAttention(8, 2)
    layer.q_proj = Other(8, 8)
    return layer


@pytest.mark.parametrize(
    ("make", "heads", "says"),
    [
        (
            lambda: MultiHeadAttention(16, 8, kv_heads=4),
            [0],
            r"2 of which share.*\n  got: of heads 0-1 keep 1, 2-3 keep 2",
        ),
        (lambda: MultiHeadAttention(16, 8, kv_heads=4), [0, 1, 2], "fix: prune as many heads of each"),
        (lambda: MultiHeadAttention(8, 2), [0, 1], "all 2 of them"),
        (lambda: MultiHeadAttention(8, 2), [2], "heads 0 to 1 of the module, each once\n  got: head 2"),
        (lambda: MultiHeadAttention(8, 2), [-1], "got: head -1"),
        (lambda: MultiHeadAttention(8, 2), [1, 1], "got: head 1 twice"),
        (lambda: MultiHeadAttention(8, 2), [], "at least one head\n  got: no heads"),
        (lambda: MultiHeadAttention(8, 2), {"": []}, "at least one head"),
        (lambda: MultiHeadAttention(8, 2), "L0.H0", r"a list of heads\n  got: str 'L0.H0'"),
        (lambda: MultiHeadAttention(8, 2), {"": [True]}, "numbers of heads\n  got: bool"),
        (lambda: MultiHeadAttention(8, 2), {"...": 1}, r"a list of heads for each module\n  got: int '1'"),
        (lambda: MultiHeadAttention(8, 2), {"": None}, "got: NoneType 'None'"),
        (lambda: MultiHeadAttention(8, 2), {"": 1.5}, "got: float '1.5'"),
        (lambda: MultiHeadAttention(8, 2), {"": "0"}, "got: str '0'"),
        (lambda: MultiHeadAttention(8, 2), {0: [1]}, "name of a module as a dotted name"),
        (lambda: MultiHeadAttention(8, 2), [0.5], "a head\n  got: float"),
        (lambda: MultiHeadAttention(8, 2), ["L1.H0"], "to prune head L1.H0 of MultiHeadAttention\n  got: layers L0"),
        (lambda: MultiHeadAttention(8, 2), {"attn": [0]}, r"MultiHeadAttention at 'attn'\n  got: there is none"),
        (adapted, [0], "plain linear projections\n  got: MultiHeadAttention with adapter"),
        (replaced, [0], "got: MultiHeadAttention with Other"),
        (
            lambda: MultiHeadAttention(8, HeadGroup(2, scoring=Scoring(norm=QKNorm(over="all")))),
            [0],
            "the norm is taken over all heads together",
        ),
        (FAMILIES["bert"].build, ["L0.H0"], r"(?s)at 'encoder.layer.0.attention.self'.*BertSelfAttention.*mh.gated"),
    ],
)
def test_what_cannot_be_pruned_is_refused_with_the_reason(unhooked, make, heads, says):
    with pytest.raises(MultiheadError, match=says):
        prune_heads(make(), heads)


def test_a_module_under_two_names_is_refused():
    layer = MultiHeadAttention(8, 2)
    with pytest.raises(MultiheadError, match=r"each module under one name\n  got: 1 under two"):
        prune_heads(nn.Sequential(layer, layer), {"0": [0], "1": [0]})


def test_a_mask_that_cannot_be_taken_apart_is_refused():
    from multihead.pattern.algebra import Shifted

    mask = Shifted(per_head([causal(), distance(0)]), 1, 0)
    layer = MultiHeadAttention(8, HeadGroup(2, 4, mask=mask))
    with pytest.raises(
        MultiheadError, match=r"the mask of some of the heads\n.*\n  fix: build the module with per_head"
    ):
        prune_heads(layer, [0])
