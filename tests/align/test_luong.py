"""Multiplicative alignment, everywhere and near a place."""

import math

import pytest
import torch

from align.by_hand import additive_by_hand, build, dot, numbers, softmax_by_hand, source, states, walk
from multihead.align import LocalMonotonic, LocalPredictive, Luong

KEEP = torch.tensor([[False, True, True, True, True, False], [True, True, True, True, True, True]])


def score_by_hand(name, aligner, query, entry):
    if name == "dot":
        return dot(query, entry)
    if name == "concat":
        return additive_by_hand(aligner.score, query, entry)
    weight = numbers(aligner.score)["memory_proj.weight"]
    return dot(query, [dot(row, entry) for row in weight])


def place_by_hand(aligner, query, count):
    rows, vector = aligner.place_proj.weight.tolist(), aligner.place_vector.tolist()
    logit = dot(vector, [math.tanh(dot(row, query)) for row in rows])
    return count / (1 + math.exp(-logit))


@pytest.mark.parametrize("name", ["dot", "general", "concat", "local-m", "local-p"])
def test_weights_are_the_formula(name):
    aligner = build(name)
    values, queries = source(aligner), states(aligner)
    told = aligner(queries, aligner.remember(values, KEEP))
    for b in range(2):
        real = [j for j in range(6) if KEEP[b, j]]
        for i in range(4):
            place, factor = {"local-m": float(i)}.get(name, 0.0), dict.fromkeys(real, 1.0)
            seen = dict(enumerate(real))
            if name == "local-p":
                place = place_by_hand(aligner, queries[b, i].tolist(), len(real))
                factor = {j: math.exp(-((n - place) ** 2) / (2 * 1.0**2)) for n, j in seen.items()}
            width = {"local-m": 1, "local-p": 2}.get(name, 100)
            scores = {
                j: score_by_hand(name, aligner, queries[b, i].tolist(), values[b, j].tolist())
                for n, j in seen.items()
                if abs(n - place) <= width
            }
            share = softmax_by_hand(scores)
            expected = torch.tensor([share.get(j, 0.0) * factor.get(j, 0.0) for j in range(6)], dtype=torch.float64)
            torch.testing.assert_close(told.weights[b, i], expected, rtol=1e-11, atol=1e-14)
            torch.testing.assert_close(told.context[b, i], expected @ values[b], rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("local", [LocalMonotonic(10**6), LocalPredictive(10**6, sigma=1e12)])
def test_a_wide_window_is_the_whole_memory(local):
    near = Luong(3, 5, local=local).double()
    everywhere = Luong(3, 5).double()
    everywhere.load_state_dict(near.state_dict(), strict=False)
    values, queries = source(near), states(near)
    told = near(queries, near.remember(values)).weights
    torch.testing.assert_close(told, everywhere(queries, everywhere.remember(values)).weights, rtol=1e-10, atol=1e-14)


def test_a_step_behind_the_end_of_the_memory_sees_nothing():
    aligner = build("local-m")
    weights = aligner(states(aligner, length=8), aligner.remember(source(aligner, length=4))).weights
    assert (weights > 0).sum(-1).tolist() == [[2, 3, 3, 2, 1, 0, 0, 0]] * 2


@pytest.mark.parametrize("end", [0, 5])
def test_places_at_both_ends(end):
    aligner = build("local-p")
    # A query decides by the length of its projection where it looks: tanh is near 1, v_p does the rest.
    with torch.no_grad():
        aligner.place_proj.weight.copy_(torch.eye(3) * 40)
        logit = -700.0 if end == 0 else math.log(end / (6 - end))
        aligner.place_vector.copy_(torch.tensor([logit, 0.0, 0.0]))
    queries, memory = torch.ones(2, 1, 3, dtype=torch.float64), aligner.remember(source(aligner))
    torch.testing.assert_close(aligner.places(queries, memory), torch.full((2, 1), float(end), dtype=torch.float64))
    weights = aligner(queries, memory).weights[:, 0]
    seen = [j for j in range(6) if abs(j - end) < 2]
    assert bool((weights[:, seen] > 0).all())
    assert bool((weights[:, [j for j in range(6) if abs(j - end) > 2]] == 0).all())
    assert bool((weights.sum(-1) < 1).all())


def test_only_the_gaussian_tells_the_place_how_to_move():
    aligner = build("local-p")
    values, queries = source(aligner), states(aligner)
    memory = aligner.remember(values)
    mix = torch.randn(2, 4, 6, dtype=torch.float64)
    told = torch.autograd.grad((aligner(queries, memory).weights * mix).sum(), aligner.place_vector)[0]

    place = aligner.places(queries, memory)
    off = torch.arange(6) - place[..., None]
    sharp = (queries @ memory.keys[0].mT).masked_fill(off.abs() > 2, -math.inf).softmax(-1).detach()
    by_hand = torch.autograd.grad((sharp * torch.exp(-off.square() / 2) * mix).sum(), aligner.place_vector)[0]
    assert by_hand.abs().max() > 0
    torch.testing.assert_close(told, by_hand)


def test_without_a_gaussian_no_gradient_reaches_the_place():
    aligner = Luong(3, 5, local=LocalPredictive(2, sigma=1e200)).double()
    told = aligner(states(aligner), aligner.remember(source(aligner))).weights
    assert bool((torch.autograd.grad(told.square().sum(), aligner.place_vector)[0] == 0).all())


def test_steps_are_counted_from_where_a_state_left_off():
    aligner = build("local-m")
    memory, queries = aligner.remember(source(aligner)), states(aligner)
    whole, first = aligner(queries, memory), aligner(queries[:, :1], memory)
    rest = aligner(queries[:, 1:], memory, first.state)
    torch.testing.assert_close(torch.cat([first.weights, rest.weights], 1), whole.weights)
    assert rest.state.count.tolist() == whole.state.count.tolist() == [4, 4]
    assert walk(aligner, queries, memory)[2][-1].count.tolist() == [4, 4]
