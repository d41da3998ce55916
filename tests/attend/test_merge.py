import jaxtyping
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attend.oracle import attend_slowly, full, near, qkv
from multihead.attend import Entmax, Merged, Sigmoid, Softmax, attention, attention_lse, merge
from multihead.error import MultiheadError


def dealt(draw_parts, kv_len):
    """Keys dealt out to parts, some of which may get none."""
    return [[j for j in range(kv_len) if draw_parts[j] == part] for part in range(max(draw_parts) + 1)]


@given(dealing=st.lists(st.integers(0, 3), min_size=7, max_size=7), data=st.data())
def test_parts_in_any_dealing_and_order_are_the_whole(dealing, data):
    q, k, v = qkv(dtype=torch.float64, v_head_dim=5)
    allowed = full(torch.rand(2, 1, 6, 7) < 0.5, 2, 4, 6, 7)
    sinks = torch.randn(4, dtype=torch.float64)
    parts = [attention_lse(q, k[:, :, keys], v[:, :, keys], mask=allowed[..., keys]) for keys in dealt(dealing, 7)]
    parts = data.draw(st.permutations(parts))
    for given_sinks, normaliser in ((None, None), (sinks, Softmax(sinks=sinks))):
        out, lse, _ = attend_slowly(q, k, v, allowed=allowed, sinks=given_sinks)
        got = merge(parts, normaliser=normaliser)
        assert near(got.out, out, 1e-12)
        assert near(got.lse, lse, 1e-12)
    twice = merge([merge(parts[:2]), *parts[2:]])
    assert near(twice.out, merge(parts).out, 1e-12)


def test_gradients_are_those_of_the_whole():
    q, k, v = qkv(dtype=torch.float64, grad=True)
    pull = torch.randn(2, 4, 6, 8, dtype=torch.float64)
    mask = torch.rand(6, 7) < 0.5
    mask[0] = False
    (attention(q, k, v, mask=mask) * pull).sum().backward()
    want = [x.grad.clone() for x in (q, k, v)]
    for x in (q, k, v):
        x.grad = None
    parts = [attention_lse(q, k[:, :, s], v[:, :, s], mask=mask[:, s]) for s in (slice(0, 2), slice(2, 7))]
    (merge(parts).out * pull).sum().backward()
    for x, grad in zip((q, k, v), want, strict=True):
        torch.testing.assert_close(x.grad, grad, rtol=1e-9, atol=1e-9)


def test_huge_scores_of_one_part_do_not_drown_in_another():
    q, k, v = qkv(dtype=torch.float64)
    parts = [attention_lse(q * scale, k, v) for scale in (1.0, 1e4)]
    want = attention_lse(q * 1e4, k, v)
    assert torch.isfinite(merge(parts).out).all()
    rows = (parts[1].lse - parts[0].lse) > 40
    assert near(merge(parts).out[rows], want.out[rows], 1e-9)


def test_low_precision_is_added_up_in_float32():
    q, k, v = qkv(dtype=torch.bfloat16, kv_len=64)
    parts = [attention_lse(q, k[:, :, s], v[:, :, s]) for s in (slice(0, 40), slice(40, 64))]
    got = merge(parts)
    assert (got.out.dtype, got.lse.dtype) == (torch.bfloat16, torch.float32)
    assert near(got.out, attention(q.double(), k.double(), v.double()), 0.02)


@pytest.mark.parametrize(
    ("normaliser", "told"),
    [
        (Softmax(off_by_one=True), "give the sinks once"),
        (Sigmoid(), "add the outputs"),
        (Entmax(), "all keys at once"),
    ],
)
def test_parts_that_cannot_be_joined_are_refused(normaliser, told):
    q, k, v = qkv()
    with pytest.raises(MultiheadError, match=told):
        merge([attention_lse(q, k, v, normaliser=normaliser)])
    assert normaliser.streams == normaliser.merges == (not isinstance(normaliser, Entmax))


def test_shapes_that_differ_are_refused(monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    q, k, v = qkv()
    one = attention_lse(q, k, v)
    with pytest.raises(MultiheadError, match="parts of one shape"):
        merge([one, attention_lse(q[:, :, :3], k, v)])
    with pytest.raises(MultiheadError, match="parts of one shape"):
        merge([one, Merged(out=one.out, lse=one.lse[:, :, :3])])
    with pytest.raises(MultiheadError, match="at least one part"):
        merge([])


@pytest.mark.parametrize("parts", ["ab", 3, [None], [torch.zeros(1, 1, 1, 1)], {0: 1}])
def test_what_is_no_part_is_refused(parts):
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        with pytest.raises(MultiheadError, match=r"parts to merge: results of attention_lse or merge, in a list"):
            merge(parts)
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)
