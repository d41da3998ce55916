"""The functions in place of torch's and flash-attn's, against attention written out pair by pair."""

import doctest
import importlib
import math
import pkgutil

import pytest
import torch
from torch.nn import functional

from attend.oracle import attend_slowly, near
from multihead.error import MultiheadError
from multihead.interop import compat
from multihead.interop.compat import (
    flash_attn_func,
    flash_attn_varlen_func,
    flash_attn_with_kvcache,
    scaled_dot_product_attention,
)


@pytest.mark.parametrize("name", [module.name for module in pkgutil.iter_modules(compat.__path__)])
def test_the_examples_in_the_docstrings_hold(name):
    module = importlib.import_module(f"multihead.interop.compat.{name}")
    assert doctest.testmod(module, extraglobs={"torch": torch}).failed == 0


def test_everything_public_has_an_example():
    assert [name for name in compat.__all__ if ">>>" not in (getattr(compat, name).__doc__ or "")] == []


SHAPES = {
    "two dimensions": ((6, 8), (7, 8)),
    "three": ((4, 6, 8), (4, 7, 8)),
    "four": ((2, 4, 6, 8), (2, 4, 7, 8)),
    "five": ((3, 2, 4, 6, 8), (3, 2, 4, 7, 8)),
    "queries without a batch": ((4, 6, 8), (2, 4, 7, 8)),
    "keys for all rows and heads": ((2, 4, 6, 8), (1, 1, 7, 8)),
}


