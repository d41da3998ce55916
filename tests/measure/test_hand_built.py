"""Heads built by hand, whose statistics are known without computing them."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from measure.calls import take
from multihead.attend import Entmax, Sigmoid, Softmax, Sparsemax, make_problem
from multihead.hooks import Call, Projection, Site, Tokens
from multihead.pattern import causal

LENGTH = 40


def head(scores, *, mask=None, value=None, weight=None, ids=None, **given):
    """One head with these scores (queries, keys): keys are unit vectors, queries the rows."""
    q_len, kv_len = scores.shape
    k = torch.eye(kv_len)[None, None]
    v = torch.randn(1, 1, kv_len, 8) if value is None else value[None, None]
    problem = make_problem(scores[None, None].float(), k, v, scale=1.0, mask=mask, **given)
    allowed = torch.ones(q_len, kv_len, dtype=torch.bool) if mask is None else mask.mask(q_len, kv_len)[0, 0]
    weights = torch.softmax(scores.masked_fill(~allowed, -math.inf), -1)
    tokens = Tokens(ids=ids)
    return Call(
        site=Site(module="head"),
        problem=problem,
        output=(weights @ v[0, 0])[None, :, None],
        projection=Projection(weight=torch.randn(8, 8) if weight is None else weight),
        residual=None,
        queries=tokens,
        keys=tokens,
        kernel="test",
    )


def values(call, **options):
    got = take(call, **options)
    return {
        name: float(part[0].item() / part[1].item())
        for name, part in got.items()
        if not isinstance(part, str) and part[0].shape == (1, 1) and part[1].item()
    }


def looks_at(*distances):
    """Scores of a head that spreads evenly over some distances."""
    scores = torch.full((LENGTH, LENGTH), -200.0)
    for i in range(LENGTH):
        for d in distances:
            if 0 <= i - d < LENGTH:
                scores[i, i - d] = 0.0
    return scores


def test_a_uniform_head():
    call = head(torch.zeros(LENGTH, LENGTH))
    found = values(call)
    mean = call.problem.v[0, 0].mean(0)
    assert found["entropy"] == pytest.approx(math.log(LENGTH), abs=1e-6)
    assert found["entropy_share"] == pytest.approx(1, abs=1e-6)
    assert found["participation"] == pytest.approx(LENGTH, rel=1e-5)
    assert found["max_weight"] == found["first_token"] == pytest.approx(1 / LENGTH, rel=1e-6)
    assert found["distance"] == pytest.approx(0, abs=1e-5)
    assert found["received_top"] == pytest.approx(1 / LENGTH, rel=1e-5)
    assert found["output_norm"] == pytest.approx(float((call.projection.weight @ mean).norm()), rel=1e-5)
    assert found["output_ratio"] == 1
    # The first of equals is the first key: before the second token, and the first token itself.
    assert found["previous_argmax"] == pytest.approx(1 / (LENGTH - 1))
    assert found["self_argmax"] == pytest.approx(1 / LENGTH)
    assert found["next_argmax"] == 0


def test_the_first_of_equals_is_the_first_key_in_long_rows_too():
    scores = torch.full((300, 300), -200.0)
    scores[:, [1, 299]] = 0.0
    found = values(head(scores))
    assert found["previous_argmax"] == pytest.approx(1 / 299), "query 2 has its largest weight on key 1"
    assert found["participation"] == pytest.approx(2)


def test_a_head_that_looks_at_the_token_before():
    call = head(looks_at(1), mask=causal())
    found, offsets = values(call), take(call)["offsets"]
    for name in ("previous", "previous_argmax", "max_weight", "participation", "distance", "distance_absolute"):
        assert found[name] == pytest.approx(1, abs=1e-6), name
    assert found["entropy"] == found["self_argmax"] == 0
    assert found["rows_short"] == pytest.approx(1 / LENGTH)
    share = offsets[0][0, 0] / offsets[1][0, 0]
    assert share[16 + 1] == pytest.approx(1)
    assert share.sum() == pytest.approx(1)
    assert "next" not in found, "a causal head never sees the token after: no row stands behind the value"


def test_a_head_that_looks_two_ahead_and_three_back():
    found = take(head(looks_at(-2, 3)))
    share = found["offsets"][0][0, 0] / found["offsets"][1][0, 0]
    bins = found["distance_histogram"][0][0, 0] / found["distance_histogram"][1][0, 0]
    alone = (2 + 3) / LENGTH  # rows near the ends see one of the two
    assert share[16 - 2] == pytest.approx((1 - alone) / 2 + 3 / LENGTH)
    assert share[16 + 3] == pytest.approx((1 - alone) / 2 + 2 / LENGTH)
    assert bins[15 - 2] == pytest.approx(share[14])
    assert bins[15 + 2] == pytest.approx(share[19])


def test_a_head_that_rests_on_a_first_token_of_no_value():
    scores = torch.full((LENGTH, LENGTH), -200.0)
    scores[:, 0] = 5.0
    value = torch.randn(LENGTH, 8)
    value[0] = 0
    found = values(head(scores, value=value))
    for name in ("first_token", "received_top", "max_weight"):
        assert found[name] == pytest.approx(1)
    assert found["output_norm"] == pytest.approx(0, abs=1e-6)
    assert found["logit_max"] == pytest.approx(5.0 / LENGTH), "counted once, not once a row"


def test_an_induction_head_adds_the_weights_of_all_copies():
    period, copies = 10, 4
    ids = torch.arange(period).repeat(copies)[None]
    scores = looks_at(period - 1, 2 * period - 1, 3 * period - 1)
    scores[:, 0] = -200.0  # the first token follows nothing
    found = values(head(scores, mask=causal(), ids=ids))
    assert found["induction"] == pytest.approx(1, abs=1e-6)
    assert found["same_token"] == pytest.approx(0, abs=1e-6)
    found = values(head(looks_at(period, 2 * period, 3 * period), mask=causal(), ids=ids))
    assert found["same_token"] == pytest.approx(1, abs=1e-6)
    assert found["induction"] == pytest.approx(0, abs=1e-6)


def test_both_heads_of_a_pair_of_duplicates_get_the_same_and_half_a_sum_each():
    one = head(torch.randn(LENGTH, LENGTH))
    problem = one.problem
    twice = make_problem(*(t.expand(-1, 2, -1, -1) for t in (problem.q, problem.k, problem.v)), scale=1.0)
    call = Call(
        site=one.site,
        problem=twice,
        output=one.output.expand(-1, -1, 2, -1),
        projection=Projection(weight=one.projection.weight.repeat(1, 2)),
        residual=None,
        queries=one.queries,
        keys=one.keys,
        kernel="test",
    )
    alone, together = take(one), take(call)
    for name, part in together.items():
        if not isinstance(part, str):
            for got, want in zip(part, alone[name], strict=True):
                np.testing.assert_allclose(got[:, 0], got[:, 1], rtol=1e-12, err_msg=name)
                of_one = got[:, :1, :1] if name in ("similarity", "similarity_content", "cka") else got[:, :1]
                np.testing.assert_allclose(of_one, want, rtol=1e-5, atol=1e-6, err_msg=name)


def test_a_sink_counts_as_one_more_key_and_is_no_key():
    call = head(torch.zeros(LENGTH, LENGTH), normaliser=Softmax(sinks=torch.tensor([math.log(LENGTH)])))
    found = values(call)
    assert found["sink_mass"] == pytest.approx(0.5)
    assert found["first_token"] == pytest.approx(0.5 / LENGTH)
    half = 0.5 * math.log(2) + 0.5 * math.log(2 * LENGTH)
    assert found["entropy"] == pytest.approx(half, rel=1e-5)
    assert found["entropy_share"] == pytest.approx(half / math.log(LENGTH + 1), rel=1e-5)
    assert found["participation"] == pytest.approx(1 / (0.25 + LENGTH * (0.5 / LENGTH) ** 2), rel=1e-5)


@pytest.mark.parametrize("normaliser", [Sparsemax(), Entmax(1.5)])
def test_sparse_weights(normaliser):
    found = values(head(looks_at(1, 0), mask=causal(), normaliser=normaliser))
    assert found["participation"] == pytest.approx(2, rel=1e-4)
    assert found["entropy"] == pytest.approx(math.log(2), rel=1e-4)
    assert found["sink_mass"] == 0


def test_weights_that_do_not_add_up_are_taken_as_they_are():
    found = values(head(torch.zeros(LENGTH, LENGTH), normaliser=Sigmoid()))
    assert found["max_weight"] == found["first_token"] == pytest.approx(0.5)
    assert found["entropy"] == pytest.approx(LENGTH * 0.5 * math.log(2), rel=1e-5)
    assert found["participation"] == pytest.approx(LENGTH, rel=1e-5)


def test_a_head_that_rests_and_looks_at_the_token_before_is_seen_through_its_rest():
    scores = looks_at(1)
    scores[:, 0] = 7.0  # the sink takes nearly all
    found = values(head(scores, mask=causal()))
    share = 1 / (1 + math.exp(7))
    assert found["previous"] < 0.03 < found["sink"]
    assert found["sink_argmax"] == 1
    # The second token's token before is the sink: it has none outside of it.
    assert found["previous_content"] == pytest.approx(1, rel=1e-5)
    assert [found["distance_content"], found["span90_content"]] == pytest.approx([1, 1], rel=1e-5)
    assert found["entropy_content"] == pytest.approx(0, abs=1e-5)
    assert found["previous2_content"] == pytest.approx(0, abs=1e-6)
    # Row i sees i + 1 keys; the second row's token before is the sink itself.
    assert found["previous"] == pytest.approx((1 + (LENGTH - 2) * share) / (LENGTH - 1), rel=1e-4)
    want = sum(1 / (i + 1) for i in range(1, LENGTH)) / (LENGTH - 1)
    assert [found["previous_even"], found["sink_even"]] == pytest.approx([want, want], rel=1e-5)


def test_content_keeps_its_digits_where_the_sink_takes_all_but_nothing():
    rest = torch.randn(LENGTH, LENGTH)
    scores = rest - 25.0
    scores[:, 0] = 5.0
    found = values(head(scores))
    alone = rest.clone()
    alone[:, 0] = -200.0
    weights = torch.softmax(alone.double(), -1)
    # All rows keep as little as exp(-30) or so, in the ratio of their sums of exponentials.
    left = torch.logsumexp(rest[:, 1:].double(), -1).exp()
    entropy = -torch.xlogy(weights, weights).sum(-1)
    assert found["entropy_content"] == pytest.approx(float((entropy * left).sum() / left.sum()), rel=1e-4)
    back = sum(float(weights[i, i - 1] * left[i]) for i in range(2, LENGTH)) / float(left[2:].sum())
    assert found["previous_content"] == pytest.approx(back, rel=1e-4)
    assert found["sink"] == pytest.approx(1)


def test_the_distance_that_holds_90_percent():
    assert values(head(looks_at(5), mask=causal()))["span90"] == pytest.approx(
        (5 * (LENGTH - 5) + 10) / (LENGTH - 1), abs=3
    )
    spread = values(head(torch.zeros(LENGTH, LENGTH), mask=None))["span90"]
    assert 0.5 * LENGTH < spread < LENGTH
    scores = torch.full((200, 200), -200.0)
    for i in range(200):
        scores[i, max(i - 100, 0)] = 0.0
    call = head(scores, mask=causal())
    far = range(1, 200)
    # Distance 100 lies in the octave 64 to 127, of which 90 % are needed; nearer ones are told by their own octave.
    want = sum(within(min(i, 100)) for i in far) / len(far)
    assert values(call)["span90"] == pytest.approx(want, rel=1e-3)


def within(distance):
    """Where a row reaches that has all its weight at one distance."""
    if distance < 16:
        return distance
    low = 2 ** int(math.log2(distance))
    return low + (low - 1) * 0.9


def test_alike_heads_and_strangers():
    scores = torch.stack([looks_at(1), looks_at(1), looks_at(3)])
    q_len = LENGTH
    k = torch.eye(q_len)[None, None].expand(1, 3, -1, -1)
    problem = make_problem(scores[None], k, torch.randn(1, 3, q_len, 8), scale=1.0, mask=None)
    out = torch.randn(1, q_len, 3, 8)
    turn = torch.linalg.qr(torch.randn(8, 8)).Q
    out[:, :, 1] = 3 * out[:, :, 0] @ turn + torch.randn(8)
    call = Call(
        site=Site(module="head"),
        problem=problem,
        output=out,
        projection=Projection(weight=torch.randn(8, 24)),
        residual=None,
        queries=Tokens(),
        keys=Tokens(),
        kernel="test",
    )
    got = take(call)
    alike = got["similarity"][0][0] / got["similarity"][1][0]
    np.testing.assert_allclose(np.diag(alike), 1, rtol=1e-5)
    np.testing.assert_allclose(alike[0, 1], 1, rtol=1e-5)
    assert alike[0, 2] < 0.1
    sums = got["cka"][0][0]
    cosine = sums / np.sqrt(np.outer(np.diag(sums), np.diag(sums)))
    np.testing.assert_allclose(cosine[0, 1], 1, rtol=1e-3)
    assert abs(cosine[0, 2]) < 0.6, "outputs drawn apart"


def test_effective_rank_counts_directions():
    rank = 3
    call = head(torch.randn(200, 200))
    basis = torch.linalg.qr(torch.randn(200, rank)).Q @ torch.linalg.qr(torch.randn(8, rank)).Q.T
    found = values(dataclasses.replace(call, output=basis[None, :, None]))
    assert found["effective_rank"] == pytest.approx(rank, rel=1e-3)
    nothing = take(dataclasses.replace(call, output=torch.zeros_like(call.output)))
    assert nothing["effective_rank"][1].max() == 0, "a head that puts out nothing has no rank"
