"""What every selector keeps to, and each against its definition written out one by one."""

import itertools

import pytest
import torch

from multihead.attend import attention
from multihead.attend.selector import Chosen, Pages, Selector, TopBlocks, TopKeys, asked, blocks, keys
from multihead.error import MultiheadError
from multihead.pattern import causal, chunk, document, everything, padding
from multihead.testing import check_backend

LENGTH, BLOCK, HUGE = 44, 8, 1e30
COUNT = -(-LENGTH // BLOCK)

# How each is built for a budget, the budget that is as good as all, and the first query it chooses for.
SELECTORS = {
    "TopBlocks": (lambda budget: TopBlocks(BLOCK, budget), COUNT, 0),
    "TopKeys": (TopKeys, LENGTH, 0),
    "Pages": (lambda budget: Pages(BLOCK, budget), COUNT, LENGTH - 1),
}
every = pytest.mark.parametrize("name", SELECTORS)


def inputs(first, *, heads=4, kv_heads=2, batch=2, width=8):
    """Queries from a position on, keys and values."""
    q = torch.randn(batch, heads, LENGTH - first, width, dtype=torch.float64)
    return q, *torch.randn(2, batch, kv_heads, LENGTH, width, dtype=torch.float64)


def table(pattern, first, shape):
    """A pattern as truth values of all batch rows and heads."""
    return pattern.mask(LENGTH - first, LENGTH, q_offset=first).expand(*shape, -1, -1)


def masks():
    """Masks that cut blocks at any place, differ by batch row, or hide a whole text."""
    keep = torch.rand(2, LENGTH) < 0.7
    keep[:, : torch.randint(1, 20, ())] = False
    ids = (torch.rand(2, LENGTH) < 0.1).cumsum(1)
    packed = causal() & padding(keep) & document(ids)
    return (None, causal(), causal() & padding(keep), packed, torch.rand(2, 1, LENGTH, LENGTH) < 0.3)


def rows(mask, first):
    """The same mask for the queries from a position on."""
    return mask[:, :, first:] if isinstance(mask, torch.Tensor) else mask


def allowed(mask, first):
    """A mask as truth values (batch, 1, q_len, kv_len)."""
    if mask is None:
        return torch.ones(2, 1, LENGTH - first, LENGTH, dtype=torch.bool)
    made = mask if isinstance(mask, torch.Tensor) else mask.mask(LENGTH - first, LENGTH, q_offset=first)
    return made.expand(2, 1, -1, -1)


def mean_score(q, visible):
    return float((visible @ q).mean())


def bound(q, visible):
    told = float(torch.maximum(q * visible.amin(0), q * visible.amax(0)).sum())
    assert told >= float((visible @ q).max()) - 1e-12
    return told


def slow_blocks(q, k, seen, budget, first, score):
    """Blocks chosen one query at a time: the own one, then those that score highest by the keys that are seen."""
    out = torch.zeros(*q.shape[:3], LENGTH, dtype=torch.bool)
    for b, h, i in itertools.product(*map(range, q.shape[:3])):
        own, scores = (first + i) // BLOCK, {}
        for block in range(COUNT):
            places = [j for j in range(block * BLOCK, min(block * BLOCK + BLOCK, LENGTH)) if seen[b, 0, i, j]]
            if block == own:
                scores[block] = float("inf")
            elif places:
                scores[block] = score(q[b, h, i], k[b, h // 2, places])
        for block in sorted(scores, key=lambda one: -scores[one])[:budget]:
            out[b, h, i, block * BLOCK : block * BLOCK + BLOCK] = True
    return out


@pytest.mark.parametrize("index", range(5))
def test_blocks_are_ranked_by_the_mean_of_what_is_seen(index):
    mask, (q, k, _) = masks()[index], inputs(0)
    q = q[:, :, ::3] if mask is None else q
    if mask is None:  # a few queries at other places
        chosen = TopBlocks(BLOCK, 3).select(q, k, q_offset=7).mask(q.shape[2], LENGTH, q_offset=7)
        assert torch.equal(chosen, slow_blocks(q, k, torch.ones(2, 1, q.shape[2], LENGTH), 3, 7, mean_score))
        return
    chosen = TopBlocks(BLOCK, 3).select(q, k, mask=mask)
    assert torch.equal(table(chosen, 0, (2, 4)), slow_blocks(q, k, allowed(mask, 0), 3, 0, mean_score))


@pytest.mark.parametrize("index", range(5))
def test_pages_are_ranked_by_a_bound_of_their_scores(index):
    first = LENGTH - 1
    mask, (q, k, _) = rows(masks()[index], first), inputs(first)
    chosen = Pages(BLOCK, 3).select(q, k, mask=mask, q_offset=first)
    assert torch.equal(table(chosen, first, (2, 4)), slow_blocks(q, k, allowed(mask, first), 3, first, bound))


def test_pages_leave_a_prompt_alone():
    q, k, _ = inputs(0)
    assert Pages(BLOCK, 2).select(q, k, mask=causal()) == everything()


@pytest.mark.parametrize("index", range(5))
def test_keys_are_ranked_by_their_scores(index):
    mask, (q, k, _) = masks()[index], inputs(0)
    chosen, seen = table(TopKeys(5).select(q, k, mask=mask), 0, (2, 4)), allowed(mask, 0)
    for b, h, i in itertools.product(*map(range, q.shape[:3])):
        scores = {j: float(q[b, h, i] @ k[b, h // 2, j]) for j in range(LENGTH) if seen[b, 0, i, j]}
        want = sorted(scores, key=lambda j: -scores[j])[:5]
        assert chosen[b, h, i].nonzero()[:, 0].tolist() == sorted(want)


def test_of_equal_scores_the_first_keys_are_taken():
    q, k, _ = inputs(0)
    chosen = TopKeys(5).select(torch.zeros_like(q), k, mask=causal()).mask(LENGTH, LENGTH)
    want = (torch.arange(LENGTH) < 5) & causal().mask(LENGTH, LENGTH)
    assert torch.equal(chosen, want.expand_as(chosen))
    assert asked.best(torch.tensor([[1.0, 2.0, 1.0, 1.0, 0.0]]), 2).tolist() == [[True, True, False, False, False]]
    assert asked.best(torch.tensor([[float("nan"), 2.0, 3.0]]), 1).tolist() == [[True, False, False]]
    nothing = torch.full((1, 3), -torch.inf)
    assert not asked.best(nothing, 1).any()
    assert not asked.best(nothing, 3).any()


@every
@pytest.mark.parametrize("index", range(5))
def test_a_budget_for_all_is_dense(name, index):
    build, most, first = SELECTORS[name]
    mask, (q, k, v) = rows(masks()[index], first), inputs(first)
    for budget in (most, 3 * most):
        chosen = build(budget).select(q, k, mask=mask, q_offset=first)
        narrowed = table(chosen, first, (2, 4)) & allowed(mask, first)
        assert torch.equal(narrowed, allowed(mask, first).expand_as(narrowed))
        want = attention(q, k, v, mask=mask, q_offset=first)
        assert torch.equal(
            attention(q, k, v, mask=narrowed, backend="reference"),
            attention(q, k, v, mask=allowed(mask, first), backend="reference"),
        )
        if not isinstance(mask, torch.Tensor):
            got = attention(q, k, v, mask=chosen if mask is None else mask & chosen, q_offset=first)
            torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


def test_one_block_is_chunked_causal_attention():
    q, k, v = inputs(0)
    got = attention(q, k, v, mask=causal() & TopBlocks(BLOCK, 1).select(q, k, mask=causal()))
    torch.testing.assert_close(got, attention(q, k, v, mask=causal() & chunk(BLOCK)), rtol=1e-12, atol=1e-12)


@every
def test_garbage_in_what_was_not_chosen_changes_nothing(name):
    build, _, first = SELECTORS[name]
    q, k, v = inputs(first)
    # Only keys that no query of the head's group reads can be spoilt.
    chosen = build(2).select(q[:, :, -1:], k, mask=causal(), q_offset=LENGTH - 1)
    want = attention(q[:, :, -1:], k, v, mask=causal() & chosen, q_offset=LENGTH - 1)
    read = chosen.mask(1, LENGTH, q_offset=LENGTH - 1).unflatten(1, (2, 2)).any(2)[:, :, 0, :, None]
    spoilt = [torch.where(read, x, HUGE) for x in (k, v)]
    assert torch.equal(attention(q[:, :, -1:], *spoilt, mask=causal() & chosen, q_offset=LENGTH - 1), want)


@every
def test_what_is_hidden_has_no_part_in_the_choice(name):
    build, _, first = SELECTORS[name]
    q, k, v = inputs(first)
    keep = torch.rand(2, LENGTH) < 0.6
    mask = causal() & padding(keep)
    spoilt = [torch.where(keep[:, None, :, None], x, HUGE) for x in (k, v)]
    outs = []
    for keys_, values in ((k, v), spoilt):
        chosen = build(2).select(q, keys_, mask=mask, q_offset=first)
        outs.append(attention(q, keys_, values, mask=mask & chosen, q_offset=first))
    assert torch.equal(*outs)


@pytest.mark.parametrize("name", ["TopBlocks", "TopKeys"])
def test_the_future_moves_no_bit(name):
    build, _, _ = SELECTORS[name]
    now, (q, k, v) = 29, inputs(0)
    before = build(2).select(q, k, mask=causal())
    ahead = [torch.where(torch.arange(LENGTH)[:, None] > now, HUGE, x) for x in (q, k, v)]
    after = build(2).select(*ahead[:2], mask=causal())
    assert torch.equal(before.mask(LENGTH, LENGTH)[:, :, : now + 1], after.mask(LENGTH, LENGTH)[:, :, : now + 1])
    outs = [attention(*x, mask=causal() & c)[:, :, : now + 1] for x, c in (((q, k, v), before), (ahead, after))]
    assert torch.equal(*outs)


@every
def test_batch_mates_do_not_matter(name):
    build, _, first = SELECTORS[name]
    q, k, v = inputs(first)
    others = [torch.cat([x[:1], torch.full_like(x[1:], HUGE)]) for x in (q, k, v)]
    outs = []
    for x in ((q, k, v), others):
        chosen = build(2).select(*x[:2], mask=causal(), q_offset=first)
        outs.append(attention(*x, mask=causal() & chosen, q_offset=first)[0])
    assert torch.equal(*outs)


@every
def test_recall_of_the_true_mass_rises_with_the_budget(name):
    build, most, first = SELECTORS[name]
    q, k, _ = inputs(first)
    weights = (q @ k.repeat_interleave(2, 1).mT).masked_fill(~allowed(causal(), first), -torch.inf).softmax(-1)
    found = []
    for budget in range(1, most + 1):
        chosen = table(build(budget).select(q, k, mask=causal(), q_offset=first), first, (2, 4))
        found.append(float((weights * chosen).sum(-1).mean()))
    assert found == sorted(found)
    assert found[0] < found[-1]
    assert found[-1] == pytest.approx(1)


@every
@pytest.mark.parametrize("backend", ["native", "sdpa", "tiled", "reference"])
def test_sparse_is_dense_with_what_was_chosen_on_every_backend(name, backend):
    build, _, first = SELECTORS[name]
    q, k, v = (x.float() for x in inputs(first))
    chosen = build(2).select(q, k, mask=causal(), q_offset=first)
    want = attention(q, k, v, mask=(causal() & chosen).mask(q.shape[2], LENGTH, q_offset=first), backend="reference")
    got = attention(q, k, v, mask=causal() & chosen, q_offset=first, backend=backend)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


@every
def test_what_was_found_out_is_kept(name):
    build, _, _ = SELECTORS[name]
    q, k, _ = inputs(0)
    kept, last = None, None
    for length in (1, 2, 7, 8, 9, 20, 21, 40, LENGTH):
        at = length - 1
        got, kept = build(2).select_on(q[:, :, at:length], k[:, :, :length], kept, mask=causal(), q_offset=at)
        afresh = build(2).select(q[:, :, at:length], k[:, :, :length], mask=causal(), q_offset=at)
        assert got == afresh
        last = kept
    if name != "TopKeys":
        assert last.length == LENGTH
        # What is kept is really used: another number in it is another choice.
        wrong = blocks.Summary(tuple(torch.randn_like(part) for part in last.parts), LENGTH)
        found = [build(2).select_on(q[:, :, -1:], k, x, mask=causal(), q_offset=at)[0] for x in (last, wrong)]
        assert found[0] != found[1]


@every
def test_a_choice_has_no_gradient(name):
    build, _, first = SELECTORS[name]
    q, k, v = (x.requires_grad_() for x in inputs(first))
    chosen = build(2).select(q, k, mask=causal(), q_offset=first)
    assert not any(held.requires_grad for held in chosen.data.values())
    attention(q, k, v, mask=causal() & chosen, q_offset=first).sum().backward()
    read = table(chosen, first, (2, 4)).any(2).unflatten(1, (2, 2)).any(2)[..., None]
    assert v.grad.masked_fill(read, 0).abs().max() == 0
    assert v.grad.abs().max() > 0


def test_scores_are_made_some_at_a_time(monkeypatch):
    sizes, real = [], keys.best

    def told(scores, budget):
        sizes.append(scores.numel())
        return real(scores, budget)

    monkeypatch.setattr(keys, "best", told)
    q = torch.randn(1, 2, 1500, 4)
    TopKeys(1600).select(q, q, mask=causal())
    assert max(sizes) <= 2**21
    assert sum(sizes) > 2**21


def test_bands_of_queries_are_put_together(monkeypatch):
    q, k, _ = inputs(0)
    want = [s.select(q, k, mask=causal()) for s in (TopBlocks(BLOCK, 2), TopKeys(3))]
    monkeypatch.setattr(asked, "_AT_ONCE", 100)
    monkeypatch.setattr(blocks, "_AT_ONCE", 1)
    assert [s.select(q, k, mask=causal()) for s in (TopBlocks(BLOCK, 2), TopKeys(3))] == want


def test_all_are_selectors():
    assert all(isinstance(build(1), Selector) for build, _, _ in SELECTORS.values())
    assert isinstance(TopKeys(1).select(*inputs(0)[:2]), Chosen)
    assert TopBlocks(8, 2) == TopBlocks(8, 2)


@pytest.mark.parametrize(
    "build",
    [TopKeys, lambda n: TopBlocks(n, 1), lambda n: TopBlocks(8, n), lambda n: Pages(n, 1), lambda n: Pages(8, n)],
)
@pytest.mark.parametrize("number", [0, -1, 2.5, True, None])
def test_a_budget_of_nothing_is_refused(build, number, unhooked):
    with pytest.raises(MultiheadError, match="a whole number of at least 1"):
        build(number)


def test_inputs_that_do_not_fit_are_refused(unhooked):
    q, k, _ = inputs(0)
    for selector in (TopKeys(2), TopBlocks(8, 2), Pages(8, 2)):
        with pytest.raises(MultiheadError, match="four dimensions"):
            selector.select(q[0], k)
        with pytest.raises(MultiheadError, match="one head_dim"):
            selector.select(q, k[..., :3])
        with pytest.raises(MultiheadError, match="a pattern or a boolean tensor"):
            selector.select(q, k, mask="causal")
    for selector in (TopBlocks(8, 2), Pages(8, 2)):
        with pytest.raises(MultiheadError, match=r"pass q_offset=0"):
            selector.select(q[:, :, -1:], k)


def test_a_large_choice_runs_on_the_kernel():
    q = torch.randn(1, 2, 640, 8)
    chosen = TopBlocks(64, 3).select(q, q, mask=causal())
    problem_mask = causal() & chosen
    check_backend("native", problems=[asked.make_problem(q, q, q, mask=problem_mask)])
