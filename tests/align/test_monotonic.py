"""Monotonic alignment, against all walks there are."""

import itertools
import math

import pytest
import torch

from align.by_hand import additive_by_hand, build, softmax_by_hand, source, states
from multihead.align import Chunk, Monotonic, Walk


def stops_by_hand(aligner, queries, values):
    """p (batch, q_len, memory_len) as floats."""
    return [
        [
            [1 / (1 + math.exp(-additive_by_hand(aligner.score, query.tolist(), entry.tolist()))) for entry in entries]
            for query in sequence
        ]
        for sequence, entries in zip(queries, values, strict=True)
    ]


def all_walks(p):
    """Probability of stopping at each entry at each step, by adding up every walk that never looks back."""
    steps, length = len(p), len(p[0])
    told = torch.zeros(steps, length, dtype=torch.float64)
    for path in itertools.product(range(length + 1), repeat=steps):  # `length`: ran off the end
        chance, before = 1.0, 0
        for i, stop in enumerate(path):
            if stop < before:
                chance = 0.0
                break
            for j in range(before, min(stop, length)):
                chance *= 1 - p[i][j]
            if stop < length:
                chance *= p[i][stop]
            before = stop
        for i, stop in enumerate(path):
            if stop < length:
                told[i, stop] += chance
    return told


def test_expected_weights_are_the_sum_over_all_walks():
    aligner = build("monotonic")
    values, queries = source(aligner, length=5), states(aligner, length=3)
    told = aligner(queries, aligner.remember(values))
    for b, p in enumerate(stops_by_hand(aligner, queries, values)):
        torch.testing.assert_close(told.weights[b], all_walks(p), rtol=0, atol=1e-15)
        torch.testing.assert_close(told.context[b], all_walks(p) @ values[b], rtol=0, atol=1e-14)
    sums = told.weights.sum(-1)
    assert bool((sums < 1).all())
    assert bool((sums.diff(dim=1) <= 1e-15).all())


