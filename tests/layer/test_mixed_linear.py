import copy
import itertools
from dataclasses import replace

import pytest
import torch

from multihead.attend import Softmax
from multihead.error import MultiheadError
from multihead.hooks import watching
from multihead.layer import (
    Block,
    HeadGroup,
    LinearScoring,
    MultiHeadAttention,
    Pruning,
    Scoring,
    TalkingHeadsAttention,
    retention_decay,
)
from multihead.pattern import causal, document, padding, sliding_window
from multihead.position import ALiBi, Rotary, alibi_slopes
from multihead.scan import EluPlusOne, Favor, Identity

WIDE = torch.float64
RETENTION = LinearScoring(features=Identity(), decay=retention_decay(2), normalise=False)
LINEAR = [
    HeadGroup(2, 6, scoring=LinearScoring()),
    HeadGroup(4, 5, kv_heads=2, v_head_dim=3, scoring=LinearScoring(features=Favor(features=7))),
    HeadGroup(2, 4, position=Rotary(), scoring=RETENTION),
]


def turn(tensors, d):
    """Turns (length, heads, d) in place, by the first half and the second."""
    for t, c in itertools.product(range(len(tensors[0])), range(d // 2)):
        angle = torch.tensor(t * 10000.0 ** (-2 * c / d), dtype=WIDE)
        cos, sin = angle.cos(), angle.sin()
        for a in tensors:
            one, two = a[t, :, c].clone(), a[t, :, c + d // 2].clone()
            a[t, :, c], a[t, :, c + d // 2] = one * cos - two * sin, two * cos + one * sin


def by_hand(layer, place, x):
    """One group of linear heads of one sequence, every pair of tokens by itself; causal."""
    sizes, groups = [group.sizes for group in layer.groups], layer.groups
    heads, kv_heads, d, e = sizes[place]
    begin = [sum(s[a] * s[b] for s in sizes[:place]) for a, b in ((0, 2), (1, 2), (1, 3))]
    w, part, n = {name: p.detach() for name, p in layer.named_parameters()}, layer.parts[place].linear, len(x)
    q, k, v = (
        (x @ w[f"{name}_proj.weight"].T + w[f"{name}_proj.bias"])[:, at : at + count * width].view(n, count, width)
        for name, at, count, width in zip("qkv", begin, (heads, kv_heads, kv_heads), (d, d, e), strict=True)
    )
    options, out = groups[place].scoring, torch.zeros(n, heads, e, dtype=WIDE)
    if isinstance(options.features, EluPlusOne):
        q, k = (torch.where(a > 0, a + 1, a.exp()) for a in (q, k))
    if isinstance(options.features, Favor):
        q, k = ((a / d**0.25 @ part.projection.T - a.square().sum(-1, True) / 2 / d**0.5).exp() for a in (q, k))
    if groups[place].position is not None:
        turn((q, k), d)
    for h in range(heads):
        g = h * kv_heads // heads
        rate = 0.0 if options.decay is None else options.decay[g]
        for t in range(n):
            weights = [q[t, h] @ k[j, g] * torch.exp(torch.tensor(rate * (t - j), dtype=WIDE)) for j in range(t + 1)]
            total = sum(weights) if options.normalise else d**0.5
            out[t, h] = sum(weight * v[j, g] for j, weight in enumerate(weights)) / total
    return out.flatten(1)


@pytest.mark.parametrize("group", LINEAR, ids=["elu", "favor", "retention"])
def test_linear_heads_beside_others_are_those_of_two_layers(randomise, group):
    """Through the columns of one output projection, as of two layers that are added."""
    layer = randomise(MultiHeadAttention(16, [HeadGroup(3, 4, mask=sliding_window(3)), group])).double()
    x = torch.randn(2, 7, 16, dtype=WIDE)
    plain = MultiHeadAttention(16, HeadGroup(3, 4, mask=sliding_window(3))).double()
    with torch.no_grad():
        for name in "qkv":
            for kind in ("weight", "bias"):
                getattr(getattr(plain, f"{name}_proj"), kind).copy_(getattr(getattr(layer, f"{name}_proj"), kind)[:12])
        plain.out_proj.weight.copy_(layer.out_proj.weight[:, :12])
        plain.out_proj.bias.copy_(layer.out_proj.bias)
    got = layer(x, mask=causal())
    for b in range(2):
        rest = by_hand(layer, 1, x[b]) @ layer.out_proj.weight[:, 12:].T
        torch.testing.assert_close(got[b], plain(x, mask=causal())[b] + rest, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("group", LINEAR, ids=["elu", "favor", "retention"])
@torch.no_grad()
def test_any_split_with_a_cache_equals_one_pass(randomise, group):
    layer = randomise(MultiHeadAttention(16, [group, HeadGroup(2, 4)])).double()
    x, keep = torch.randn(2, 11, 16, dtype=WIDE), torch.arange(11) >= torch.tensor([[0], [3]])
    for mask in (causal(), causal() & padding(keep), causal() & document(torch.arange(11) // 4)):
        want = layer(x, mask=mask)
        for lengths in ([11], [1] * 11, [4, 1, 6]):
            cache = layer.cache(batch=2)
            got = torch.cat([layer(part, mask=mask, cache=cache) for part in x.split(lengths, 1)], 1)
            torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6)
    cache = layer.cache(batch=2)
    layer(x[:, :5], mask=causal(), cache=cache)
    cache.select([1])
    twin, copied = copy.deepcopy((layer, cache))
    want = layer(x[1:], mask=causal())[:, 5:]
    torch.testing.assert_close(layer(x[1:, 5:], mask=causal(), cache=cache), want, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(twin(x[1:, 5:], mask=causal(), cache=copied), want, rtol=1e-6, atol=1e-6)


def test_a_call_that_fails_leaves_the_cache_as_it_was(randomise):
    layer = randomise(MultiHeadAttention(16, [LINEAR[0], HeadGroup(2, 4)])).double()
    x, cache = torch.randn(2, 6, 16, dtype=WIDE), layer.cache(batch=2)
    layer(x[:, :4], mask=causal(), cache=cache)
    for wrong in (sliding_window(2), torch.ones(2, 6, dtype=torch.bool), None):
        with pytest.raises(MultiheadError, match="linear"):
            layer(x[:, 4:], mask=wrong, cache=cache)
        assert [group.rows.length for group in cache.groups] == [4, 4]
    # After the linear heads have gone on, softmax heads refuse.
    other = MultiHeadAttention(16, [LINEAR[0], HeadGroup(2, 4, scoring=Scoring(normaliser=Softmax()))], backend="none")
    cache2 = other.cache(batch=2)
    with pytest.raises(MultiheadError):
        other(x.float(), mask=causal(), cache=cache2)
    assert [group.rows.length for group in cache2.groups] == [0, 0]
    torch.testing.assert_close(layer(x[:, 4:], mask=causal(), cache=cache), layer(x, mask=causal())[:, 4:])


def test_all_see_all_and_another_sequence(randomise):
    layer = randomise(MultiHeadAttention(16, [LINEAR[0], HeadGroup(2, 4)])).double()
    x, memory = torch.randn(2, 5, 16, dtype=WIDE), torch.randn(2, 9, 16, dtype=WIDE)
    keep = torch.arange(9) < torch.tensor([[9], [4]])
    want = torch.cat([layer(x[:1], memory[:1]), layer(x[1:], memory[1:, :4])])
    torch.testing.assert_close(layer(x, memory, mask=padding(keep)), want)
    torch.testing.assert_close(layer(x, cache=layer.remember(memory), mask=padding(keep)), want)
    order = torch.randperm(9)
    torch.testing.assert_close(layer(x, memory[:, order]), layer(x, memory))


def test_they_learn(randomise):
    layer = randomise(MultiHeadAttention(16, [LINEAR[1], HeadGroup(2, 4)])).double()
    x = torch.randn(1, 6, 16, dtype=WIDE, requires_grad=True)
    inputs = (x, *layer.parameters())
    assert torch.autograd.gradcheck(lambda x, *_: layer(x, mask=causal()), inputs, fast_mode=True)
    layer(x, mask=causal()).square().sum().backward()
    assert all(p.grad.any() for p in layer.parameters())


def test_heads_are_pruned_and_put_back(randomise):
    group = HeadGroup(3, 4, scoring=LinearScoring(decay=retention_decay(3)))
    layer = randomise(MultiHeadAttention(16, [HeadGroup(2, 4), group])).double()
    x = torch.randn(1, 6, 16, dtype=WIDE)
    want = layer(x, mask=causal())
    gone = copy.deepcopy(layer)
    with torch.no_grad():
        gone.out_proj.weight[:, 12:16] = 0.0
    pruning = Pruning(layer, [3])
    pruning.apply()
    assert layer.groups[1].scoring.decay == (retention_decay(3)[0], retention_decay(3)[2])
    torch.testing.assert_close(layer(x, mask=causal()), gone(x, mask=causal()))
    pruning.restore()
    assert torch.equal(layer(x, mask=causal()), want)


def test_the_heads_that_are_watched_keep_their_numbers(randomise):
    """Linear heads have no weights of which a watcher could be told; the others stay where they are."""
    layer = randomise(MultiHeadAttention(16, [LINEAR[0], HeadGroup(3, 4), LINEAR[2], HeadGroup(1, 4)]))
    seen = []
    with torch.no_grad(), watching(layer, seen.append):
        layer(torch.randn(1, 5, 16), mask=causal())
    assert [call.first_head for call in seen] == [2, 7]


def test_the_features_are_saved_with_the_module(randomise):
    first, second = (MultiHeadAttention(16, LINEAR[1]) for _ in range(2))
    second.load_state_dict(first.state_dict())
    x = torch.randn(1, 5, 16)
    torch.testing.assert_close(second(x, mask=causal()), first(x, mask=causal()))
    second.parts[0].linear.redraw()
    assert not torch.allclose(second(x, mask=causal()), first(x, mask=causal()), atol=1e-3)
    second.parts[0].linear.redraw(torch.Generator().manual_seed(3))
    first.parts[0].linear.redraw(torch.Generator().manual_seed(3))
    torch.testing.assert_close(second(x, mask=causal()), first(x, mask=causal()))


@pytest.mark.parametrize(
    ("use", "told"),
    [
        (
            lambda: HeadGroup(2, 4, scoring=LinearScoring(), mask=sliding_window(3)),
            "one sum.*sliding_window.*softmax heads",
        ),
        (lambda: mixed()(torch.randn(1, 4, 16), mask=sliding_window(3)), "sliding_window.*MultiHeadAttention"),
        (lambda: mixed()(torch.randn(1, 4, 16), mask=~causal()), "~causal.*MultiHeadAttention"),
        (lambda: mixed()(torch.randn(1, 4, 16), mask=document(torch.zeros(4).long())), "document.*without causal"),
        (lambda: mixed()(torch.randn(1, 4, 16), mask=torch.ones(4, 4).bool()), "a boolean tensor"),
        (lambda: mixed()(torch.randn(1, 4, 16), bias=torch.zeros(4, 4)), "a bias of scores.*softmax heads"),
        (lambda: mixed()(torch.randn(1, 4, 16), bias=ALiBi(alibi_slopes(4))), "a bias of scores.*softmax heads"),
        (lambda: mixed()(torch.randn(1, 4, 16), torch.randn(1, 6, 16), mask=causal(), q_offset=2), "4 queries and 6"),
        (lambda: mixed(LinearScoring(decay=(-1.0, -2.0)))(torch.randn(1, 4, 16)), "decay=.*mask=causal"),
        (lambda: mixed(LinearScoring(decay=(-1.0,))), "each of 2 kv heads.*1 of them"),
        (lambda: LinearScoring(decay=(0.5,)), "at most 0"),
        (lambda: LinearScoring(decay="ab"), "at most 0"),
        (lambda: LinearScoring(features=3), "features=3"),
        (lambda: LinearScoring(normalise=1), "normalise=1"),
        (lambda: HeadGroup(2, 4, scoring=Scoring), "Scoring"),
        (lambda: MultiHeadAttention(16, HeadGroup(2, 4, scoring=LinearScoring(), position=Rotary())), "normalise=True"),
        (
            lambda: MultiHeadAttention(16, HeadGroup(2, 4, scoring=LinearScoring(), position=ALiBi(alibi_slopes(2)))),
            "ALiBi",
        ),
        (lambda: TalkingHeadsAttention(16, HeadGroup(4, 4, scoring=LinearScoring())), "have neither"),
        (lambda: mixed().to_torch(), "nn.MultiheadAttention"),
    ],
)
@pytest.mark.usefixtures("unhooked")
def test_what_does_not_fit_is_refused(use, told):
    with pytest.raises(MultiheadError, match=f"(?s){told}"):
        use()


def mixed(linear=None):
    return MultiHeadAttention(16, [HeadGroup(2, 4), HeadGroup(2, 4, scoring=linear or LinearScoring())])


def test_a_layout_with_linear_heads_takes_not_every_pattern():
    plain, mixed = HeadGroup(2, 4), HeadGroup(2, 4, scoring=LinearScoring())
    assert MultiHeadAttention(12, [plain, plain]).support == MultiHeadAttention.SUPPORT
    layer = MultiHeadAttention(12, [plain, mixed])
    assert layer.support == replace(MultiHeadAttention.SUPPORT, patterns=False)
    assert not Block(12, layer).support.patterns
    assert Block(12, layer).support.cached
    with pytest.raises(MultiheadError, match="see earlier tokens only as one sum"):
        layer(torch.randn(1, 5, 12), mask=sliding_window(2))
