"""What a kind of attention says that it can do, it can; what it says it cannot, it refuses in words."""

import pytest
import torch

from multihead.error import MultiheadError
from multihead.layer import FAMILIES, Block, Support, build_attention
from multihead.pattern import causal, document, from_callable, padding, sliding_window

WIDE = torch.float64
LENGTH, WIDTH, HEADS = 11, 32, 8
EVERY = list(FAMILIES)
BY_CHANCE = ("lsh",)
"""A token sees those of its bucket, not all."""
UNTAUGHT = ("global_", "k_proj.bias", "index_")
"""Weights that a plain call gives no gradient: nothing is global; no softmax moves with it; another loss teaches it."""


def those(what, *, can=True):
    return [name for name, row in FAMILIES.items() if getattr(row.support, what) is can]


def built(randomise, name):
    """A block of it, and an input; nothing of it is 0."""
    return randomise(Block(WIDTH, name, heads=HEADS)).double(), torch.randn(2, LENGTH, WIDTH, dtype=WIDE)


def changed_after(x, start):
    """Everything from a token on is something else, and large."""
    other = x.clone()
    other[:, start:] = 1e3 * torch.randn_like(other[:, start:])
    return other


@pytest.mark.parametrize("name", EVERY)
def test_the_class_says_it(name):
    row = FAMILIES[name]
    assert isinstance(row.module.SUPPORT, Support)
    assert type(row.build(WIDTH, HEADS)) is row.module
    # A configuration may be able to do less than its class, never more.
    for what in Support.__dataclass_fields__:
        assert getattr(row.module.SUPPORT, what) or not getattr(row.support, what)
    assert row.paper
    assert row.about


@pytest.mark.parametrize("name", those("causal"))
def test_causal_forward_and_backward(randomise, name):
    block, x = built(randomise, name)
    x.requires_grad_()
    out = block(x, mask=causal())
    assert out.shape == x.shape
    (grad,) = torch.autograd.grad(out[:, :6].square().sum(), x)
    assert torch.isfinite(out).all()
    assert grad[:, :6].abs().sum(-1).min() > 0 or name in BY_CHANCE
    assert grad[:, 6:].abs().max() == 0
    with torch.no_grad():
        # Bit for bit: nothing of the future is read.
        assert torch.equal(block(changed_after(x, 6), mask=causal())[:, :6], block(x, mask=causal())[:, :6])


@pytest.mark.parametrize("name", those("bidirectional"))
def test_bidirectional_forward_and_backward(randomise, name):
    block, x = built(randomise, name)
    x.requires_grad_()
    (grad,) = torch.autograd.grad(block(x)[:, 0].square().sum(), x)
    assert grad.abs().sum(-1).min() > 0 or name in BY_CHANCE
    block.zero_grad()
    block(x).square().sum().backward()
    silent = {n for n, p in block.attention.named_parameters() if p.grad is None or not p.grad.abs().sum()}
    assert all(n.startswith(UNTAUGHT) for n in silent)


@pytest.mark.parametrize("name", EVERY)
def test_padding_and_documents(randomise, name):
    block, x = built(randomise, name)
    support = FAMILIES[name].support
    for base in [causal()] * support.causal + [None] * support.bidirectional:

        def within(other, base=base):
            return other if base is None else base & other

        keep = torch.arange(LENGTH) < torch.tensor([[LENGTH], [7]])
        out = block(x, mask=within(padding(keep)))
        alone = block(x[1:, :7], mask=base)
        torch.testing.assert_close(out[1:, :7], alone)
        if base is None and not support.patterns:
            continue  # documents are told apart where tokens look back
        ids = torch.tensor([0] * 4 + [1] * (LENGTH - 4))
        out = block(x, mask=within(document(ids)))
        torch.testing.assert_close(out[:, :4], block(x[:, :4], mask=base))
        moved = changed_after(x, 4)
        torch.testing.assert_close(block(moved, mask=within(document(ids)))[:, :4], out[:, :4])