def test_expected_weights_are_the_closed_form():
    aligner = build("monotonic")
    values, queries = source(aligner, length=9), states(aligner, length=6)
    told = aligner(queries, aligner.remember(values)).weights
    p = torch.tensor(stops_by_hand(aligner, queries, values), dtype=torch.float64)
    before = torch.eye(9, dtype=torch.float64)[:1].expand(2, -1)
    for i in range(6):
        c = torch.cat([torch.ones(2, 1, dtype=torch.float64), (1 - p[:, i, :-1]).cumprod(-1)], -1)
        before = p[:, i] * c * (before / c).cumsum(-1)
        torch.testing.assert_close(told[:, i], before, rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize("energy", [-800.0, 800.0])
def test_where_the_closed_form_divides_by_nothing_the_weights_stay_exact(energy):
    aligner = Monotonic(3, 5, 4, form="expected", offset=energy)
    queries, values = torch.randn(1, 3, 3), torch.randn(1, 300, 5)
    told = aligner(queries, aligner.remember(values))
    expected = torch.zeros(1, 3, 300)
    if energy > 0:
        expected[..., 0] = 1
    torch.testing.assert_close(told.weights, expected)
    told.weights.square().sum().backward()
    assert all(bool(p.grad.isfinite().all()) for p in aligner.parameters())


def test_a_long_memory_in_float32_keeps_its_digits():
    aligner = build("monotonic")
    values, queries = source(aligner, length=2000), states(aligner, length=5)
    exact = aligner(queries, aligner.remember(values)).weights
    aligner.float()
    told = aligner(queries.float(), aligner.remember(values.float())).weights
    seen = exact > 1e-30
    assert ((told.double() / exact - 1).abs()[seen]).max() < 2e-3
    assert (told.double() - exact).abs().max() < 1e-5


def hard_by_hand(stops):
    """The decoder of the paper: walk on from where it stopped until it stops; who ran off the end is gone."""
    told, at = torch.zeros(len(stops), len(stops[0]), dtype=torch.float64), 0
    for i, row in enumerate(stops):
        at = next((j for j in range(at, len(row)) if row[j]), len(row))
        if at < len(row):
            told[i, at] = 1
    return told


def test_hard_weights_are_the_decoder():
    aligner = build("hard")
    values, queries = source(aligner, length=8), states(aligner, length=5)
    told = aligner(queries, aligner.remember(values))
    for b, p in enumerate(stops_by_hand(aligner, queries, values)):
        expected = hard_by_hand([[x > 0.5 for x in row] for row in p])
        assert torch.equal(told.weights[b], expected)
        torch.testing.assert_close(told.context[b], expected @ values[b])


def test_expected_weights_of_certain_stops_are_the_hard_ones():
    soft = build("monotonic")
    with torch.no_grad():
        soft.score.gain.mul_(1e6)
        soft.score.offset.mul_(1e6)
    hard = Monotonic(3, 5, 4, form="hard").double()
    hard.load_state_dict(soft.state_dict())
    values, queries = source(soft, length=8), states(soft, length=6)
    torch.testing.assert_close(
        soft(queries, soft.remember(values)).weights, hard(queries, hard.remember(values)).weights, rtol=0, atol=1e-12
    )


def test_it_never_looks_back():
    aligner = build("hard")
    weights = aligner(states(aligner, length=9), aligner.remember(source(aligner, length=20))).weights
    for row in weights:
        stops = [int(step.argmax()) if step.any() else 20 for step in row]
        assert stops == sorted(stops)


def test_training_expects_with_noise_and_evaluation_decides():
    aligner = Monotonic(3, 5, 4)
    memory, queries = aligner.remember(torch.randn(2, 6, 5)), torch.randn(2, 4, 3)
    first, second = aligner(queries, memory), aligner(queries, memory)
    assert not torch.equal(first.weights, second.weights)
    assert first.state.hard is False
    aligner.eval()
    decided = aligner(queries, memory)
    assert set(decided.weights.flatten().tolist()) <= {0.0, 1.0}
    assert decided.state.hard is True
    assert not decided.weights.requires_grad
    quiet = Monotonic(3, 5, 4, noise=0.0)
    assert torch.equal(
        quiet(queries, quiet.remember(memory.values)).weights, quiet(queries, quiet.remember(memory.values)).weights
    )


def test_noise_is_added_before_the_sigmoid():
    aligner = Monotonic(3, 5, 4, noise=3.0).double()
    torch.nn.init.zeros_(aligner.score.gain)
    torch.nn.init.zeros_(aligner.score.offset)
    # With no score at all the first entry stops with probability sigmoid(noise).
    memory = aligner.remember(torch.zeros(4000, 1, 5, dtype=torch.float64))
    logits = aligner.step(torch.zeros(4000, 3, dtype=torch.float64), memory).weights.logit()
    assert abs(float(logits.detach().mean())) < 0.3
    assert 2.7 < float(logits.detach().std()) < 3.3


@torch.no_grad()
@pytest.mark.parametrize(("name", "width"), [("chunkwise", 2), ("hard-chunkwise", 3)])
def test_chunks_share_out_where_the_walk_stands(name, width):
    aligner = build(name)
    plain = Monotonic(3, 5, 4, form=aligner.form, noise=0.0).double()
    plain.load_state_dict(aligner.state_dict(), strict=False)
    values, queries = source(aligner), states(aligner)
    told = aligner(queries, aligner.remember(values))
    standing = plain(queries, plain.remember(values)).weights
    for b, i in itertools.product(range(2), range(4)):
        expected = torch.zeros(6, dtype=torch.float64)
        for k in range(6):
            chunk = range(max(0, k - width + 1), k + 1)
            scores = {
                j: additive_by_hand(aligner.chunk_score, queries[b, i].tolist(), values[b, j].tolist()) for j in chunk
            }
            for j, share in softmax_by_hand(scores).items():
                expected[j] += float(standing[b, i, k]) * share
        torch.testing.assert_close(told.weights[b, i], expected, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(told.state.standing, standing[:, -1])


def test_a_chunk_of_one_is_the_plain_walk():
    chunked = Monotonic(3, 5, 4, chunk=Chunk(1), form="expected").eval()
    plain = Monotonic(3, 5, 4, form="expected").eval()
    plain.load_state_dict(chunked.state_dict(), strict=False)
    values, queries = torch.randn(2, 6, 5), torch.randn(2, 4, 3)
    torch.testing.assert_close(
        chunked(queries, chunked.remember(values)).weights, plain(queries, plain.remember(values)).weights
    )


def test_what_ran_off_the_end_stays_away():
    aligner = build("hard")
    memory = aligner.remember(source(aligner))
    gone = Walk(standing=torch.zeros(2, 6, dtype=torch.float64), hard=True)
    told = aligner(states(aligner), memory, gone)
    assert not told.weights.any()
    assert not told.context.any()
