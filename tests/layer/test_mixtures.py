"""What holds for every mixture of heads alike."""

import copy
import doctest
import importlib
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from multihead import layer as layers
from multihead import pattern
from multihead import position as positions
from multihead.error import MultiheadError
from multihead.hooks import gated, locate, watching
from multihead.layer import (
    HeadGroup,
    MoAAttention,
    MoHAttention,
    Router,
    Scoring,
    SwitchHeadAttention,
    mixture_of_heads,
)
from multihead.layer.support import Support
from multihead.pattern import causal, document, padding
from multihead.position import Rotary

WIDE = torch.float64
NAMES = ("heads", "heads in rows", "switch", "attention")


def layer_of(name):
    group = HeadGroup(6, 4, kv_heads=3, position=Rotary())
    if name.startswith("heads"):
        return MoHAttention(16, group, shared=2, chosen=2)
    kind = SwitchHeadAttention if name == "switch" else MoAAttention
    return kind(16, group, experts=4, chosen=2)


@pytest.fixture(autouse=True)
def _rows(request, monkeypatch):
    name = request.node.callspec.params.get("name") if hasattr(request.node, "callspec") else None
    monkeypatch.setattr(mixture_of_heads, "_LEAST", 1 if name == "heads in rows" else 2**24)


@pytest.mark.parametrize("name", NAMES)
def test_what_comes_later_changes_nothing_before(randomise, name):
    """Bit for bit, however the future chooses; of another length, where kernels sum otherwise, but for rounding."""
    layer, x = randomise(layer_of(name)).double(), torch.randn(2, 9, 16, dtype=WIDE)
    other = x.clone()
    other[:, 6:] = 1e6 * torch.randn(2, 3, 16, dtype=WIDE)
    got = layer(torch.cat([x, other]), mask=causal())
    assert torch.equal(got[:2, :6], got[2:, :6])
    assert not torch.equal(got[:2, 6:], got[2:, 6:])
    torch.testing.assert_close(layer(x[:, :6], mask=causal()), got[:2, :6], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_sequences_have_nothing_to_do_with_each_other(randomise, name):
    layer, x = randomise(layer_of(name)).double(), torch.randn(3, 9, 16, dtype=WIDE)
    want = layer(x, mask=causal())
    torch.testing.assert_close(layer(x[[2, 0]], mask=causal()), want[[2, 0]], rtol=1e-12, atol=1e-12)
    huge = torch.cat([x[:1], 1e6 * torch.randn(2, 9, 16, dtype=WIDE)])
    torch.testing.assert_close(layer(huge, mask=causal())[:1], want[:1], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_padding_and_documents_are_as_if_alone(randomise, name):
    layer, x = randomise(layer_of(name)).double(), torch.randn(2, 9, 16, dtype=WIDE)
    keep = torch.arange(9) < 6
    got = layer(x, mask=padding(keep))
    torch.testing.assert_close(got[:, :6], layer(x[:, :6]), rtol=1e-12, atol=1e-12)
    packed = layer(x, mask=causal() & document(torch.tensor([0] * 4 + [1] * 5)))
    torch.testing.assert_close(packed[:, :4], layer(x[:, :4], mask=causal()), rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(packed[:, 4:], layer(x[:, 4:], mask=causal()), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("name", NAMES)
def test_short_numbers(randomise, name):
    """bfloat16 throughout, and under autocast, where weights stay wide: the tokens' choices are made in it as well."""
    layer, x = randomise(layer_of(name)).bfloat16(), torch.randn(2, 9, 16).bfloat16()
    short = layer(x, mask=causal())
    choices = [each.load() for each in layer.modules() if isinstance(each, Router)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = layer.float()(x.float(), mask=causal())
    assert all(
        torch.equal(each.load(), load)
        for each, load in zip((m for m in layer.modules() if isinstance(m, Router)), choices, strict=True)
    )
    want = []
    for router in (m for m in layer.modules() if isinstance(m, Router)):
        # What is wide chooses as the short ones did: a choice that flips is no error of rounding.
        chosen = router._last[1]
        router.forward = lambda x, r=router, chosen=chosen: layers.routing.Choice(
            torch.nn.functional.linear(x, r.weight).unflatten(-1, (r.groups, r.experts)), chosen
        )
        want.append(chosen)
    wide = layer(x.float(), mask=causal())
    for got in (short, mixed):
        assert got.dtype == torch.bfloat16
        off = (got.float() - wide).square().mean().sqrt() / wide.square().mean().sqrt()
        # Some ten roundings of 2 ** -9 each, of numbers that partly cancel.
        assert off < 0.1


@pytest.mark.parametrize("name", NAMES)
def test_nothing_to_attend_to_or_nobody_to_attend(randomise, name):
    layer = randomise(layer_of(name))
    for shape in ((0, 9, 16), (2, 0, 16)):
        for mask in (None, causal()):
            assert layer(torch.randn(shape), mask=mask).shape == shape


@pytest.mark.parametrize("name", NAMES)
def test_dropout_is_off_in_evaluation(randomise, name):
    layer, x = randomise(layer_of(name)), torch.randn(2, 9, 16)
    layer.dropout = 0.5
    clean = layer.eval()(x, mask=causal())
    assert torch.equal(layer(x, mask=causal()), clean)
    assert not torch.equal(layer.train()(x, mask=causal()), clean)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_of_loss_and_load_come_out_of_a_checkpoint(randomise, name):
    layer, x = randomise(layer_of(name)).double(), torch.randn(2, 9, 16, dtype=WIDE, requires_grad=True)
    grads = []
    for run in (lambda x: layer(x, mask=causal()), lambda x: checkpoint(layer, x, mask=causal(), use_reentrant=False)):
        layer.zero_grad()
        out = run(x)
        load = sum(each.load_loss() for each in layer.modules() if isinstance(each, Router))
        (out.square().sum() + load).backward()
        grads.append([p.grad for p in layer.parameters()])
    torch.testing.assert_close(*grads)
    assert all(grad.any() for grad in grads[0] if grad.ndim > 1)
    copied = copy.deepcopy(layer)
    assert torch.equal(copied(x, mask=causal()), layer(x, mask=causal()))


@pytest.mark.parametrize("name", ["switch", "attention"])
def test_watchers_see_what_was_computed(randomise, name):
    layer, x, calls = randomise(layer_of(name)).double().eval(), torch.randn(2, 9, 16, dtype=WIDE), []
    want = layer(x, mask=causal())
    with watching(layer, calls.append):
        assert torch.equal(layer(x, mask=causal()), want)
    (call,) = calls
    (located,) = locate(layer)
    assert located.heads == call.output.shape[2] == layer.heads == (6 if name == "switch" else 12)
    seen = call.problem
    weights = seen.normaliser.weigh(seen.scores(), seen.normaliser.settle(seen.scores()))
    got = (weights @ seen.v.repeat_interleave(seen.heads // seen.kv_heads, 1)).transpose(1, 2)
    torch.testing.assert_close(got, call.output, rtol=1e-10, atol=1e-10)
    assert call.projection.weight is None
    with torch.no_grad(), gated(layer, {"L0.H1": 0.0}):
        assert not torch.allclose(layer(x, mask=causal()), want)


def test_each_says_what_it_takes():
    for kind in (MoHAttention, SwitchHeadAttention, MoAAttention):
        assert Support() == kind.SUPPORT


def test_a_cache_of_another_layer_is_refused(randomise):
    for name in NAMES[1:]:
        layer, other = randomise(layer_of(name)), randomise(layer_of(name))
        cache = layer.cache(batch=1)
        layer(torch.randn(1, 3, 16), mask=causal(), cache=cache)
        with pytest.raises(MultiheadError, match="a cache of this module"):
            other(torch.randn(1, 1, 16), mask=causal(), cache=cache)


@pytest.mark.parametrize("backend", ["eager", pytest.param("aot_eager", marks=pytest.mark.slow)])
def test_each_is_one_graph_at_any_length(backend):
    script = Path(__file__).with_name("compiling_mixtures.py")
    run = subprocess.run([sys.executable, script, backend], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr[-2000:]) == (0, "")


@pytest.mark.parametrize("module", ["mixture_of_heads", "switch_head", "mixture_of_attention", "routing"])
def test_examples_hold(module):
    known = {each: getattr(room, each) for room in (layers, pattern, positions) for each in room.__all__}
    found = importlib.import_module(f"multihead.layer.{module}")
    failed, tried = doctest.testmod(found, extraglobs=known | {"torch": torch, "Scoring": Scoring})
    assert failed == 0
    assert tried > 1
