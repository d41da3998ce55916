"""Laws of caches: one pass == token by token == any split, with every option, mask and kind of cache."""

from itertools import pairwise

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from attend.oracle import near
from laws.module_options import NAMES, WIDTH, group_of, kind, module_of, options
from multihead.layer import (
    DifferentialAttention,
    Full,
    Int8,
    Latent,
    LatentAttention,
    Sliding,
    Static,
    TalkingHeadsAttention,
    TokenLambda,
)
from multihead.pattern import causal, document, padding, sliding_window
from multihead.position import ALiBi, DynamicNTK, Rotary, YaRN

WIDE, LENGTH, WINDOW = torch.float64, 11, 4


def splits(length):
    """Lengths that add up; some of them may be 0."""
    cuts = st.lists(st.integers(0, length), max_size=length)
    return st.one_of(st.just([1] * length), cuts.map(lambda c: [b - a for a, b in pairwise(sorted([0, *c, length]))]))


def masks():
    """Masks of a call by the tokens so far, at `length` tokens of which `new` are new."""
    ids = torch.tensor([0] * 3 + [1] * 5 + [2] * 3)
    keep = torch.arange(LENGTH) >= torch.tensor([[0], [3]])
    table = torch.rand(2, 4, LENGTH, LENGTH) < 0.7
    numbers = torch.randn(1, 4, LENGTH, LENGTH, dtype=WIDE)
    slopes = torch.rand(4, dtype=WIDE)
    return {
        "causal": lambda a, b: {"mask": causal()},
        "window": lambda a, b: {"mask": sliding_window(WINDOW)},
        "documents": lambda a, b: {"mask": causal() & document(ids)},
        "padding": lambda a, b: {"mask": causal() & padding(keep[:, :b])},
        "padding in full": lambda a, b: {"mask": causal() & padding(keep)},
        "tensor": lambda a, b: {"mask": (table & torch.ones(LENGTH, LENGTH).tril().bool())[:, :, a:b, :b]},
        "bias": lambda a, b: {"mask": causal(), "bias": numbers[:, :, a:b, :b]},
        "bias of positions": lambda a, b: {"mask": causal(), "bias": ALiBi(slopes)},
    }


SLOW = pytest.mark.slow
NEAR = ("window",)  # masks that look back no further than a sliding cache keeps


def in_parts(layer, x, lengths, cache, mask):
    """The outputs of one chunk after the other."""
    parts, start = [], 0
    for length in lengths:
        parts.append(layer(x[:, start : start + length], cache=cache, **mask(start, start + length)))
        start += length
    return torch.cat(parts, 1)


@pytest.mark.filterwarnings("ignore:.*allow no key at all")
@pytest.mark.parametrize("mask", [x if x in ("window", "padding") else pytest.param(x, marks=SLOW) for x in masks()])
@pytest.mark.parametrize("name", ["", *NAMES])
def test_token_by_token_is_one_pass(name, mask):
    """With every option and every mask; the sliding cache wraps around twice."""
    layer = module_of(group_of(options(), [name] if name else []))
    x, told = torch.randn(2, LENGTH, WIDTH, dtype=WIDE), masks()[mask]
    want = layer(x, **told(0, LENGTH))
    for cache in [Full(), Static(LENGTH)] + [Sliding(WINDOW)] * (mask in NEAR):
        got = in_parts(layer, x, [1] * LENGTH, layer.cache(batch=2, kind=cache), told)
        assert near(got, want, 1e-10), cache


@st.composite
def chosen(draw):
    """Options, of each kind one or none."""
    names = []
    for each in sorted({kind(name) for name in NAMES}):
        names += draw(st.lists(st.sampled_from([n for n in NAMES if kind(n) == each]), max_size=1))
    return names


CALLS = sorted(masks())


@pytest.mark.filterwarnings("ignore:.*allow no key at all")
@settings(max_examples=12)
@given(chosen(), chosen(), st.sampled_from(CALLS), splits(LENGTH), st.integers(0, 3))
def test_any_split_is_one_pass(first, second, mask, lengths, spare):
    """Of any options in two groups, with every kind of cache that keeps what the mask needs."""
    layer = module_of(group_of(options(2), first, 2, 4), group_of(options(2), second, 2, 6))
    x, told = torch.randn(2, LENGTH, WIDTH, dtype=WIDE), masks()[mask]
    want = layer(x, **told(0, LENGTH))
    kinds = [None, Full(), Static(LENGTH + spare), Sliding(LENGTH)] + [Sliding(WINDOW, spare=spare)] * (mask in NEAR)
    for cache in kinds:
        assert near(in_parts(layer, x, lengths, layer.cache(batch=2, kind=cache), told), want, 1e-10), cache


