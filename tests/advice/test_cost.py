"""Formulas against counts: of the products that run, of the pairs of patterns, of the tensors that autograd keeps."""

import math
from dataclasses import replace
from inspect import signature

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch.utils._python_dispatch import TorchDispatchMode

from multihead.advice import (
    LAWS,
    MeasuredCost,
    Sizes,
    break_even,
    estimate_cost,
    fitted_exponent,
    measure_cost,
    meeting_point,
)
from multihead.advice.law import GROUP, WINDOW, grouped_heads
from multihead.advice.law_chosen import BLOCK, BLOCKS, CHOSEN, HASHES, NEAR, ROUNDS, TILE
from multihead.advice.law_scan import CHUNK, features
from multihead.attend import attention
from multihead.attend.selector import TopBlocks
from multihead.error import MultiheadError
from multihead.layer import FAMILIES, NativeSparseAttention, Static, build_attention, family_table
from multihead.layer.native_sparse import Branches
from multihead.pattern import band, causal
from multihead.scan import Favor, chunked

DENSE = ["multi_head", "grouped_query", "multi_query", "latent", "differential", "talking_heads"]
WINDOWED = {"window": band(WINDOW - 1, WINDOW - 1), "longformer": band(WINDOW, WINDOW)}
COUNTS = st.integers(1, 40)


class Products(TorchDispatchMode):
    """Multiply-adds of the matrix products that run. Torch's own counter takes seconds to load."""

    count = 0

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        name = operator.overloadpacket.__name__
        if name in ("mm", "bmm", "addmm", "baddbmm", "baddbmm_"):
            left, right = args[-2:]
            self.count += left.numel() * right.shape[-1]
        return operator(*args, **(kwargs or {}))


def products(run):
    with Products() as counter:
        run()
    return counter.count


def layer_of(name, sizes):
    layer = build_attention(name, sizes.embed_dim, sizes.heads)
    layer.backend = "reference"  # it is made of matrix products, which are counted
    return layer, torch.randn(sizes.batch, sizes.q_len, sizes.embed_dim, requires_grad=True)


def test_every_kind_that_is_built_by_name_has_its_formulas():
    assert set(LAWS) == set(FAMILIES)
    assert family_table.WINDOW == WINDOW
    assert (family_table.BLOCK, family_table.BLOCKS, family_table.CHOSEN) == (BLOCK, BLOCKS, CHOSEN)
    assert NativeSparseAttention(64).branches == Branches(block=BLOCK, budget=BLOCKS, window=NEAR)
    lsh = build_attention("lsh", 64, 8).buckets
    assert (lsh.rounds, lsh.chunk, lsh.count) == (ROUNDS, TILE, (HASHES, HASHES))
    assert Favor().count(64) == features(64)
    assert chunked.CHUNK == CHUNK
    for heads in range(1, 33):
        assert build_attention("grouped_query", 2 * heads, heads).kv_heads == grouped_heads(heads)
    assert grouped_heads(8 * GROUP) == 8


@pytest.mark.parametrize("name", DENSE)
@pytest.mark.parametrize(("batch", "length", "heads", "head_dim"), [(2, 24, 4, 8), (1, 33, 8, 4), (3, 17, 2, 16)])
def test_multiply_adds_are_those_that_run(name, batch, length, heads, head_dim):
    sizes = Sizes(length, batch=batch, heads=heads, head_dim=head_dim, causal=False)
    layer, x = layer_of(name, sizes)
    cost = estimate_cost(name, sizes)
    out = []
    assert products(lambda: out.append(layer(x))) == cost.layer
    # The reference keeps its weights: it lacks the scores that a kernel computes again, and the talking heads,
    # whose one block here is kept as well, the mixtures besides.
    again = scores_of(layer, sizes)
    again += 2 * batch * length**2 * heads**2 if name == "talking_heads" else 0
    backward = products(lambda: out[0].sum().backward())
    assert backward + again == cost.backward + 2 * cost.projections


def scores_of(layer, sizes):
    heads, _, width, _ = layer.groups[0].sizes
    return sizes.batch * heads * width * sizes.pairs


@pytest.mark.parametrize("length", [200, 320])
@pytest.mark.parametrize(
    ("name", "most"),
    # Pieces of retention's chunks are put together by small products more. Mixtures fill the rows of an expert up, and
    # heads up to the one that most tokens chose.
    [("linear", 1.0), ("performer", 1.0), ("retention", 1.01), ("mixture_of_heads", 1.5), ("switch_head", 1.05)],
)
def test_multiply_adds_of_causal_kinds(name, most, length):
    sizes = Sizes(length, batch=2, heads=4, head_dim=8)
    layer, x = layer_of(name, sizes)
    cost = estimate_cost(name, sizes)
    # The reference weighs all pairs, a kernel those that the mask allows.
    masked = cost.forward // sizes.pairs * (length**2 - sizes.pairs) if most > 1.01 else 0
    with torch.no_grad():
        found = products(lambda: layer(x, mask=causal()))
    assert cost.layer + masked <= found <= most * (cost.layer + masked)


