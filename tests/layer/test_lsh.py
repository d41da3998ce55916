import copy
import math

import pytest
import torch

from multihead.attend.selector import Buckets
from multihead.error import MultiheadError
from multihead.layer import Int8, LSHAttention
from multihead.layer.lsh import unit
from multihead.pattern import causal, document, everything, padding, sliding_window

WIDE = torch.float64
CUTS = ("bucket", "sorted")


def build(randomise, **given):
    given = {"count": 6, "rounds": 3, "chunk": 4, "seed": 1} | given
    return randomise(LSHAttention(12, 3, Buckets(given.pop("count"), **given))).double()


def shared(layer, x):
    """Queries, which are the keys, and values: (batch, heads, length, 4)."""
    w = {name: p.detach() for name, p in layer.named_parameters()}
    made = (x @ w[f"{name}.weight"].T + w[f"{name}.bias"] for name in ("qk_proj", "v_proj"))
    return [one.unflatten(2, (3, 4)).transpose(1, 2) for one in made]


def met(buckets, chunk, cut, group):
    """How often token i meets j over all rounds, by lists: buckets (rounds, n), group the document of each token."""
    n, count, tiles = buckets.shape[1], torch.zeros(buckets.shape[1], buckets.shape[1], dtype=torch.long), []
    for row in buckets.tolist():
        order = sorted(range(n), key=lambda i: (group[i], row[i], i))
        runs = [order]
        if cut == "bucket":
            runs = [
                [i for i in order if (group[i], row[i]) == key] for key in sorted({(group[i], row[i]) for i in order})
            ]
        for run in runs:
            cuts = [run[first : first + chunk] for first in range(0, len(run), chunk)]
            tiles += [(tile, None if cut == "bucket" and not place else "before") for place, tile in enumerate(cuts)]
    for place, (tile, before) in enumerate(tiles):
        seen = tile + (tiles[place - 1][0] if before and len(tiles) > 1 else [])
        for i in tile:
            for j in seen:
                count[i, j] += 1
    return count


def by_hand(layer, x, *, causal_=False, keep=None, ids=None):
    """The definition from the buckets, token by token."""
    qk, v = shared(layer, x)
    (batch, heads, n), b = qk.shape[:3], layer.buckets
    keep = torch.ones(batch, n, dtype=torch.bool) if keep is None else keep
    ids = torch.zeros(batch, n, dtype=torch.long) if ids is None else ids
    hashed = b.hash(qk).where(keep[:, None, None], 99)
    out = torch.zeros_like(v)
    for a in range(batch):
        for h in range(heads):
            counts = met(hashed[a, h], b.chunk, b.cut, ids[a].tolist())
            for i in range(n):
                if not keep[a, i]:
                    continue
                seen = [j for j in range(n) if counts[i, j] and j != i and keep[a, j] and ids[a, i] == ids[a, j]]
                seen = [j for j in seen if j < i or not causal_]
                if not seen:
                    out[a, h, i] = v[a, h, i]
                    continue
                keys = qk[a, h, seen] / torch.sqrt((qk[a, h, seen] ** 2).sum(-1, keepdim=True) + 1e-6 * 4)
                scores = keys @ qk[a, h, i]
                if not b.dedupe:
                    scores = scores + counts[i, seen].double().log()
                out[a, h, i] = scores.softmax(0) @ v[a, h, seen]
    joined = out.transpose(1, 2).flatten(2)
    return joined @ layer.out_proj.weight.T + layer.out_proj.bias


def close(got, want, tol=1e-12):
    torch.testing.assert_close(got, want, rtol=tol, atol=tol)


