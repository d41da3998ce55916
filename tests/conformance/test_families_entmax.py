"""The entmax package, on random scores."""

import pytest
import torch
from entmax import entmax15, entmax_bisect, sparsemax

from multihead.attend import Entmax, Sparsemax, attention, attention_lse, merge
from multihead.error import MultiheadError
from multihead.pattern import causal, padding

WIDE = torch.float64
THEIRS = {
    "sparsemax": (Sparsemax(), sparsemax),
    "entmax15": (Entmax(1.5), entmax15),
    "bisect 1.5": (Entmax(1.5), lambda x, dim: entmax_bisect(x, 1.5, dim, n_iter=60)),
    "bisect 1.2": (Entmax(1.2), lambda x, dim: entmax_bisect(x, 1.2, dim, n_iter=60)),
    "bisect 2.6": (Entmax(2.6), lambda x, dim: entmax_bisect(x, 2.6, dim, n_iter=60)),
}


def made(*shape):
    return [torch.randn(*shape, dtype=WIDE, requires_grad=True) for _ in range(3)]


@pytest.mark.parametrize("name", THEIRS)
@pytest.mark.parametrize("mask", [None, causal()])
def test_outputs_weights_and_gradients(name, mask):
    ours, theirs = THEIRS[name]
    q, k, v = made(2, 3, 7, 4)
    scores = 2 * q @ k.mT
    if mask is not None:
        # Theirs takes -inf as long as a row has something else.
        scores = scores.masked_fill(~mask.mask(7, 7), -torch.inf)
    weights = theirs(scores, dim=-1)
    want = weights @ v
    got = attention_lse(q, k, v, mask=mask, scale=2.0, normaliser=ours)
    torch.testing.assert_close(got.weights(), weights, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(got.out, want, rtol=1e-8, atol=1e-10)
    away = torch.randn_like(want)
    mine = torch.autograd.grad(got.out, (q, k, v), away)
    for one, two in zip(mine, torch.autograd.grad(want, (q, k, v), away), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-8)
    assert ((got.weights() == 0) == (weights == 0)).double().mean() > 0.99


@pytest.mark.parametrize("ours", [Sparsemax(), Entmax(1.5)], ids=str)
def test_rows_that_see_nothing_give_nothing(ours):
    """Where every score is -inf theirs looks for the score before the first one, and fails or gives NaN."""
    q, k, v = made(1, 2, 5, 4)
    keep = torch.zeros(5, dtype=torch.bool)
    out = attention(q, k, v, mask=padding(keep), normaliser=ours)
    assert torch.equal(out, torch.zeros_like(out))
    assert all(torch.equal(g, torch.zeros_like(g)) for g in torch.autograd.grad(out.sum(), (q, k, v)))
    theirs = sparsemax if isinstance(ours, Sparsemax) else entmax15
    try:
        given = theirs(torch.full((1, 5), -torch.inf, dtype=WIDE), dim=-1)
    except (RuntimeError, IndexError):
        return
    assert given.isnan().all()


@pytest.mark.parametrize("ours", [Sparsemax(), Entmax(1.5)], ids=str)
def test_split_keys_are_refused_with_what_can_be_done(ours):
    q, k, v = made(1, 2, 6, 4)
    halves = [attention_lse(q, k[:, :, half], v[:, :, half], normaliser=ours) for half in (slice(3), slice(3, 6))]
    assert not ours.merges
    with pytest.raises(MultiheadError, match=r"(?s)give it all keys at once: the threshold of a row depends on every"):
        merge(halves)
