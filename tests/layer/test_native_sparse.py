"""Native sparse attention: against its definition one query at a time, against fla's, and its identities."""

import importlib.util
import itertools
import sys
from types import ModuleType

import pytest
import torch

from multihead.error import MultiheadError
from multihead.layer import (
    Branches,
    HeadGroup,
    MultiHeadAttention,
    NativeSparseAttention,
    OutputGate,
    QKNorm,
    Scoring,
    Sliding,
)
from multihead.layer.compress import LearnedCompression
from multihead.pattern import causal, document, padding, sliding_window
from multihead.position import ALiBi, Rotary, alibi_slopes

LENGTH, BLOCK = 43, 8
SMALL = Branches(block=BLOCK, budget=4, window=6)
kinds = pytest.mark.parametrize("compression", ["mean", "learned"])


def made(randomise, *, branches=SMALL, compression="mean", **more):
    branches = Branches(block=BLOCK, budget=branches.budget, window=branches.window, compression=compression)
    group = HeadGroup(4, 8, kv_heads=2, **more)
    return randomise(NativeSparseAttention(32, group, branches=branches)).double()


def tokens(batch=2, length=LENGTH):
    return torch.randn(batch, length, 32, dtype=torch.float64)


def one_hot(layer, branch):
    """Gates of 1 for one branch and of 0 for the others."""
    with torch.no_grad():
        layer.gate_proj.weight.zero_()
        layer.gate_proj.bias.fill_(-100.0)
        layer.gate_proj.bias[branch * layer.heads : (branch + 1) * layer.heads] = 100.0
    return layer


def dense(layer):
    plain = MultiHeadAttention(32, HeadGroup(4, 8, kv_heads=2)).double()
    plain.load_state_dict(layer.state_dict(), strict=False)
    return plain


def soft(query, keys, values):
    """Softmax attention of one query; 0 where it sees nothing."""
    if not len(keys):
        return torch.zeros(values.shape[-1], dtype=values.dtype)
    return torch.softmax(keys @ query * 8**-0.5, 0) @ values


