import math

import pytest
import torch

from multihead.attend import attention
from multihead.attend.selector import Buckets
from multihead.error import MultiheadError
from multihead.pattern import causal

WIDE = torch.float64


def test_the_bucket_is_the_largest_of_both_sides():
    x = torch.randn(2, 3, 20, 5, dtype=WIDE)
    for count in (6, (4, 6), (2, 2, 2)):
        buckets = Buckets(count, rounds=3)
        factors = count if isinstance(count, tuple) else (count,)
        turns = buckets.rotations(x)
        assert tuple(turns.shape) == (3, 5, 3, sum(factors) // 2)
        got = buckets.hash(x, turns)
        for b, h, r, i in ((0, 0, 0, 0), (1, 2, 2, 19), (0, 1, 1, 7), (1, 0, 2, 3)):
            want, product, first = 0, 1, 0
            for factor in factors:
                turned = x[b, h, i] @ turns[h, :, r, first : first + factor // 2]
                want += product * int(torch.cat([turned, -turned]).argmax())
                product, first = product * factor, first + factor // 2
            assert int(got[b, h, r, i]) == want
        assert torch.equal(buckets.hash(7 * x, turns), got)
        assert int(got.min()) >= 0
        assert int(got.max()) < math.prod(factors)


def test_seeds_and_numbers():
    x = torch.randn(1, 2, 30, 4)
    state = torch.get_rng_state()
    assert torch.equal(Buckets(8, seed=5).hash(x), Buckets(8, seed=5).hash(x))
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(Buckets(8, seed=5).hash(x), Buckets(8, seed=6).hash(x))
    assert not torch.equal(Buckets(8).rotations(x), Buckets(8).rotations(x))
    want = [(2,), (2,), (32,), (64,), (8, 16), (32, 32)]
    assert [Buckets(chunk=64).factors(n) for n in (10, 64, 1024, 2048, 4096, 32768)] == want


@pytest.mark.parametrize("cosine", [0.5, 0.9])
def test_recall_is_one_minus_the_chance_to_miss_in_every_round(cosine):
    n, width, rounds = 6000, 8, 8
    x = torch.nn.functional.normalize(torch.randn(n, width, dtype=WIDE), dim=-1)
    other = torch.randn(n, width, dtype=WIDE)
    other = torch.nn.functional.normalize(other - (other * x).sum(-1, keepdim=True) * x, dim=-1)
    pair = torch.stack([x, cosine * x + math.sqrt(1 - cosine**2) * other], 1)
    # A head for each pair: each has matrices of its own, so that pairs are drawn independently.
    found = Buckets(16, rounds=rounds).hash(pair[None])[0]
    same = found[..., 0] == found[..., 1]
    p = same.double().mean()
    for r in (1, 2, 4, 8):
        recall = same[:, :r].any(1).double().mean()
        assert abs(recall - (1 - (1 - p) ** r)) < 6 * math.sqrt(0.25 / n)
    assert 0.05 < p < 0.95


def test_as_a_selector_it_sees_all_of_its_buckets():
    q, k, v = torch.randn(2, 4, 9, 5), torch.randn(2, 2, 9, 5), torch.randn(2, 2, 9, 3)
    buckets = Buckets(4, rounds=2, seed=3)
    chosen = buckets.select(q, k, mask=causal())
    turns = buckets.rotations(k.repeat_interleave(2, 1))
    mine, theirs = buckets.hash(q, turns), buckets.hash(k.repeat_interleave(2, 1), turns)
    inside = torch.zeros(2, 4, 9, 9, dtype=torch.bool)
    for b, h, i, j in torch.cartesian_prod(*map(torch.arange, inside.shape)).tolist():
        inside[b, h, i, j] = any(mine[b, h, r, i] == theirs[b, h, r, j] for r in range(2))
    assert torch.equal(chosen.mask(9, 9), inside)
    want = attention(q, k, v, mask=inside & causal().mask(9, 9))
    torch.testing.assert_close(attention(q, k, v, mask=causal() & chosen), want)
    shifted = buckets.select(q[:, :, 6:], k, mask=causal(), q_offset=6)
    assert torch.equal(shifted.mask(3, 9, q_offset=6), inside[:, :, 6:])


@pytest.mark.parametrize(
    ("use", "told"),
    [
        (lambda: Buckets(7), "count=7.*count=6 or 8"),
        (lambda: Buckets(0), "even number of at least 2.*count=0"),
        (lambda: Buckets((4, 3)), r"count=\(4, 3\)"),
        (lambda: Buckets(()), r"count=\(\)"),
        (lambda: Buckets(2.0), "count=2.0"),
        (lambda: Buckets(rounds=0), "rounds=0"),
        (lambda: Buckets(chunk=0), "chunk=0"),
        (lambda: Buckets(chunk=True), "chunk=True"),
        (lambda: Buckets(cut="both"), "cut='both'.*Reformer want 'sorted'"),
        (lambda: Buckets(seed=-1), "seed=-1"),
        (lambda: Buckets(seed=1.5), "seed=1.5"),
        (lambda: Buckets(4).select(torch.randn(1, 3, 5, 2), torch.randn(1, 2, 5, 2)), r"q \(1, 3, 5, 2\)"),
        (lambda: Buckets(4).hash(torch.randn(1, 3, 5, 2), torch.randn(3, 2, 4, 3)), r"\(3, 2, 4, 2\).*\(3, 2, 4, 3\)"),
    ],
)
@pytest.mark.usefixtures("unhooked")
def test_what_does_not_fit_is_refused(use, told):
    with pytest.raises(MultiheadError, match=f"(?s){told}"):
        use()
