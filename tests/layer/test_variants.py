"""What holds for every kind of attention module alike."""

import doctest
import importlib

import pytest
import torch

from multihead import layer as layers
from multihead import pattern
from multihead import position as positions
from multihead.error import MultiheadError
from multihead.hooks import gated, watching
from multihead.layer import (
    DifferentialAttention,
    Full,
    HeadGroup,
    Latent,
    LatentAttention,
    LongformerAttention,
    MultiHeadAttention,
    OutputGate,
    QKNorm,
    Scoring,
    Sliding,
    TalkingHeadsAttention,
    TokenLambda,
)
from multihead.pattern import causal, sliding_window
from multihead.position import DynamicNTK, Rotary

WIDE = torch.float64
SIZES = {"nope_dim": 6, "rope_dim": 4, "v_dim": 5}


def kinds(position=None):
    """One module of each kind, 16 wide."""
    group = HeadGroup(4, position=position, scoring=Scoring(norm=QKNorm(), sinks=True), gate=OutputGate())
    return {
        "expanded": LatentAttention(16, 4, Latent(8, **SIZES, q_rank=6, form="expanded"), position=position),
        "absorbed": LatentAttention(16, 4, Latent(8, **SIZES, form="absorbed"), position=position, bias=True),
        "differential": DifferentialAttention(16, 2, position=position),
        "per token": DifferentialAttention(16, 4, kv_heads=2, position=position, lambdas=TokenLambda()),
        "talking": TalkingHeadsAttention(16, group),
        "longformer": LongformerAttention(16, 4, window=4),
        "plain": MultiHeadAttention(16, group),
    }


def options(name):
    return {"global_tokens": [0, 5]} if name == "longformer" else {}


@pytest.mark.parametrize("name", kinds())
def test_what_comes_later_changes_nothing_before(randomise, name):
    layer, x = randomise(kinds(Rotary())[name]).double(), torch.randn(2, 9, 16, dtype=WIDE)
    other = x.clone()
    other[:, 6:] = 1e6 * torch.randn(2, 3, 16, dtype=WIDE)
    got = layer(torch.cat([x, other]), mask=causal(), **options(name))
    assert torch.equal(got[:2, :6], got[2:, :6])
    assert not torch.equal(got[:2, 6:], got[2:, 6:])


