"""Sizes that nobody has the memory for, and counts that are none: refused by the name they were given under."""

import re

import pytest
import torch

from multihead.error import MultiheadError
from multihead.layer import (
    FAMILIES,
    Block,
    FeedForward,
    HeadGroup,
    Int8,
    LongformerAttention,
    MoAAttention,
    MoHAttention,
    MultiHeadAttention,
    Sliding,
    Static,
    SwitchHeadAttention,
    build_attention,
)
from multihead.layer.check import divisors
from multihead.pattern import causal

HUGE = 2**40
GROUP = HeadGroup(2, 8)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("heads", [8, HUGE])
def test_no_kind_of_attention_is_so_wide(name, heads):
    with pytest.raises(MultiheadError, match=f"embed_dim={HUGE}"):
        build_attention(name, HUGE, heads)
    with pytest.raises(MultiheadError, match=f"embed_dim={HUGE}"):
        Block(HUGE, name, heads=heads)


@pytest.mark.parametrize(
    ("build", "named"),
    [
        (lambda: MultiHeadAttention(HUGE, 3), f"embed_dim={HUGE}"),
        (lambda: MultiHeadAttention(64, 8, kv_embed_dim=HUGE), f"kv_embed_dim={HUGE}"),
        (lambda: MultiHeadAttention(64, 8, head_dim=HUGE), f"head_dim={HUGE}"),
        (lambda: MultiHeadAttention(64, HeadGroup(HUGE, 8)), f"heads={HUGE}"),
        (lambda: MultiHeadAttention(64, HeadGroup(8, 8, v_head_dim=HUGE)), f"v_head_dim={HUGE}"),
        (lambda: MultiHeadAttention(64, HeadGroup(2**20, 2**20)), f"heads={2**20}, head_dim={2**20}"),
        (lambda: LongformerAttention(64, 8, window=HUGE), f"window={HUGE}"),
        (lambda: Block(64, feed_forward=FeedForward(HUGE)), f"hidden={HUGE}"),
        (lambda: MoHAttention(64, 8, shared=HUGE), f"shared={HUGE}"),
        (lambda: MoHAttention(64, 8, chosen=HUGE), f"chosen={HUGE}"),
        (lambda: SwitchHeadAttention(64, GROUP, experts=HUGE, chosen=2), f"experts={HUGE}"),
        (lambda: MoAAttention(64, GROUP, experts=HUGE, chosen=2), f"experts={HUGE}"),
        (lambda: Static(2**70), f"length={2**70}"),
        (lambda: Sliding(2**70), f"window={2**70}"),
        (lambda: Sliding(4, 2**70), f"spare={2**70}"),
    ],
)
def test_sizes_that_fit_into_no_memory_are_refused_by_name(build, named):
    with pytest.raises(MultiheadError) as refused:
        build()
    assert named in refused.value.arrived


def test_a_cache_that_fits_into_no_memory_is_refused_and_takes_nothing():
    layer = MultiHeadAttention(64, 8)
    for kind in (Static(HUGE), Int8(Static(HUGE))):
        cache = layer.cache(batch=1, kind=kind)
        with torch.no_grad(), pytest.raises(MultiheadError, match=f"{HUGE:,} tokens"):
            layer(torch.randn(1, 3, 64), mask=causal(), cache=cache)
        assert cache.length == cache.nbytes == 0


CACHED = [name for name, row in FAMILIES.items() if row.support.cached]


@pytest.mark.parametrize("name", CACHED)
def test_a_batch_that_is_no_count_is_named_as_what_it_is(name, unhooked):
    block = Block(64, name)
    for batch in (0, -1, 2**70, True, 2.0, "two", None):
        for make in (block.cache, block.attention.cache):
            with pytest.raises(MultiheadError) as refused:
                make(batch=batch)
            assert refused.value.asked == "batch: a whole number from 1 to 2**40"
            assert refused.value.arrived == f"batch={batch!r}"
            assert refused.value.remedy == "for example batch=1"


@pytest.mark.parametrize("name", [name for name in CACHED if "kind" in FAMILIES[name].module.cache.__annotations__])
def test_a_kind_of_cache_that_is_none_is_named(name, unhooked):
    layer = FAMILIES[name].build(64, 8)
    for kind in ("full", 3, Static):
        with pytest.raises(MultiheadError, match="kind as Full") as refused:
            layer.cache(batch=1, kind=kind)
        assert refused.value.arrived.startswith("kind=")


@pytest.mark.parametrize("number", [*range(1, 200), 2**20, 2**28])
def test_divisors_are_all_of_them(number):
    found = divisors(number)
    if number < 1000:
        assert found == [n for n in range(1, number + 1) if number % n == 0]
    assert found[-1] == number
    assert all(number % n == 0 for n in found)


def test_the_words_on_windows_say_what_their_masks_do():
    """The numbers in the words, held against which keys change a row's output."""
    side = int(re.search(r"the (\d+) nearest on each side", FAMILIES["window"].about)[1])
    beyond = int(re.search(r"all that is (\d+) tokens away or more", FAMILIES["window"].loses)[1])
    wider = int(re.search(r"all that is more than (\d+) tokens away", FAMILIES["longformer"].loses)[1])
    length, row = 2 * wider + 9, wider + 4
    x = torch.randn(1, length, 8, dtype=torch.float64)
    for name, far in (("window", side), ("longformer", wider)):
        layer = build_attention(name, 8, 2).double().eval()
        x.requires_grad_().grad = None
        layer(x)[0, row].sum().backward()
        seen = x.grad[0].abs().sum(-1).nonzero()[:, 0].tolist()
        assert seen == list(range(row - far, row + far + 1))
    assert beyond == side + 1