@pytest.mark.parametrize("dedupe", [True, False])
@pytest.mark.parametrize("cut", CUTS)
def test_given_the_buckets_it_is_dense_with_the_log_of_how_often_pairs_met(randomise, cut, dedupe):
    keep, ids = torch.arange(18) < torch.tensor([[18], [13]]), torch.randint(0, 2, (2, 18))
    for n, chunk, count in ((18, 4, 6), (17, 5, 2), (18, 3, (2, 4)), (6, 8, 4)):
        layer = build(randomise, cut=cut, dedupe=dedupe, chunk=chunk, count=count)
        x = torch.randn(2, n, 12, dtype=WIDE)
        some, which = keep[:, :n], ids[:, :n]
        for mask, told in (
            (None, {}),
            (causal(), {"causal_": True}),
            (causal() & padding(some), {"causal_": True, "keep": some}),
            (padding(some) & document(which), {"keep": some, "ids": which}),
        ):
            if cut == "sorted" and n <= chunk:
                continue  # dense, below
            close(layer(x, mask=mask), by_hand(layer, x, **told))


def test_once_each_is_what_the_union_gives(randomise):
    layer, x = build(randomise, count=2, rounds=4, chunk=6), torch.randn(1, 20, 12, dtype=WIDE)
    twice = copy.deepcopy(layer)
    twice.buckets = Buckets(2, rounds=4, chunk=6, seed=1, dedupe=False)
    counts = met(layer.buckets.hash(shared(layer, x)[0])[0, 0], 6, "bucket", [0] * 20)
    assert int(counts.max()) > 1
    close(layer(x), by_hand(layer, x))
    assert not torch.allclose(layer(x), twice(x))


def test_enough_room_is_dense(randomise):
    x = torch.randn(2, 9, 12, dtype=WIDE)
    for mask in (None, causal()):
        for dedupe in (True, False):
            layer = build(randomise, cut="sorted", chunk=9, dedupe=dedupe)
            qk, v = shared(layer, x)
            scores = (qk @ unit(qk).mT).masked_fill(torch.eye(9, dtype=torch.bool), -math.inf)
            if mask is not None:
                scores = scores.masked_fill(~mask.mask(9, 9), -math.inf)
            heads = scores.softmax(-1) @ v
            if mask is not None:
                heads[:, :, 0] = v[:, :, 0]
            close(layer(x, mask=mask), layer.out_proj(heads.transpose(1, 2).flatten(2)))


def test_gradients_reach_everything(randomise):
    for cut in CUTS:
        layer, x = build(randomise, cut=cut, rounds=2), torch.randn(1, 11, 12, dtype=WIDE, requires_grad=True)
        assert torch.autograd.gradcheck(
            lambda x, *_, layer=layer: layer(x, mask=causal()), (x, *layer.parameters()), fast_mode=True
        )
        keep = torch.arange(11) < 8
        layer(x, mask=padding(keep)).square().sum().backward()
        assert all(p.grad is not None and p.grad.any() for p in layer.parameters())
        # The last tokens are padding: nothing but the bias of the output is theirs.
        assert not x.grad[0, 8:].any()
        assert x.grad[0, :8].any()


