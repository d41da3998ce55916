"""What holds for every kind of attention module alike."""

import pytest
import torch

from multihead.layer import (
    DifferentialAttention,
    HeadGroup,
    Latent,
    LatentAttention,
    LongformerAttention,
    MultiHeadAttention,
    OutputGate,
    QKNorm,
    Scoring,
    TalkingHeadsAttention,
    TokenLambda,
)
from multihead.pattern import causal
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
    want, cache = layer(x, mask=causal()), layer.cache(batch=2)
    for part in x[:, :10].split([6, 1, 3], 1):
        layer(part, mask=causal(), cache=cache)
    got = layer(x[:, 10:], mask=causal(), cache=cache)
    torch.testing.assert_close(got, want[:, 10:], rtol=1e-10, atol=1e-10)
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