@pytest.mark.parametrize("name", those("patterns"))
def test_any_pattern(randomise, name):
    block, x = built(randomise, name)
    near = sliding_window(3)
    told = causal() & from_callable(lambda q, k: q - k < 3, name="near")
    out = block(x, mask=near)
    torch.testing.assert_close(block(x, mask=told), out)
    if FAMILIES[name].support.bidirectional:  # a tensor cannot tell that it looks back only
        torch.testing.assert_close(block(x, mask=near.mask(LENGTH, LENGTH)[0, 0]), out)
    other = x.clone()
    other[:, 0] = 7.0
    torch.testing.assert_close(block(other, mask=near)[:, 3:], out[:, 3:])


@pytest.mark.parametrize("name", those("cached"))
def test_cached_is_one_pass(randomise, name):
    block, x = built(randomise, name)
    whole = block(x, mask=causal())
    cache = block.cache(batch=2)
    parts = [block(part, mask=causal(), cache=cache) for part in x.split([1, 4, 1, 1, 4], 1)]
    torch.testing.assert_close(torch.cat(parts, 1), whole)
    assert cache.length == LENGTH


@pytest.mark.parametrize("name", those("cross"))
def test_another_sequence(randomise, name):
    layer = randomise(build_attention(name, WIDTH, HEADS)).double()
    x, memory = torch.randn(2, 5, WIDTH, dtype=WIDE), torch.randn(2, 3, WIDTH, dtype=WIDE)
    out = layer(x, memory)
    assert out.shape == x.shape
    order = torch.randperm(3)
    torch.testing.assert_close(layer(x, memory[:, order]), out)
    # Tokens of the query do not see one another.
    torch.testing.assert_close(layer(x[:, 2:3], memory), out[:, 2:3])


def refuses_causal(name):
    with pytest.raises(MultiheadError, match=r"causal|bidirectional"):
        Block(WIDTH, name, heads=HEADS)(torch.randn(1, LENGTH, WIDTH), mask=causal())


def refuses_bidirectional(name):
    with pytest.raises(MultiheadError, match="causal"):
        Block(WIDTH, name, heads=HEADS)(torch.randn(1, LENGTH, WIDTH), mask=None)


def refuses_patterns(name):
    block = Block(WIDTH, name, heads=HEADS)
    for mask in (sliding_window(3), sliding_window(3).mask(LENGTH, LENGTH)[0, 0], sliding_window(3) & causal()):
        with pytest.raises(MultiheadError) as fault:
            block(torch.randn(1, LENGTH, WIDTH), mask=mask)
        assert "MultiHeadAttention" in fault.value.remedy


def refuses_cached(name):
    with pytest.raises(MultiheadError, match=f"a block of {name}, which has none"):
        Block(WIDTH, name, heads=HEADS).cache(batch=1)
    assert not hasattr(FAMILIES[name].module, "cache")


def refuses_cross(name):
    with pytest.raises(MultiheadError) as fault:
        Block(WIDTH, heads=HEADS, cross=name)
    assert "multi_head" in fault.value.remedy
    # A layer takes no second input at all, or says why not.
    layer = build_attention(name, WIDTH, HEADS)
    with pytest.raises((MultiheadError, TypeError)):
        layer(torch.randn(1, 5, WIDTH), torch.randn(1, 3, WIDTH))


REFUSES = {
    "causal": refuses_causal,
    "bidirectional": refuses_bidirectional,
    "cross": refuses_cross,
    "patterns": refuses_patterns,
    "cached": refuses_cached,
}


@pytest.mark.parametrize(("what", "name"), [(what, name) for what in REFUSES for name in those(what, can=False)])
def test_what_it_says_it_cannot_do_is_refused(what, name):
    REFUSES[what](name)


def test_every_field_is_looked_at():
    assert set(REFUSES) == set(Support.__dataclass_fields__)