@settings(max_examples=6)
@given(chosen(), splits(LENGTH))
def test_bytes_are_the_same_in_any_split(names, lengths):
    """What a cache keeps as bytes is off, but by the same numbers however the tokens came."""
    layer = module_of(group_of(options(), names))
    x, told = torch.randn(2, LENGTH, WIDTH, dtype=WIDE), masks()["window"]
    whole = in_parts(layer, x, [LENGTH], layer.cache(batch=2, kind=Int8()), told)
    for cache in (Int8(), Int8(Static(LENGTH)), Int8(Sliding(WINDOW))):
        assert near(in_parts(layer, x, lengths, layer.cache(batch=2, kind=cache), told), whole, 1e-6)


@pytest.mark.parametrize("lengths", [[0, LENGTH], [0, 0, 4, 0, LENGTH - 4, 0]], ids=str)
def test_a_piece_may_have_no_tokens(lengths):
    """First, between and last, whatever kind of cache."""
    layer, told = module_of(group_of(options(), [])), masks()["window"]
    x = torch.randn(2, LENGTH, WIDTH, dtype=WIDE)
    for cache in (None, Full(), Static(LENGTH), Sliding(WINDOW), Int8(), Int8(Static(LENGTH)), Int8(Sliding(WINDOW))):
        whole = in_parts(layer, x, [LENGTH], layer.cache(batch=2, kind=cache), told)
        assert near(in_parts(layer, x, lengths, layer.cache(batch=2, kind=cache), told), whole, 1e-6), cache


def others(position):
    """One module of each other kind that has a cache."""
    sizes = {"nope_dim": 5, "rope_dim": 4, "v_dim": 3}
    return {
        "latent": LatentAttention(WIDTH, 4, Latent(8, q_rank=6, **sizes), position=position),
        "expanded": LatentAttention(WIDTH, 4, Latent(8, **sizes, form="expanded"), position=position, bias=True),
        "absorbed": LatentAttention(WIDTH, 4, Latent(8, **sizes, form="absorbed"), position=position),
        "differential": DifferentialAttention(WIDTH, 4, kv_heads=2, head_dim=4, position=position),
        "per token": DifferentialAttention(WIDTH, 4, head_dim=4, position=position, lambdas=TokenLambda(bias=True)),
        "talking": TalkingHeadsAttention(
            WIDTH, group_of(options() | {"turn": {"position": position}}, ["turn", "norm rms", "gate head"])
        ),
    }


POSITIONS = {
    "none": None,
    "half": Rotary(50.0),
    "interleaved": Rotary(50.0, layout="interleaved"),
    "yarn": Rotary(50.0, scaling=YaRN(4.0, trained_length=8)),
}


@pytest.mark.filterwarnings("ignore:.*allow no key at all")
@pytest.mark.parametrize("position", [x if x == "yarn" else pytest.param(x, marks=SLOW) for x in POSITIONS])
@pytest.mark.parametrize("name", others(None))
def test_other_modules_token_by_token_and_in_chunks(name, position, randomised):
    layer = randomised(others(POSITIONS[position])[name]).double()
    x = torch.randn(2, LENGTH, WIDTH, dtype=WIDE)
    for mask, told in masks().items():
        want = layer(x, **told(0, LENGTH))
        kinds = [None, Static(LENGTH)] + [Sliding(WINDOW, spare=1)] * (mask in NEAR)
        for cache, lengths in ((k, n) for k in kinds for n in ([1] * LENGTH, [0, 4, 0, 5, 1, 1])):
            got = in_parts(layer, x, lengths, layer.cache(batch=2, kind=cache), told)
            assert near(got, want, 1e-10), (mask, cache, lengths)


@pytest.fixture
def randomised():
    """Weights, biases and norms all random."""

    def fill(module):
        with torch.no_grad():
            for parameter in module.parameters():
                scale = 1.0 if parameter.ndim == 1 else parameter.shape[-1] ** -0.5
                parameter.copy_(torch.randn(parameter.shape) * scale)
        return module

    return fill


@pytest.mark.parametrize("name", ["plain", *others(None)])
def test_a_padded_row_is_the_row_alone_where_angles_depend_on_the_length(name, randomised):
    """By its own length, not by that of its longer neighbour."""
    rotary = Rotary(50.0, scaling=DynamicNTK(4.0, trained_length=4))
    kinds = others(rotary) | {"plain": module_of(group_of({"turn": {"position": rotary}}, ["turn"]))}
    layer = randomised(kinds[name]).double()
    x, keep = torch.randn(2, 9, WIDTH, dtype=WIDE), torch.arange(9) >= torch.tensor([[0], [4]])
    places = (keep.cumsum(1) - 1).clamp(min=0)
    got = layer(x, mask=causal() & padding(keep), positions=places)
    assert near(got[1:, 4:], layer(x[1:, 4:], mask=causal()), 1e-10)
    assert near(got[:1], layer(x[:1], mask=causal()), 1e-10)
