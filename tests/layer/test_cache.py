import copy
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from multihead.error import MultiheadError
from multihead.layer import Full, HeadGroup, Int8, MultiHeadAttention, QKNorm, Scoring, Sliding, Static
from multihead.pattern import causal, document, padding, sliding_window
from multihead.position import AdaptiveSpan, ALiBi, DynamicNTK, RelativeTable, Rotary, alibi_slopes

PARTIAL = Rotary(100.0, layout="interleaved", dim=6)
GROUPS = [
    HeadGroup(
        2,
        8,
        kv_heads=1,
        position=Rotary(100.0, layout="interleaved", dim=6),
        scoring=Scoring(norm=QKNorm(), sinks=True),
    ),
    HeadGroup(2, 6, mask=sliding_window(3), position=ALiBi(alibi_slopes(2)), v_head_dim=4),
]


def split(length):
    """Lengths that add up to `length`, any of them."""
    return st.lists(st.integers(1, length), max_size=length).map(lambda cuts: _lengths(cuts, length))


def _lengths(cuts, length):
    edges = sorted({0, length, *(cut for cut in cuts if cut < length)})
    return [b - a for a, b in pairwise(edges)]


def in_chunks(layer, x, lengths, cache, **given):
    return torch.cat([layer(part, cache=cache, **given) for part in x.split(lengths, 1)], 1)


@settings(max_examples=30)
@given(lengths=split(11), kind=st.sampled_from([None, Full(), Static(11), Static(15), Sliding(11), Sliding(30)]))
def test_any_split_with_a_cache_equals_one_pass(randomise, lengths, kind):
    layer = randomise(MultiHeadAttention(12, GROUPS)).double()
    x = torch.randn(2, 11, 12, dtype=torch.float64)
    for mask in (causal(), causal() & document(torch.tensor([0] * 4 + [1] * 7))):
        want = layer(x, mask=mask)
        got = in_chunks(layer, x, lengths, layer.cache(batch=2, kind=kind), mask=mask)
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)


@settings(max_examples=30)
@given(lengths=split(23), window=st.integers(1, 5), spare=st.integers(0, 3))
def test_a_sliding_cache_keeps_what_a_window_needs(randomise, lengths, window, spare):
    layer = randomise(
        MultiHeadAttention(12, HeadGroup(2, 6, mask=sliding_window(window), position=Rotary(100.0)))
    ).double()
    x = torch.randn(1, 23, 12, dtype=torch.float64)
    cache = layer.cache(batch=1, kind=Sliding(window, spare=spare))
    got = in_chunks(layer, x, lengths, cache)
    torch.testing.assert_close(got, layer(x), rtol=1e-10, atol=1e-10)
    assert cache.length == 23
    assert cache.groups[0].rows.parts[0].shape[2] <= window - 1 + spare + lengths[-1]


def test_the_memory_of_a_sliding_cache_does_not_grow():
    layer = MultiHeadAttention(12, HeadGroup(2, 6, mask=sliding_window(4)))
    cache, sizes = layer.cache(batch=1), set()
    with torch.no_grad():
        for _ in range(100):
            layer(torch.randn(1, 1, 12), cache=cache)
            sizes.add(cache.nbytes)
    assert cache.length == 100
    assert max(sizes) <= 2 * 2 * 2 * 4 * 6 * 4


def test_masks_over_all_tokens_are_cut_to_what_a_sliding_cache_keeps(randomise):
    """Padding on the left, given in full at each step, as a tensor or as a pattern."""
    layer = randomise(MultiHeadAttention(12, HeadGroup(2, 6, mask=sliding_window(4)))).double()
    x, keep = torch.randn(2, 12, 12, dtype=torch.float64), torch.arange(12) >= torch.tensor([[0], [5]])
    want = layer(x, mask=padding(keep))
    for as_pattern in (True, False):
        cache, got = layer.cache(batch=2), []
        for end in range(1, 13):
            seen = keep[:, :end]
            mask = padding(seen) if as_pattern else seen[:, None, None]
            got.append(layer(x[:, end - 1 : end], mask=mask, cache=cache))
        torch.testing.assert_close(torch.cat(got, 1)[keep], want[keep], rtol=1e-10, atol=1e-10)