def test_talking_heads_compute_their_blocks_a_second_time():
    sizes = Sizes(600, heads=4, head_dim=4, causal=False)
    layer, x = layer_of("talking_heads", sizes)
    cost, out = estimate_cost("talking_heads", sizes), layer(x)
    assert products(lambda: out.sum().backward()) == cost.backward + 2 * cost.projections


@given(q_len=COUNTS, more=st.integers(0, 40), window=COUNTS)
def test_pairs_are_those_of_the_patterns(q_len, more, window):
    kv_len = q_len + more
    offset = {"q_offset": more}
    sizes = Sizes(q_len, kv_len)
    assert sizes.pairs == causal().mask(q_len, kv_len, **offset).sum()
    near = causal() & band(window - 1, window - 1)
    assert sizes.near(window) == near.mask(q_len, kv_len, **offset).sum()
    open_ = Sizes(q_len, kv_len, causal=False)
    assert open_.pairs == q_len * kv_len
    assert Sizes(q_len, causal=False).near(window) == band(window - 1, window - 1).mask(q_len, q_len).sum()


@given(length=st.integers(1, 60), block=st.integers(1, 9), count=st.integers(1, 5))
def test_pairs_of_chosen_blocks_are_those_of_the_selector(length, block, count):
    chosen = TopBlocks(block, count).select(*torch.randn(2, 1, 1, length, 4), mask=causal())
    pairs = (causal() & chosen).mask(length, length)
    assert Sizes(length).chosen(block, count) == pairs.sum()
    assert Sizes(1, length).chosen(block, count) == pairs[..., -1, :].sum()


@pytest.mark.parametrize("name", WINDOWED)
@pytest.mark.parametrize("looks_back", [True, False])
def test_windows_multiply_the_pairs_of_their_pattern(name, looks_back):
    layer = build_attention(name, 16, 2)
    seen = []

    def look(problem):
        seen.append(problem.mask)
        return torch.zeros(1, 2, 700, 8)

    layer.attend = look
    layer(torch.randn(1, 700, 16), mask=causal() if looks_back else None)
    pairs = int(seen[0].mask(700, 700).sum())
    expected = (WINDOWED[name] & causal() if looks_back else WINDOWED[name]).mask(700, 700).sum()
    assert pairs == expected
    cost = estimate_cost(name, Sizes(700, batch=3, heads=2, head_dim=8, causal=looks_back))
    assert cost.forward == 3 * 2 * pairs * (8 + 8)


@pytest.mark.parametrize("name", LAWS)
def test_growth_is_what_the_formula_does(name):
    law = LAWS[name]
    counts = {length: float(estimate_cost(name, Sizes(length)).forward) for length in (2**23, 2**24, 2**25)}
    assert fitted_exponent(counts) == pytest.approx(law.exponent, abs=0.06)
    caches = {length: estimate_cost(name, Sizes(length)).cache for length in (2**12, 2**14)}
    if any(caches.values()):
        per_token = estimate_cost(name, Sizes(2**14)).cache_per_token
        assert caches[2**14] - caches[2**12] == per_token * (2**14 - 2**12)


@pytest.mark.parametrize("name", [name for name, row in FAMILIES.items() if row.support.cached])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_cache_holds_so_many_bytes(name, dtype):
    layer = build_attention(name, 32, 4).to(getattr(torch, dtype))
    length = 2 * WINDOW + 40
    sizes = Sizes(1, length, batch=3, heads=4, head_dim=8, dtype=dtype)
    cost = estimate_cost(name, sizes)
    window, kinds = LAWS[name].window, "kind" in signature(layer.cache).parameters
    cache = layer.cache(batch=3, kind=Static(length)) if kinds and not window else layer.cache(batch=3)
    with torch.no_grad():
        for part in torch.randn(3, length, 32, dtype=getattr(torch, dtype)).split(64 if window else length, 1):
            layer(part, mask=causal(), cache=cache)
    if not kinds:
        assert cost.cache_per_token == 0
        assert cost.cache == estimate_cost(name, replace(sizes, kv_len=2)).cache
        assert cache.nbytes == cost.cache
        with torch.no_grad():
            layer(torch.randn(3, 1, 32, dtype=getattr(torch, dtype)), mask=causal(), cache=cache)
        # The state of before the last call is held as well: the cache can be cut to it.
        assert cache.nbytes == 2 * cost.cache
    elif window:
        # Rows are moved to the front now and then, not at each step: there is room for more of them.
        assert cost.cache_per_token == 0
        assert cost.cache <= cache.nbytes <= 2 * cost.cache * (window + 64) / window
    else:
        assert cache.nbytes == cost.cache
        assert cost.cache == 3 * length * cost.cache_per_token


