"""What a scan refuses, before anything is computed, and the words it has for it."""

import pytest
import torch

from multihead.error import MultiheadError
from multihead.scan import DeltaState, Favor, LinearState, delta_rule, linear_attention, linear_attention_full

Q, K, V = torch.rand(2, 4, 6, 5), torch.rand(2, 2, 6, 5), torch.rand(2, 2, 6, 3)
BETA = torch.rand(2, 4, 6)
NAN = float("nan")


def linear(q=Q, k=K, v=V, **given):
    return linear_attention(q, k, v, **given)


def delta(beta=BETA, **given):
    return delta_rule(Q, K, V, beta, **given)


def state(*sizes, kind=LinearState, dtype=torch.float32, **more):
    return kind(memory=torch.zeros(*sizes, dtype=dtype), **more)


@pytest.mark.parametrize(
    ("use", "told"),
    [
        (lambda: linear(q=3), "q as a tensor"),
        (lambda: linear(q=Q[0]), r"q \(batch, heads, length, head_dim\).*q \(4, 6, 5\)"),
        (lambda: linear(k=K[:, :, :5], v=V[:, :, :5]), "linear_attention_full"),
        (lambda: linear(k=K[..., :4]), r"k \(2, 2, 6, 4\)"),
        (lambda: linear(v=V[:, :, :5]), r"v \(2, 2, 5, 3\)"),
        (lambda: linear(k=torch.rand(2, 3, 6, 5), v=torch.rand(2, 3, 6, 3)), "divide heads evenly"),
        (lambda: linear(k=K.double()), "one floating dtype.*float64"),
        (lambda: linear(q=Q.long(), k=K.long(), v=V.long()), "one floating dtype.*int64"),
        (lambda: linear(v=V.to("meta")), "on one device.*meta"),
        (lambda: linear_attention_full(Q, K[..., :4], V), "q .*head_dim"),
        (lambda: linear(log_decay=-1.0), "log_decay=-1.0"),
        (lambda: linear(log_decay=torch.zeros(3)), r"4 heads or 2 kv heads.*shape \(3,\)"),
        (lambda: linear(log_decay=torch.zeros(2, 4, 5)), r"length 6.*shape \(2, 4, 5\)"),
        (lambda: linear(log_decay=torch.zeros(2, 4, 6, 3)), r"shape \(2, 4, 6, 3\)"),
        (lambda: linear(log_decay=torch.tensor([0.0, 0.5])), "at most 0.*from 0 to 0.5.*logsigmoid"),
        (lambda: linear(log_decay=torch.tensor([0.0, NAN])), "NaN in 1 of 2"),
        (lambda: linear(log_decay=torch.tensor([0, -1])), "floating numbers.*int64"),
        (lambda: linear(log_decay=torch.zeros(2).to("meta")), "log_decay on the device of q.*meta"),
        (lambda: linear(reset=torch.zeros(2, 5).bool()), r"reset: a boolean tensor.*\(2, 6\).*\(2, 5\)"),
        (lambda: linear(valid=torch.zeros(2, 6)), "valid: a boolean tensor.*float32.*attention_mask"),
        (lambda: linear(valid=[True]), "valid"),
        (lambda: linear(valid=torch.zeros(2, 6, device="meta").bool()), "valid on the device of q"),
        (lambda: linear(state=3), "a LinearState.*int"),
        (lambda: linear(state=delta().state), "a LinearState.*DeltaState"),
        (lambda: linear(state=state(2, 2, 5, 4)), r"\(2, 2, 5, 3\).*\(2, 2, 5, 4\)"),
        (lambda: linear(state=state(1, 2, 5, 3)), r"select\(rows\)"),
        (lambda: linear(state=state(2, 2, 5, 3, dtype=torch.float64)), "float32.*float64"),
        (lambda: linear(state=state(2, 2, 5, 3)), "normalise=True.*mass is None"),
        (lambda: linear(state=linear().state, normalise=False), "normalise=False.*mass is there"),
        (lambda: linear(state=state(2, 2, 5, 3, mass=torch.zeros(2, 2, 4))), r"mass is \(2, 2, 5\)"),
        (lambda: linear(state=LinearState(memory=torch.full((2, 2, 5, 3), NAN))), "a state of numbers.*NaN"),
        (lambda: delta(beta=0.5), "beta as a tensor"),
        (lambda: delta(beta=torch.rand(2, 4)), r"\(2, 4, 6\) or \(2, 2, 6\).*shape \(2, 4\)"),
        (lambda: delta(beta=BETA - 1), "beta from 0.*sigmoid"),
        (lambda: delta(beta=BETA + 1.5), "beta from 0.*negative eigenvalues"),
        (lambda: delta(beta=BETA * NAN), "NaN in 48 of 48"),
        (lambda: delta(beta=torch.ones(2, 4, 6).long()), "beta as floating"),
        (lambda: delta(log_decay=torch.ones(4)), "at most 0"),
        (lambda: delta(state=linear().state), "a DeltaState.*LinearState"),
        (lambda: delta(state=state(2, 2, 5, 3, kind=DeltaState)), r"\(2, 4, 5, 3\).*\(2, 2, 5, 3\)"),
        (lambda: delta(valid=torch.zeros(2, 7).bool()), "valid"),
        (lambda: linear().state.select([2]), r"batch of 2.*\[2\]"),
        (lambda: linear().state.select([]), "at least one"),
        (lambda: linear().state.select("a"), "at least one"),
        (lambda: delta().state.select([0.5]), "at least one"),
    ],
)
@pytest.mark.usefixtures("unhooked")
def test_what_does_not_fit_is_refused(use, told):
    with pytest.raises(MultiheadError, match=f"(?s){told}"):
        use()