@pytest.mark.parametrize("graded", [False, True])
@pytest.mark.parametrize("name", SHAPES)
def test_torchs_function_in_any_number_of_dimensions(name, graded):
    q_shape, k_shape = SHAPES[name]
    q, k = (torch.randn(shape, requires_grad=graded) for shape in (q_shape, k_shape))
    v = torch.randn(*k_shape[:-1], 5, requires_grad=graded)
    full = (*torch.broadcast_shapes(q_shape[:-2], k_shape[:-2]), 6, 7)
    keep = torch.rand(full) < 0.7
    masks = [None, keep, torch.randn(full), keep[(0,) * (keep.ndim - 2)], keep[..., :1, :], torch.randn(1, 7)]
    for mask in masks:
        got = scaled_dot_product_attention(q, k, v, mask, scale=0.3)
        want = functional.scaled_dot_product_attention(q, k, v, mask, scale=0.3)
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    got, want = (
        function(q, k, v, is_causal=True)
        for function in (scaled_dot_product_attention, functional.scaled_dot_product_attention)
    )
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    if graded:
        both = [torch.autograd.grad(out.square().sum(), (q, k, v)) for out in (got, want)]
        for mine, theirs in zip(*both, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("lead", [(), (2,), (3, 2)], ids=str)
def test_a_key_head_for_several_query_heads(lead):
    q, k, v = torch.randn(*lead, 6, 5, 8), torch.randn(*lead, 2, 7, 8), torch.randn(*lead, 2, 7, 8)
    want = functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    torch.testing.assert_close(scaled_dot_product_attention(q, k, v, enable_gqa=True), want, rtol=1e-5, atol=1e-5)
    with pytest.raises(MultiheadError, match="needs enable_gqa=True"):
        scaled_dot_product_attention(q, k, v)


def test_a_mask_and_the_causal_rule_hold_both():
    q, k, v = (torch.randn(2, 4, 6, 8) for _ in range(3))
    for keep in (torch.rand(2, 1, 1, 6) < 0.7, torch.rand(2, 4, 6, 6) < 0.7):
        allowed = (keep & torch.ones(6, 6).tril().bool()).expand(2, 4, 6, 6)
        want = attend_slowly(q, k, v, allowed=allowed)[0]
        assert near(scaled_dot_product_attention(q, k, v, keep, is_causal=True), want)
        numbers = torch.zeros(keep.shape).masked_fill(~keep, -math.inf)
        assert near(scaled_dot_product_attention(q, k, v, numbers, is_causal=True), want)


def test_messages_of_torchs_function():
    q, k = torch.randn(2, 4, 6, 8), torch.randn(2, 4, 7, 8)
    with pytest.raises(
        MultiheadError, match=r"\(2, 4, 6, 7\).*\n  got: attn_mask of shape \(2, 7\)\n  fix: .*None, None"
    ):
        scaled_dot_product_attention(q, k, k, torch.ones(2, 7).bool())
    with pytest.raises(MultiheadError, match="two dimensions at least"):
        scaled_dot_product_attention(q, k, k[0, 0, 0])
    with pytest.raises(MultiheadError, match=r"got: query \(2, 4, 6, 8\), key \(3, 4, 7, 8\)"):
        scaled_dot_product_attention(q, torch.randn(3, 4, 7, 8), torch.randn(3, 4, 7, 8))


def flash(q, k, v, **options):
    """flash-attn's function by its definition, pair by pair; the layout is (batch, length, heads, dim) throughout."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    (batch, heads, q_len, _), kv_len = q.shape, k.shape[2]
    left, right = options.get("window", (-1, -1))
    allowed = torch.ones(batch, heads, q_len, kv_len, dtype=torch.bool)
    distance = torch.zeros(q_len, kv_len)
    for i in range(q_len):
        for j in range(kv_len):
            place = i + kv_len - q_len
            distance[i, j] = abs(place - j)
            allowed[..., i, j] = (
                (left < 0 or j >= place - left)
                and (right < 0 or j <= place + right)
                and (not options.get("causal") or j <= place)
            )
    slopes = options.get("slopes")
    bias = None
    if slopes is not None:
        bias = (-slopes.view(-1, heads, 1, 1) * distance).expand(batch, heads, q_len, kv_len)
    out, lse, _ = attend_slowly(
        q, k, v, allowed=allowed, bias=bias, scale=options.get("scale"), softcap=options.get("softcap")
    )
    return out.transpose(1, 2), lse


def tensors(q_len=5, kv_len=7, batch=2):
    return torch.randn(batch, q_len, 4, 8), torch.randn(batch, kv_len, 2, 8), torch.randn(batch, kv_len, 2, 8)


@pytest.mark.parametrize(("q_len", "kv_len"), [(6, 6), (3, 7), (7, 3), (1, 6)])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [(-1, -1), (2, 0), (2, -1), (-1, 1), (0, 0)])
def test_flash_aligns_at_the_last_key(q_len, kv_len, causal, window):
    q, k, v = tensors(q_len, kv_len)
    want, lse = flash(q, k, v, causal=causal, window=window)
    got = flash_attn_func(q, k, v, causal=causal, window_size=window, return_attn_probs=True)
    assert near(got[0], want)
    assert near(got[1], lse)
    assert got[2] is None
    assert torch.equal(flash_attn_func(q, k, v, causal=causal, window_size=window), got[0])


def test_flash_with_every_other_option():
    q, k, v = tensors()
    for slopes in (torch.rand(4), torch.rand(2, 4)):
        want, _ = flash(q, k, v, causal=True, slopes=slopes, softcap=0.8, scale=0.3)
        got = flash_attn_func(q, k, v, softmax_scale=0.3, causal=True, softcap=0.8, alibi_slopes=slopes)
        assert near(got, want)
    torch.manual_seed(0)
    dropped = flash_attn_func(*(x.expand(400, -1, -1, -1) for x in (q[:1], k[:1], v[:1])), dropout_p=0.3)
    assert ((dropped.mean(0) - flash(q, k, v)[0][0]).abs() <= 6 * dropped.std(0) / 20 + 1e-4).all()


def test_flash_gives_gradients():
    q, k, v = (x.requires_grad_() for x in tensors())
    mask = torch.ones(5, 7).tril(2).bool()
    got = torch.autograd.grad(flash_attn_func(q, k, v, causal=True).square().sum(), (q, k, v))
    plain = functional.scaled_dot_product_attention(
        *(x.transpose(1, 2) for x in (q, k, v)), attn_mask=mask, enable_gqa=True
    )
    for mine, theirs in zip(got, torch.autograd.grad(plain.square().sum(), (q, k, v)), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("lengths", [([3, 4, 1], [3, 4, 1]), ([2, 5, 1], [4, 3, 6]), ([0, 3], [2, 3])], ids=str)
@pytest.mark.parametrize("each", [False, True])
def test_sequences_behind_one_another_do_not_meet(lengths, each):
    ends = [torch.tensor([0, *some]).cumsum(0) for some in lengths]
    q, k, v = torch.randn(ends[0][-1], 4, 8), torch.randn(ends[1][-1], 2, 8), torch.randn(ends[1][-1], 2, 8)
    slopes = torch.rand(len(lengths[0]), 4) if each else torch.rand(4)
    options = {"causal": True, "window_size": (2, 0), "alibi_slopes": slopes, "return_attn_probs": True}
    out, lse, _ = flash_attn_varlen_func(q, k, v, ends[0].int(), ends[1].int(), 5, 6, **options)
    for n in range(len(lengths[0])):
        rows, cols = slice(ends[0][n], ends[0][n + 1]), slice(ends[1][n], ends[1][n + 1])
        own = slopes[n] if each else slopes
        want, want_lse = flash(q[None, rows], k[None, cols], v[None, cols], causal=True, window=(2, 0), slopes=own)
        assert near(out[rows], want[0])
        assert near(lse[:, rows], want_lse[0])
    assert torch.equal(flash_attn_varlen_func(q, k, v, *ends, 5, 6, **(options | {"return_attn_probs": False})), out)


@pytest.mark.parametrize("lengths", [[4, 4], [2, 5], None], ids=str)
@pytest.mark.parametrize("new", [0, 2])
def test_a_cache_in_full_length(lengths, new):
    q, k_cache, v_cache = tensors(2, 7)
    before = k_cache.clone(), v_cache.clone()
    k, v = torch.randn(2, new, 2, 8), torch.randn(2, new, 2, 8)
    given = {"k": k, "v": v} if new else {}
    if lengths is None:
        if new:
            return  # no room: the messages are below
        seen = [7, 7]
    else:
        given["cache_seqlens"] = torch.tensor(lengths).int()
        seen = lengths
    out, lse = flash_attn_with_kvcache(q, k_cache, v_cache, **given, causal=True, return_softmax_lse=True)
    for n, length in enumerate(seen):
        keys, values = (torch.cat([old[n, :length], more[n]]) for old, more in zip(before, (k, v), strict=True))
        want, want_lse = flash(q[n : n + 1], keys[None], values[None], causal=True)
        assert near(out[n : n + 1], want)
        assert near(lse[n : n + 1], want_lse)
        assert torch.equal(k_cache[n, : length + new], keys)
        assert torch.equal(v_cache[n, length + new :], before[1][n, length + new :])


def test_one_length_for_the_whole_cache():
    q, k_cache, v_cache = tensors(1, 7)
    want, _ = flash(q, k_cache[:, :3], v_cache[:, :3])
    assert near(flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens=3), want)


def test_messages_of_flash():
    q, k, v = tensors()
    with pytest.raises(MultiheadError, match=r"-1 for no bound\n  got: window_size=\(-2, 0\)"):
        flash_attn_func(q, k, v, window_size=(-2, 0))
    with pytest.raises(MultiheadError, match=r"\(batch, heads\)\n  got: shape \(1, 1, 4\)"):
        flash_attn_func(q, k, v, alibi_slopes=torch.rand(1, 1, 4))
    with pytest.raises(MultiheadError, match=r"which of them were dropped\n  got: dropout_p=0.1"):
        flash_attn_func(q, k, v, dropout_p=0.1, return_attn_probs=True)
    bounds = torch.tensor([0, 3, 5])
    with pytest.raises(MultiheadError, match=r"cu_seqlens_k: .* the 7 rows of k\n  got: \[0, 3, 5\]\n  fix: .*cumsum"):
        flash_attn_varlen_func(q[0], k[0], v[0], bounds, bounds, 3, 3)
    for given in ({"k": k, "v": v}, {"k": k, "v": v, "cache_seqlens": torch.tensor([0, 3])}, {"cache_seqlens": 8}):
        with pytest.raises(MultiheadError, match=r"keys behind the [738] that are there\n  got: a cache of 7 keys"):
            flash_attn_with_kvcache(q, k.clone(), v.clone(), **given)
    with pytest.raises(MultiheadError, match=r"both\n  got: k without v"):
        flash_attn_with_kvcache(q, k, v, k=k)
    for name in ("rotary_cos", "rotary_sin", "cache_batch_idx", "cache_leftpad", "block_table"):
        with pytest.raises(MultiheadError, match=rf"without {name}\n  got: {name} of shape \(2,\)\n  fix: \w+"):
            flash_attn_with_kvcache(q, k, v, **{name: torch.zeros(2)})
    with pytest.raises(MultiheadError, match="without block_table"):
        flash_attn_varlen_func(q[0], k[0], v[0], bounds, bounds, 3, 3, block_table=torch.zeros(1))
