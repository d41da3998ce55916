"""Groups of heads whose mask is a selector."""

import copy

import pytest
import torch

from multihead.attend import attention
from multihead.attend.selector import Pages, TopBlocks, TopKeys
from multihead.error import MultiheadError
from multihead.layer import (
    Branches,
    Full,
    HeadGroup,
    Int8,
    MultiHeadAttention,
    NativeSparseAttention,
    Pruning,
    Sliding,
    Static,
    TalkingHeadsAttention,
)
from multihead.pattern import causal, padding, sliding_window
from multihead.position import Rotary

LENGTH = 40
CHOOSE = (TopBlocks(8, 2), TopKeys(5))


def layer_of(randomise, selector, **more):
    groups = [HeadGroup(4, 8, kv_heads=2, mask=selector, **more), HeadGroup(2, 8)]
    return randomise(MultiHeadAttention(32, groups)).double()


def x(batch=2):
    return torch.randn(batch, LENGTH, 32, dtype=torch.float64)


@pytest.mark.parametrize("selector", CHOOSE)
def test_its_heads_attend_to_what_was_chosen(selector, randomise):
    layer, tokens = layer_of(randomise, selector), x()
    keep = torch.rand(2, LENGTH) < 0.8
    mask = causal() & padding(keep)
    q, k, v = (
        project(tokens)[..., : 8 * heads].unflatten(2, (heads, 8)).transpose(1, 2)
        for project, heads in ((layer.q_proj, 4), (layer.k_proj, 2), (layer.v_proj, 2))
    )
    chosen = selector.select(q, k, mask=mask).mask(LENGTH, LENGTH)
    first = attention(q, k, v, mask=mask.mask(LENGTH, LENGTH) & chosen, backend="reference")
    q, k, v = (
        project(tokens)[..., 8 * heads :].unflatten(2, (2, 8)).transpose(1, 2)
        for project, heads in ((layer.q_proj, 4), (layer.k_proj, 2), (layer.v_proj, 2))
    )
    second = attention(q, k, v, mask=mask, backend="reference")
    want = layer.out_proj(torch.cat([first, second], 1).transpose(1, 2).flatten(2))
    torch.testing.assert_close(layer(tokens, mask=mask), want, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(layer(tokens, mask=mask.mask(LENGTH, LENGTH)), want, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("selector", CHOOSE)
@pytest.mark.parametrize("kind", [None, Static(LENGTH)])
@torch.no_grad()
def test_step_by_step_is_at_once(selector, kind, randomise):
    layer, tokens = layer_of(randomise, selector, position=Rotary()), x()
    want = layer(tokens, mask=causal())
    for sizes in ([1] * LENGTH, [17, 1, LENGTH - 18]):
        cache = layer.cache(batch=2, kind=kind)
        got = torch.cat([layer(part, mask=causal(), cache=cache) for part in tokens.split(sizes, 1)], 1)
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)
    cache.cut(20)
    cache.select([1, 0])
    again = copy.deepcopy(cache)
    for held in (cache, again):
        got = torch.cat([layer(part, mask=causal(), cache=held) for part in tokens[[1, 0], 20:].split(7, 1)], 1)
        torch.testing.assert_close(got, want[[1, 0], 20:], rtol=1e-10, atol=1e-10)


@torch.no_grad()
def test_a_cache_cut_back_forgets_what_was_found_out(randomise):
    for layer, mask in (
        (layer_of(randomise, TopBlocks(4, 2)), {"mask": causal()}),
        (randomise(NativeSparseAttention(32, 4, branches=Branches(block=4, budget=3, window=3))).double(), {}),
    ):
        one, other = x(), x()
        cache = layer.cache(batch=2)
        layer(one, cache=cache, **mask)
        cache.cut(18)
        joined = torch.cat([one[:, :18], other[:, 18:]], 1)
        want = layer(joined, **mask)
        torch.testing.assert_close(layer(other[:, 18:39], cache=cache, **mask), want[:, 18:39], rtol=1e-10, atol=1e-10)
        cache.select([1, 0])
        last = layer(other[[1, 0], 39:], cache=cache, **mask)
        torch.testing.assert_close(last, want[[1, 0], 39:], rtol=1e-10, atol=1e-10)


def test_a_sliding_cache_keeps_what_the_window_needs(randomise):
    layer, tokens = layer_of(randomise, TopKeys(4)), x()
    mask = causal() & sliding_window(9)
    want = layer(tokens, mask=mask)
    cache = layer.cache(batch=2, kind=Sliding(9))
    got = torch.cat([layer(part, mask=mask, cache=cache) for part in tokens.split(6, 1)], 1)
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)


