import pytest
import torch

from multihead.attend import Softmax, attention, make_problem
from multihead.attend.selector import indexer as source
from multihead.attend.selector.asked import best
from multihead.attend.selector.indexer import Indexer
from multihead.error import MultiheadError
from multihead.pattern import causal, document, padding, per_head, sliding_window

WIDE = torch.float64


@pytest.fixture(params=[2**22, 40])
def height(request, monkeypatch):
    """Blocks that hold everything, and blocks of a query each."""
    monkeypatch.setattr(source, "_TARGET", request.param)
    monkeypatch.setattr(source, "_AT_ONCE", request.param)


def made(q_len=9, kv_len=9, heads=4):
    """Index queries, keys and weights."""
    q, k = torch.randn(2, heads, q_len, 5, dtype=WIDE), torch.randn(2, 1, kv_len, 5, dtype=WIDE)
    return q, k, torch.randn(2, heads, q_len, dtype=WIDE)


def score(q, k, w, b, t, s):
    return sum(float(w[b, j, t] * (q[b, j, t] @ k[b, 0, s] / 5**0.5).clamp(min=0)) for j in range(q.shape[1]))


@pytest.mark.usefixtures("height")
def test_the_best_of_each_query_by_hand():
    q, k, w = made()
    keep = torch.rand(2, 9) < 0.7
    for mask in (None, causal(), causal() & padding(keep), document(torch.arange(9) // 4)):
        for budget in (1, 3, 9, 12):
            chosen = Indexer(budget, weights=w).select(q, k, mask=mask).mask(9, 9).expand(2, 1, 9, 9)
            allowed = (
                torch.ones(2, 9, 9, dtype=torch.bool) if mask is None else mask.mask(9, 9).expand(2, 1, 9, 9)[:, 0]
            )
            for b, t in torch.cartesian_prod(torch.arange(2), torch.arange(9)).tolist():
                seen = [s for s in range(9) if allowed[b, t, s]]
                want = sorted(sorted(seen, key=lambda s: (-score(q, k, w, b, t, s), s))[:budget])
                assert chosen[b, 0, t].nonzero()[:, 0].tolist() == want


def test_of_equal_scores_the_earliest_are_taken():
    scores = torch.tensor([[[1.0, 0.0, 0.0, 2.0, 0.0, -torch.inf, 0.0]]])
    assert best(scores, 4).nonzero()[:, 2].tolist() == [0, 1, 2, 3]
    assert best(scores, 7).nonzero()[:, 2].tolist() == [0, 1, 2, 3, 4, 6]
    assert not best(torch.full((1, 2, 5), -torch.inf), 3).any()
    # What comes later does not change a tie.
    assert torch.equal(best(scores[..., :5], 4), best(scores, 4)[..., :5])


def test_weights_are_one_where_none_are_given():
    q, k, _ = made()
    ones = Indexer(3, weights=torch.ones(2, 4, 9, dtype=WIDE))
    torch.testing.assert_close(Indexer(3).scores(q, k), ones.scores(q, k))
    torch.testing.assert_close(Indexer(3, scale=2.0).scores(q, k), ones.scores(q, k) * 2 * 5**0.5)


@pytest.mark.usefixtures("height")
def test_a_later_part_of_the_queries_chooses_the_same():
    q, k, w = made()
    whole = Indexer(3, weights=w).select(q, k, mask=causal()).mask(9, 9)
    part = Indexer(3, weights=w[:, :, 6:]).select(q[:, :, 6:], k, mask=causal(), q_offset=6)
    assert torch.equal(part.mask(3, 9, q_offset=6), whole[:, :, 6:])


def test_what_was_not_chosen_changes_nothing():
    q, k, w = made()
    chosen = Indexer(3, weights=w).select(q, k, mask=causal())
    heads = [torch.randn(2, 3, 9, 4, dtype=WIDE) for _ in range(3)]
    want = attention(*heads, mask=causal() & chosen)
    never = ~(chosen.mask(9, 9) & causal().mask(9, 9)).any(2)[:, 0]
    heads[1], heads[2] = (x.masked_fill(never[:, None, :, None], 1e9) for x in heads[1:])
    torch.testing.assert_close(attention(*heads, mask=causal() & chosen), want)
    later = k.clone()
    later[:, :, 5:] = 1e18
    again = Indexer(3, weights=w).select(q, later, mask=causal()).mask(9, 9)
    assert torch.equal(again[:, :, :5], chosen.mask(9, 9)[:, :, :5])


@pytest.mark.usefixtures("height")
def test_the_divergence_by_hand():
    q, k, w = (x.requires_grad_() for x in made())
    heads = [torch.randn(2, 3, 9, 4, dtype=WIDE, requires_grad=True) for _ in range(3)]
    nobody = torch.ones(2, 1, 9, 9, dtype=torch.bool)
    nobody[0, :, 4] = False
    for mask in (None, causal(), sliding_window(3), nobody & causal().mask(9, 9)):
        for normaliser in (Softmax(), Softmax(off_by_one=True)):
            problem = make_problem(*heads, mask=mask, normaliser=normaliser)
            index = Indexer(3, weights=w)
            got = index.divergence(q, k, problem)
            total, rows = 0.0, 0
            allowed = torch.ones(2, 9, 9, dtype=torch.bool)
            if mask is not None:
                allowed = (mask if isinstance(mask, torch.Tensor) else mask.mask(9, 9)).expand(2, 1, 9, 9)[:, 0]
            for b, t in torch.cartesian_prod(torch.arange(2), torch.arange(9)).tolist():
                seen = allowed[b, t].nonzero()[:, 0]
                if not len(seen):
                    continue
                raw = heads[0][b, :, t, None] @ heads[1][b, :, seen].mT / 2
                p = raw.exp() / (raw.exp().sum(-1, keepdim=True) + normaliser.off_by_one)
                p = (p.sum((0, 1)) / p.sum()).detach()
                found = torch.relu(q[b, :, t] @ k[b, 0, seen].T / 5**0.5).T @ w[b, :, t]
                total, rows = total + (p * (p.log() - found.log_softmax(0))).sum(), rows + 1
            torch.testing.assert_close(got, total / rows, rtol=1e-10, atol=1e-10)
            assert got >= 0
            mine = torch.autograd.grad(got, (q, k, w), retain_graph=True)
            for one, two in zip(mine, torch.autograd.grad(total / rows, (q, k, w)), strict=True):
                torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-9)
            assert all(g is None for g in torch.autograd.grad(got, heads, allow_unused=True))


@pytest.mark.parametrize(
    ("use", "told"),
    [
        (lambda: Indexer(0), "budget=0"),
        (lambda: Indexer(2.0), "budget=2.0"),
        (lambda: Indexer(True), "budget=True"),
        (lambda: Indexer(2, scale=10**400), "scale=1000"),
        (lambda: Indexer(2, scale=float("-inf")), "scale=-inf"),
        (lambda: Indexer(2, weights=torch.ones(2, 3, 9, device="meta")).select(*made()[:2]), "on one device.*on meta"),
        (lambda: Indexer(2, weights=torch.ones(2, 3, 9, dtype=torch.cfloat)).select(*made()[:2]), "real.*complex64"),
        (lambda: Indexer(2).select(*made()[:1], torch.randn(2, 2, 9, 5)), r"one key a token|k \(2, 2, 9, 5\)"),
        (lambda: Indexer(2, weights=torch.ones(2, 3, 9)).select(*made()[:2]), r"weights \(2, 3, 9\)"),
        (lambda: Indexer(2).select(*made()[:2], mask=per_head([causal(), causal()])), "heads"),
        (lambda: Indexer(2).select(*made(4)[:2], mask=causal()), "q_offset"),
        (lambda: Indexer(2).divergence(*made()[:2], make_problem(*[torch.randn(2, 3, 8, 4)] * 3)), "8 queries"),
    ],
)
@pytest.mark.usefixtures("unhooked")
def test_what_does_not_fit_is_refused(use, told):
    with pytest.raises(MultiheadError, match=f"(?s){told}"):
        use()