def test_padded_on_the_left_equals_alone(randomise):
    layer = randomise(MultiHeadAttention(12, HeadGroup(2, 6, position=Rotary(100.0)))).double()
    x, keep = torch.randn(2, 9, 12, dtype=torch.float64), torch.arange(9) >= torch.tensor([[0], [4]])
    places = (keep.cumsum(1) - 1).clamp(min=0)
    mask = causal() & padding(keep)
    cache = layer.cache(batch=2)
    parts = [layer(x[:, :6], mask=causal() & padding(keep[:, :6]), positions=places[:, :6], cache=cache)]
    parts += [layer(x[:, 6:], mask=mask, positions=places[:, 6:], cache=cache)]
    for got in (layer(x, mask=mask, positions=places), torch.cat(parts, 1)):
        torch.testing.assert_close(got[1:, 4:], layer(x[1:, 4:], mask=causal()), rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(got[:1], layer(x[:1], mask=causal()), rtol=1e-10, atol=1e-10)


def test_cutting_back_forgets(randomise):
    layer = randomise(MultiHeadAttention(12, GROUPS)).double()
    x, other = (torch.randn(2, 9, 12, dtype=torch.float64) for _ in range(2))
    for kind in (Full(), Static(20), Sliding(12), Sliding(9, spare=2)):
        cache = layer.cache(batch=2, kind=kind)
        layer(x[:, :5], mask=causal(), cache=cache)
        layer(other[:, :2], mask=causal(), cache=cache)
        cache.cut(5)
        assert cache.length == 5
        got = layer(x[:, 5:], mask=causal(), cache=cache)
        torch.testing.assert_close(got, layer(x, mask=causal())[:, 5:], rtol=1e-10, atol=1e-10)
    with pytest.raises(MultiheadError, match="cut to 0 to 9 tokens"):
        cache.cut(10)


def test_a_sliding_cache_cuts_back_by_what_it_spares(randomise):
    layer = randomise(MultiHeadAttention(12, HeadGroup(2, 6, mask=sliding_window(3)))).double()
    x = torch.randn(1, 12, 12, dtype=torch.float64)
    cache = layer.cache(batch=1, kind=Sliding(3, spare=2))
    for token in x[:, :10].split(1, 1):
        layer(token, cache=cache)
    layer(torch.randn(1, 1, 12, dtype=torch.float64), cache=cache)
    cache.cut(10)
    torch.testing.assert_close(layer(x[:, 10:], cache=cache), layer(x)[:, 10:], rtol=1e-10, atol=1e-10)
    with pytest.raises(MultiheadError, match=r"(?s)12 tokens in it, of which \d are kept.*more to spare"):
        cache.cut(3)


def test_beams_are_reordered_and_sequences_left_out(randomise):
    layer = randomise(MultiHeadAttention(12, GROUPS)).double()
    x = torch.randn(3, 8, 12, dtype=torch.float64)
    for kind in (None, Static(8), Int8()):
        cache, whole = layer.cache(batch=3, kind=kind), layer.cache(batch=4, kind=kind)
        order = [2, 0, 0, 1]
        layer(x[:, :5], mask=causal(), cache=cache)
        cache.select(order)
        assert cache.batch == 4
        layer(x[order, :5], mask=causal(), cache=whole)
        next_tokens = torch.randn(4, 3, 12, dtype=torch.float64)
        got, want = (layer(next_tokens, mask=causal(), cache=each) for each in (cache, whole))
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)


def test_another_sequence_is_remembered(randomise):
    layer = randomise(MultiHeadAttention(12, GROUPS, kv_embed_dim=(5, 7))).double()
    query, key, value = (torch.randn(2, n, d, dtype=torch.float64) for n, d in ((6, 12), (6, 5), (6, 7)))
    want = layer(query, key, value)
    memory = layer.remember(key, value)
    got = torch.cat([layer(query[:, i : i + 2], cache=memory, q_offset=i) for i in (0, 2, 4)], 1)
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)
    assert memory.length == 6
    memory.select([1])
    torch.testing.assert_close(layer(query[1:], cache=memory, q_offset=0), want[1:], rtol=1e-10, atol=1e-10)


def test_bytes_are_as_near_as_they_say():
    x = torch.randn(3, 2, 50, 16) * torch.logspace(-6, 6, 50)[:, None]
    x[0, 0, 3] = 0
    cache = MultiHeadAttention(32, 2).cache(batch=3, kind=Int8()).groups[0]
    kept, _, _ = cache.append(x, x)
    bound = x.abs().amax(-1, keepdim=True) / 254
    assert bool(((kept - x).abs() <= bound * (1 + 1e-5)).all())
    assert (kept - x).abs().max() > 0
    assert cache.rows.nbytes < 0.4 * 2 * 2 * x.numel() * 4