def test_pages_apply_when_decoding(randomise):
    layer, tokens = layer_of(randomise, Pages(4, 3)), x()
    dense = MultiHeadAttention(32, [HeadGroup(4, 8, kv_heads=2), HeadGroup(2, 8)]).double()
    dense.load_state_dict(layer.state_dict())
    caches = [layer.cache(batch=2) for _ in range(2)]
    for cache in caches:
        prompt = layer(tokens[:, :30], mask=causal(), cache=cache)
    assert torch.equal(prompt, dense(tokens[:, :30], mask=causal()))
    for at in range(30, LENGTH):
        token = tokens[:, at : at + 1]
        step = layer(token, mask=causal(), cache=caches[0])
        caches[1].groups[0].kept = None  # bounds of all pages anew
        assert torch.equal(layer(token, mask=causal(), cache=caches[1]), step)
        assert caches[0].groups[0].kept.length == at + 1
    assert not torch.allclose(step, dense(tokens, mask=causal())[:, -1:])
    wide = layer_of(randomise, Pages(4, 10))
    cache = wide.cache(batch=2)
    wide(tokens[:, :30], mask=causal(), cache=cache)
    rest = torch.cat([wide(part, mask=causal(), cache=cache) for part in tokens[:, 30:].split(1, 1)], 1)
    torch.testing.assert_close(rest, wide(tokens, mask=causal())[:, 30:], rtol=1e-10, atol=1e-10)


def test_a_cache_of_bytes_is_chosen_from_as_it_reads(randomise):
    layer, tokens = layer_of(randomise, TopBlocks(8, 2)), x()
    parts = [LENGTH], [1] * LENGTH
    outs = []
    with torch.no_grad():
        for sizes in parts:
            cache = layer.cache(batch=2, kind=Int8(Full()))
            outs.append(torch.cat([layer(p, mask=causal(), cache=cache) for p in tokens.split(sizes, 1)], 1))
    torch.testing.assert_close(*outs, rtol=1e-10, atol=1e-10)


def test_cross_attention_needs_positions_only_for_blocks(randomise):
    tokens, memory = x()[:, :5], x()
    layer = randomise(MultiHeadAttention(32, HeadGroup(4, 8, mask=TopKeys(LENGTH)))).double()
    dense = MultiHeadAttention(32, HeadGroup(4, 8)).double()
    dense.load_state_dict(layer.state_dict())
    torch.testing.assert_close(layer(tokens, memory), dense(tokens, memory), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(
        layer(tokens, cache=layer.remember(memory)), dense(tokens, memory), rtol=1e-10, atol=1e-10
    )
    blocks = randomise(MultiHeadAttention(32, HeadGroup(4, 8, mask=TopBlocks(8, 5)))).double()
    with pytest.raises(MultiheadError, match="pass q_offset=0"):
        blocks(tokens, memory)
    assert blocks(tokens, memory, q_offset=0).shape == tokens.shape


def test_gradients_flow_through_the_attention(randomise):
    layer = layer_of(randomise, TopKeys(3))
    tokens = x().requires_grad_()
    layer(tokens, mask=causal()).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() and p.grad.any() for p in layer.parameters())


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # the compiler looks at it
def test_a_compiled_module_gives_the_same(randomise, unhooked):
    # Other tests of this process may have used up the times that the compiler looks at a function anew.
    torch.compiler.reset()
    layer, tokens = layer_of(randomise, TopBlocks(8, 2)), x()
    compiled = torch.compile(layer, backend="eager")
    for _ in range(2):
        torch.testing.assert_close(compiled(tokens, mask=causal()), layer(tokens, mask=causal()))
        tokens = x()
    chosen = TopKeys(3).select(*torch.randn(2, 1, 2, 9, 4), mask=causal())
    q = torch.randn(1, 2, 9, 4)
    run = torch.compile(lambda q, c: attention(q, q, q, mask=causal() & c), backend="eager", fullgraph=True)
    torch.testing.assert_close(run(q, chosen), attention(q, q, q, mask=causal() & chosen))


def test_pruned_heads_choose_as_before(randomise):
    layer, tokens = layer_of(randomise, TopBlocks(8, 2)), x()
    assert "TopBlocks(block=8, budget=2)" in repr(layer)
    with torch.no_grad():
        layer.out_proj.weight[:, 16:32] = 0  # of heads 2 and 3, which share a key/value head
    want = layer(tokens, mask=causal())
    Pruning(layer, [2, 3]).apply()
    assert layer.groups[0].mask == TopBlocks(8, 2)
    torch.testing.assert_close(layer(tokens, mask=causal()), want, rtol=1e-10, atol=1e-10)


def test_what_takes_no_selector_says_so(unhooked):
    with pytest.raises(MultiheadError, match="use MultiHeadAttention for it"):
        TalkingHeadsAttention(32, HeadGroup(4, mask=TopKeys(3)))
    with pytest.raises(MultiheadError, match="a selector, such as TopBlocks"):
        HeadGroup(4, mask="TopKeys")
    with pytest.raises(MultiheadError, match="mask=TopKeys"):
        MultiHeadAttention(32, HeadGroup(4, mask=TopKeys(3))).to_torch()