@pytest.mark.parametrize("dtype", [torch.float32, WIDE])
def test_the_future_and_batch_mates_change_no_bit(randomise, dtype):
    layer = build(randomise, count=4, rounds=4, chunk=8).to(dtype)
    x = torch.randn(3, 70, 12, dtype=dtype)
    for mask in (causal(), causal() & document(torch.arange(70) // 25)):
        want = layer(x, mask=mask)
        for t in (1, 23, 40, 69):
            later = x.clone()
            later[:, t:] = 1e18 * torch.randn(3, 70 - t, 12)
            assert torch.equal(layer(later, mask=mask)[:, :t], want[:, :t])
    mates = x.clone()
    mates[1:] = 1e18 * torch.randn(2, 70, 12)
    for mask in (None, causal()):
        assert torch.equal(layer(mates, mask=mask)[0], layer(x, mask=mask)[0])
    # Nor do tokens that are added, or padding before and behind.
    close(layer(x[:, :40], mask=causal()), layer(x, mask=causal())[:, :40], 1e-5)


def test_what_is_cut_through_all_buckets_is_chosen_by_the_future_as_well(randomise):
    layer, changed = build(randomise, cut="sorted", count=8, rounds=1, chunk=4), 0
    for _ in range(8):
        x = torch.randn(1, 40, 12, dtype=WIDE)
        later = x.clone()
        later[:, 20:] = torch.randn(1, 20, 12)
        changed += not torch.allclose(layer(later, mask=causal())[:, :20], layer(x, mask=causal())[:, :20])
    assert changed


def test_padding_is_as_if_it_were_not_there(randomise):
    layer, x, keep = build(randomise), torch.randn(2, 20, 12, dtype=WIDE), torch.rand(2, 20) < 0.7
    for mask in (padding(keep), causal() & padding(keep)):
        got = layer(x, mask=mask)
        for b in range(2):
            alone = layer(x[b : b + 1, keep[b]], mask=causal() if "causal" in str(mask) else everything())
            close(got[b, keep[b]], alone[0])
        close(got[~keep], layer.out_proj.bias.expand_as(got[~keep]))


def test_seeds(randomise):
    free, x = build(randomise, seed=None, rounds=1), torch.randn(1, 40, 12, dtype=WIDE)
    fixed = build(randomise, rounds=1)
    state = torch.get_rng_state()
    first = fixed(x)
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(3)
    assert torch.equal(fixed(x), first)
    torch.set_rng_state(state)
    one = free(x)
    assert not torch.equal(free(x), one)
    torch.set_rng_state(state)
    assert torch.equal(free(x), one)
    turns = free.buckets.rotations(shared(free, x)[0])
    assert torch.equal(free(x, rotations=turns), free(x, rotations=turns))


def test_a_watched_module_gives_the_same_answer(randomise):
    x, keep = torch.randn(2, 30, 12, dtype=WIDE), torch.rand(2, 30) < 0.8
    for cut in CUTS:
        for dedupe in (True, False):
            layer, seen = build(randomise, cut=cut, dedupe=dedupe), []
            for mask in (None, causal() & padding(keep), document(torch.arange(30) // 11)):
                want = layer(x, mask=mask)
                layer.attend = lambda p, layer=layer, seen=seen: (seen.append(p), LSHAttention.attend(layer, p))[1]
                close(layer(x, mask=mask), want)
                del layer.attend
            assert [p.q_len for p in seen] == [30] * 3


@pytest.mark.parametrize("dedupe", [True, False])
def test_decoding_is_the_whole_text_at_once(randomise, dedupe):
    layer, x = build(randomise, chunk=3, count=4, dedupe=dedupe), torch.randn(2, 33, 12, dtype=WIDE)
    keep, ids = torch.rand(2, 33) < 0.8, torch.arange(33) // 12
    for mask in (causal(), causal() & padding(keep), causal() & document(ids)):
        want = layer(x, mask=mask)
        for cuts in ([33], [1] * 33, [10, 1, 2, 7, 1, 12], [2, 3, 28]):
            cache = layer.cache(batch=2)
            got = [layer(part, mask=mask, cache=cache) for part in x.split(cuts, 1)]
            close(torch.cat(got, 1), want)
            assert cache.length == 33
        cache.cut(20)
        close(layer(x[:, 20:], mask=mask, cache=cache), want[:, 20:])
    cache.cut(20)
    cache.select([1, 1, 0])
    got = layer(x[[1, 1, 0], 20:], mask=causal() & document(ids), cache=cache)
    close(got, want[[1, 1, 0], 20:])


def test_dropout_is_of_the_weights(randomise):
    layer = build(randomise)
    layer.dropout = 0.5
    x = torch.randn(1, 16, 12, dtype=WIDE)
    want = layer.eval()(x)
    layer.train()
    many = layer(x.expand(3000, -1, -1)).detach()
    assert not torch.allclose(many[:1], want)
    apart = (many.mean(0) - want[0]).abs() / (many.std(0) / 3000**0.5 + 1e-9)
    assert apart.max() < 6


def test_half_precision_and_no_tokens(randomise):
    layer, x = build(randomise), torch.randn(2, 20, 12, dtype=WIDE)
    low = copy.deepcopy(layer).to(torch.bfloat16)
    again = copy.deepcopy(low).double()
    near, turns = x.to(torch.bfloat16), low.buckets.rotations(torch.randn(2, 3, 20, 4))
    # Near a border of buckets a rounded vector may fall elsewhere, and change what a few tokens see.
    apart = (low(near, rotations=turns).double() - again(near.double(), rotations=turns.double())).abs().amax(-1)
    assert apart.median() < 0.05
    for empty in (torch.randn(2, 0, 12), torch.randn(0, 3, 12)):
        assert layer(empty.double(), mask=causal()).shape == empty.shape


@pytest.mark.parametrize(
    ("use", "told"),
    [
        (lambda: call(key=torch.randn(1, 5, 12)), "another sequence.*MultiHeadAttention for cross-attention"),
        (lambda: call(mask=sliding_window(3)), r"sliding_window\(3\).*MultiHeadAttention"),
        (lambda: call(mask=causal().at(q_offset=2)), r"causal.at\(2\).*MultiHeadAttention"),
        (lambda: call(mask=torch.ones(9, 9, dtype=torch.bool)), r"a tensor \(9, 9\).*MultiHeadAttention"),
        (lambda: call(mask=padding(torch.ones(3, 9, dtype=torch.bool))), "a batch of 3"),
        (lambda: call(mask=padding(torch.ones(8, dtype=torch.bool))), "length 8"),
        (lambda: call(torch.randn(1, 9, 11)), r"query \(batch, length, 12\)"),
        (lambda: call(rotations=torch.randn(3, 4, 3, 4)), r"\(3, 4, 3, 3\).*\(3, 4, 3, 4\)"),
        (lambda: call(cache=7), "a cache of this module"),
        (lambda: LSHAttention(12, 5), "embed_dim=12, heads=5"),
        (lambda: LSHAttention(12, 3, 7), "Buckets"),
        (lambda: LSHAttention(12, 3, dropout=1.0), "dropout=1.0"),
        (lambda: LSHAttention(12, 3, Buckets(6)).cache(batch=1), "seed=None draws other buckets.*seed=0"),
        (lambda: LSHAttention(12, 3, Buckets(seed=1)).cache(batch=1), "count=None"),
        (lambda: LSHAttention(12, 3, Buckets(6, seed=1, cut="sorted")).cache(batch=1), "cut='sorted'"),
        (lambda: LSHAttention(12, 3, Buckets(6, seed=1)).cache(batch=1, kind=Int8()), r"Full\(\) or Static"),
        (lambda: call(mask=None, cached=True), r"a mask without causal\(\)"),
    ],
)
@pytest.mark.usefixtures("unhooked")
def test_what_it_cannot_do_is_refused(use, told):
    with pytest.raises(MultiheadError, match=f"(?s){told}"):
        use()


def call(x=None, cached=False, **given):
    layer = LSHAttention(12, 3, Buckets(6, rounds=3, chunk=4, seed=1))
    if cached:
        given["cache"] = layer.cache(batch=1)
    return layer(torch.randn(1, 9, 12) if x is None else x, **given)


def test_a_refusal_leaves_the_cache_as_it_was(randomise):
    layer = build(randomise)
    cache = layer.cache(batch=1)
    x = torch.randn(1, 5, 12, dtype=WIDE)
    layer(x, mask=causal(), cache=cache)
    with pytest.raises(MultiheadError, match="another LSHAttention"):
        build(randomise)(x, mask=causal(), cache=cache)
    assert cache.length == 5


def test_it_says_what_it_is():
    layer = LSHAttention(12, 3, Buckets(6, seed=1))
    assert "count=6" in repr(layer)
    assert not LSHAttention.SUPPORT.cross
    assert LSHAttention.SUPPORT.cached