@pytest.mark.parametrize("name", kinds())
def test_sequences_have_nothing_to_do_with_each_other(randomise, name):
    layer, x = randomise(kinds(Rotary())[name]).double(), torch.randn(3, 9, 16, dtype=WIDE)
    got = layer(x[[2, 0]], mask=causal(), **options(name))
    torch.testing.assert_close(got, layer(x, mask=causal(), **options(name))[[2, 0]], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", kinds())
def test_short_numbers(randomise, name):
    """bfloat16 throughout, and under autocast, where weights stay wide."""
    layer, x = randomise(kinds(Rotary())[name]), torch.randn(2, 9, 16).bfloat16()
    want = layer(x.float(), mask=causal(), **options(name)).detach()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = layer(x.float(), mask=causal(), **options(name))
    short = layer.bfloat16()(x, mask=causal(), **options(name))
    for got in (mixed, short):
        assert got.dtype == torch.bfloat16
        off = (got.float() - want).square().mean().sqrt() / want.square().mean().sqrt()
        # Some ten roundings of 2 ** -9 each, of numbers that partly cancel.
        assert off < 0.1


@pytest.mark.parametrize("name", [name for name in kinds() if name != "longformer"])
def test_angles_that_depend_on_the_length_of_the_text(randomise, name):
    """Earlier keys are turned anew: the last rows are those of one pass over all."""
    rotary = Rotary(scaling=DynamicNTK(4.0, trained_length=4))
    layer, x = randomise(kinds(rotary)[name]).double(), torch.randn(2, 12, 16, dtype=WIDE)
    want = layer(x, mask=causal())
    for kind, mask in ((Full(), causal()), (Sliding(4), sliding_window(4))):
        cache = layer.cache(batch=2, kind=kind)
        for part in x[:, :10].split([6, 1, 3], 1):
            layer(part, mask=mask, cache=cache)
        got = layer(x[:, 10:], mask=mask, cache=cache)
        torch.testing.assert_close(got, layer(x, mask=mask)[:, 10:], rtol=1e-10, atol=1e-10)
    fixed = layer(x, mask=causal(), positions=torch.arange(12))
    torch.testing.assert_close(fixed, want, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", kinds())
def test_nothing_to_attend_to_or_nobody_to_attend(randomise, name):
    layer = randomise(kinds(Rotary())[name])
    for shape in ((0, 9, 16), (2, 0, 16)):
        given = options(name) if shape[1] else {}
        assert layer(torch.randn(shape), mask=causal(), **given).shape == shape


@pytest.mark.parametrize("name", kinds())
def test_dropout_is_off_in_evaluation(randomise, name):
    layer, x = randomise(kinds(Rotary())[name]), torch.randn(2, 9, 16)
    layer.dropout = 0.5 if "differential" not in name and name != "per token" else 0.0
    clean = layer.eval()(x, **options(name))
    torch.testing.assert_close(layer(x, **options(name)), clean, rtol=0, atol=0)
    noisy = layer.train()(x, **options(name))
    assert torch.equal(noisy, clean) == (layer.dropout == 0)


class Model(torch.nn.Module):
    """Two blocks around attention of one kind."""

    def __init__(self, name):
        super().__init__()
        self.embed, self.given = torch.nn.Embedding(20, 16), options(name)
        self.layers = torch.nn.ModuleList(kinds(Rotary())[name] for _ in range(2))

    def forward(self, input_ids):
        hidden = self.embed(input_ids)
        for each in self.layers:
            hidden = hidden + each(hidden, mask=causal(), **self.given)
        return hidden


@pytest.mark.parametrize("name", [name for name in kinds() if name != "talking"])
def test_watchers_see_what_was_computed(randomise, name):
    model, calls = randomise(Model(name)).eval(), []
    ids = torch.randint(20, (2, 9))
    with torch.no_grad():
        want = model(ids)
        with watching(model, calls.append):
            torch.testing.assert_close(model(ids), want, rtol=1e-4, atol=1e-4)
    heads = {"differential": 4, "per token": 8}.get(name, 4)
    assert len(calls) == 2  # Longformer's rows of global tokens are computed once more, which is not told
    for call in calls:
        assert call.output.shape[2] == heads
        seen = call.problem
        allowed = seen.allowed() if seen.mask is not None else None
        scores = seen.scores().double()
        assert allowed is None or bool((scores.isneginf() | allowed).all())
        weights = seen.normaliser.weigh(scores, seen.normaliser.settle(scores))
        v = seen.v.double().repeat_interleave(seen.heads // seen.kv_heads, 1)
        torch.testing.assert_close((weights @ v).transpose(1, 2), call.output.double(), rtol=1e-3, atol=1e-4)
    with torch.no_grad(), gated(model, {"L0.H1": 0.0}):
        assert not torch.allclose(model(ids), want)


def test_heads_that_talk_are_not_taken_for_others():
    model, ids = Model("talking"), torch.randint(20, (2, 9))
    with pytest.raises(MultiheadError, match="no weights are those of one head"), watching(model, print):
        model(ids)
    with torch.no_grad():
        want = model(ids)
        with gated(model, {"L0.H1": 0.0}):
            assert not torch.allclose(model(ids), want)


@pytest.mark.parametrize("name", ["latent", "differential", "talking", "longformer"])
def test_examples_hold(name):
    known = {each: getattr(room, each) for room in (layers, pattern, positions) for each in room.__all__}
    module = importlib.import_module(f"multihead.layer.{name}")
    failed, tried = doctest.testmod(module, extraglobs=known | {"torch": torch})
    assert failed == 0
    assert tried > 1