def slowly(layer, x, seen):
    """One query, head and branch at a time; `seen` (batch, length, length) is what the mask allows."""
    branches, length = layer.branches, x.shape[1]
    q = layer.q_proj(x).unflatten(2, (4, 8))
    k, v = (project(x).unflatten(2, (2, 8)) for project in (layer.k_proj, layer.v_proj))
    gates = torch.sigmoid(layer.gate_proj(x)).unflatten(2, (3, 4))
    out = torch.zeros(*x.shape[:2], 4, 8, dtype=x.dtype)
    for b, i, group in itertools.product(range(len(x)), range(length), range(2)):
        visible = seen[b, i]
        whole = [c for c in range(length // BLOCK) if visible[c * BLOCK : (c + 1) * BLOCK].all()]
        parts = {c: slice(c * BLOCK, (c + 1) * BLOCK) for c in whole}
        short = [
            torch.stack([_compressed(layer, name, source[b, part, group]) for part in parts.values()])
            if parts
            else torch.zeros(0, 8, dtype=x.dtype)
            for name, source in (("k_compression", k), ("v_compression", v))
        ]
        rank = dict.fromkeys(whole, 0.0)
        for h in (2 * group, 2 * group + 1):
            for c, weight in zip(whole, torch.softmax(short[0] @ q[b, i, h] * 8**-0.5, 0), strict=True):
                rank[c] += float(weight)
        for c in (0, i // BLOCK - 1, i // BLOCK):
            if c >= 0 and visible[c * BLOCK : (c + 1) * BLOCK].any():
                rank[c] = 10.0
        best = sorted(rank, key=lambda c: (-rank[c], c))[: branches.budget]
        chosen = [j for j in range(length) if visible[j] and j // BLOCK in best]
        near = [j for j in range(length) if visible[j] and j > i - branches.window]
        for h in (2 * group, 2 * group + 1):
            outs = [soft(q[b, i, h], *short)]
            outs += [soft(q[b, i, h], k[b, js, group], v[b, js, group]) for js in (chosen, near)]
            out[b, i, h] = sum(gate * part for gate, part in zip(gates[b, i, :, h], outs, strict=True))
    return layer.out_proj(out.flatten(2))


def _compressed(layer, name, block):
    if layer.branches.compression == "mean":
        return block.mean(0)
    net = getattr(layer, name)
    hidden = net.hidden.weight @ torch.cat([*(block + net.positions)]) + net.hidden.bias
    return net.out.weight @ torch.nn.functional.gelu(hidden) + net.out.bias


@kinds
@pytest.mark.parametrize("index", range(3))
@torch.no_grad()
def test_it_is_its_definition(compression, index, randomise):
    keep = torch.rand(2, LENGTH) < 0.95
    ids = (torch.rand(2, LENGTH) < 0.08).cumsum(1)
    mask = (causal(), causal() & padding(keep), causal() & padding(keep) & document(ids))[index]
    layer, x = made(randomise, compression=compression), tokens()
    seen = mask.mask(LENGTH, LENGTH).expand(2, 1, -1, -1)[:, 0]
    torch.testing.assert_close(layer(x, mask=mask), slowly(layer, x, seen), rtol=1e-9, atol=1e-9)


@kinds
def test_a_window_or_a_budget_for_all_is_dense(compression, randomise):
    x = tokens()
    for branch, sizes in ((1, Branches(budget=6, window=2)), (2, Branches(budget=3, window=LENGTH))):
        layer = one_hot(made(randomise, branches=sizes, compression=compression), branch)
        torch.testing.assert_close(layer(x), dense(layer)(x, mask=causal()), rtol=1e-10, atol=1e-10)


def test_queries_before_the_first_whole_block_get_nothing_from_it(randomise):
    layer = one_hot(made(randomise), 0)
    out = layer(tokens())
    assert torch.equal(out[:, : BLOCK - 1], layer.out_proj.bias.expand(2, BLOCK - 1, -1))
    assert out.isfinite().all()
    assert not torch.allclose(out[:, BLOCK - 1], layer.out_proj.bias)


@kinds
def test_step_by_step_is_at_once(compression, randomise):
    layer, x = made(randomise, compression=compression, position=Rotary(), scoring=Scoring(norm=QKNorm())), tokens()
    want = layer(x)
    for grad, sizes in ((True, [20, 1, 22]), (False, [1] * LENGTH), (False, [9, 1, 1, 32])):
        with torch.set_grad_enabled(grad):
            cache = layer.cache(batch=2)
            got = torch.cat([layer(part, cache=cache) for part in x.split(sizes, 1)], 1)
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)
        assert (cache.groups[0].kept is None) is grad
    with torch.no_grad():
        cache.cut(21)
        cache.select([1, 0])
        torch.testing.assert_close(layer(x[[1, 0], 21:], cache=cache), want[[1, 0], 21:], rtol=1e-9, atol=1e-9)


def test_every_weight_learns(randomise):
    layer = made(randomise, compression="learned")
    layer(tokens()).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() and p.grad.any() for p in layer.parameters())


def test_the_future_moves_no_bit(randomise):
    layer, x = made(randomise), tokens()
    spoilt = torch.where(torch.arange(LENGTH)[:, None] > 25, 1e30, x)
    assert torch.equal(layer(x)[:, :26], layer(spoilt)[:, :26])
    mates = torch.cat([x[:1], torch.full_like(x[1:], 1e30)])
    assert torch.equal(layer(x)[0], layer(mates)[0])


def test_padding_has_no_part_in_it(randomise):
    layer, x = made(randomise, compression="learned"), tokens()
    keep = torch.arange(LENGTH) >= torch.tensor([[2 * BLOCK], [5]])
    spoilt = torch.where(keep[..., None], x, 1e30)
    mask = causal() & padding(keep)
    assert torch.equal(layer(x, mask=mask)[keep], layer(spoilt, mask=mask)[keep])
    # Padding of whole blocks is as if there was none, but for what a first block is.
    alone = layer(x[:1, 2 * BLOCK :])
    few = Branches(budget=6, window=6)
    layer = made(randomise, branches=few)
    alone = layer(x[:1, 2 * BLOCK :])
    torch.testing.assert_close(layer(x, mask=mask)[:1, 2 * BLOCK :], alone, rtol=1e-10, atol=1e-10)


def test_a_compiled_module_gives_the_same(randomise, unhooked):
    layer, x = made(randomise), tokens()
    torch.testing.assert_close(torch.compile(layer, backend="eager")(x), layer(x))


@pytest.fixture
def published(monkeypatch):
    """fla's definition, loaded from its file: the package itself needs a compiler for graphics cards."""
    spec = importlib.util.find_spec("fla")
    assert spec is not None, "fla-core belongs to the development environment"
    names = ("fla", "fla.ops", "fla.ops.utils", "fla.ops.utils.pooling", "flash_attn")
    stubs = {name: ModuleType(name) for name in names}

    def means(x, size, _):
        return torch.stack([part.mean(1) for part in x.split(size, 1)], 1)

    def window(q, k, v, *, causal, window_size):
        assert causal
        assert window_size[1] == 0
        places = torch.arange(q.shape[1])
        near = (places[:, None] >= places) & (places[:, None] - places <= window_size[0])
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=near, enable_gqa=True)
        return out.transpose(1, 2)

    stubs["fla.ops.utils"].prepare_chunk_offsets = None
    stubs["fla.ops.utils.pooling"].mean_pooling = means
    stubs["flash_attn"].flash_attn_varlen_func = None
    stubs["flash_attn"].flash_attn_func = window
    for name, stub in stubs.items():
        monkeypatch.setitem(sys.modules, name, stub)
    path = f"{spec.submodule_search_locations[0]}/ops/nsa/naive.py"
    loaded = importlib.util.spec_from_file_location("naive_nsa_of_fla", path)
    module = importlib.util.module_from_spec(loaded)
    loaded.loader.exec_module(module)
    return module.naive_nsa


def test_it_is_what_fla_defines(published, randomise):
    group = HeadGroup(32, 4, kv_heads=2)
    layer = randomise(NativeSparseAttention(32, group, branches=Branches(block=BLOCK, budget=4, window=6)))
    x = torch.randn(2, LENGTH, 32)
    q, k, v = (project(x).unflatten(2, (-1, 4)) for project in (layer.q_proj, layer.k_proj, layer.v_proj))
    gates = torch.sigmoid(layer.gate_proj(x)).unflatten(2, (3, 32)).unbind(2)
    want = published(q, k, v, *gates, block_counts=4, block_size=BLOCK, window_size=6)
    torch.testing.assert_close(layer(x), layer.out_proj(want.flatten(2)), rtol=1e-5, atol=1e-5)


def test_a_learned_block_knows_the_order_of_its_vectors(randomise):
    net = randomise(LearnedCompression(BLOCK, 5))
    block = torch.randn(1, 1, 1, BLOCK, 5)
    assert net(block).shape == (1, 1, 1, 5)
    assert not torch.allclose(net(block), net(block.flip(3)))


def test_no_tokens(randomise):
    assert made(randomise)(tokens(length=0)).shape == (2, 0, 32)
    assert made(randomise)(tokens(length=3)).isfinite().all()


REFUSED = {
    "a small budget": (lambda: Branches(budget=2), "at least 3 blocks"),
    "a block of 0": (lambda: Branches(block=0), "block=0"),
    "a window of 0": (lambda: Branches(window=0), "window=0"),
    "another compression": (lambda: Branches(compression="max"), "'mean', 'learned'"),
    "two groups": (lambda: NativeSparseAttention(32, [HeadGroup(2, 8), HeadGroup(2, 8)]), "2 groups"),
    "a mask": (lambda: NativeSparseAttention(32, HeadGroup(4, mask=sliding_window(3))), "mask=sliding_window"),
    "a softcap": (lambda: NativeSparseAttention(32, HeadGroup(4, scoring=Scoring(softcap=3.0))), "softcap=3.0"),
    "a gate": (lambda: NativeSparseAttention(32, HeadGroup(4, gate=OutputGate())), "gate"),
    "a bias": (lambda: NativeSparseAttention(32, HeadGroup(4, position=ALiBi(alibi_slopes(4)))), "ALiBi"),
    "branches as a number": (lambda: NativeSparseAttention(32, branches=4), "Branches"),
    "no mask": (lambda: NativeSparseAttention(32)(torch.randn(1, 4, 32), mask=None), "within causal()"),
    "both sides": (
        lambda: NativeSparseAttention(32)(torch.randn(1, 4, 32), mask=padding(torch.ones(4).bool())),
        "use MultiHeadAttention",
    ),
    "a tensor": (
        lambda: NativeSparseAttention(32)(torch.randn(1, 4, 32), mask=torch.ones(4, 4).tril().bool()),
        "a tensor",
    ),
    "a cache that forgets": (lambda: NativeSparseAttention(32).cache(batch=1, kind=Sliding(4)), "any earlier block"),
    "another width": (lambda: NativeSparseAttention(32)(torch.randn(1, 4, 31)), "batch, length, 32"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_it_does_not_take_is_refused(case, unhooked):
    make, told = REFUSED[case]
    with pytest.raises(MultiheadError, match=told.replace("(", r"\(").replace(")", r"\)")):
        make()


def test_it_says_what_it_takes():
    support = NativeSparseAttention.SUPPORT
    assert support.causal
    assert support.cached
    assert not support.bidirectional
    assert not support.cross
    assert "block=8" in repr(NativeSparseAttention(32, branches=SMALL))