@pytest.mark.parametrize(("name", "kv_heads"), [("multi_head", 4), ("grouped_query", 1), ("multi_query", 1)])
def test_activations_are_the_tensors_that_autograd_keeps(name, kv_heads):
    sizes = Sizes(50, batch=2, heads=4, head_dim=8)
    q, k, v = (torch.randn(2, n, 50, 8, requires_grad=True) for n in (4, kv_heads, kv_heads))
    kept = {}

    def keep(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        attention(q, k, v, mask=causal(), backend="sdpa")
    large = [tensor for tensor in kept.values() if tensor.is_floating_point()]
    assert sum(tensor.nbytes for tensor in large) == estimate_cost(name, sizes).activations


def test_a_step_of_decoding_costs_what_a_whole_text_costs_less_one_shorter():
    for name in [*DENSE, *WINDOWED]:
        step = estimate_cost(name, Sizes(1, 1000))
        less = estimate_cost(name, Sizes(1000)).forward - estimate_cost(name, Sizes(999)).forward
        # A latent step moves the query; talking heads look at all pairs, masked ones too.
        if name == "latent":
            layer = build_attention(name, 512, 8)
            assert step.forward == min(layer._expanded_cost(1, 1000), layer._absorbed_cost(1, 1000))
        elif name == "talking_heads":
            assert step.forward == pytest.approx(less / 2, rel=1e-2)
        else:
            assert step.forward == less
        assert step.steps >= 1
        assert step.training == step.forward + step.backward + 3 * step.projections


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("head_dim", [16, 64])
def test_break_even_is_where_less_is_computed(name, head_dim):
    sizes = Sizes(7, head_dim=head_dim)
    found = break_even(name, sizes, longest=2**14)

    def less(length):
        at = Sizes(length, head_dim=head_dim)
        return estimate_cost(name, at).layer < estimate_cost("multi_head", at).layer

    assert less(2**14) == (found is not None)
    if found is not None:
        assert less(found)
        assert found == 1 or not less(found - 1)
        assert all(less(min(found * 2**power, 2**14)) for power in range(14))
    assert break_even(name, sizes, against=name) is None


def test_a_meeting_point_lies_on_the_line():
    times = {n: (n**1.0 * 7, n**2.0 / 64) for n in (64, 128, 256, 512, 1024)}
    assert meeting_point({n: a / b for n, (a, b) in times.items()}) == pytest.approx(448)
    assert meeting_point({128: 0.5, 256: 0.4}) == 128
    assert meeting_point({128: 2.0, 256: 1.0}) is None
    assert meeting_point({}) is None
    # What is lost again later does not count.
    assert meeting_point({128: 0.5, 256: 2.0, 512: 0.5}) == pytest.approx(math.sqrt(256 * 512))


@given(power=st.floats(0.5, 3), factor=st.floats(1e-6, 1e6))
def test_a_power_is_found_again(power, factor):
    assert fitted_exponent({n: factor * n**power for n in (3, 70, 1000)}) == pytest.approx(power)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: Sizes(0), "q_len=0"),
        (lambda: Sizes(8, 4), "q_len=8, kv_len=4"),
        (lambda: Sizes(8, heads=True), "heads=True"),
        (lambda: Sizes(8, dtype="int8"), "'int8'"),
        (lambda: estimate_cost("nonsense", Sizes(8)), "'nonsense'"),
        (lambda: break_even("nonsense", Sizes(8)), "'nonsense'"),
        (lambda: fitted_exponent({8: 1.0}), "{8: 1.0}"),
        (lambda: fitted_exponent({8: 1.0, 16: 0.0}), "16: 0.0"),
        (lambda: measure_cost("multi_hed", Sizes(8)), "perhaps 'multi_head'"),
        (lambda: measure_cost("multi_head", Sizes(8), step="both"), "'both'"),
        (lambda: measure_cost("multi_head", Sizes(8), rounds=0), "rounds=0"),
        (lambda: measure_cost("multi_head", Sizes(1, 8)), "q_len=1, kv_len=8"),
    ],
)
def test_what_cannot_be_estimated_is_refused(unhooked, call, says):
    with pytest.raises(MultiheadError) as fault:
        call()
    assert says in str(fault.value)


@pytest.mark.parametrize("step", ["infer", "train"])
def test_it_times_rounds_until_the_limit(step):
    sizes = Sizes(16, heads=2, head_dim=4, dtype="bfloat16", causal=False)
    found = measure_cost("multi_head", sizes, step=step, rounds=3)
    assert isinstance(found, MeasuredCost)
    assert (found.family, found.sizes, found.step, found.threads) == ("multi_head", sizes, step, 1)
    assert found.rounds == 3
    assert 0 < found.least <= found.seconds <= found.most
    assert measure_cost("window", sizes, step=step, limit=0.0).rounds == 1