@pytest.mark.parametrize("length", [0, 1])
def test_few_tokens_are_no_special_case(length):
    made = linear(q=Q[:, :, :length], k=K[:, :, :length], v=V[:, :, :length])
    assert made.out.shape == (2, 4, length, 3)
    assert made.state.memory.shape == (2, 2, 5, 3)
    made = delta_rule(Q[:, :, :length], K[:, :, :length], V[:, :, :length], BETA[:, :, :length])
    assert made.out.shape == (2, 4, length, 3)


def test_nothing_of_the_callers_is_changed():
    given = [x.clone() for x in (Q, K, V, BETA)]
    before = linear().state
    memory = before.memory.clone()
    valid, reset = torch.rand(2, 6) < 0.5, torch.rand(2, 6) < 0.5
    linear(state=before, valid=valid, reset=reset, log_decay=-torch.rand(2, 2, 6))
    delta(valid=valid, reset=reset)
    linear(q=Q[:, :, :1], k=K[:, :, :1], v=V[:, :, :1], state=before)
    assert all(torch.equal(a, b) for a, b in zip(given, (Q, K, V, BETA), strict=True))
    assert torch.equal(before.memory, memory)


def test_features_of_no_width_are_refused(unhooked):
    for wrong in (None, 0, -1, True, 1.5, "64", [64]):
        with pytest.raises(MultiheadError, match="whole number of at least 1"):
            Favor().draw(wrong)
    for wrong in (1, "x", torch.ones(1)):
        with pytest.raises(MultiheadError, match="generator"):
            Favor().draw(8, generator=wrong)


def test_nan_is_called_nan():
    q, log_decay, beta = torch.rand(1, 2, 3, 4), torch.full((1, 2, 3), torch.nan), torch.full((1, 2, 3), torch.nan)
    with pytest.raises(MultiheadError, match="NaN in 6 of 6 places of log_decay"):
        linear_attention(q, q, q, log_decay=log_decay)
    with pytest.raises(MultiheadError, match="NaN in 6 of 6 places of beta"):
        delta_rule(q, q, q, beta)


def test_shapes_are_told_on_meta():
    q = torch.rand(1, 2, 3, 4, device="meta")
    assert linear_attention(q, q, q).out.shape == q.shape
    assert delta_rule(q, q, q, q[..., 0]).out.shape == q.shape
