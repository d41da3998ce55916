"""Additive alignment and coverage, against the formula number by number."""

import pytest
import torch

from align.by_hand import additive_by_hand, build, softmax_by_hand, source, states, walk
from multihead.align import Bahdanau, Coverage
from multihead.align import score as score_file


@pytest.mark.parametrize("name", ["bahdanau", "normalised", "coverage"])
def test_steps_are_the_formula(name):
    aligner = build(name)
    values, queries = source(aligner), states(aligner)
    keep = torch.tensor([[True, True, False, True, True, False], [False, True, True, True, True, True]])
    contexts, weights, told = walk(aligner, queries, aligner.remember(values, keep))
    for b in range(2):
        covered = [0.0] * 6
        for i in range(4):
            scores = {
                j: additive_by_hand(aligner.score, queries[b, i].tolist(), values[b, j].tolist(), covered[j])
                for j in range(6)
                if keep[b, j]
            }
            share = softmax_by_hand(scores)
            expected = torch.tensor([share.get(j, 0.0) for j in range(6)], dtype=torch.float64)
            torch.testing.assert_close(weights[b, i], expected, rtol=1e-12, atol=1e-14)
            torch.testing.assert_close(contexts[b, i], expected @ values[b], rtol=1e-12, atol=1e-13)
            if name == "coverage":
                loss = sum(min(share.get(j, 0.0), covered[j]) for j in range(6))
                torch.testing.assert_close(told[i].loss[b].item(), loss, rtol=1e-12, atol=1e-14)
                covered = [c + share.get(j, 0.0) for j, c in enumerate(covered)]


@pytest.mark.parametrize("silent", ["query_proj", "memory_proj"])
def test_without_one_of_its_sides_it_sees_no_more_of_it(silent):
    aligner = build("bahdanau")
    torch.nn.init.zeros_(getattr(aligner.score, silent).weight)
    values = source(aligner)
    weights = aligner(states(aligner), aligner.remember(values)).weights
    if silent == "memory_proj":
        torch.testing.assert_close(weights, torch.full_like(weights, 1 / 6), rtol=0, atol=1e-15)
    else:
        torch.testing.assert_close(weights, weights[:, :1].expand_as(weights), rtol=0, atol=1e-15)
        assert (weights - 1 / 6).abs().max() > 1e-3


def test_coverage_sums_to_the_number_of_steps_and_its_loss_is_a_share():
    aligner = build("coverage")
    _, weights, told = walk(aligner, states(aligner, length=7), aligner.remember(source(aligner)))
    for i, state in enumerate(told, 1):
        torch.testing.assert_close(state.covered.sum(-1), torch.full((2,), float(i), dtype=torch.float64))
        torch.testing.assert_close(state.covered, weights[:, :i].sum(1))
        assert bool((state.loss >= 0).all())
        assert bool((state.loss <= 1 + 1e-12).all())
    assert bool((told[0].loss == 0).all())
    assert bool((told[-1].loss > 0).all())


def test_looking_at_one_entry_for_ever_costs_all_of_a_step():
    aligner = build("coverage")
    keep = torch.tensor([[False, True, False]] * 2)
    _, _, told = walk(aligner, states(aligner), aligner.remember(source(aligner, length=3), keep))
    assert [state.loss.tolist() for state in told] == [[0.0, 0.0]] + [[1.0, 1.0]] * 3


def test_coverage_without_weight_is_the_plain_aligner():
    plain, covering = build("bahdanau"), Bahdanau(3, 5, 4, coverage=Coverage(start=0.0)).double()
    missing = covering.load_state_dict(plain.state_dict(), strict=False)
    assert missing.missing_keys == ["score.coverage"]
    values, queries = source(plain), states(plain)
    torch.testing.assert_close(
        walk(covering, queries, covering.remember(values))[0], plain(queries, plain.remember(values)).context
    )


def test_the_loss_of_coverage_reaches_what_made_earlier_weights():
    aligner = build("coverage")
    # Of two steps: once all was looked at more than a step looks at it, the loss is 1, whatever the weights.
    queries = states(aligner, length=2).requires_grad_()
    _, _, told = walk(aligner, queries, aligner.remember(source(aligner)))
    told[-1].loss.sum().backward()
    assert bool((queries.grad.abs().amax((0, 2)) > 0).all())


def test_blocks_of_queries_are_the_whole_with_gradients(monkeypatch):
    aligner = build("normalised")
    values, queries = source(aligner), states(aligner, length=7)

    def told():
        given = values.clone().requires_grad_(), queries.clone().requires_grad_()
        context = aligner(given[1], aligner.remember(given[0])).context
        return context, torch.autograd.grad(context.square().sum(), (*given, *aligner.parameters()))

    whole = told()
    monkeypatch.setattr(score_file, "HELD", 3 * 2 * 6 * 4)
    blocks = told()
    torch.testing.assert_close(blocks, whole, rtol=1e-12, atol=1e-14)


def test_what_is_held_for_the_gradient_does_not_grow_with_queries_times_entries_times_hidden():
    aligner = Bahdanau(4, 4, 256)
    values, queries = torch.randn(1, 128, 4), torch.randn(1, 512, 4)
    held = {}

    def pack(tensor):
        held[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        aligner(queries, aligner.remember(values)).context.sum().backward()
    # tanh of all pairs: 64 MiB. What must be held: inputs of each block, scores and weights; 16 MiB once at most.
    assert 512 * 128 * 256 * 4 == 64 << 20
    assert max(held.values()) <= score_file.HELD * 4


def test_the_start_of_coverage_is_its_range():
    assert bool((Bahdanau(3, 5, 4, coverage=Coverage(start=0.0)).score.coverage == 0).all())
    covers = Bahdanau(3, 5, 64, coverage=Coverage(start=2.0)).score.coverage
    assert 64**-0.5 < float(covers.detach().abs().max()) <= 2 * 64**-0.5