@pytest.mark.parametrize("kind", [Int8(), Int8(Static(40)), Int8(Sliding(9))])
def test_an_output_from_bytes_is_off_by_little(randomise, kind):
    layer = randomise(MultiHeadAttention(32, HeadGroup(4, 8, mask=sliding_window(9))))
    x = torch.randn(2, 40, 32)
    with torch.no_grad():
        want = layer(x)
        got = in_chunks(layer, x, [7] * 5 + [1] * 5, layer.cache(batch=2, kind=kind))
    assert 0 < (got - want).abs().max() < 0.05 * want.abs().max()


def test_gradients_flow_through_a_cache(randomise):
    layer = randomise(MultiHeadAttention(12, GROUPS)).double()
    x = torch.randn(2, 7, 12, dtype=torch.float64, requires_grad=True)
    pull = torch.randn(2, 7, 12, dtype=torch.float64)
    (layer(x, mask=causal()) * pull).sum().backward()
    want, x.grad = x.grad, None
    (in_chunks(layer, x, [3, 1, 3], layer.cache(batch=2), mask=causal()) * pull).sum().backward()
    torch.testing.assert_close(x.grad, want, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", [Full(), Static(12), Sliding(3), Sliding(3, spare=2)], ids=str)
@pytest.mark.parametrize("trained", ["q_proj", "parts", "v_proj"])
def test_gradients_where_keys_are_not_trained(randomise, trained, kind):
    """A graph keeps keys to which it has no gradient: they stay as they are while tokens are added."""
    layer = randomise(MultiHeadAttention(12, GROUPS)).double()
    x = torch.randn(2, 12, 12, dtype=torch.float64)
    for name, weight in layer.named_parameters():
        weight.requires_grad_(name.startswith(trained))
    weights = [weight for weight in layer.parameters() if weight.requires_grad]
    mask = sliding_window(3)
    want = torch.autograd.grad(layer(x, mask=mask).square().sum(), weights)
    got = in_chunks(layer, x, [3, 1, 1, 3, 4], layer.cache(batch=2, kind=kind), mask=mask).square().sum()
    for one, other in zip(torch.autograd.grad(got, weights), want, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", [Full(), Static(12), Sliding(3, spare=4)], ids=str)
@pytest.mark.parametrize("empty", [False, True])
def test_gradients_through_tokens_that_are_cut_off_later(randomise, kind, empty):
    layer = randomise(MultiHeadAttention(12, GROUPS)).double()
    layer.requires_grad_(False).q_proj.requires_grad_(True)
    x, other = torch.randn(2, 2, 7, 12, dtype=torch.float64)
    mask, cache = sliding_window(3), layer.cache(batch=2, kind=kind)
    first = in_chunks(layer, x, [5, 2], cache, mask=mask)
    want = torch.autograd.grad(layer(x, mask=mask).square().sum(), layer.q_proj.weight)
    cache.cut(5)
    if empty:
        layer(other[:, :0], mask=mask, cache=cache)
    with torch.no_grad():
        second = layer(other[:, 5:], mask=mask, cache=cache)
        joined = torch.cat([x[:, :5], other[:, 5:]], 1)
        torch.testing.assert_close(second, layer(joined, mask=mask)[:, 5:], rtol=1e-9, atol=1e-9)
    got = torch.autograd.grad(first.square().sum(), layer.q_proj.weight)
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)


def test_a_call_that_fails_leaves_the_cache_as_it_was(randomise):
    layer = randomise(MultiHeadAttention(12, GROUPS)).double()
    x, cache = torch.randn(2, 6, 12, dtype=torch.float64), layer.cache(batch=2)
    layer(x[:, :4], mask=causal(), cache=cache)
    with pytest.raises(MultiheadError, match="a mask of shape"):
        layer(x[:, 4:], mask=torch.ones(3, 3, dtype=torch.bool), cache=cache)
    assert cache.length == 4
    got = layer(x[:, 4:], mask=causal(), cache=cache)
    torch.testing.assert_close(got, layer(x, mask=causal())[:, 4:], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("use", "told"),
    [
        (lambda a, x: a(x, cache=a.cache(batch=3)), "queries for the cache's batch of 3.*a batch of 2"),
        (lambda a, x: a(x, cache=MultiHeadAttention(8, 2).cache(batch=2)), "a cache of this module"),
        (lambda a, x: a(x, cache=a.cache(batch=2), q_offset=3), "leave q_offset out"),
        (lambda a, x: a(x, x[:, :2], cache=a.cache(batch=2)), "attn.remember"),
        (lambda a, x: a(x, x, cache=a.remember(x)), "leave key and value out, or the cache"),
        (lambda a, x: a(x, cache=a.cache(batch=2, kind=Static(4))), "room for 5 more tokens in a cache of 4"),
        (lambda a, x: a(x, positions=torch.rand(2, 5)), "positions: whole numbers"),
        (lambda a, x: a(x, positions=torch.arange(4)), r"\(batch, q_len\) = \(2, 5\)"),
        (lambda a, x: a.cache(batch=0), "batch=0"),
        (lambda a, x: a.cache(batch=2).select([2]), "rows of a batch of 2"),
        (lambda a, x: a.cache(batch=2).select([-1]), "rows of a batch of 2"),
        (lambda a, x: a.cache(batch=2).select([]), "at least one whole number"),
        (lambda a, x: a.cache(batch=2).select(torch.tensor([True, False])), "keep.nonzero"),
        (lambda a, x: a.cache(batch=2).cut(-1), "cut to 0 to 0 tokens"),
        (lambda a, x: Static(0), "length=0"),
        (lambda a, x: Sliding(0), "window=0"),
        (lambda a, x: Sliding(3, spare=-1), "spare"),
    ],
)
def test_caches_that_do_not_fit_are_refused(use, told):
    with pytest.raises(MultiheadError, match=f"(?s){told}"):
        use(MultiHeadAttention(12, 2), torch.randn(2, 5, 12))


def test_a_cache_can_be_copied(randomise):
    layer = randomise(MultiHeadAttention(12, GROUPS))
    x, cache = torch.randn(2, 6, 12), layer.cache(batch=2)
    with torch.no_grad():
        layer(x[:, :4], mask=causal(), cache=cache)
        twin = copy.deepcopy(cache)
        first = layer(x[:, 4:], mask=causal(), cache=cache)
        assert torch.equal(layer(x[:, 4:], mask=causal(), cache=twin), first)


def test_a_table_of_positions_goes_on_in_a_cache(randomise):
    layer = randomise(MultiHeadAttention(12, HeadGroup(2, 6, position=RelativeTable(torch.randn(8, 2))))).double()
    x = torch.randn(1, 9, 12, dtype=torch.float64)
    got = in_chunks(layer, x, [4, 1, 4], layer.cache(batch=1), mask=causal())
    torch.testing.assert_close(got, layer(x, mask=causal()), rtol=1e-10, atol=1e-10)


def test_keys_that_turn_with_the_length_of_the_text_are_turned_anew(randomise):
    """Each step equals the last row of one pass over the text so far, in which all keys stand by its length."""
    rotary = Rotary(100.0, scaling=DynamicNTK(4.0, trained_length=5))
    layer = randomise(MultiHeadAttention(12, HeadGroup(2, 6, position=rotary, scoring=Scoring(norm=QKNorm())))).double()
    x = torch.randn(2, 9, 12, dtype=torch.float64)
    cache, sliding = layer.cache(batch=2), layer.cache(batch=2, kind=Sliding(4))
    plain = MultiHeadAttention(12, HeadGroup(2, 6, position=Rotary(100.0), scoring=Scoring(norm=QKNorm()))).double()
    plain.load_state_dict(layer.state_dict())
    for end in range(1, 10):
        want = layer(x[:, :end], mask=causal())[:, -1:]
        got = layer(x[:, end - 1 : end], mask=causal(), cache=cache)
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)
        want = layer(x[:, :end], mask=sliding_window(4))[:, -1:]
        got = layer(x[:, end - 1 : end], mask=sliding_window(4), cache=sliding)
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)
        unscaled = plain(x[:, :end], mask=causal())[:, -1:]
        assert torch.allclose(unscaled, layer(x[:, :end], mask=causal())[:, -1:]) == (end <= 5)
    with pytest.raises(MultiheadError, match="take a rotary with fixed angles"):
        layer(x[:, :1], positions=torch.arange(1), cache=layer.cache(batch=2))


def test_a_span_is_learned_and_equals_its_window(randomise):
    spans = nn.Parameter(torch.tensor([1.5, 4.0]))
    layer = randomise(MultiHeadAttention(12, HeadGroup(2, 6, position=AdaptiveSpan(spans, ramp=2)))).double()
    with torch.no_grad():
        spans.copy_(torch.tensor([1.5, 4.0]))
    x = torch.randn(1, 12, 12, dtype=torch.float64)
    got = in_chunks(layer, x, [5, 1, 6], layer.cache(batch=1), mask=causal())
    want = layer(x, mask=causal())
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)
    near = layer(x, mask=sliding_window(AdaptiveSpan(spans, ramp=2).reach()))
    torch.testing.assert_close(near, want, rtol=1e-10, atol=1e-10)
    want.square().sum().backward()
    assert spans.grad.ne(0).all()
